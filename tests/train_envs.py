"""Small envs and configurations that the tests of training share."""

from __future__ import annotations

import faulthandler
import os
import random
from collections.abc import Callable
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.training.callbacks import Callback
from envfleet.training.config import TrainConfig
from envfleet.training.trainer import Run

torch.set_num_threads(1)  # else every later fork is warned of

QUICK = {
    "cartpole": TrainConfig(
        env_id="CartPole-v1",
        num_envs=4,
        rollout_steps=32,
        batch_size=64,
        epochs=2,
        total_steps=6000,
    ),
    "pendulum": TrainConfig(
        env_id="Pendulum-v1",
        num_envs=4,
        rollout_steps=32,
        batch_size=64,
        epochs=2,
        total_steps=6000,
        normalize_observations=True,
        normalize_rewards=True,
    ),
}


class OnUpdate(Callback):
    """Calls a function after every update."""

    def __init__(self, function: Callable[[Run, dict[str, float]], bool | None]) -> None:
        self._function = function

    def on_update(self, run: Run, metrics: dict[str, float]) -> bool | None:
        return self._function(run, metrics)


class Sampler(gym.Env):
    """Shows samples of a space."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.observation_space: spaces.Space[Any] = space
        self.action_space: spaces.Space[Any] = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 1.0, self.np_random.random() < 0.1, False, {}


def integers() -> Sampler:
    env = Sampler(spaces.Box(0, 1, (2,)))
    env.action_space = spaces.Box(0, 9, (2,), np.int64)
    return env


class Failing(gym.Env):
    """Raises in its 300th step."""

    observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)
    steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, dtype=np.float32), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps == 300:
            raise ArithmeticError("too many steps")
        return np.zeros(2, dtype=np.float32), 1.0, self.steps % 10 == 0, False, {}


class NoReward(Failing):
    """Its 300th reward is none."""

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        try:
            return super().step(action)
        except ArithmeticError:
            return np.zeros(2, dtype=np.float32), np.nan, False, False, {}


def bits() -> Sampler:
    env = Sampler(spaces.Box(0, 1, (2,)))
    env.action_space = spaces.MultiBinary(2)
    return env


def unseen(render_mode: str | None = None) -> Sampler:
    return Sampler(spaces.Box(0, 1, (2,)))


class Crashing(Failing):
    """Ends its process when it is looked at, as MuJoCo may without a display."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def render(self) -> NoReturn:
        faulthandler.disable()  # pytest's, which would tell of it at length
        os.abort()


class Unseeable(Crashing):
    """Needs a library to be looked at."""

    def render(self) -> NoReturn:
        raise gym.error.DependencyNotInstalled("pygame is not installed, run `pip install more`")


class Global(gym.Env):
    """Draws from the generators that all of a process shares, as careless envs do."""

    observation_space, action_space = spaces.Box(-9, 9, (2,)), spaces.Discrete(2)

    def _observe(self) -> NDArray[np.float32]:
        return np.array([random.random(), np.random.normal()], np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        return self._observe(), random.random(), random.random() < 0.1, False, {}
