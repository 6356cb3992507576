"""What is benchmarked: an env by its id or as module:callable, and a few works of our own."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

from envfleet.envs import AtariEnv
from envfleet.training.envs import find_env
from envfleet.vector.make import make
from envfleet.vector.native.building import native_of
from envfleet.vector.native.engine import NativeVectorEnv


class FrameEnv(gymnasium.Env[NDArray[np.uint8], np.int64]):
    """Returns a 210 x 160 x 3 frame per step and does nothing else."""

    observation_space = spaces.Box(0, 255, (210, 160, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self._frame = np.zeros((210, 160, 3), dtype=np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """A frame."""
        super().reset(seed=seed, options=options)
        return self._frame, {}

    def step(self, action: np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """The same frame."""
        return self._frame, float(action), False, False, {}


class SleepEnv(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Sleeps 5 ms per step, as an env that talks to a simulator would."""

    observation_space = spaces.Box(-1, 1, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Zeros."""
        super().reset(seed=seed, options=options)
        return np.zeros(4, dtype=np.float32), {}

    def step(
        self, action: np.int64
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Sleep."""
        time.sleep(0.005)
        return np.zeros(4, dtype=np.float32), float(action), False, False, {}


def breakout() -> gymnasium.Env[Any, Any]:
    """Breakout: 84 x 84, four frames stacked; the very game of ``gymnasium_breakout``."""
    return AtariEnv(
        "ALE/Breakout-v5",
        channels_first=True,
        episodic_life=False,
        fire_reset=False,
        clip_reward=False,
    )


def gymnasium_breakout() -> gymnasium.Env[Any, Any]:
    """Breakout with Gymnasium's own preprocessing: 84 x 84, four frames stacked."""
    import ale_py  # noqa: PLC0415 - an extra

    gymnasium.register_envs(ale_py)
    env = gymnasium.make("ALE/Breakout-v5", frameskip=1)
    env = gymnasium.wrappers.AtariPreprocessing(env)
    return gymnasium.wrappers.FrameStackObservation(env, 4)


_BREAKOUTS = (breakout, gymnasium_breakout)
"""The same game, which ALE's own engine plays too."""

WORKS: dict[str, Callable[[], gymnasium.Env[Any, Any]]] = {
    "Frame-210x160x3": FrameEnv,
    "Sleep-5ms": SleepEnv,
    "Breakout-84x84x4": breakout,
    "Breakout-84x84x4-gymnasium": gymnasium_breakout,
}


def has_native(work: str) -> bool:
    """Whether a work has a native implementation."""
    if work in WORKS:
        return WORKS[work] in _BREAKOUTS
    found = find_env(work)
    return isinstance(found, EnvSpec) and bool(native_of(found))


def native_fleet(build: Callable[[], gymnasium.Env[Any, Any]], num_envs: int) -> NativeVectorEnv:
    """The native implementation of the work that ``factory`` has returned this function for.

    Raises:
        ValueError: there is none.
    """
    if build in _BREAKOUTS:
        import ale_py  # noqa: PLC0415 - an extra

        gymnasium.register_envs(ale_py)
        # Gymnasium's preprocessing neither fires nor clips.
        return make(
            "ALE/Breakout-v5", num_envs, backend="native", fire_reset=False, clip_reward=False
        )
    if not isinstance(build, partial) or build.func is not gymnasium.make:
        raise ValueError("this work has no native implementation")
    return make(str(build.args[0]), num_envs, backend="native")


def factory(work: str) -> Callable[[], gymnasium.Env[Any, Any]]:
    """A function that builds one env of a work: one of ``WORKS``, an id, or a module's callable.

    Raises:
        UnknownEnvError: it is none of these.
    """
    if work in WORKS:
        return WORKS[work]
    found = find_env(work)
    return partial(gymnasium.make, work) if isinstance(found, EnvSpec) else found


def subject(work: str) -> str | Callable[[], gymnasium.Env[Any, Any]]:
    """A work as ``make`` takes it: an id where it has one, so that more is known of it."""
    built = factory(work)
    is_id = isinstance(built, partial) and built.func is gymnasium.make
    return work if is_id else built
