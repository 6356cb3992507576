"""Environments for the tests of SB3VecEnv: they tell what they were given, and mask actions."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

VECTOR = spaces.Box(-100, 100, (2,), np.float32)


class Teller(gym.Env[Any, Any]):
    """Tells what it was given; its infos have odd keys, and an array that it goes on writing to.

    Episodes of ``length`` steps end by termination, truncation and both, in turn.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}  # noqa: RUF012

    def __init__(
        self,
        length: int = 3,
        observations: gym.Space[Any] = VECTOR,
        actions: gym.Space[Any] | None = None,
        render_mode: str | None = "rgb_array",
        name: str = "teller",
    ) -> None:
        self.observation_space = deepcopy(observations)  # each draws its own numbers
        self.action_space = actions if actions is not None else spaces.Discrete(5)
        self.length, self.render_mode, self.name = length, render_mode, name
        self.episodes = self.steps = self.mask_calls = 0
        self.shared = np.zeros(2)
        self.given: list[Any] = []
        self.unpicklable = lambda: 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.episodes += 1
        self.steps = 0
        told = {"seed": seed, "options": options, "episode_number": self.episodes}
        return self.observation_space.sample(), {**told, "shared": self.shared.copy()}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.given.append(action)
        self.steps += 1
        self.shared += 1
        info: dict[Any, Any] = {
            "a": self.steps,
            "_a": [self.steps],
            3: "three",
            "shared": self.shared,
        }
        if self.steps % 2:
            info["odd"] = np.float32(0.1)
        ends = self.steps >= self.length
        terminated, truncated = ends and self.episodes % 3 != 2, ends and self.episodes % 3 != 1
        return self.observation_space.sample(), 0.1 * self.steps, terminated, truncated, info

    def render(self) -> Any:
        return np.full((4, 6, 3), self.steps, dtype=np.uint8)

    def add(self, number: int, more: int = 0) -> int:
        self.steps += number
        return self.steps + more

    def action_masks(self) -> Any:
        """The action that is the number of steps is forbidden."""
        self.mask_calls += 1
        mask = np.ones(5, dtype=np.bool_)
        mask[self.steps % 5] = False
        return mask


class Masked(gym.Env[Any, Any]):
    """Rewards the one allowed action that is shown; taking one that is masked is an error."""

    observation_space = spaces.Box(0, 1, (4,), np.float32)
    action_space = spaces.Discrete(4)
    render_mode = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = self.mask_calls = 0
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.mask[action]:
            raise ValueError(f"action {action} is masked")
        reward = float(self.shown[action])
        self.steps += 1
        return self._draw(), reward, self.steps >= 7, False, {}

    def _draw(self) -> Any:
        self.mask = self.np_random.random(4) < 0.5
        self.mask[self.np_random.integers(4)] = True
        self.shown = self.np_random.random(4, dtype=np.float32)
        return self.shown

    def action_masks(self) -> Any:
        return self.mask


class Strict(gym.Env[Any, Any]):
    """Has a reset without options, as old envs do."""

    observation_space = VECTOR
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:  # type: ignore[override]
        super().reset(seed=seed)
        return self.np_random.random(2, dtype=np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.np_random.random(2, dtype=np.float32), 1.0, bool(action), False, {}
