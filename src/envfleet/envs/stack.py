"""FrameStack: an env whose observations are its last few ones, joined along an axis."""

from __future__ import annotations

from collections import deque
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

from envfleet.envs.frames import LazyFrames


class FrameStack(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """The last ``num_stack`` observations as one, the oldest first, joined along ``axis``.

    After ``reset`` all of them are the first observation. Each observation of the env is copied
    once, so an env may reuse its array; the copies are read-only, because stacks share them.

    Args:
        env: an env with Box observations.
        num_stack: how many.
        axis: along which they are joined, an axis that they have: (84, 84, 1) becomes (84, 84, 4).
        lazy: return ``LazyFrames``; False: arrays, which belong to the caller.

    Raises:
        TypeError: the observations are no Box.
        ValueError: ``num_stack`` is below 1, or the observations do not have the axis.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        num_stack: int = 4,
        axis: int = -1,
        *,
        lazy: bool = True,
    ) -> None:
        RecordConstructorArgs.__init__(self, num_stack=num_stack, axis=axis, lazy=lazy)
        gymnasium.Wrapper.__init__(self, env)
        space = env.observation_space
        if not isinstance(space, spaces.Box):
            raise TypeError(f"FrameStack needs Box observations, got {space}")
        if num_stack < 1:
            raise ValueError(f"num_stack must be 1 or more, got {num_stack}")
        if not -len(space.shape) <= axis < len(space.shape):
            raise ValueError(f"axis {axis} is not one of observations of shape {space.shape}")
        self.observation_space = spaces.Box(
            np.concatenate([space.low] * num_stack, axis),
            np.concatenate([space.high] * num_stack, axis),
            dtype=space.dtype.type,
        )
        self._dtype, self._axis, self._lazy = space.dtype, axis, lazy
        self._frames: deque[NDArray[Any]] = deque(maxlen=num_stack)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """The first observation, ``num_stack`` times."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._frames.extend([self._kept(observation)] * (self._frames.maxlen or 1))
        return self._stacked(), info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """The env's step, with its observation as the last of the stack."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._frames.append(self._kept(observation))
        return self._stacked(), reward, terminated, truncated, info

    def _kept(self, observation: Any) -> NDArray[Any]:
        frame = np.array(observation, dtype=self._dtype)
        frame.flags.writeable = False
        return frame

    def _stacked(self) -> Any:
        if self._lazy:
            return LazyFrames(self._frames, self._axis)
        return np.concatenate(self._frames, axis=self._axis)
