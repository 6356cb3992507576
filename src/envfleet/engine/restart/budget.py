"""How often something may be restarted: a number of times in a span of time."""

from __future__ import annotations

from collections import deque


class RestartBudget:
    """Allows ``limit`` restarts within any ``window`` seconds, to end crash loops."""

    def __init__(self, limit: int, window: float) -> None:
        if not isinstance(limit, int) or limit < 0 or not window > 0:
            raise ValueError(
                "`restarts` is a pair: how many restarts (0 or more) within how many seconds "
                f"(above 0), got {(limit, window)}"
            )
        self.limit = limit
        self.window = window
        self.spent = 0
        """Restarts so far, in all."""
        self._times: deque[float] = deque()

    def spend(self, now: float) -> bool:
        """Take one restart at time ``now``; False if there is none left."""
        while self._times and self._times[0] <= now - self.window:
            self._times.popleft()
        if len(self._times) >= self.limit:
            return False
        self._times.append(now)
        self.spent += 1
        return True
