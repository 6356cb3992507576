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
def busy_loops(count: int) -> Iterator[None]:
    """Have so many busy loops beside what happens inside."""
    words = [sys.executable, "-S", "-c", _LOOP]
    loops = [subprocess.Popen(words) for _ in range(count)]  # noqa: S603 - our own words
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()
