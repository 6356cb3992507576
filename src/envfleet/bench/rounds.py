"""Interleaved rounds: each contestant in a process of its own, taking turns."""

from __future__ import annotations

import random
import runpy
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from envfleet.bench.contestants import BUILDERS, Answer, Contestant
from envfleet.bench.seats import Seat
from envfleet.bench.works import factory

CHECKED_STEPS = 60


@dataclass
class Result:
    """One contestant in one cell."""

    rates: list[float] = field(default_factory=list)
    started: float = 0.0
    """Seconds until the envs were built."""
    memory: int | None = None
    """Bytes of its process and all that it has started; see ``family_memory``."""
    plan: str = ""
    agrees: bool | None = None
    """Whether rewards, ends and infos equal Gymnasium's; None where they cannot be compared."""
    problem: str = ""

    @property
    def rate(self) -> float | None:
        """Median env steps per second."""
        return statistics.median(self.rates) if self.rates and not self.problem else None


def builders(peers: Path | None) -> dict[str, Callable[..., Any]]:
    """All contestants, with those of a peers file (its dict ``PEERS``)."""
    return {**BUILDERS, **(runpy.run_path(str(peers))["PEERS"] if peers is not None else {})}


def measure_cell(
    work: str,
    num_envs: int,
    names: list[str],
    *,
    rounds: int,
    seconds: float,
    peers: Path | None,
    tell: Callable[[str], None],
) -> dict[str, Result]:
    """Measure the named contestants on one work and fleet size."""
    results = {name: Result() for name in names}
    seats = {}
    for name in names:
        tell(f"{work} x {num_envs}: starting {name}")
        seats[name] = seat = Seat(partial(_contestant, name, work, num_envs, peers))
        if seat.started is not None:
            result = results[name]
            result.started, result.memory, result.plan = seat.started
    try:
        answers = {name: seat.ask("answers", CHECKED_STEPS) for name, seat in seats.items()}
        reference = answers.get("Gymnasium sync")
        for name, result in results.items():
            result.agrees = _agree(reference, answers[name])
        for seat in seats.values():
            seat.ask("run", seconds)  # not counted: adaptive engines learn, caches fill
        for done in range(rounds):
            tell(f"{work} x {num_envs}: round {done + 1} of {rounds}")
            # In another order each time, so that none always runs in the wake of the same other.
            for name in random.Random(done).sample(names, len(names)):  # noqa: S311
                rate = seats[name].ask("run", seconds)
                if rate is not None:
                    results[name].rates.append(rate)
    finally:
        for name, seat in seats.items():
            results[name].problem = seat.problem
            seat.close()
    return results


def _agree(reference: list[Answer] | None, answers: list[Answer] | None) -> bool | None:
    """Compare up to each env's first end: from there on autoreset modes differ."""
    if reference is None or answers is None:
        return None
    running = np.ones(len(reference[0][0]), dtype=bool)
    for (rewards, ended, infos), (others, other_ended, other_infos) in zip(
        reference, answers, strict=True
    ):
        same = np.allclose(rewards[running], others[running])
        if not same or (ended[running] != other_ended[running]).any():
            return False
        if running.all() and not np.isnan(other_infos) and not np.isclose(infos, other_infos):
            return False
        running &= ~ended
    return True


def _contestant(name: str, work: str, num_envs: int, peers: Path | None) -> Contestant:
    contestant: Contestant = builders(peers)[name](factory(work), num_envs)
    return contestant
