"""Environments for the tests: deterministic from their seed, telling what they receive."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Pair:
    """Something that is not a number, an array or a dict."""

    def __init__(self, left: int, right: int):
        self.left, self.right = left, right

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pair) and vars(self) == vars(other)

    __hash__ = None

    def __repr__(self) -> str:
        return f"Pair({self.left}, {self.right})"


class CustomSpace(gym.Space):
    """A space Gymnasium knows nothing about."""

    def sample(self, mask=None, probability=None):
        return Pair(int(self.np_random.integers(100)), int(self.np_random.integers(100)))

    def contains(self, x):
        return isinstance(x, Pair)

    def __eq__(self, other):
        return isinstance(other, CustomSpace)

    __hash__ = None


def go_to_the_door(color: str) -> str:
    return f"go to the {color} door"


class MissionSpace(gym.Space):
    """Strings, as MiniGrid's space of that name: a function, no shape, dtype ``str``."""

    def __init__(self, mission=go_to_the_door):
        self.mission = mission
        super().__init__(dtype=str)

    def sample(self, mask=None, probability=None):
        return self.mission(("red", "green", "blue")[int(self.np_random.integers(3))])

    def contains(self, x):
        return isinstance(x, str)

    def __eq__(self, other):
        return isinstance(other, MissionSpace) and self.mission("") == other.mission("")

    __hash__ = None


class IncomparableSpace(MissionSpace):
    """The same without an equality of its own."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


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
    ):
        self.length, self.sleep, self.tag = length, sleep, tag
        self.fail_at, self.error = fail_at, error
        self.render_mode = render_mode
        self.resets = self.steps = self.total_steps = 0
        self.last_action = None
        self.last_options = None
        self.closed = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets += 1
        self.steps = 0
        self.last_options = options
        return self._observe(), {}

    def step(self, action):
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

    def _observe(self):
        return np.array([self.resets, self.steps], dtype=np.float32)

    def render(self):
        return np.full((4, 5, 3), self.steps, dtype=np.uint8)

    def pid(self):
        return os.getpid()

    def first_action(self):
        return self.last_action

    def options(self):
        return self.last_options

    def add(self, a, b=0):
        return self.total_steps + a + b

    def boom(self):
        raise self.error if self.error is not None else RuntimeError("called")


class ReusedBufferEnv(gym.Env):
    """Returns the same array every time, changed in place; so does its info."""

    observation_space = spaces.Box(-1000, 1000, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 3):
        self._length = length
        self._buffer = np.zeros(3, dtype=np.float32)
        self._info: dict[str, Any] = {}
        self._episode = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        self._episode += 1
        self._buffer[:] = -self._episode
        self._info.clear()
        self._info["at"] = 0
        return self._buffer, self._info

    def step(self, action):
        self._steps += 1
        self._buffer[:] = self._episode * 10 + self._steps
        self._info["at"] = self._steps
        return self._buffer, 1.0, self._steps >= self._length, False, self._info


class InfoEnv(gym.Env):
    """Answers every reset and step with a given info."""

    observation_space = spaces.Discrete(4)
    action_space = spaces.Discrete(2)

    def __init__(self, info: Any):
        self._info = info

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 1, self._info

    def step(self, action):
        return 2, 0.5, False, False, self._info
