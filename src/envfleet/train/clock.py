"""Clock: how long methods of an object have run."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any


class Clock:
    """Knows how long methods of an object have run, that do not call each other."""

    def __init__(self, thing: Any, *names: str) -> None:
        self._seconds = 0.0
        for name in names:
            if hasattr(thing, name):
                setattr(thing, name, self._timed(getattr(thing, name)))

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
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
