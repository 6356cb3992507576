"""Interleaved rounds: each contestant in a process of its own, taking turns, within a deadline."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import runpy
import signal
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from envfleet.bench.contestants import BUILDERS, Answer
from envfleet.bench.works import factory

CHECKED_STEPS = 60
PATIENCE = 60.0
"""Seconds for checking, or one round; who takes longer hangs."""
START_PATIENCE = 180.0
"""Seconds for starting: some engines import torch in every worker."""


@dataclass
class Result:
    """One contestant in one cell."""

    rates: list[float] = field(default_factory=list)
    started: float = 0.0
    """Seconds until the envs were built."""
    memory: int | None = None
    """Bytes of the contestant's process and all that it has started, shared pages counted once."""
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
        seats[name] = _Seat(name, work, num_envs, peers, results[name])
    try:
        answers = {name: seat.ask(("answers", CHECKED_STEPS)) for name, seat in seats.items()}
        reference = answers.get("Gymnasium sync")
        for name, result in results.items():
            result.agrees = _agree(reference, answers[name])
        for seat in seats.values():
            seat.ask(("run", seconds))  # not counted: adaptive engines learn, caches fill
        for done in range(rounds):
            tell(f"{work} x {num_envs}: round {done + 1} of {rounds}")
            # In another order each time, so that none always runs in the wake of the same other.
            for name in random.Random(done).sample(names, len(names)):  # noqa: S311
                rate = seats[name].ask(("run", seconds))
                if rate is not None:
                    results[name].rates.append(rate)
    finally:
        for seat in seats.values():
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


class _Seat:
    """A contestant's process."""

    def __init__(
        self, name: str, work: str, num_envs: int, peers: Path | None, result: Result
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._result = result
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_sit, args=(theirs, name, work, num_envs, peers))
        self._process.start()
        theirs.close()
        told = self._answer(START_PATIENCE)
        if told is not None:
            result.started, result.memory, result.plan = told

    def ask(self, question: tuple[str, Any]) -> Any:
        """A contestant's answer; None, and a problem in its result, if it fails or hangs."""
        if self._result.problem:
            return None
        self._pipe.send(question)
        return self._answer(PATIENCE)

    def _answer(self, patience: float) -> Any:
        if not self._pipe.poll(patience):
            self._result.problem = f"hung for {patience:.0f} s"
            return None
        try:
            answer = self._pipe.recv()
        except EOFError:
            self._result.problem = "its process ended"
            return None
        if isinstance(answer, Exception):
            self._result.problem = f"{type(answer).__name__}: {answer}"[:200]
            return None
        return answer

    def close(self) -> None:
        """Let it close its fleet, and end it with all that it has started."""
        with contextlib.suppress(OSError):
            self._pipe.send(None)
            self._process.join(10)
        if self._process.is_alive() and self._process.pid is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.join()
        self._pipe.close()


def _memory(pid: int) -> int | None:
    """What Linux says a process and its descendants use, each shared page divided by its users."""
    try:
        parents = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        family = {pid}
        while more := {p for p, parent in parents.items() if parent in family} - family:
            family |= more
        total = 0
        for member in family:
            lines = Path(f"/proc/{member}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    except (OSError, ValueError, StopIteration):
        return None
    return total * 1024


def _sit(pipe: Any, name: str, work: str, num_envs: int, peers: Path | None) -> None:
    """A contestant's life in its process."""
    os.setpgid(0, 0)
    # As in a program of its own: a spawned process would have its children spawned too.
    multiprocessing.set_start_method(None, force=True)
    contestant = None
    try:
        start = time.perf_counter()
        contestant = builders(peers)[name](factory(work), num_envs)
        started = time.perf_counter() - start
        pipe.send((started, _memory(os.getpid()), contestant.plan))
        while (question := pipe.recv()) is not None:
            method, argument = question
            pipe.send(getattr(contestant, method)(argument))
    except (EOFError, BrokenPipeError):
        pass  # the benchmark was interrupted
    except Exception as error:  # noqa: BLE001 - told in its row
        with contextlib.suppress(OSError):
            try:
                pipe.send(error)
            except Exception:  # noqa: BLE001 - it does not pickle
                pipe.send(RuntimeError(f"{type(error).__name__}: {error}"))
    finally:
        if contestant is not None:
            contestant.close()
