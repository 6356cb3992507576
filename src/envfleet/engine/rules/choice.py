"""Which engine suits an env: arithmetic on what one env was measured to take."""

from __future__ import annotations

import math
from dataclasses import dataclass

from envfleet.engine.rules.neighbours import NOBODY, core_share, crowding
from envfleet.engine.rules.waits import is_waiting

WORTH_WAITING_FOR = 5e-4
"""Seconds of a step from which envs that wait are given a process each."""
# Seconds, measured on 2 cores (docs/performance.md); only their proportions matter.
_PER_ENV = 0.7e-6
_SERIAL = 8e-6
_CALLER = 18e-6
_PROCESS = 120e-6
_PER_BYTE = 1.5e-10
_TURN = 750e-6
"""Until who was woken gets a core, for each process that waits there already: fitted to CartPole
and LunarLander beside 2 and 6 loops on 2 cores (``benchmarks/busy.py``), a guess elsewhere."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one env took, in a process of its own."""

    start: float
    """Seconds for building and resetting it."""
    step: float
    """Seconds per step."""
    cpu: float
    """Seconds of computing per step."""
    switches: float
    """How often per step it gave its core up of its own accord."""
    observation_bytes: int
    median: float = 0.0
    """Seconds of a step, resets left out: half of the steps took less."""
    slow: float = 0.0
    """As ``median``, but 95 % of the steps took less."""
    resets: float = 0.0
    """The share of the time that was spent in resets."""
    busy: float | None = None
    """The share of the time in which it could have run but others had the cores; None where the
    system does not tell."""
    neighbours: float = 0.0
    """How many processes of others used the cores meanwhile, about."""

    def __str__(self) -> str:
        text = (
            f"a step takes {_time(self.median)}, 95 % of them less than {_time(self.slow)}; "
            f"resets take {self.resets:.0%} of the time; observations have "
            f"{self.observation_bytes:,} bytes"
        )
        return text if self.busy is None else f"{text}; {self.busy:.0%} of the time without a core"

    @property
    def alone(self) -> float:
        """Seconds per step that others have no part in."""
        return self.step * (1.0 - (self.busy or 0.0))

    @property
    def waits(self) -> bool:
        """Whether it waits rather than computes, and long enough to matter."""
        alone = self.alone
        return alone >= WORTH_WAITING_FOR and is_waiting(alone, self.cpu, self.switches, 1)


@dataclass(frozen=True, slots=True)
class Plan:
    """How a fleet runs, and why."""

    backend: str
    workers: int
    caller_steps: bool
    reason: str
    by_pipe: tuple[str, ...] = ()
    """Observation leaves that are not in shared memory, with their spaces: ``['word'] (Text)``."""
    native: str = ""
    """The env's own batched implementation, ``module:class``, if there is one: the one that runs,
    or the one that ``backend="native"`` would run."""
    measured: Measurement | None = None
    """What one env took, where ``make`` has measured one to choose."""
    notice: str = ""
    """What the fleet has found out since, and logged: who uses its cores, what would be better."""

    def __str__(self) -> str:
        if self.backend == "serial":
            how = "serial, in the calling process"
        elif self.backend == "native":
            threads = "thread" if self.workers == 1 else "threads"
            return f"native, {self.native}, {self.workers} {threads}: {self.reason}"
        elif self.backend == "ray":
            how = f"ray, {self.workers} {'actor' if self.workers == 1 else 'actors'}"
        else:
            own = ", one of them the caller's" if self.caller_steps else ""
            shards = "shard" if self.workers == 1 else "shards"
            how = f"process, {self.workers} {shards}{own}"
        more = f"; backend='native' would run {self.native}" if self.native else ""
        if self.by_pipe:
            more += f"; by pipe: {', '.join(f'observation{leaf}' for leaf in self.by_pipe)}"
        if self.notice:
            more += f"; {self.notice}"
        return f"{how}: {self.reason}{more}"


def choose(
    measured: Measurement | None,
    num_envs: int,
    cores: int,
    *,
    serial: bool,
    caller: bool,
    most: int | None = None,
) -> Plan:
    """The plan with the shortest expected step; ``measured`` is None if it took too long to tell.

    That every engine copies its answer once more for the caller makes no difference between them.
    ``serial`` and ``caller`` say whether envs may run in the calling process, all or one shard;
    ``most`` bounds the number of shards.
    """
    bound = num_envs if most is None else min(num_envs, most)
    share = "a worker for each env" if bound == num_envs else f"as many workers as allowed, {bound}"
    if measured is None:
        return Plan("process", bound, False, f"it starts or steps slowly: {share}")
    if measured.waits:
        text = f"a step takes {_time(measured.alone)} and mostly waits: {share}"
        return Plan("process", bound, False, text, measured=measured)
    others = measured.neighbours
    costs: dict[tuple[str, int, bool], float] = {}
    for shards in _numbers_of_shards(min(cores, bound), cores, others):
        step = _parallel(measured, num_envs, shards, cores)
        costs["process", shards, False] = step + _PROCESS
        if caller and shards > 1:
            costs["process", shards, True] = step + _CALLER
    if serial:
        alone = num_envs * _each(measured) + _SERIAL
        costs["serial", 1, False] = alone / core_share(cores, others, 1)
    backend, workers, own = min(costs, key=lambda plan: costs[plan])
    text = f"a step takes {_time(measured.alone)}, {num_envs} envs on {cores} cores"
    if others >= NOBODY:
        text += f" that are busy with about {others:.0f} other processes"
    return Plan(backend, workers, own, text, measured=measured)


def advise(others: float, work: float, shards: int, cores: int) -> str:
    """What a fleet in processes says when it finds ``others`` beside it.

    ``work`` is how many seconds all its processes compute for one step.
    """
    ours = "1 core" if cores == 1 else f"{cores} cores"
    what = f"other processes keep about {others:.1f} of {ours} busy, and this fleet waits for them"
    parallel = work / shards / core_share(cores, others, shards)
    parallel += _TURN * crowding(cores, others, shards)
    if work / core_share(cores, others, 1) < parallel:
        return (
            f"{what}. Its steps are short, {_time(work)} of computing: beside others "
            "backend='serial' is faster. make(..., backend='auto') takes it when it finds them."
        )
    return f"{what}. Cores of its own would help (taskset -c), or fewer neighbours."


def _numbers_of_shards(most: int, cores: int, others: float) -> set[int]:
    """All cores, or only those that others leave."""
    return {most, min(most, max(1, cores - math.ceil(others)))}


def _each(measured: Measurement) -> float:
    return measured.alone + _PER_ENV + measured.observation_bytes * _PER_BYTE


def _parallel(measured: Measurement, num_envs: int, shards: int, cores: int) -> float:
    """Seconds until the last shard is done."""
    others = measured.neighbours
    work = math.ceil(num_envs / shards) * _each(measured)
    return work / core_share(cores, others, shards) + _TURN * crowding(cores, others, shards)


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"
