"""Who is measured: the limit, envfleet's engines, Gymnasium's; peers have a file of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from envfleet.bench.limit import Limit, Make
from envfleet.bench.works import native_fleet
from envfleet.vector.make import make as make_fleet
from envfleet.vector.process import ProcessVectorEnv
from envfleet.vector.serial import SerialVectorEnv

Answer = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], float]
"""Of one step: rewards, whether an episode ended, and the sum of all numbers in the infos."""


class Pace(NamedTuple):
    """What a fleet did in a while."""

    turns: int
    """Steps of the whole fleet."""
    steps: int
    """Steps of its envs; the filler row of next-step autoreset is none."""
    seconds: float


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
        self.envs = envs
        self.plan = str(getattr(envs, "plan", None) or "")
        mode = envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._fills_rows = AutoresetMode(mode) == AutoresetMode.NEXT_STEP
        self._due = 0  # envs whose next row only says that they were reset
        envs.action_space.seed(0)
        self._batches = [envs.action_space.sample() for _ in range(50)]
        envs.reset(seed=0)

    def run(self, seconds: float) -> float:
        """Step for a while; env steps per second."""
        pace = self.pace(seconds)
        return pace.steps / pace.seconds

    def pace(self, seconds: float) -> Pace:
        """Step for a while; what came of it, counted as ``benchmark_vector_step`` does."""
        step, batches, now = self.envs.step, self._batches, time.perf_counter
        turns, fillers, due, start = 0, 0, self._due, now()
        end = start + seconds
        while now() < end or turns == 0:
            _, _, terminated, truncated, _ = step(batches[turns % 50])
            turns += 1
            fillers += due
            due = self._count_due(terminated, truncated)
        passed = now() - start
        self._due = due
        return Pace(turns, turns * self.envs.num_envs - fillers, passed)

    def answers(self, steps: int) -> list[Answer] | None:
        """What the first steps after a reset with seed 0 return."""
        self.envs.reset(seed=0)
        told = []
        for i in range(steps):
            _, rewards, terminated, truncated, infos = self.envs.step(self._batches[i % 50])
            told.append((np.array(rewards, float), terminated | truncated, sum_infos(infos)))
            self._due = self._count_due(terminated, truncated)
        return told

    def _count_due(self, terminated: Any, truncated: Any) -> int:
        return int(np.count_nonzero(terminated | truncated)) if self._fills_rows else 0

    def close(self) -> None:
        """Close the fleet."""
        self.envs.close()


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
