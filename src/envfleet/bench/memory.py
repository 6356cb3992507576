"""What a process and all that it has started take of memory, as Linux tells it."""

from __future__ import annotations

import contextlib
from pathlib import Path


def family_memory(pid: int) -> int | None:
    """Bytes of a process and its descendants, each shared page divided by its users (PSS).

    None where the system does not tell: elsewhere than on Linux.
    """
    try:
        parents = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        family = {pid}
        while more := {p for p, parent in parents.items() if parent in family} - family:
            family |= more
        total = 0
        for member in family:
            lines = Path(f"/proc/{member}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    except (OSError, ValueError, StopIteration):
        return None
    return total * 1024
