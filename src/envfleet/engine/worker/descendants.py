"""The processes that a worker's envs have started, also those in sessions of their own."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path


def descendants(pid: int) -> Iterator[int]:
    """The children of a process and theirs, as far as the system tells (Linux does).

    What a process has started is known only while it lives.
    """
    with contextlib.suppress(OSError):  # it may end at any moment
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield int(child)
                yield from descendants(int(child))


def end_runaways(leader: int) -> None:
    """Kill what the leader of a process group has started and is not in that group."""
    for child in [*descendants(leader)]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(child) != leader:
                os.kill(child, signal.SIGKILL)
