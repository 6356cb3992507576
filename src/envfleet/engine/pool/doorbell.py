"""Waiting for workers: wakes on a reply and on a death, and keeps to one deadline."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from enum import Enum, auto

from envfleet.engine.arena.signals import Signals, Sleep
from envfleet.engine.pool.handle import WorkerHandle
from envfleet.engine.spin import Patience

PULSE = 0.5
"""Seconds between looks at the processes themselves: a child that an env forked may keep the pipe
of a dead worker open, and then only the process itself tells."""


class Deadline:
    """A point in time, or never; made once per call."""

    def __init__(self, timeout: float | None) -> None:
        self._end = None if timeout is None else time.monotonic() + timeout

    def left(self) -> float | None:
        """Seconds left, not below 0; None means no limit."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def has_passed(self) -> bool:
        """Whether the time is over."""
        return self._end is not None and time.monotonic() >= self._end

    def postpone(self, seconds: float) -> None:
        """Move it on, unless by less than nothing."""
        if self._end is not None:
            self._end += max(0.0, seconds)

    def leave_at_least(self, seconds: float) -> None:
        """Move it on if less time than this is left."""
        if self._end is not None:
            self._end = max(self._end, time.monotonic() + seconds)

    def or_earlier(self, other: Deadline) -> Deadline:
        """The earlier one of two."""
        if self._end is None or (other._end is not None and other._end < self._end):
            return other
        return self


class Ring(Enum):
    """What tells that a worker can make progress."""

    SIGNAL = auto()
    WIRE = auto()
    END = auto()
    """Its process is over, and its wire does not tell."""


Ready = tuple[WorkerHandle, Ring]


class Doorbell:
    """Looks at the signals of all workers of a pool for a while, then sleeps in the kernel."""

    def __init__(self, handles: Sequence[WorkerHandle]) -> None:
        self._by_fd: dict[int, WorkerHandle] = {}
        self._poll = select.poll()
        self._signals: Signals | None = None
        self._patience = Patience(0.0)
        for handle in handles:
            self.add(handle)

    def use(self, signals: Signals, patience: Patience) -> None:
        """Look at signals too; those of any worker tell all of them that the caller sleeps."""
        self._signals = signals
        self._patience = patience

    def drop_signals(self) -> None:
        """Let go of the arena."""
        self._signals = None

    def add(self, handle: WorkerHandle) -> None:
        """Listen to a worker."""
        self._by_fd[handle.fd] = handle
        self._poll.register(handle.fd, select.POLLIN)

    def forget(self, handle: WorkerHandle) -> None:
        """Stop listening to a worker from which nothing more can come."""
        if self._by_fd.get(handle.fd) is handle:
            del self._by_fd[handle.fd]
            self._poll.unregister(handle.fd)

    def follow(self, handle: WorkerHandle) -> None:
        """Wake also when the worker takes more of a long command; or not any more."""
        if handle.fd in self._by_fd:
            sending = select.POLLOUT if handle.is_sending else 0
            self._poll.modify(handle.fd, select.POLLIN | sending)

    def glance(self, handles: Sequence[WorkerHandle]) -> bool:
        """Take answers that are mere signals, as they come; False if there is more than that."""
        if self._signals is None:
            return False
        start = until = 0.0
        for handle in handles:
            while not handle.take_signal():
                now = time.perf_counter()
                if not start:
                    start, until = now, now + self._patience.bound
                if now >= until or not handle.owes_reply or handle.has_answered():
                    return False
        self._patience.note(time.perf_counter() - start if start else 0.0)
        return True

    def wait(
        self, deadline: Deadline, *, look: bool = True, sleep: Sleep = Sleep.FOR_ANY
    ) -> list[Ready]:
        """The workers that can make progress; empty when the deadline has passed.

        Without ``look`` the signals are not watched before sleeping. Asleep ``FOR_ALL``, silent
        answers are reported only when the last of them has come.

        Nothing is changed here, so that an interrupted wait may be repeated.
        """
        signals = self._signals
        if signals is None:
            return self._sleep(deadline)
        start = time.perf_counter()
        ready = self._look(start, deadline) if look else []
        if not ready:
            signals.caller_sleeps(sleep)
            try:
                ready = self._answered() or self._sleep(deadline)
            finally:
                signals.caller_sleeps(Sleep.NOT)
        self._patience.note(time.perf_counter() - start)
        return ready

    def _look(self, start: float, deadline: Deadline) -> list[Ready]:
        """Look at the signals without sleeping."""
        bound = self._patience.bound
        left = deadline.left()
        until = start + (bound if left is None else min(left, bound))
        while True:
            if ready := self._answered():
                return ready
            if time.perf_counter() >= until:
                return []

    def _answered(self) -> list[Ready]:
        return [
            (handle, Ring.SIGNAL)
            for handle in self._by_fd.values()
            if handle.owes_reply and handle.has_answered()
        ]

    def _sleep(self, deadline: Deadline) -> list[Ready]:
        while True:
            left = deadline.left()
            pause = PULSE if left is None else min(left, PULSE)
            ready = self._poll.poll(pause * 1000)
            if ready:
                return [(self._by_fd[fd], Ring.WIRE) for fd, _ in ready]
            if answered := self._answered():
                return answered
            for handle in self._by_fd.values():
                if handle.owes_reply and handle.watch.wait(0.0):
                    return [(handle, Ring.END)]
            if left is not None and left <= pause:
                return []
