"""Collectors with and without overlap, side by side: how much of the agent's time can be hidden.

python benchmarks/overlap.py [--rounds 9]

The agent is an ordinary one: two networks of two layers of 64, and a distribution object. In the
last two rows it is as slow as the envs, which wait in one of them and compute in the other; of
computing envs and an agent in another process, 2 cores allow 1.33 times at best. Of envs that wait,
k groups allow 2 / (1 + 1/k): 1.33 times for halves, 1.6 for quarters. Rollouts are of 64 steps;
collectors take turns, and ratios are medians of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

import envfleet

STEPS = 64


class Ordinary(nn.Module):
    """An actor and a critic."""

    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        self.actor, self.critic = (
            nn.Sequential(
                nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, n)
            )
            for n in (actions, 1)
        )

    def act(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Sampled actions, their log-probabilities, and values."""
        chances: Any = torch.distributions.Categorical(logits=self.actor(observations))
        actions = chances.sample()
        return actions, chances.log_prob(actions), self.critic(observations)[:, 0]


class Slow:
    """An agent that computes for so many seconds per env."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def act(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Zeros, in time."""
        count = len(observations)
        _compute(self.seconds * count)
        nothing = torch.zeros(count)
        return nothing.long(), nothing, nothing


class Env(gymnasium.Env[Any, Any]):
    """Waits, or computes, for so many seconds per step."""

    observation_space = spaces.Box(-1, 1, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, seconds: float, *, waits: bool) -> None:
        self.seconds, self.waits = seconds, waits

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002
        """Zeros."""
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:  # noqa: ARG002
        """Zeros, in time."""
        (time.sleep if self.waits else _compute)(self.seconds)
        return np.zeros(4, np.float32), 0.0, False, False, {}


def _compute(seconds: float) -> None:
    """Use a core for so much CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def ordinary(env_id: str) -> Ordinary:
    """The ordinary agent of an env."""
    env = gymnasium.make(env_id)
    torch.manual_seed(0)
    assert env.observation_space.shape is not None  # noqa: S101 - for the type checker
    return Ordinary(env.observation_space.shape[0], int(env.action_space.n))  # type: ignore[attr-defined]


def cells() -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Fleets, and their agents."""
    cartpole = partial(envfleet.make, "CartPole-v1", 64)
    waiting = partial(Env, 0.001, waits=True)
    computing = partial(Env, 0.0001, waits=False)
    process: Any = partial(envfleet.make, backend="process")
    return {
        "CartPole-v1, 64 envs, `auto`": (cartpole, partial(ordinary, "CartPole-v1")),
        "CartPole-v1, 64 envs, 1 worker": (
            partial(cartpole, backend="process", workers=1),
            partial(ordinary, "CartPole-v1"),
        ),
        "CartPole-v1, 64 envs, 2 workers": (
            partial(cartpole, backend="process", workers=2),
            partial(ordinary, "CartPole-v1"),
        ),
        "16 envs that wait 1 ms, agent 1 ms": (
            partial(process, waiting, 16, workers=16),
            partial(Slow, 0.001 / 16),
        ),
        "16 envs that compute 0.1 ms, agent as long": (
            partial(process, computing, 16, workers=2),
            partial(Slow, 0.0001 / 2),
        ),
    }


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    asked = parser.parse_args()
    print("| work | in step, steps/s | halves | quarters | ratio | ratio |")
    print("|---|---:|---:|---:|---:|---:|")
    ways: tuple[int, ...] = (0, 2, 4)
    for name, (fleet, agent) in cells().items():
        fleets = [fleet() for _ in ways]
        collectors = [
            envfleet.Collector(envs, agent(), STEPS, seed=0, overlap=groups)
            for envs, groups in zip(fleets, ways, strict=True)
        ]
        rates: list[list[float]] = [[] for _ in ways]
        for number in range(asked.rounds + 1):
            for i in range(len(ways)) if number % 2 else reversed(range(len(ways))):
                start = time.perf_counter()
                collectors[i].collect()
                seconds = time.perf_counter() - start
                if number:  # the first warms up
                    rates[i].append(STEPS * fleets[i].num_envs / seconds)
        told = [f"{statistics.median(each):,.0f}" for each in rates]
        told += [
            f"{statistics.median(b / a for a, b in zip(rates[0], each, strict=True)):.2f}"
            for each in rates[1:]
        ]
        print(f"| {name} | {' | '.join(told)} |", flush=True)
        for collector in collectors:
            collector.close()


if __name__ == "__main__":
    main()
