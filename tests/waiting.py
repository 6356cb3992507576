"""Waiting in tests: for a condition, with a deadline that a busy machine meets too."""

from __future__ import annotations

import time


def wait_until(condition, seconds=30.0):
    """Return once the condition holds; fail if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {seconds:g} s"
        time.sleep(0.01)
