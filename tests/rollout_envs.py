"""Scripted episodes, agents by formula, and all engines: what the tests of rollouts share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

import envfleet
from envfleet.rollout.agent import Answer

# Once torch has started threads, every fork is warned of, here and in all tests that follow.
torch.set_num_threads(1)

MODES = list(AutoresetMode)

Script = Sequence[tuple[int, str]]
"""The lengths of episodes, and how they end; then from the start again."""


class ScriptedEnv(gym.Env):
    """Episodes of given lengths and kinds of ends; the observation says where one is."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, script: Script, index: int = 0, reuse_array: bool = False) -> None:
        self.script, self.index = script, index
        self.episode, self.t = -1, 0
        self.shared = np.zeros(3, dtype=np.float32) if reuse_array else None

    def _observe(self) -> NDArray[np.float32]:
        now = np.array([self.index, self.episode, self.t], dtype=np.float32)
        if self.shared is None:
            return now
        self.shared[:] = now
        return self.shared

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self.episode += 1
        self.t = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self.t += 1
        length, kind = self.script[self.episode % len(self.script)]
        over = self.t >= length
        reward = self.t + 10.0 * self.episode + 0.1 * float(action)
        terminated, truncated = over and "term" in kind, over and "trunc" in kind
        return self._observe(), reward, terminated, truncated, {}


class Valuer:
    """Values observations, and counts how often it was asked for that alone."""

    def __init__(self) -> None:
        self.value_calls = 0

    def get_values(self, observations: torch.Tensor) -> torch.Tensor:
        self.value_calls += 1
        return self._value(observations)

    def _value(self, observations: torch.Tensor) -> torch.Tensor:
        return observations @ torch.tensor([0.5, 0.25, 1.0])


class Formula(Valuer):
    """An agent whose answers depend on the observation alone."""

    def act(self, observations: torch.Tensor, deterministic: bool = False) -> Answer:
        actions = (observations.sum(1) % 2).long()
        return actions, -0.1 * observations.sum(1), self._value(observations)


class Chooser(Valuer):
    """The same, but asked for actions alone, in NumPy, and for the rest at the end."""

    def choose(self, observations: NDArray[np.float32]) -> NDArray[np.int64]:
        actions: NDArray[np.int64] = (observations.sum(1) % 2).astype(np.int64)
        return actions

    def get_actions_and_values(
        self, observations: torch.Tensor, actions: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        assert actions is not None
        assert torch.equal(actions, (observations.sum(1) % 2).long())
        return *Formula().act(observations), torch.zeros(len(observations))


class SeedAgent:
    """As the seeds': one method, entropy included."""

    device = torch.device("cpu")

    def get_actions_and_values(
        self, observations: torch.Tensor, actions: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        return *Formula().act(observations), torch.zeros(len(observations))


SCRIPTS: dict[str, Script] = {
    "terminated": [(3, "term"), (2, "term")],
    "truncated": [(3, "trunc")],
    "both": [(4, "term trunc"), (2, "trunc")],
    "one-step": [(1, "term"), (1, "trunc"), (2, "term trunc")],
    "never": [(10**9, "term")],
    "at-the-horizon": [(7, "trunc"), (7, "term")],
}
ENGINES: dict[str, Callable[..., VectorEnv]] = {
    "serial": envfleet.SerialVectorEnv,
    "process": partial(envfleet.ProcessVectorEnv, context="fork", workers=2),
    "caller": partial(envfleet.ProcessVectorEnv, context="fork", workers=2, caller_steps=True),
    "gymnasium": SyncVectorEnv,
}


def fleet(
    engine: str = "serial",
    script: Script = SCRIPTS["terminated"],
    count: int = 3,
    mode: AutoresetMode | str = "NextStep",
    **kwargs: Any,
) -> VectorEnv:
    fns = [partial(ScriptedEnv, script, index, **kwargs) for index in range(count)]
    return ENGINES[engine](fns, autoreset_mode=mode)


class WeightAgent(torch.nn.Module):
    """Acts by its weights and by torch's random numbers."""

    def __init__(self, noise: float = 1.0, *, discrete: bool = False) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(0.1))
        self._noise, self._discrete = noise, discrete

    @property
    def device(self) -> torch.device:
        return self.weight.device

    def learn(self) -> None:
        self.weight.data += 0.1

    def act(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        values = self.weight * observations.sum(dim=-1)
        if self._discrete:
            return torch.zeros(len(values), dtype=torch.int64), values, values
        noise = self._noise * torch.randn(len(values), 1)
        return self.weight * observations[:, :1] + noise, values, values
