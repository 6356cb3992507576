"""Atari_Env: XuanCe's name, arguments and flags for ``envfleet.envs.AtariEnv``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gymnasium
from gymnasium.utils import EzPickle

from envfleet.adapters.xuance.envs import LazyFrames
from envfleet.envs.atari import AtariEnv


class Atari_Env(AtariEnv):  # noqa: N801 - XuanCe's name
    """An Atari game, preprocessed as ``AtariEnv`` does, with XuanCe's flags and ``LazyFrames``.

    A lost life is ``terminated`` alone; game over is ``truncated`` as well. At ALE's own limit of
    frames only ``truncated`` is set.

    Args:
        env_id: such as "ALE/Breakout-v5"; or, as in XuanCe 1.4, a configuration that has
            ``env_id``, ``env_seed``, ``render_mode``, ``obs_type``, ``frame_skip``, ``num_stack``,
            ``img_size`` and ``noop_max`` in the place of all arguments.
        seed: of the first ``reset`` and of the action space.
        render_mode: "rgb_array", "human" or None.
        obs_type: "grayscale", "rgb" or "ram".
        frame_skip: raw frames per step.
        num_stack: how many frames an observation has.
        image_size: (height, width); None is the console's, 210 x 160.
        noop_max: the most no-ops at the beginning of a game.

    Raises:
        ValueError: as ``AtariEnv``; and a configuration that asks for ``full_action_space``.
    """

    reward_range = (-math.inf, math.inf)

    def __init__(
        self,
        env_id: Any,
        seed: int | None = None,
        render_mode: str | None = "rgb_array",
        obs_type: Any = "grayscale",
        frame_skip: Any = 4,
        num_stack: int = 4,
        image_size: Sequence[int] | None = None,
        noop_max: int = 30,
    ) -> None:
        if not isinstance(env_id, str):
            config = env_id
            if getattr(config, "full_action_space", False):
                raise ValueError("full_action_space is not there: games have their own actions")
            env_id, seed, render_mode = config.env_id, config.env_seed, config.render_mode
            obs_type, frame_skip, num_stack = config.obs_type, config.frame_skip, config.num_stack
            image_size, noop_max = getattr(config, "img_size", None), config.noop_max
        size: Any = image_size if image_size is None else tuple(image_size)
        skip = tuple(frame_skip) if isinstance(frame_skip, list) else frame_skip
        asked = (env_id, seed, render_mode, obs_type, skip, num_stack, size, noop_max)
        super().__init__(*asked)
        EzPickle.__init__(self, *asked)
        self._join = LazyFrames
        self.obs_type, self.num_stack, self.noop_max = obs_type, num_stack, noop_max
        self.grayscale, self.rgb = obs_type == "grayscale", obs_type == "rgb"
        self.image_size = [210, 160] if size is None else list(size)

    @property
    def frames(self) -> Any:
        """The frames of the stack, read-only arrays; the oldest first."""
        return self._frames

    @property
    def lifes(self) -> int:
        """The lives that are left."""
        return self.ale.lives()  # type: ignore[no-any-return]

    @property
    def was_real_done(self) -> bool:
        """Whether the next ``reset`` begins a game."""
        return self._state in ("new", "over")

    @property
    def _episode_step(self) -> int:
        return self._steps

    @property
    def _episode_score(self) -> float:
        return self._score

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """``AtariEnv``'s step with XuanCe's flags."""
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated or self.was_real_done, info

    def render(self, render_mode: str | None = None) -> Any:  # noqa: ARG002 - chosen at the start
        """The console's screen in the mode that the env was built with."""
        return super().render()

    def _get_obs(self) -> LazyFrames:
        """The current observation; a game must have begun."""
        return LazyFrames(self._frames)


class GameOverIsTruncated(gymnasium.Wrapper[Any, Any, Any, Any]):
    """XuanCe's flags around an env whose ``unwrapped`` is an ``AtariEnv`` with Gymnasium's."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """The env's step; a game that is over is truncated, a lost life is not."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        # Not by info["episode"]: wrappers of Gymnasium tell of lost lives in the same words.
        is_over = terminated and bool(self.unwrapped.ale.game_over())  # type: ignore[attr-defined]
        return observation, reward, terminated, truncated or is_over, info
