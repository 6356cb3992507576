"""Busy neighbours: processes that only compute, to measure what a fleet does beside them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

# Whoever is left alone ends: a benchmark may be killed.
_LOOP = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


@contextlib.contextmanager
def busy_loops(count: int, *, apart: bool = False) -> Iterator[None]:
    """Have so many busy loops beside what happens inside; ``apart`` in sessions of their own."""
    words = [sys.executable, "-S", "-c", _LOOP]
    loops = [
        subprocess.Popen(words, start_new_session=apart)  # noqa: S603 - our own words
        for _ in range(count)
    ]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()
