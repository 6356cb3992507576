"""How many processes of others run on the cores, judged by what they left for one of ours."""

from __future__ import annotations

NOBODY = 0.5
"""Cores; others that use less do not count."""
UNDISTURBED = 0.9
"""Of the time in which it could run: a process that had a core for more was not held up."""


def neighbours(
    cores: int, wall: float, cpu: float, waited: float | None, idle: float | None
) -> float:
    """Processes of others that keep running, about.

    Args:
        cores: how many there are for us.
        wall: seconds watched.
        cpu: seconds that our process has computed.
        waited: seconds in which it could have but others had the cores; None is not known.
        idle: seconds that cores were idle, added up; None is not known.
    """
    taken = 0.0
    if idle is not None:
        taken = cores - (cpu + idle) / wall
        if taken < NOBODY:
            return 0.0
    wanted = cpu + (waited or 0.0)
    if wanted > wall / 4 and cpu < UNDISTURBED * wanted:
        # Where all take turns, ours has had its fair share of the cores.
        return max(taken, cores * wanted / cpu - 1 if cpu > 0 else cores)
    return taken


def core_share(cores: int, others: float, ours: int) -> float:
    """Of a core, for each of ``ours`` processes beside those of others."""
    return min(1.0, cores / (others + ours))


def crowding(cores: int, others: float, ours: int) -> float:
    """How many processes wait behind the one that runs, on each core."""
    return max(0.0, others + ours - cores) / cores
