"""Clock: how long some functions have run."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any


class Clock:
    """Runs while one of its functions does; they must not call each other."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, on this clock."""

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self._seconds += time.perf_counter() - start

        return timed

    def stop(self) -> float:
        """Seconds since the last time."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds
