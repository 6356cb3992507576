"""Whether envs wait (sleep, talk to a server) or compute, judged by what their steps took."""

from __future__ import annotations

BUSY_SHARE = 0.25
"""An env that computes for less than this share of its steps' time is waiting."""


def is_waiting(wall: float, cpu: float, switches: float, steps: int) -> bool:
    """The verdict: little CPU used, and given up freely, not taken away by other processes."""
    return cpu < BUSY_SHARE * wall and 2 * switches >= steps
