"""What a synchronous engine could reach at best if it cost nothing at all, as a share of the limit.

python benchmarks/lockstep.py [--seconds 3]

Each step of a synchronous engine takes as long as its slowest shard; the limit, whose processes
never wait for each other, takes the mean. The shards run here as in the limit, and their steps are
compared afterwards, as if each had begun together.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from multiprocessing.connection import Connection

import numpy as np

from envfleet.bench.limit import step_all
from envfleet.bench.works import factory
from envfleet.engine.process.starting import split_envs

CELLS = [
    ("CartPole-v1", 8),
    ("CartPole-v1", 64),
    ("LunarLander-v3", 8),
    ("LunarLander-v3", 64),
    ("Breakout-84x84x4", 32),
]


def shard(work: str, envs: range, seconds: float, pipe: Connection) -> None:
    """Loop over some envs; send the seconds of each step."""
    members = [factory(work)() for _ in envs]
    for i, env in zip(envs, members, strict=True):
        env.reset(seed=i)
        env.action_space.seed(i)
    actions = [[env.action_space.sample() for env in members] for _ in range(50)]
    due = [False] * len(members)
    pipe.send("ready")
    pipe.recv()
    times: list[float] = []
    last = time.perf_counter()
    end = last + seconds
    while last < end:
        step_all(members, actions[len(times) % 50], due)
        now = time.perf_counter()
        times.append(now - last)
        last = now
    pipe.send(np.array(times))


def measure(work: str, num_envs: int, seconds: float) -> float:
    """The share of the limit that lockstep leaves, with two shards."""
    context = multiprocessing.get_context("fork")
    pipes = []
    for envs in split_envs(num_envs, 2):
        ours, theirs = context.Pipe()
        context.Process(target=shard, args=(work, envs, seconds, theirs), daemon=True).start()
        pipes.append(ours)
    for pipe in pipes:
        pipe.recv()
    for pipe in pipes:
        pipe.send("go")
    times = [pipe.recv() for pipe in pipes]
    steps = min(map(len, times))
    both = np.stack([each[:steps] for each in times])
    return float(both.mean() / both.max(axis=0).mean())


def main() -> None:
    """Print a row per cell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    seconds = parser.parse_args().seconds
    for work, num_envs in CELLS:
        shares = [measure(work, num_envs, seconds) for _ in range(3)]
        print(f"| {work} | {num_envs} | {np.median(shares):.2f} |")


if __name__ == "__main__":
    main()
