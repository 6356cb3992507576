"""A progress bar where there is somebody to see it."""

from __future__ import annotations

import sys
from typing import Any, Self


class _NoBar:
    """Where nothing is to be shown."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, count: int) -> None:
        """So many more."""


def progress_bar(total: int | None, wanted: bool | None, title: str, unit: str) -> Any:
    """A progress bar, where one is wanted (by default on a terminal) and tqdm is installed."""
    if sys.stderr.isatty() if wanted is None else wanted:
        try:
            from tqdm import tqdm  # noqa: PLC0415 - an extra
        except ImportError:
            return _NoBar()
        # Without the thread that tqdm keeps to redraw bars that stand still.
        quiet = type("Bar", (tqdm,), {"monitor_interval": 0})
        return quiet(total=total, desc=title, unit=unit)
    return _NoBar()
