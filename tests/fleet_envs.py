"""Environments for the tests: deterministic from their seed, telling what they receive."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray


class Pair:
    """Something that is not a number, an array or a dict."""

    def __init__(self, left: int, right: int) -> None:
        self.left, self.right = left, right

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pair) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # what Python makes of it beside __eq__

    def __repr__(self) -> str:
        return f"Pair({self.left}, {self.right})"


class CustomSpace(gym.Space[Pair]):
    """A space Gymnasium knows nothing about."""

    def sample(self, mask: Any = None, probability: Any = None) -> Pair:
        return Pair(int(self.np_random.integers(100)), int(self.np_random.integers(100)))

    def contains(self, x: object) -> bool:
        return isinstance(x, Pair)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CustomSpace)

    __hash__ = None  # type: ignore[assignment]  # what Python makes of it beside __eq__


def go_to_the_door(color: str) -> str:
    return f"go to the {color} door"


class MissionSpace(gym.Space[str]):
    """Strings, as MiniGrid's space of that name: a function, no shape, dtype ``str``."""

    def __init__(self, mission: Callable[[str], str] = go_to_the_door) -> None:
        self.mission = mission
        super().__init__(dtype=str)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return self.mission(("red", "green", "blue")[int(self.np_random.integers(3))])

    def contains(self, x: object) -> bool:
        return isinstance(x, str)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MissionSpace) and self.mission("") == other.mission("")

    __hash__ = None  # type: ignore[assignment]  # what Python makes of it beside __eq__


class IncomparableSpace(MissionSpace):
    """The same without an equality of its own."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]  # the base class has none


class CounterEnv(gym.Env):
    """Observes how often it was reset and stepped; arguments switch everything else on."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}  # noqa: RUF012
    observation_space = spaces.Box(0, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(
        self,
        length: int = 10**9,
        sleep: float = 0.0,
        fail_at: int | None = None,
        error: BaseException | None = None,
        render_mode: str | None = "rgb_array",
        tag: Any = "unset",
    ) -> None:
        self.length, self.sleep, self.tag = length, sleep, tag
        self.fail_at, self.error = fail_at, error
        self.render_mode = render_mode
        self.resets = self.steps = self.total_steps = 0
        self.last_action: Any = None
        self.last_options: dict[str, Any] | None = None
        self.closed = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self.resets += 1
        self.steps = 0
        self.last_options = options
        return self._observe(), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        if self.sleep:
            time.sleep(self.sleep)
        self.steps += 1
        self.total_steps += 1
        if self.last_action is None:
            self.last_action = action
        if self.fail_at is not None and self.total_steps == self.fail_at:
            raise self.error if self.error is not None else ValueError("planned")
        done = self.steps >= self.length
        return self._observe(), float(self.steps), done, False, {}

    def _observe(self) -> NDArray[np.float32]:
        return np.array([self.resets, self.steps], dtype=np.float32)

    def render(self) -> NDArray[np.uint8]:
        return np.full((4, 5, 3), self.steps, dtype=np.uint8)

    def pid(self) -> int:
        return os.getpid()

    def first_action(self) -> Any:
        return self.last_action

    def options(self) -> dict[str, Any] | None:
        return self.last_options

    def add(self, a: int, b: int = 0) -> int:
        return self.total_steps + a + b

    def boom(self) -> None:
        raise self.error if self.error is not None else RuntimeError("called")


class EchoEnv(CounterEnv):
    """Observes the action of the step too, -1 after a reset."""

    observation_space: Any = spaces.Box(-1, 2**31, (3,), np.float64)
    action_space: Any = spaces.Box(0, 2**31, (), np.float64)

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        observation, *rest = super().step(action)
        observation[2] = action
        return (observation, *rest)  # type: ignore[return-value]

    def _observe(self) -> NDArray[Any]:
        return np.array([self.resets, self.steps, -1.0])


class ReusedBufferEnv(gym.Env):
    """Returns the same array every time, changed in place; so does its info."""

    observation_space = spaces.Box(-1000, 1000, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 3) -> None:
        self._length = length
        self._buffer = np.zeros(3, dtype=np.float32)
        self._info: dict[str, Any] = {}
        self._episode = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        self._episode += 1
        self._buffer[:] = -self._episode
        self._info.clear()
        self._info["at"] = 0
        return self._buffer, self._info

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self._steps += 1
        self._buffer[:] = self._episode * 10 + self._steps
        self._info["at"] = self._steps
        return self._buffer, 1.0, self._steps >= self._length, False, self._info


class InfoEnv(gym.Env):
    """Answers every reset and step with a given info."""

    observation_space = spaces.Discrete(4)
    action_space = spaces.Discrete(2)

    def __init__(self, info: Any) -> None:
        self._info = info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, Any]:
        super().reset(seed=seed)
        return 1, self._info

    def step(self, action: Any) -> tuple[int, float, bool, bool, Any]:
        return 2, 0.5, False, False, self._info
