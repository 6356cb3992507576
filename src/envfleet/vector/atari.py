"""make_atari: Atari games as published, by ALE's own engine where that can do it."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode

from envfleet.vector.fleet import Fleet
from envfleet.vector.make import make
from envfleet.vector.native.atari import NAME, is_atari
from envfleet.vector.native.engine import NativeVectorEnv
from envfleet.vector.registry import check_backend


def make_atari(
    env_id: str,
    num_envs: int = 1,
    *,
    backend: str = "auto",
    obs_type: str = "grayscale",
    frame_skip: int | tuple[int, int] = 4,
    num_stack: int = 4,
    image_size: tuple[int, int] | None = (84, 84),
    noop_max: int = 30,
    episodic_life: bool = True,
    fire_reset: bool = True,
    clip_reward: bool = True,
    max_pool: bool = True,
    repeat_action_probability: float | None = None,
    render_mode: str | None = None,
    autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    workers: int | None = None,
    isolate: bool = False,
    **options: Any,
) -> Fleet[Any, Any] | NativeVectorEnv:
    """Build a fleet that plays an Atari game, with frames prepared as in the published baselines.

    Observations are (num_stack, height, width), or (3·num_stack, height, width) with
    ``obs_type="rgb"``, the oldest frame first. The defaults are those of
    ``envfleet.envs.AtariEnv``, which tells what the arguments mean.

    Args:
        env_id: such as "ALE/Breakout-v5" or "BreakoutNoFrameskip-v4"; ale-py need not be imported.
        num_envs: how many.
        backend: "native" is ALE's own engine in C++; "process" and "serial" run ``AtariEnv``.
            "auto" takes the native one where it can do what is asked for, else "process"; ``plan``
            says why. ``docs/native.md`` lists where the two differ; what ALE's engine cannot do is
            the baselines' ``episodic_life``: it begins a new game at every lost life.
        obs_type: "grayscale" or "rgb"; or "ram", which only ``AtariEnv`` has.
        frame_skip: frames per step; a range to draw from only with ``AtariEnv``.
        num_stack: how many frames an observation has.
        image_size: (height, width); None leaves frames as they are.
        noop_max: at most so many no-ops begin a game.
        episodic_life: whether a lost life ends an episode.
        fire_reset: whether FIRE is pressed at the start, in games that have it.
        clip_reward: whether rewards are -1, 0 or 1.
        max_pool: whether a frame is the maximum of the last two.
        repeat_action_probability: of sticky actions; None is what the id says.
        render_mode: only ``AtariEnv`` renders.
        autoreset_mode: what happens when an episode ends.
        workers: how many processes, or threads of the native engine.
        isolate: never run an env in this process, as in ``make``.
        **options: of ``ProcessVectorEnv``, by name.

    Raises:
        ValueError: an unknown game or backend, or a value that the engine cannot honour.
        TypeError: an option that the engine does not have.
        gymnasium.error.DependencyNotInstalled: ale-py or OpenCV is missing.
    """
    from envfleet.envs import AtariEnv  # noqa: PLC0415 - who plays no Atari imports none of it
    from envfleet.envs.atari_options import check_options, find_game  # noqa: PLC0415

    check_backend(backend)
    check_options(
        render_mode=render_mode,
        obs_type=obs_type,
        frame_skip=frame_skip,
        num_stack=num_stack,
        image_size=image_size,
        noop_max=noop_max,
        repeat_action_probability=repeat_action_probability,
    )
    spec = find_game(env_id)
    words: dict[str, Any] = {
        "obs_type": obs_type,
        "frame_skip": frame_skip,
        "num_stack": num_stack,
        "image_size": image_size,
        "noop_max": noop_max,
        "fire_reset": fire_reset,
        "clip_reward": clip_reward,
        "max_pool": max_pool,
        "repeat_action_probability": repeat_action_probability,
    }
    fleet = {"autoreset_mode": autoreset_mode, "workers": workers, "isolate": isolate, **options}
    asked = {**words, **fleet, "episodic_life": episodic_life, "render_mode": render_mode}
    obstacle = _obstacle(spec, asked, set(options))
    if backend == "native" and obstacle:
        raise ValueError(
            f"{NAME} cannot do {obstacle}. Take backend='auto' or 'process', which run AtariEnv."
        )
    if backend == "native" or (backend == "auto" and not obstacle):
        native = make(spec, num_envs, backend="native", episodic_life=False, **words, **fleet)
        if backend == "auto":
            native.reason = "it can do what is asked for"
        return native
    build = partial(
        AtariEnv,
        env_id,
        render_mode=render_mode,
        episodic_life=episodic_life,
        channels_first=True,
        **words,
    )
    envs: Fleet[Any, Any] = make(
        build, num_envs, backend="process" if backend == "auto" else backend, **fleet
    )
    if backend == "auto":
        envs.reason = f"{NAME} cannot do {obstacle}"
    return envs


def _obstacle(spec: EnvSpec, asked: dict[str, Any], options: set[str]) -> str:
    """What of a request ALE's engine cannot do, with the reason; empty if it can do all of it."""
    if not is_atari(spec):
        return f"{spec.id}: it plays ALE/<game>-v5 and <game>NoFrameskip-v4"
    if asked["episodic_life"]:
        return "episodic_life=True as the baselines: it begins a new game at every lost life"
    if isinstance(asked["frame_skip"], (tuple, list)):
        return f"frame_skip={asked['frame_skip']}: it cannot draw it from a range"
    if asked["obs_type"] == "ram":
        return "obs_type='ram': it shows frames"
    if asked["render_mode"] is not None:
        return f"render_mode={asked['render_mode']!r}: it does not render"
    if AutoresetMode(asked["autoreset_mode"]) == AutoresetMode.DISABLED:
        return "autoreset_mode='Disabled': it always resets envs that ended"
    if asked["isolate"]:
        return "isolate=True: it runs in this process"
    if isinstance(asked["workers"], int) and asked["workers"] > (os.cpu_count() or 1):
        return f"workers={asked['workers']}: it has at most a thread per core"
    if options:
        return f"{', '.join(sorted(options))}: it has no workers"
    return ""
