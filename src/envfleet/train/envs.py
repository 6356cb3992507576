"""The envs of a run: found by id or module:callable, with Gymnasium's own wrappers for Atari."""

from __future__ import annotations

import contextlib
import difflib
import importlib
from collections.abc import Callable
from functools import partial
from typing import Any, SupportsFloat, cast

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import (
    AtariPreprocessing,
    FrameStackObservation,
    RecordEpisodeStatistics,
    TransformReward,
)

from envfleet.vector.make import make


def _sign(reward: SupportsFloat) -> float:
    return float(np.sign(float(reward)))


ATARI_WRAPPERS: tuple[Callable[..., gymnasium.Env[Any, Any]], ...] = (
    AtariPreprocessing,
    RecordEpisodeStatistics,  # here, so that reported returns are the game's
    partial(TransformReward, func=_sign),
    partial(FrameStackObservation, stack_size=4),
)
"""Up to 30 idle frames, 4 frames per step, 84x84 grey, signs of rewards, 4 observations stacked."""


class UnknownEnvError(ValueError):
    """There is no such env; says which ones are like it."""


def find_env(env_id: str) -> EnvSpec | Callable[..., gymnasium.Env[Any, Any]]:
    """What builds an env: a module's callable, or the spec of an id that Gymnasium knows.

    Raises:
        UnknownEnvError: neither is there.
    """
    module, _, name = env_id.partition(":")
    if name:
        try:
            found: Any = getattr(importlib.import_module(module), name, None)
        except Exception as error:  # a module may do anything when it is imported
            raise UnknownEnvError(
                f"{env_id}: importing {module} failed with {type(error).__name__}: {error}"
            ) from error
        if callable(found):
            return cast("Callable[..., gymnasium.Env[Any, Any]]", found)
    elif env_id not in gymnasium.registry:
        with contextlib.suppress(ImportError):
            importlib.import_module("ale_py")  # registers its envs
    try:
        return gymnasium.spec(name or env_id)
    except gymnasium.error.Error as error:
        near = difflib.get_close_matches(env_id, list(gymnasium.registry), n=3)
        hint = f" Did you mean {', '.join(near)}?" if near else ""
        if env_id.startswith("ALE/") and not near:
            hint = " Atari needs: pip install 'envfleet[atari]'"
        what = str(error).partition(" Did you mean")[0]  # Gymnasium's has no versions
        raise UnknownEnvError(what + hint) from error


def is_atari(env: object) -> bool:
    """Whether it is an Atari game that is seen on a screen."""
    if not isinstance(env, EnvSpec) or not str(env.entry_point).startswith("ale_py."):
        return False
    return env.kwargs.get("obs_type") != "ram"


def kind_of(env_id: str) -> dict[str, bool]:
    """What ``preset`` asks about an env: whether its actions are continuous, and if it is seen."""
    with build_fleet(env_id, 1, backend="serial", on_failure="raise") as envs:
        return {
            "continuous": isinstance(envs.single_action_space, gymnasium.spaces.Box),
            "image": len(envs.single_observation_space.shape or ()) == 3,
        }


def build_fleet(
    env_id: str, num_envs: int, *, backend: str, on_failure: str, films: bool = False
) -> Any:
    """A fleet to train or evaluate in; frames are rendered if there are to be ``films``."""
    env = find_env(env_id)
    restart = on_failure == "restart"
    extra: Any = {"render_mode": "rgb_array"} if films else {}
    if is_atari(env):
        extra["frameskip"] = 1  # the wrappers skip
    return make(
        env,
        num_envs,
        backend=backend,
        autoreset_mode="SameStep",
        isolate=restart,
        wrappers=ATARI_WRAPPERS if is_atari(env) else (),
        # A crash loop is more than one a second.
        vector_kwargs={"on_failure": "restart", "restarts": (60, 60.0)} if restart else None,
        **extra,
    )


def one_filmed(env_id: str) -> Any:
    """One env that renders, in a process of its own."""
    return build_fleet(env_id, 1, backend="process", on_failure="raise", films=True)
