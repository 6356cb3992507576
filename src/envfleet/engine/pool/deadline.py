"""Deadline: a point in time that a wait must not pass."""

from __future__ import annotations

import time


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
