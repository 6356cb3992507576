"""What Linux tells of its cores: how long a task waited for one, how long they were idle.

Everything here returns None, or does nothing, where the system does not have it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import sys
from pathlib import Path
from typing import NamedTuple

from envfleet.engine.interrupts import held_signals

_SETATTR, _GETATTR = {"x86_64": (314, 315), "aarch64": (274, 275)}.get(platform.machine(), (0, 0))
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class Turns(NamedTuple):
    """A task's time on the cores so far."""

    ran: float
    """Seconds on a core."""
    waited: float
    """Seconds in which it could have run but others had the cores."""
    turns: int
    """How often it was given a core."""


def turns_of(task: int | str = "thread-self") -> Turns | None:
    """Of a thread of this process, "thread-self" or a process's main thread, by its pid."""
    try:
        ran, waited, turns = _read(f"/proc/{task}/schedstat").split()
        return Turns(int(ran) * 1e-9, int(waited) * 1e-9, int(turns))
    except (OSError, ValueError):
        return None


def _read(path: str) -> bytes:
    with held_signals():  # what a handler raises must not leave the file open
        return Path(path).read_bytes()


def idle_time() -> float | None:
    """Seconds that the cores which this process may use have been idle, added up."""
    try:
        lines = _read("/proc/stat").decode().splitlines()
        cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        rows = [line.split() for line in lines if line.split(" ", 1)[0] in cores]
        return sum(int(row[4]) + int(row[5]) for row in rows) / _TICKS if rows else None
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def family_time() -> float | None:
    """Seconds that this process and all that descend from it have computed so far."""
    if sys.platform != "linux":
        return None
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    total = sum(each.ru_utime + each.ru_stime for each in used)
    tree = _children_of(os.getpid())
    while tree:
        pid = tree.pop()
        try:
            # After the name, which may contain anything, come the state and 10 other fields.
            fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
            total += sum(map(int, fields[11:15])) / _TICKS  # those of its own ended ones too
            tree += _children_of(pid)
        except (OSError, ValueError):
            continue  # it has just ended
    return total


def _children_of(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError, ValueError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - bare names are wanted
            found += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    return found


class _Attributes(ctypes.Structure):
    """struct sched_attr, as far as Linux 5.3 has it."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
        ("util_min", ctypes.c_uint32),
        ("util_max", ctypes.c_uint32),
    )


def ask_for_short_turns(short: bool) -> None:
    """Ask for turns of 0.1 ms for this thread, or for the usual ones again.

    From Linux 6.12 on a task with shorter turns than the running one gets the core as soon as it
    wakes, if it has not had its share yet; its share stays what it was. Older kernels ignore it.
    """
    if sys.platform != "linux" or not _SETATTR:
        return
    syscall = ctypes.CDLL(None).syscall
    attributes = _Attributes()
    size = ctypes.sizeof(attributes)
    if syscall(_GETATTR, 0, ctypes.byref(attributes), size, 0) or attributes.policy:
        return  # unknown here, or somebody has chosen a policy
    attributes.runtime = 100_000 if short else 0
    syscall(_SETATTR, 0, ctypes.byref(attributes), 0)
