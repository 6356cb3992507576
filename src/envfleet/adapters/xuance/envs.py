"""XuanCe's single envs: Gym_Env, MountainCar, and the LazyFrames that they return."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.envs.episodes import EpisodeInfo
from envfleet.envs.frames import LazyFrames as SharedFrames


class LazyFrames(SharedFrames):
    """``envfleet.envs.LazyFrames`` joined along the last axis, which ``[]`` and ``iter`` count.

    ``lazy[i]`` is ``np.asarray(lazy)[..., i]``: of single-channel frames, frame ``i``. ``len`` is
    that of the joined array. Unlike XuanCe's, nothing that is joined is kept.
    """

    __slots__ = ()

    def __init__(self, frames: Any) -> None:
        super().__init__([np.asarray(frame) for frame in frames], axis=-1)

    def _force(self) -> NDArray[Any]:
        """The joined array, a new one each time."""
        return self.__array__()

    def __getitem__(self, key: Any) -> Any:
        return self._force()[..., key]

    def __iter__(self) -> Iterator[Any]:
        return iter(np.moveaxis(self._force(), -1, 0))

    def __reduce__(self) -> tuple[Any, ...]:
        return LazyFrames, (self._frames,)


class Gym_Env(EpisodeInfo):  # noqa: N801 - XuanCe's name
    """``gymnasium.make`` with ``episode_step`` and ``episode_score`` in every info.

    As in XuanCe the constructor resets the env with the seed, so that the first ``reset()`` is its
    second reset and draws on. ``reset`` takes no seed, unless one is given by keyword.

    Args:
        env_id: a registered id; or, as in XuanCe 1.4, a configuration that has ``env_id``,
            ``env_seed`` and ``render_mode`` in the place of all three.
        seed: of the env and of its action space.
        render_mode: see ``gymnasium.make``.
        **kwargs: the env's own arguments.
    """

    def __init__(
        self, env_id: Any, seed: int | None = None, render_mode: str | None = None, **kwargs: Any
    ) -> None:
        if not isinstance(env_id, str):
            config, env_id = env_id, env_id.env_id
            seed, render_mode = config.env_seed, config.render_mode
            if env_id == "CarRacing-v3":
                kwargs.setdefault("continuous", False)
        env = gymnasium.make(env_id, render_mode=render_mode, **kwargs)
        super().__init__(env)
        env.action_space.seed(seed)
        env.reset(seed=seed)
        self.reward_range: tuple[float, float] = getattr(
            env.unwrapped, "reward_range", (-math.inf, math.inf)
        )
        """What the env says of its rewards; Gymnasium no longer asks it to."""

    @property
    def _episode_step(self) -> int:
        return self._step

    @property
    def _episode_score(self) -> float:
        return self._score

    def render(self, mode: str | None = None) -> Any:  # noqa: ARG002 - it was chosen at the start
        """What the env renders in the mode that it was built with."""
        return self.env.render()


class MountainCar(Gym_Env):
    """An env that sees its last four observations, joined: MountainCar, or any other with a Box.

    Observations are ``LazyFrames``, the oldest first; after ``reset`` all four are the first. The
    bounds are the env's own, four times: for MountainCar those that XuanCe has.

    Raises:
        TypeError: the env's observations are no Box with an axis.
    """

    num_stack = 4

    def __init__(
        self, env_id: Any, seed: int | None = None, render_mode: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(env_id, seed, render_mode, **kwargs)
        space = self.env.observation_space
        if not isinstance(space, spaces.Box) or not space.shape:
            self.env.close()
            raise TypeError(f"MountainCar stacks Box observations that have an axis, got {space}")
        self.observation_space = spaces.Box(
            np.concatenate([space.low] * self.num_stack, -1),
            np.concatenate([space.high] * self.num_stack, -1),
            dtype=space.dtype.type,
        )
        self.frames: deque[NDArray[Any]] = deque(maxlen=self.num_stack)
        """The last observations, read-only: stacks share them."""
        self.pre_position: Any = 0.0
        """The first number of the latest observation: where the car is."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[LazyFrames, dict[str, Any]]:
        """The first observation, four times."""
        observation, info = super().reset(seed=seed, options=options)
        self.frames.clear()
        self.frames.extend([self._kept(observation)] * self.num_stack)
        return LazyFrames(self.frames), info

    def step(self, action: Any) -> tuple[LazyFrames, SupportsFloat, bool, bool, dict[str, Any]]:
        """The env's step, with its observation as the last of the four."""
        observation, reward, terminated, truncated, info = super().step(action)
        self.frames.append(self._kept(observation))
        return LazyFrames(self.frames), reward, terminated, truncated, info

    def _kept(self, observation: Any) -> NDArray[Any]:
        frame = np.array(observation)  # a copy: the env may reuse its array
        frame.flags.writeable = False
        self.pre_position = frame[0]
        return frame
