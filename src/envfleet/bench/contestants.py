"""Who is measured: the limit, envfleet's engines, Gymnasium's; peers have a file of their own."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from envfleet.bench.works import native_fleet
from envfleet.engine.cores import usable_cores
from envfleet.engine.process.starting import split_envs
from envfleet.vector.make import make as make_fleet
from envfleet.vector.process import ProcessVectorEnv
from envfleet.vector.serial import SerialVectorEnv

Make = Callable[[], gymnasium.Env[Any, Any]]
Answer = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], float]
"""Of one step: rewards, whether an episode ended, and the sum of all numbers in the infos."""


class Contestant(Protocol):
    """A fleet that can be timed, and asked what it returned."""

    plan: str

    def run(self, seconds: float) -> float:
        """Step for a while; env steps per second."""

    def answers(self, steps: int) -> list[Answer] | None:
        """What the first steps after a reset with seed 0 return; None if it has no answers."""

    def close(self) -> None:
        """Let go of everything."""


class Fleet:
    """Any ``gymnasium.vector.VectorEnv``."""

    def __init__(self, envs: VectorEnv[Any, Any, Any]) -> None:
        self._envs = envs
        self.plan = str(getattr(envs, "plan", None) or "")
        envs.action_space.seed(0)
        self._batches = [envs.action_space.sample() for _ in range(50)]
        envs.reset(seed=0)

    def run(self, seconds: float) -> float:
        """Step for a while; env steps per second."""
        step, batches, now = self._envs.step, self._batches, time.perf_counter
        steps, start = 0, now()
        end = start + seconds
        while (last := now()) < end or steps == 0:
            step(batches[steps % 50])
            steps += 1
        last = now()
        return steps * self._envs.num_envs / (last - start)

    def answers(self, steps: int) -> list[Answer] | None:
        """What the first steps after a reset with seed 0 return."""
        self._envs.reset(seed=0)
        told = []
        for i in range(steps):
            _, rewards, terminated, truncated, infos = self._envs.step(self._batches[i % 50])
            told.append((np.array(rewards, float), terminated | truncated, sum_infos(infos)))
        return told

    def close(self) -> None:
        """Close the fleet."""
        self._envs.close()


class Native(Fleet):
    """A native engine: its random numbers are its own, so there is nothing to compare."""

    def answers(self, steps: int) -> None:
        """Not to be compared."""


def sum_infos(infos: dict[str, Any]) -> float:
    """The sum of all numbers in a vector engine's infos, masks left out."""
    total = 0.0
    for key, value in infos.items():
        if isinstance(value, dict):
            total += sum_infos(value)
        elif isinstance(value, np.ndarray) and value.dtype.kind in "iuf" and key[0] != "_":
            total += float(value.sum())
    return total


class Limit:
    """As many processes as cores, each looping over its envs, with no communication at all."""

    plan = ""

    def __init__(self, make: Make, num_envs: int) -> None:
        context = multiprocessing.get_context("fork")
        self._pipes = []
        self._processes = []
        for shard in split_envs(num_envs, min(usable_cores(), num_envs)):
            ours, theirs = context.Pipe()
            process = context.Process(target=_loop, args=(make, shard, theirs), daemon=True)
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


def step_all(envs: Sequence[gymnasium.Env[Any, Any]], row: Sequence[Any], due: list[Any]) -> None:
    """Step envs one by one, or reset those that are due; ``due`` says so of the next time."""
    for i, env in enumerate(envs):
        if due[i]:
            env.reset()
            due[i] = False
        else:
            _, _, terminated, truncated, _ = env.step(row[i])
            due[i] = terminated or truncated


def _loop(make: Make, shard: range, pipe: Any) -> None:
    envs = [make() for _ in shard]
    for i, env in zip(shard, envs, strict=True):
        env.reset(seed=i)
        env.action_space.seed(i)
    actions = [[env.action_space.sample() for env in envs] for _ in range(50)]
    due = [False] * len(envs)
    pipe.send("ready")
    now = time.perf_counter
    while True:
        seconds = pipe.recv()
        steps, start = 0, now()
        end = start + seconds
        while now() < end or steps == 0:
            step_all(envs, actions[steps % 50], due)
            steps += 1
        pipe.send(steps * len(envs) / (now() - start))


def _auto(make: Make, num_envs: int) -> Contestant:
    return Fleet(make_fleet(make, num_envs))


def _process(fns: Sequence[Make], **options: Any) -> Contestant:
    return Fleet(ProcessVectorEnv(fns, **options))


NATIVE = "envfleet native"
"""The contestant that not every work has."""
BUILDERS: dict[str, Callable[[Make, int], Contestant]] = {
    "limit": Limit,
    "envfleet serial": lambda make, n: Fleet(SerialVectorEnv([make] * n)),
    "envfleet process": lambda make, n: _process([make] * n),
    "envfleet process, copy=False": lambda make, n: _process([make] * n, copy=False),
    "envfleet process+caller, copy=False": lambda make, n: _process(
        [make] * n, caller_steps=True, copy=False
    ),
    "envfleet process+caller": lambda make, n: _process([make] * n, caller_steps=True),
    "envfleet auto": _auto,
    NATIVE: lambda make, n: Native(native_fleet(make, n)),
    "Gymnasium sync": lambda make, n: Fleet(SyncVectorEnv([make] * n)),
    "Gymnasium async": lambda make, n: Fleet(AsyncVectorEnv([make] * n)),
}
"""By name, functions that build a contestant from an env factory and a number of envs."""
