"""Why a fleet is slow: it runs as it is, with clocks around its envs, and as advice would have it.

The fleet whose speed is told has no clocks; another one, of the same plan, has them.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import os
import statistics
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from envfleet.bench.advice import Advice, Figures, Setup, Split, advise, best
from envfleet.bench.contestants import Fleet, Pace
from envfleet.bench.limit import PATIENCE
from envfleet.bench.memory import family_memory
from envfleet.bench.timing import TimedHost, Times
from envfleet.bench.works import factory, subject
from envfleet.engine.cores import usable_cores
from envfleet.engine.process.starting import split_envs
from envfleet.engine.rules.choice import Plan
from envfleet.engine.rules.spaces import Structure, row_bytes
from envfleet.engine.worker.waiting import run_delay
from envfleet.vector.auto import measure
from envfleet.vector.make import make
from envfleet.vector.serial import SerialVectorEnv

TRIED = 3
"""So many pieces of advice are tried at most."""
_ISOLATION = ("isolate", "on_failure", "step_timeout")
"""Options that speak against envs in the calling process."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found out about one fleet."""

    plan: str
    rate: float
    """Env steps per second."""
    figures: Figures
    median: float
    """Seconds of one env's step: half of them took less."""
    slow: float
    """As ``median``, but 95 % took less."""
    reset: float
    """Mean seconds of one reset; 0 where no episode ended."""
    observation_bytes: int
    action_bytes: int
    info_bytes: int | None
    memory: float | None
    """Bytes per env: what all processes of the fleet take more than before it was built."""
    load: float | None
    """Processes that wanted to run in the last minute, on average."""
    advice: list[Advice]
    """The best, tried where that is possible."""
    in_vain: list[Advice]
    """What was tried and is not worth it, or less than the best."""


