"""Waiting for workers: wakes on a reply and on a death, and keeps to one deadline."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence

from envfleet.engine.pool.handle import WorkerHandle

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

    def or_earlier(self, other: Deadline) -> Deadline:
        """The earlier one of two."""
        if self._end is None or (other._end is not None and other._end < self._end):
            return other
        return self


class Doorbell:
    """One kernel wait for all workers of a pool."""

    def __init__(self, handles: Sequence[WorkerHandle]) -> None:
        self._by_fd: dict[int, WorkerHandle] = {}
        self._poll = select.poll()
        for handle in handles:
            self.add(handle)

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

    def wait(self, deadline: Deadline) -> list[WorkerHandle]:
        """The workers that can make progress; empty when the deadline has passed.

        Raises:
            WorkerDied: a worker's process ended without its pipe telling.
        """
        while True:
            left = deadline.left()
            pause = PULSE if left is None else min(left, PULSE)
            ready = self._poll.poll(pause * 1000)
            if ready:
                return [self._by_fd[fd] for fd, _ in ready]
            for handle in self._by_fd.values():
                if handle.owes_reply and handle.watch.wait(0.0):
                    raise handle.died()
            if left is not None and left <= pause:
                return []
