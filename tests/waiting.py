"""Waiting in tests: for a condition, with a deadline that a busy machine meets too; for ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import psutil


def wait_until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Return once the condition holds; fail if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {seconds:g} s"
        time.sleep(0.01)


def gone(pids: Iterable[int]) -> bool:
    """Whether none of these processes runs any more; a zombie that nobody reaps does not run."""

    def runs(pid: int) -> bool:
        try:
            return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    return not any(runs(pid) for pid in pids)
