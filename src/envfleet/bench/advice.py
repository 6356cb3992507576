"""What would make a fleet faster: arithmetic on where the time of its steps goes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

WORTH_IT = 1.05
"""What gains less is not mentioned."""
BUSY = 0.1
"""The share of time without a core from which on a machine is called busy."""
MOST = 2
"""More pieces of advice at a time are not followed."""
_HAND_OVER = 80e-6
"""Seconds per step that a caller who carries a share saves, roughly; measured on 2 cores."""
_PROCESSES = 40e-6
"""Seconds per step that workers and a caller who carries a share cost, roughly."""


@dataclass(frozen=True, slots=True)
class Split:
    """Where the seconds of one step of the whole fleet go; together they are the step."""

    env: float
    """In ``step`` and ``reset`` of the envs, on the average shard."""
    waiting: float
    """For the slowest shard, when the average one is done."""
    infos: float
    """Collecting, sending and merging infos."""
    transport: float
    """All the rest: actions, signals, wake-ups, writing and copying observations."""

    @property
    def whole(self) -> float:
        """The step."""
        return self.env + self.waiting + self.infos + self.transport

    @classmethod
    def of(cls, whole: float, shards: NDArray[np.float64], infos: float) -> Split:
        """Split a step that took ``whole`` seconds.

        Its parts are measured apart from it and may be a little longer; then they are shortened.

        Args:
            whole: seconds of a step.
            shards: what the envs of each shard took, a row per step.
            infos: seconds that infos take.
        """
        infos = min(max(infos, 0.0), whole)
        env = float(shards.mean())
        waiting = float((shards.max(axis=1) - shards.mean(axis=1)).mean())
        scale = min(1.0, (whole - infos) / (env + waiting))
        env, waiting = env * scale, waiting * scale
        return cls(env, waiting, infos, max(0.0, whole - env - waiting - infos))


@dataclass(frozen=True, slots=True)
class Setup:
    """What a fleet is, and what it may be."""

    num_envs: int
    cores: int
    backend: str
    shards: int
    caller_steps: bool = False
    copy: bool = True
    same_step: bool = False
    may_run_here: bool = True
    """Whether nothing that was asked for forbids envs in the calling process."""
    native: str = ""
    """The envs' own batched implementation, if there is one."""
    by_pipe: tuple[str, ...] = ()
    """Observation leaves that are not in shared memory."""
    has_recv: bool = False
    """Whether the fleet hands out partial batches."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured of a fleet."""

    setup: Setup
    split: Split
    waits: bool
    """Whether the envs wait rather than compute."""
    fillers: float
    """The share of rows that only say that an env was reset."""
    resets: float
    """The share of the envs' time that resets take."""
    copying: float
    """Seconds per step for the copy that ``copy=True`` makes."""
    busy: float | None
    """The share of time in which a process could have run but others had the cores."""
    pickled: tuple[str, ...] = ()
    """Info keys whose values are no numbers."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to change."""

    change: str
    """In the words of ``make``, or of the env's author."""
    why: str
    gain: float
    """How many times the steps per second it should bring."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of ``make`` that try it; empty where that is not possible."""
    is_measured: bool = False
    """Whether ``gain`` was measured, not calculated."""

    def __str__(self) -> str:
        how = "measured" if self.is_measured else "calculated"
        return f"{self.change} ({self.gain:.2f}x, {how}): {self.why}"

    def tried(self, gain: float) -> Advice:
        """The same, after it was tried."""
        return replace(self, gain=gain, is_measured=True)


def advise(figures: Figures) -> list[Advice]:
    """All that is worth it, by what it should gain, the best first."""
    found = [*_neighbours(figures), *_workers(figures), *_costs(figures), *_rows(figures)]
    return best(found, len(found))


def best(advice: list[Advice], most: int = MOST) -> list[Advice]:
    """The pieces of advice that gain most and are worth it."""
    worth = [one for one in advice if one.gain >= WORTH_IT]
    return sorted(worth, key=lambda one: -one.gain)[:most]


def verdict(figures: Figures) -> str:
    """What there is to say where no advice is worth it."""
    split = figures.split
    if split.env >= 0.5 * split.whole:
        return (
            f"Nothing here would help much: the envs themselves take {split.env / split.whole:.0%} "
            "of the time. Make their step faster, or give the fleet more cores."
        )
    return "Nothing that was tried or calculated here would help much."


def _gain(figures: Figures, seconds: float) -> float:
    """What a step of so many seconds would gain."""
    return figures.split.whole / max(seconds, 1e-9)


def _neighbours(figures: Figures) -> Iterator[Advice]:
    if figures.busy is None or figures.busy < BUSY:
        return
    share = f"{figures.busy:.0%} of the time a process that could run had no core"
    yield Advice(
        "a quieter machine, or cores of its own (taskset, a CPU quota)",
        f"{share}: other programs had them",
        1 / (1 - min(figures.busy, 0.9)),
    )
    setup, split = figures.setup, figures.split
    if setup.backend == "process" and setup.may_run_here and not figures.waits:
        serial = split.env * setup.shards / max(1.0, setup.shards * (1 - figures.busy))
        yield Advice(
            'backend="serial"',
            f"{share}, and processes that wait for each other wait for the scheduler too",
            _gain(figures, serial + split.infos + figures.copying),
            {"backend": "serial"},
        )


