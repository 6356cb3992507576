"""Whether processes of others keep a fleet from its cores: asked now and then while it runs.

Looking for a signal is right while nobody else wants the core. Beside busy neighbours it uses up
the turns that a process gets, so that others have the core when there is something to do: measured
on 2 cores beside 2 busy loops, 8 CartPoles in 2 workers take 4 times as long as with sleeping at
once.

    LOOKING ──► DOUBTING ──► HELD_UP      the caller waits for a core; others do use the cores
       ▲            │           │
       └────────────┴───────────┘         only the fleet's own processes, or a learner's threads, do

The caller judges for the whole fleet. A fleet that stays held up by other programs says so once;
processes of its own program, such as a video's encoder, are no news.
"""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import NamedTuple

from envfleet.engine.cores import usable_cores
from envfleet.engine.process.shard import WorkerShard
from envfleet.engine.rules.choice import advise
from envfleet.engine.rules.neighbours import NOBODY, neighbours
from envfleet.engine.scheduler import Turns, family_time, idle_time, turns_of
from envfleet.engine.shard import Shard

GLANCE, LONGEST_GLANCE = 0.1, 1.6
"""Seconds between two questions about the caller alone; longer where it has been a false alarm."""
DOUBT = 0.2
"""Seconds for a verdict: idle time is counted in hundredths."""
HOLD = 1.0
"""Seconds until a verdict is looked at again; the second one of a kind is worth a word."""
SHARE = 0.15
"""Of the time, without a core ..."""
DELAY = 150e-6
"""... and for so many seconds each time, makes doubtful. A fleet's own processes hold each other up
like that too, where they outnumber the cores."""

_log = logging.getLogger("envfleet")


class Books(NamedTuple):
    """Who has had the cores so far, in seconds."""

    passed: float
    idle: float
    ours: float
    """Of this process and the workers."""
    commands: int
    family: float = 0.0
    """Of all processes of this program; 0 if nobody wants to know."""


class Finding(NamedTuple):
    """What the books say of some time."""

    others: float
    """Processes that are not the fleet's."""
    strangers: float
    """Those that are not of this program either."""
    work: float
    """Seconds that one command made the fleet compute."""


def is_delayed(wall: float, before: Turns | None, after: Turns | None) -> bool:
    """Whether a thread was without a core for much of the time, and for long each time."""
    if before is None or after is None:
        return False
    waited = after.waited - before.waited
    return waited > SHARE * wall and waited > DELAY * (after.turns - before.turns)


class _State(Enum):
    LOOKING = auto()
    DOUBTING = auto()
    HELD_UP = auto()


class Contention:
    """The verdict on one fleet; ``check`` belongs to the thread that steps it.

    Args:
        shards: the fleet's, as they are at any time.
        clock: seconds.
        turns: the calling thread's time on the cores; None where the system does not tell, and
            then no verdict ever falls.
        books: who has had the cores; None likewise.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        *,
        clock: Callable[[], float] = time.perf_counter,
        turns: Callable[[], Turns | None] = turns_of,
        books: Callable[..., Books | None] | None = None,
    ) -> None:
        self.notice = ""
        """What was said."""
        self._shards = shards
        self._clock, self._turns, self._read = clock, turns, books or read_books
        self._glance = GLANCE
        self._begin(_State.LOOKING, GLANCE)

    def check(self) -> bool:
        """Whether the fleet is held up; a new verdict if the last one is old enough."""
        now = self._clock()
        if now >= self._due:
            self._judge(now, paused=now - self._due > self._due - self._since)
        return self._state is _State.HELD_UP

    def _judge(self, now: float, *, paused: bool) -> None:
        if self._state is _State.HELD_UP:
            others, strangers, work = self._find()
            if others < NOBODY:
                self._begin(_State.LOOKING, GLANCE)
            else:
                if not self.notice and strangers >= NOBODY and work > 0.0 and not paused:
                    self.notice = advise(strangers, work, len(self._shards), usable_cores())
                    _log.warning("%s", self.notice)
                self._begin(_State.HELD_UP, HOLD)
            return
        delayed = is_delayed(now - self._since, self._before, self._turns())
        if paused or not delayed:  # while nobody steps the fleet others may do what they like
            self._glance = GLANCE
            self._begin(_State.LOOKING, GLANCE)
        elif self._state is _State.LOOKING:
            self._begin(_State.DOUBTING, DOUBT)
        elif self._find().others >= NOBODY:
            self._begin(_State.HELD_UP, HOLD)
        else:
            self._glance = min(2 * self._glance, LONGEST_GLANCE)
            self._begin(_State.LOOKING, self._glance)

    def _find(self) -> Finding:
        """What has been since the last verdict."""
        before, after = self._books, self._look()
        if before is None or after is None:
            return Finding(0.0, 0.0, 0.0)
        passed, idle, ours, commands, family = (b - a for a, b in zip(before, after, strict=True))
        others, strangers = (
            neighbours(usable_cores(), passed, cpu, None, idle) for cpu in (ours, max(ours, family))
        )
        return Finding(others, strangers, ours / commands if commands > 0 else 0.0)

    def _look(self) -> Books | None:
        """The family takes a moment, and is of interest only where something may be said."""
        may_say = self._state is _State.HELD_UP and not self.notice
        return self._read(self._shards, family=may_say)

    def _begin(self, state: _State, seconds: float) -> None:
        self._state = state
        self._before = self._turns()
        self._books = None if state is _State.LOOKING else self._look()
        self._since = self._clock()
        self._due = self._since + seconds


def read_books(shards: Sequence[Shard], *, family: bool = False) -> Books | None:
    """The books of a fleet, with ``family`` if asked; None where the system does not keep them."""
    idle, workers = idle_time(), [shard for shard in shards if isinstance(shard, WorkerShard)]
    if idle is None or not workers:
        return None
    used = resource.getrusage(resource.RUSAGE_SELF)
    ours = used.ru_utime + used.ru_stime
    ours += sum(turns.ran for worker in workers if (turns := turns_of(worker.pid)))
    whole = family_time() if family else None
    return Books(time.perf_counter(), idle, ours, workers[0].commands, whole or 0.0)
