"""A learner beside its fleet: do collecting and updating hold each other up?

python benchmarks/learner.py                     # needs the extra train
python benchmarks/learner.py --engines process --rounds 15

A Collector takes rollouts of 64 CartPoles, and torch updates a network with all its threads. Three
kinds of rounds take turns: a rollout after a rollout, an update after an update, and both in turns
as in training. What a rollout or an update takes in turns, over what it takes by itself, says how
much one is slowed by the other: by OpenMP threads that spin after a parallel loop, by workers that
look for their next step. Each engine runs again with OMP_WAIT_POLICY=passive, which is read when
OpenMP is loaded and lets threads sleep at once, and with OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

import envfleet

STEPS, ENVS, HIDDEN = 128, 64, 256
SETTINGS = ("", "OMP_WAIT_POLICY=passive", "OMP_NUM_THREADS=1")
ENGINES: dict[str, dict[str, Any]] = {
    "serial": {"backend": "serial"},
    "process": {"backend": "process"},
    "process+caller": {"backend": "process", "caller_steps": True},
}


class Agent(nn.Module):
    """A policy over two actions and a value, in one network."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(4, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh()
        )
        self.heads = nn.Linear(HIDDEN, 3)

    def get_actions_and_values(
        self, observations: torch.Tensor, actions: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """The collector's protocol."""
        out = self.heads(self.net(observations))
        policy = torch.distributions.Categorical(logits=out[:, :2])
        actions = policy.sample() if actions is None else actions  # type: ignore[no-untyped-call]
        log_probs = policy.log_prob(actions)  # type: ignore[no-untyped-call]
        return actions, log_probs, out[:, 2], policy.entropy()  # type: ignore[no-untyped-call]


def update(agent: Agent, optimiser: torch.optim.Optimizer, observations: torch.Tensor) -> None:
    """Two epochs in minibatches of 2048."""
    for _ in range(2):
        for batch in observations.split(2048):  # type: ignore[no-untyped-call]
            _, log_probs, values, entropy = agent.get_actions_and_values(batch)
            optimiser.zero_grad()
            (log_probs.mean() + values.square().mean() - entropy.mean()).backward()  # type: ignore[no-untyped-call]
            optimiser.step()


def seconds(action: Callable[[], object]) -> float:
    """How long it takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def is_set(setting: str) -> bool:
    """Whether the environment has it."""
    name, _, value = setting.partition("=")
    return os.environ.get(name) == value


def measure(engine: str, rounds: int) -> None:
    """Print a row."""
    torch.manual_seed(0)
    agent = Agent()
    optimiser = torch.optim.Adam(agent.parameters(), lr=0.0)
    observations = torch.randn(STEPS * ENVS, 4)
    times: dict[str, list[float]] = {"collect": [], "update": [], "collects": [], "updates": []}
    with envfleet.make("CartPole-v1", ENVS, **ENGINES[engine]) as envs:
        collect = envfleet.Collector(envs, agent, STEPS, seed=1).collect
        learn = partial(update, agent, optimiser, observations)
        collect(), learn(), collect()
        for _ in range(rounds):
            collect()
            times["collect"] += [seconds(collect), seconds(collect)]
            learn()
            times["update"] += [seconds(learn), seconds(learn)]
            for _ in range(2):
                times["collects"].append(seconds(collect))
                times["updates"].append(seconds(learn))
    alone, after, update_alone, update_after = (
        1e3 * statistics.median(times[name])
        for name in ("collect", "collects", "update", "updates")
    )
    setting = " ".join(setting for setting in SETTINGS if setting and is_set(setting))
    print(
        f"| {engine} | {setting} | {alone:.1f} | {after:.1f} | {after / alone:.2f} | "
        f"{update_alone:.1f} | {update_after:.1f} | {update_after / update_alone:.2f} |",
        flush=True,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        measure(asked.serve, asked.rounds)
        return
    print("| engine | setting | rollout, ms | in turns | ratio | update, ms | in turns | ratio |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for engine in asked.engines:
        for setting in SETTINGS:
            command = [sys.executable, __file__, "--serve", engine, "--rounds", str(asked.rounds)]
            name, _, value = setting.partition("=")
            more = {name: value} if setting else {}
            subprocess.run(command, env={**os.environ, **more}, check=True)


if __name__ == "__main__":
    main()
