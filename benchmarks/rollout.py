"""How fast rollouts are collected, where the time goes, and how that compares with a plain loop.

python benchmarks/rollout.py                     # needs the extras train and box2d
SEED_001=path python benchmarks/rollout.py       # beside the SyncVecEnv in that file
SEED_001=path python benchmarks/rollout.py --one-process   # no workers, and CPU time

Medians of interleaved rounds; one rollout is 128 steps. The policy is an actor and a critic with
two layers of 64 each. The first ratio is that of two SyncVecEnv, envfleet's and the one in the
file, with the same torch agent, asked in the same way. The second is what a program gains that
goes on to a Collector and an agent that acts in NumPy; "collector" is all of it that is neither env
nor policy. With --one-process all envs are in this process and its CPU time is counted, which
neighbours on the machine disturb little: what there is to gain without a second core.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

import envfleet
from envfleet.adapters import SyncVecEnv

Clock = Callable[[], float]

STEPS = 128
CELLS = [("CartPole-v1", 8), ("CartPole-v1", 64), ("LunarLander-v3", 64)]


def layers(inputs: int, outputs: int) -> nn.Sequential:
    """A network with two hidden layers of 64."""
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
    )


def forward(x: np.ndarray[Any, Any], weights: list[np.ndarray[Any, Any]]) -> Any:
    """What such a network makes of a batch."""
    for i in range(0, len(weights), 2):
        x = (np.tanh(x) if i else x) @ weights[i].T + weights[i + 1]
    return x


class Agent(nn.Module):
    """A policy over discrete actions, with the lean and the full interface."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__()
        assert env.observation_space.shape is not None  # noqa: S101 - for the type checker
        inputs = env.observation_space.shape[0]
        self.actor = layers(inputs, int(env.action_space.n))  # type: ignore[attr-defined]
        self.critic = layers(inputs, 1)
        self.device = torch.device("cpu")
        self.random = np.random.default_rng(0)
        # NumPy on the parameters' own memory: a quarter of the time for networks as small as these.
        self.weights = [
            [parameter.detach().numpy() for parameter in network.parameters()]
            for network in (self.actor, self.critic)
        ]

    def act(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Sampled actions, their log-probabilities, and values."""
        logits, values = (forward(observations.numpy(), weights) for weights in self.weights)
        logits -= logits.max(1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(1, keepdims=True))
        noise = np.log(self.random.standard_exponential(logits.shape, dtype=np.float32))
        actions = (logits - noise).argmax(1)
        log_probs = logits[np.arange(len(actions)), actions]
        return (
            torch.from_numpy(actions),
            torch.from_numpy(log_probs),
            torch.from_numpy(values[:, 0]),
        )

    def get_values(self, observations: torch.Tensor) -> torch.Tensor:
        """Values alone."""
        values: torch.Tensor = self.critic(observations)[:, 0]
        return values

    def get_actions_and_values(
        self, observations: torch.Tensor, actions: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """The same with a distribution object and its entropy."""
        chances: Any = torch.distributions.Categorical(logits=self.actor(observations))
        actions = chances.sample() if actions is None else actions
        return actions, chances.log_prob(actions), self.get_values(observations), chances.entropy()


class Ours:
    """A collector on the fleet that ``make`` chooses."""

    def __init__(
        self, env_id: str, num_envs: int, agent: Agent, clock: Clock, options: dict[str, Any]
    ) -> None:
        self.clock = clock
        self.envs = envfleet.make(env_id, num_envs, **options)
        self.collector = envfleet.Collector(self.envs, agent, STEPS, seed=0)
        self.total = 0.0
        self.run()
        self.known = dict(self.collector.seconds)
        self.total = 0.0

    def run(self) -> float:
        """One rollout; its seconds."""
        start, started = self.clock(), time.perf_counter()
        self.collector.collect()
        self.total += time.perf_counter() - started
        return self.clock() - start

    def shares(self) -> tuple[float, float, float]:
        """Of env, policy and collector, since it was built; of wall-clock time."""
        now = self.collector.seconds
        env, policy = ((now[part] - self.known[part]) / self.total for part in ("env", "policy"))
        return env, policy, 1 - env - policy


def seed_class(path: Path) -> Any:
    """The ``SyncVecEnv`` of a file, which may be a page that shows it in a code block."""
    text = path.read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names: dict[str, Any] = {"Agent": Any}
    exec("\n".join(blocks) or text, names)  # noqa: S102 - a file that the user names
    return names["SyncVecEnv"]


class SyncVec:
    """A SyncVecEnv, ours or the plain loop's, with one thread for torch."""

    def __init__(self, kind: Any, env_id: str, num_envs: int, agent: Agent, clock: Clock) -> None:
        self.clock = clock
        self.fleet = kind(partial(gymnasium.make, env_id), num_envs, STEPS, agent=agent)
        self.run()

    def run(self) -> float:
        """One rollout; its seconds."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        start = self.clock()
        self.fleet.rollout()
        torch.set_num_threads(threads)
        return self.clock() - start


def main() -> None:
    """Measure every cell and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--one-process", action="store_true")
    asked = parser.parse_args()
    rounds = asked.rounds
    clock: Clock = time.process_time if asked.one_process else time.perf_counter
    options: dict[str, Any] = {"backend": "serial"} if asked.one_process else {}
    ours = partial(SyncVecEnv, **options)
    path = os.environ.get("SEED_001")
    print(
        "| work | envs | plain loop, steps/s | `SyncVecEnv`, steps/s | ratio, same torch agent | "
        "`Collector`, NumPy agent, steps/s | ratio, other agent | env | policy | collector |"
    )
    print("|---|" + "---:|" * 9)
    for env_id, num_envs in CELLS:
        torch.manual_seed(0)
        try:
            agent = Agent(gymnasium.make(env_id))
        except gymnasium.error.DependencyNotInstalled as problem:
            print(f"| {env_id} | {num_envs} | *{problem}* |")
            continue
        # Fleets first: torch's threads and forks do not go together.
        lean = Ours(env_id, num_envs, agent, clock, options)
        same = SyncVec(ours, env_id, num_envs, agent, clock)
        plain = None
        if path:
            plain = SyncVec(seed_class(Path(path)), env_id, num_envs, agent, clock)
        times: dict[Any, list[float]] = {lean: [], same: [], plain: []}
        for _ in range(rounds):
            if plain is not None:
                times[plain].append(plain.run())
            for _ in range(3):
                times[same].append(same.run())
            for _ in range(3):
                times[lean].append(lean.run())
        rates = {
            who: STEPS * num_envs / statistics.median(taken)
            for who, taken in times.items()
            if taken
        }
        slow = f"{rates[plain]:,.0f}" if plain is not None else "*SEED_001 is not set*"
        cells = [env_id, str(num_envs), slow]
        for who in (same, lean):
            ratio = f"{rates[who] / rates[plain]:.1f}x" if plain is not None else ""
            cells += [f"{rates[who]:,.0f}", ratio]
        cells += [f"{share:.0%}" for share in lean.shares()]
        print(f"| {' | '.join(cells)} |", flush=True)
        lean.collector.close()
        same.fleet.close()


if __name__ == "__main__":
    main()
