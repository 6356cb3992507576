"""A progress bar where there is somebody to see it: on a terminal, or in a notebook."""

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

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        """A text behind it."""


def is_terminal() -> bool:
    """Whether somebody looks at what is written to standard error."""
    return sys.stderr is not None and sys.stderr.isatty()


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def progress_bar(
    total: int | None, wanted: bool | None, title: str, unit: str, initial: int = 0
) -> Any:
    """A progress bar, if one is wanted and tqdm is installed.

    By default one is wanted on a terminal and in a notebook.
    """
    if is_terminal() or in_notebook() if wanted is None else wanted:
        try:
            from tqdm.auto import tqdm  # noqa: PLC0415 - an extra
        except ImportError:
            return _NoBar()
        # Without the thread that tqdm keeps to redraw bars that stand still.
        quiet = type("Bar", (tqdm,), {"monitor_interval": 0})
        return quiet(total=total, desc=title, unit=unit, initial=initial)
    return _NoBar()
