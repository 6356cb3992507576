"""The limit: the same envs looped over without any communication; no engine can be faster."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from envfleet.engine.cores import usable_cores
from envfleet.engine.process.starting import split_envs
from envfleet.engine.rules.choice import Measurement
from envfleet.engine.rules.spaces import Structure
from envfleet.vector.auto import measure

Make = Callable[[], gymnasium.Env[Any, Any]]
Keep = Callable[[int, Any], None]
"""Takes an env's place and its observation."""

PATIENCE = 10.0
"""Seconds for building and resetting the env that is measured."""
LARGE = 4096
"""Bytes from which on an observation is copied in the limit too.

Every engine must bring observations together. Small ones it writes in bulk, for next to nothing;
one by one they would make the limit slower than an engine.
"""


@dataclass(frozen=True, slots=True)
class Shape:
    """How the limit of a work runs."""

    processes: int
    copies: bool
    """Whether each observation is copied once."""

    def __str__(self) -> str:
        count = "1 process" if self.processes == 1 else f"{self.processes} processes"
        return f"{count}, each observation copied once" if self.copies else count


def shape_of(measured: Measurement | None, num_envs: int, cores: int) -> Shape:
    """A process per core; one per env where envs wait, or are too slow to tell (None)."""
    if measured is None:
        return Shape(num_envs, copies=False)
    processes = num_envs if measured.waits else min(cores, num_envs)
    return Shape(processes, copies=measured.observation_bytes >= LARGE)


class Limit:
    """Processes that loop over their envs; how many, and whether they copy, is the ``Shape``."""

    def __init__(self, make: Make, num_envs: int) -> None:
        shape = shape_of(measure(make, None, budget=PATIENCE), num_envs, usable_cores())
        self.plan = str(shape)
        context = multiprocessing.get_context("fork")
        self._pipes = []
        self._processes = []
        for shard in split_envs(num_envs, shape.processes):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_loop, args=(make, shard, shape.copies, theirs), daemon=True
            )
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)
        for pipe in self._pipes:
            pipe.recv()

    def run(self, seconds: float) -> float:
        """Have all loop for a while; env steps per second."""
        for pipe in self._pipes:
            pipe.send(seconds)
        return float(sum(pipe.recv() for pipe in self._pipes))

    def answers(self, steps: int) -> None:
        """It has none: nothing is brought together."""

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()


def step_all(
    envs: Sequence[gymnasium.Env[Any, Any]],
    row: Sequence[Any],
    due: list[Any],
    keep: Keep | None = None,
) -> int:
    """Step envs one by one, or reset those that are due; how many were stepped.

    ``due`` says who is due the next time; ``keep`` is given every observation.
    """
    steps = 0
    for i, env in enumerate(envs):
        if due[i]:
            observation, _ = env.reset()
            due[i] = False
        else:
            observation, _, terminated, truncated, _ = env.step(row[i])
            due[i] = terminated or truncated
            steps += 1
        if keep is not None:
            keep(i, observation)
    return steps


def _keeper(space: gymnasium.Space[Any], count: int) -> Keep:
    """Copies observations to rows of their own."""
    structure = Structure(space)
    fixed = [number for number, leaf in enumerate(structure.leaves) if leaf.fixed]
    columns = [np.empty((count, *leaf.shape), leaf.dtype) for leaf in structure.fixed]

    def keep(i: int, observation: Any) -> None:
        values = structure.split(observation)
        for column, number in zip(columns, fixed, strict=True):
            column[i] = values[number]

    return keep


def _loop(make: Make, shard: range, copies: bool, pipe: Any) -> None:
    envs = [make() for _ in shard]
    for i, env in zip(shard, envs, strict=True):
        env.reset(seed=i)
        env.action_space.seed(i)
    actions = [[env.action_space.sample() for env in envs] for _ in range(50)]
    due = [False] * len(envs)
    keep = _keeper(envs[0].observation_space, len(envs)) if copies else None
    pipe.send("ready")
    now = time.perf_counter
    while True:
        seconds = pipe.recv()
        steps, turns, start = 0, 0, now()
        end = start + seconds
        while now() < end or turns == 0:
            steps += step_all(envs, actions[turns % 50], due, keep)
            turns += 1
        pipe.send(steps / (now() - start))