def _workers(figures: Figures) -> Iterator[Advice]:
    """Where envs run, and how many of them in a row."""
    setup, split = figures.setup, figures.split
    each = split.env * setup.shards / setup.num_envs
    rest = split.transport + split.infos
    if figures.waits:
        if setup.shards < setup.num_envs:
            yield Advice(
                f"workers={setup.num_envs}",
                "the envs wait rather than compute: with a worker each they wait at the same time",
                _gain(figures, each + split.waiting + max(rest, _HAND_OVER)),
                {"backend": "process", "workers": setup.num_envs, "caller_steps": False},
            )
        return
    shards = min(setup.cores, setup.num_envs)
    options = {"backend": "process", "workers": shards, "caller_steps": setup.caller_steps}
    work = split.env * setup.shards / shards
    if setup.backend == "serial":
        if setup.cores > 1 and setup.num_envs > 1:
            yield Advice(
                'backend="process", caller_steps=True',
                f"the envs compute, one after the other, on one of {setup.cores} cores",
                _gain(figures, work + split.infos + split.transport + _PROCESSES),
                {**options, "caller_steps": True},
            )
    elif setup.shards < shards:
        yield Advice(
            f"workers={shards}",
            f"the envs compute on {setup.shards} of {setup.cores} cores",
            _gain(figures, work + split.waiting + rest),
            options,
        )
    elif setup.shards > setup.cores:
        yield Advice(
            f"workers={shards}",
            f"the envs compute, and {setup.shards} processes take turns on {setup.cores} cores",
            _gain(figures, split.env + split.infos + split.transport * shards / setup.shards),
            options,
        )
    elif not setup.caller_steps and setup.may_run_here and setup.cores > 1:
        yield Advice(
            "caller_steps=True",
            "the calling process steps one shard instead of waiting; for envs that do not crash",
            _gain(figures, split.whole - min(0.8 * split.transport, _HAND_OVER)),
            {**options, "caller_steps": True},
        )


def _costs(figures: Figures) -> Iterator[Advice]:
    """What a step costs beside its envs."""
    setup, split = figures.setup, figures.split
    if setup.native and setup.may_run_here:
        yield Advice(
            'backend="native"',
            f"{setup.native} steps all envs at once; its random numbers are others",
            2.0,  # what it really gains can only be measured
            {"backend": "native"},
        )
    if setup.copy:
        yield Advice(
            "copy=False",
            "observations are copied once less; use them before the next step overwrites them",
            _gain(figures, split.whole - min(figures.copying, split.transport)),
            {"copy": False},
        )
    if figures.pickled:
        keys = ", ".join(map(repr, figures.pickled[:3])) + ", ..." * (len(figures.pickled) > 3)
        change = f'numbers instead of the infos {keys}, or infos="final"'
        why = "these infos are pickled, env by env, in every step"
    else:
        change = 'infos="final" or infos="none"'
        why = "infos of every step are collected and merged; leave out what you do not read"
    yield Advice(change, why, _gain(figures, split.whole - split.infos), is_measured=True)
    if setup.by_pipe:
        yield Advice(
            f"a space of fixed shape for observation{setup.by_pipe[0]}",
            "it travels by pipe, pickled; Box, Discrete, MultiDiscrete, MultiBinary and nested "
            "ones of these are in shared memory",
            _gain(figures, split.whole - split.transport / 2),
        )
    if _is_mostly_fixed(figures):
        fixed, more = _fixed(figures), 4 * setup.num_envs
        yield Advice(
            f"num_envs={more}",
            f"a step costs {fixed * 1e6:.0f} us beside its envs, nearly as much with more of them",
            _gain(figures, split.whole - split.waiting / 2 - 3 * fixed / 4),
            {"num_envs": more},
        )


def _fixed(figures: Figures) -> float:
    """Seconds of a step that more envs would hardly make longer."""
    return max(0.0, figures.split.transport - figures.copying)


def _is_mostly_fixed(figures: Figures) -> bool:
    return not figures.waits and _fixed(figures) > 0.3 * figures.split.whole


def _rows(figures: Figures) -> Iterator[Advice]:
    """What the ends of episodes cost."""
    setup, split = figures.setup, figures.split
    if figures.fillers and not setup.same_step:
        stepped = 1 - figures.fillers
        same = split.env / stepped + split.whole - split.env
        yield Advice(
            'autoreset_mode="SameStep"',
            f"{figures.fillers:.0%} of all rows only say that an env was reset",
            _gain(figures, same) / stepped,
            {"autoreset_mode": "SameStep"},
        )
    if split.waiting > 0.1 * split.whole:
        cause = "resets" if figures.resets > 0.3 else "slow steps"
        why = f"{split.waiting / split.whole:.0%} of a step is spent waiting for {cause}"
        if setup.has_recv:
            change = "send(actions, env_ids) and recv(min_envs=...) instead of step"
            yield Advice(change, why, _gain(figures, split.whole - split.waiting))
        elif setup.shards < setup.num_envs and not _is_mostly_fixed(figures):
            more = 4 * setup.num_envs
            yield Advice(
                f"num_envs={more}",
                f"{why} of other shards; the more envs share a worker, the more alike shards are",
                _gain(figures, split.whole - split.waiting / 2),
                {"num_envs": more},
            )
    if figures.resets > 0.3:
        env = split.env * (1 - figures.resets / 2)
        yield Advice(
            "cheaper resets",
            f"they take {figures.resets:.0%} of the envs' time; half of that would bring this",
            _gain(figures, split.whole - split.env + env),
        )
