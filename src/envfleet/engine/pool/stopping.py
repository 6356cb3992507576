"""Shutting shards down: asked to close, then told to end, then ended."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

from envfleet.engine.failures import Failure
from envfleet.engine.messages import Close, Command
from envfleet.engine.pool.deadline import Deadline
from envfleet.engine.pool.doorbell import Doorbell, Ring
from envfleet.engine.shard import Shard
from envfleet.errors import WorkerDied

CLOSE_PATIENCE = 30.0
"""Seconds that workers get for ``env.close()`` when the caller sets no time-out."""
STUCK_PATIENCE = 2.0
"""The same, for workers that have not answered, or not even taken, a command."""
BROKEN_PATIENCE = 5.0
"""The same, for the others when one has died."""
TERM_PATIENCE = 1.0
"""Seconds between SIGTERM and SIGKILL."""


class Stoppable(Protocol):
    """The part of a pool that is needed here."""

    shards: list[Shard]
    in_doubt: bool

    @property
    def is_broken(self) -> bool:
        """Whether a shard has died."""

    def settle(self) -> None:
        """Find a known state after an interrupt."""

    def tell(self, shard: Shard, command: Command) -> None:
        """Post a command to one shard."""

    def hear(self, shard: Shard, ring: Ring) -> None:
        """Let a shard's messages go on."""


def shut_down(
    pool: Stoppable, bell: Doorbell, timeout: float | None, *, terminate: bool
) -> list[Failure]:
    """End every shard, as ``Pool.stop`` says; returns what ``env.close`` raised."""
    shards = pool.shards
    if terminate:
        for shard in shards:
            shard.abandon()
        _end(shards, TERM_PATIENCE)
        return _failures(shards)
    if timeout is None:
        asking, grace = _split(BROKEN_PATIENCE if pool.is_broken else CLOSE_PATIENCE)
        _ask_to_close(pool)
        _end_stuck(pool, bell)
    else:
        asking, grace = _split(timeout)
        _ask_to_close(pool)
    _await(pool, bell, asking, lambda shard: shard.owes_answer)
    failures = _failures(shards)
    for shard in shards:
        if shard.is_over:
            shard.has_ended(asking.left())
    _end(shards, grace)
    return failures


def _ask_to_close(pool: Stoppable) -> None:
    if pool.in_doubt:
        pool.settle()
    for shard in pool.shards:
        if shard.is_garbled:
            shard.reap()  # nothing it is told would be understood
        if not shard.is_over:
            shard.abandon()
            with contextlib.suppress(WorkerDied):
                pool.tell(shard, Close())
    for shard in pool.shards:
        shard.work()


def _end_stuck(pool: Stoppable, bell: Doorbell) -> None:
    """Give workers that do not listen a short time, and end them."""
    asking, grace = _split(STUCK_PATIENCE)

    def is_stuck(shard: Shard) -> bool:
        return shard.queued is not None or (shard.owes_answer and shard.is_deaf)

    _await(pool, bell, asking, is_stuck)
    _end([shard for shard in pool.shards if is_stuck(shard)], grace)


def _await(
    pool: Stoppable, bell: Doorbell, deadline: Deadline, is_awaited: Callable[[Shard], bool]
) -> None:
    """Receive what comes until nobody is awaited any more, deaths included."""
    while any(is_awaited(shard) for shard in pool.shards):
        for shard in pool.shards:
            if shard.is_over:
                bell.forget(shard)
        with contextlib.suppress(WorkerDied):
            for shard, ring in bell.wait(deadline):
                pool.hear(shard, ring)
        if deadline.has_passed():
            return


def _end(shards: Sequence[Shard], grace: float) -> None:
    """End shards, and what they have started: SIGTERM, then SIGKILL."""
    for shard in shards:
        shard.terminate()
    patience = Deadline(grace)
    for shard in shards:
        shard.has_ended(patience.left())
        shard.reap()


def _failures(shards: Sequence[Shard]) -> list[Failure]:
    return [f for shard in shards if shard.outcome is not None for f in shard.outcome.failures]


def _split(patience: float) -> tuple[Deadline, float]:
    """Until when to ask, and how many of the seconds are left between SIGTERM and SIGKILL."""
    grace = min(TERM_PATIENCE, patience / 4)
    return Deadline(patience - grace), grace