class Patient:
    """A fleet that is looked at; lives in a process of its own (``Seat``).

    Args:
        work: see ``factory``.
        num_envs: how many envs.
        options: how to ``make`` the fleet.

    Raises:
        ValueError: the options ask for a native engine; or as ``make`` does.
    """

    def __init__(self, work: str, num_envs: int, options: Mapping[str, Any]) -> None:
        self._work = work
        self._options = dict(options)
        self._num_envs = num_envs
        self._load = _load()
        before = family_memory(os.getpid())
        self._open: list[Fleet] = []
        self._fleet = self._make(num_envs, self._options)
        after = family_memory(os.getpid())
        self._memory = (
            None if before is None or after is None else max(0, after - before) / num_envs
        )
        envs: Any = self._fleet.envs
        self._now: Plan = envs.plan
        self.plan = str(self._now)
        if self._now.backend == "native":
            raise ValueError(
                "a native engine has no single envs to look into: leave out backend='native'"
            )

    def look(self, seconds: float, rounds: int) -> Diagnosis:
        """Find out, in interleaved rounds, and try what seems to help."""
        warnings.filterwarnings("ignore", message="the envs spend most of a step waiting")
        options = self._pinned({})
        busy_before = _without_a_core()
        probe = measure(factory(self._work), options.get("context"), budget=PATIENCE)
        timed = self._make(self._num_envs, {**options, "worker": TimedHost})
        self._fleet.pace(seconds)  # not counted: adaptive engines learn, caches fill
        timed.pace(seconds)
        times = _times(timed)
        has_infos = options.get("infos", "all") == "all" and any(t.infos.size != 0 for t in times)
        silent = self._make(self._num_envs, {**options, "infos": "none"}) if has_infos else None
        timed.envs.reset(seed=0)  # forgets what was recorded
        paces = _interleaved([self._fleet, timed, *([silent] if silent else [])], seconds, rounds)
        whole, quiet = _step(paces[0]), _step(paces[-1]) if silent else _step(paces[0])
        times = _times(timed)
        steps = np.array([one.steps for one in times]).T
        resets = np.array([one.resets for one in times]).T
        spent = steps + resets
        shards = split_envs(self._num_envs, self._now.workers)
        by_shard = np.stack([spent[:, part.start : part.stop].sum(axis=1) for part in shards], 1)
        busy = [share for share in (busy_before, _without_a_core()) if share is not None]
        turns, rows = sum(p.turns for p in paces[0]), sum(p.steps for p in paces[0])
        figures = Figures(
            self._setup(options),
            Split.of(whole, by_shard, whole - quiet),
            waits=probe is not None and probe.waits,
            fillers=1 - rows / (turns * self._num_envs),
            resets=float(resets.sum() / spent.sum()),
            copying=_copying(self._fleet) if options.get("copy", True) else 0.0,
            busy=statistics.mean(busy) if busy else None,
            pickled=tuple(dict.fromkeys(key for one in times for key in one.infos.pickled)),
        )
        timed.close()
        stepped, sizes = steps[steps > 0], [one.infos.size for one in times]
        median, slow = np.percentile(stepped, (50, 95)).tolist()
        spaces = self._fleet.envs.single_observation_space, self._fleet.envs.single_action_space
        advice = advise(figures)
        tried = self._try(advice, seconds, rounds)
        chosen = best([one for one in advice if not one.options] + tried)
        return Diagnosis(
            self.plan,
            _rate(paces[0]),
            figures,
            median,
            slow,
            float(resets[resets > 0].mean()) if resets.any() else 0.0,
            row_bytes(Structure(spaces[0])),
            row_bytes(Structure(spaces[1])),
            None if None in sizes else round(statistics.mean(size or 0 for size in sizes)),
            self._memory,
            self._load,
            chosen,
            [one for one in tried if one not in chosen],
        )

    def close(self) -> None:
        """Close all fleets."""
        for fleet in self._open:
            fleet.close()

    def _make(self, num_envs: int, options: Mapping[str, Any]) -> Fleet:
        fleet = Fleet(make(subject(self._work), num_envs, **options))
        self._open.append(fleet)
        return fleet

    def _pinned(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Options that give the same plan again, but for the changes."""
        if changes.get("backend") == "native":
            return dict(changes)
        options = {**self._options, "backend": self._now.backend, **changes}
        options.pop("num_envs", None)
        if options["backend"] == "process":
            options.setdefault("workers", self._now.workers)
            options.setdefault("caller_steps", self._now.caller_steps)
            return options
        known = {*inspect.signature(SerialVectorEnv).parameters, "backend", "autoreset_mode"}
        return {name: value for name, value in options.items() if name in known}

    def _setup(self, options: Mapping[str, Any]) -> Setup:
        now = self._now
        mode = AutoresetMode(options.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        return Setup(
            self._num_envs,
            usable_cores(),
            now.backend,
            now.workers,
            now.caller_steps,
            copy=bool(options.get("copy", True)),
            same_step=mode != AutoresetMode.NEXT_STEP,
            may_run_here=not any(self._options.get(word) for word in _ISOLATION),
            native=now.native,
            by_pipe=now.by_pipe,
            has_recv=hasattr(self._fleet.envs, "recv"),
        )

    def _try(self, advice: list[Advice], seconds: float, rounds: int) -> list[Advice]:
        """What comes of the advice that can be tried; what an engine refuses is left out."""
        tried = []
        for one in [one for one in advice if one.options][:TRIED]:
            num_envs = one.options.get("num_envs", self._num_envs)
            with contextlib.suppress(TypeError, ValueError):
                fleet = self._make(num_envs, self._pinned(one.options))
                fleet.pace(seconds)
                before, after = _interleaved([self._fleet, fleet], seconds, rounds)
                fleet.close()
                tried.append(one.tried(_rate(after) / _rate(before)))
        return tried


def _interleaved(fleets: list[Fleet], seconds: float, rounds: int) -> list[list[Pace]]:
    paces: list[list[Pace]] = [[] for _ in fleets]
    for _ in range(rounds):
        for fleet, own in zip(fleets, paces, strict=True):
            own.append(fleet.pace(seconds))
    return paces


def _step(paces: list[Pace]) -> float:
    """Seconds of a fleet's step."""
    return statistics.median(pace.seconds / pace.turns for pace in paces)


def _rate(paces: list[Pace]) -> float:
    return statistics.median(pace.steps / pace.seconds for pace in paces)


def _times(fleet: Fleet) -> list[Times]:
    envs: Any = fleet.envs
    return list(envs.call("envfleet_times"))


def _copying(fleet: Fleet) -> float:
    """Seconds for one copy of all observations."""
    envs: Any = fleet.envs
    observations, times = envs.observations, []
    for _ in range(20):
        start = time.perf_counter()
        copy.deepcopy(observations)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _without_a_core(seconds: float = 0.2) -> float | None:
    """The share of a while in which this process, computing, could run but had no core."""
    before, start = run_delay(), time.perf_counter()
    while time.perf_counter() < start + seconds:
        pass
    after, passed = run_delay(), time.perf_counter() - start
    return None if before is None or after is None else (after - before) / passed


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None
