"""Signals that ask a run to end: it finishes what it is at."""

from __future__ import annotations

import contextlib
import signal
import sys
from types import FrameType
from typing import Any, Self


class GentleSignals:
    """Ctrl-C and SIGTERM are noted; the second one ends the program."""

    came: int | None = None

    def __enter__(self) -> Self:
        self._before: dict[int, Any] = {}
        with contextlib.suppress(ValueError):  # not the main thread: signals do not come here
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.came is None:
            self.came = number
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            sys.exit(128 + number)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
