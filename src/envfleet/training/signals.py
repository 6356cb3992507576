"""Signals that ask a run to end: it finishes what it is at."""

from __future__ import annotations

import contextlib
import signal
import sys
from types import FrameType
from typing import Any, Self


class GentleSignals:
    """Ctrl-C and SIGTERM are noted; the second one ends the program, the third one by force.

    The second one is raised, so that nothing is left behind: as KeyboardInterrupt, which nobody
    takes for an error of an env, and beyond this context as SystemExit if it was SIGTERM. If it
    gets lost on its way, as in a ``__del__``, the third one is handled as if we were not here.
    """

    came: int | None = None
    _last: int | None = None

    def __enter__(self) -> Self:
        self._before: dict[int, Any] = {}
        with contextlib.suppress(ValueError):  # not the main thread: signals do not come here
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.came is None:
            self.came = number
            return
        self._let_go()
        self._last = number
        raise KeyboardInterrupt

    def _let_go(self) -> None:
        for number, handler in self._before.items():
            if handler is not None:  # None was set by other code than Python's
                signal.signal(number, handler)

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._let_go()
        if isinstance(error, KeyboardInterrupt) and self._last == signal.SIGTERM:
            sys.exit(128 + signal.SIGTERM)
