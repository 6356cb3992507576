"""Leak checks: nothing that a piece of code starts or opens outlives it.

Needs psutil: ``pip install envfleet[testing]``.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

try:
    import psutil
except ImportError as error:
    raise ImportError("the leak checks need psutil: pip install envfleet[testing]") from error


@contextlib.contextmanager
def assert_no_leaks(patience: float = 5.0) -> Iterator[None]:
    """Fail if the block leaves a process, a descriptor, a thread or an entry of /dev/shm behind.

    What multiprocessing starts once per program (its fork server and resource tracker) does not
    count as a process; their descriptors do, the first time. Nor do the idle workers that a Ray
    keeps, and while this program is connected to one, sockets are taken for Ray's. An entry of
    /dev/shm that only other programs use is theirs. Objects that are still referenced are not
    collected: let go of a fleet inside the block, or close it.

    Args:
        patience: seconds that what is on its way out may take.

    Raises:
        AssertionError: naming what is left.
    """
    gc.collect()
    before = Snapshot.take()
    yield
    deadline = time.monotonic() + patience
    while True:
        gc.collect()
        leaks = Snapshot.take().leaks(before)
        if not leaks:
            return
        if time.monotonic() > deadline:
            raise AssertionError("left behind: " + ", ".join(leaks))
        time.sleep(0.02)


@dataclass(frozen=True)
class Snapshot:
    """What this process has at one moment."""

    children: frozenset[int]
    descriptors: frozenset[str]
    threads: int
    shared_memory: frozenset[str]

    @classmethod
    def take(cls) -> Snapshot:
        """Look around."""
        return cls(
            frozenset(_children()),
            frozenset(_descriptors()),
            _threads(),
            frozenset(_shared_memory()),
        )

    def leaks(self, before: Snapshot) -> list[str]:
        """What is here and was not before, in words."""
        found = [f"process {pid}" for pid in self.children - before.children]
        found += [f"descriptor {fd}" for fd in self.descriptors - before.descriptors]
        entries = self.shared_memory - before.shared_memory
        if entries:
            found += [f"shared memory {name}" for name in entries - _used_by_others_only(entries)]
        if self.threads > before.threads:
            found.append(f"{self.threads - before.threads} threads")
        return found


def _threads() -> int:
    """How many threads Python has started, and not those of libraries that call it now and then."""
    theirs = threading._DummyThread  # noqa: SLF001 - its only name
    return sum(not isinstance(thread, theirs) for thread in threading.enumerate())


def _children() -> Iterator[int]:
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            command = " ".join(child.cmdline())
            if child.status() != psutil.STATUS_ZOMBIE and not _is_helper(command):
                yield child.pid


def _shared_memory() -> Iterator[str]:
    """The entries of /dev/shm, but for semaphores: any program's pass there for a moment."""
    for path in Path("/dev/shm").glob("*"):  # noqa: S108 - looked at, not written to
        if not path.name.startswith("sem."):
            yield path.name


def _used_by_others_only(entries: frozenset[str]) -> set[str]:
    """Which entries of /dev/shm only processes have open or mapped that do not descend from us.

    The folder is the machine's. An entry that nobody uses counts as ours: whoever left it is gone.
    """
    ours = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    users: dict[str, set[bool]] = {}
    for process in psutil.process_iter():
        for path in _paths_in_use(process.pid):
            folder, _, name = path.rpartition("/")
            if folder == "/dev/shm" and name in entries:  # noqa: S108 - looked at only
                users.setdefault(name, set()).add(process.pid in ours)
    return {name for name, who in users.items() if who == {False}}


def _paths_in_use(pid: int) -> Iterator[str]:
    folder = Path(f"/proc/{pid}")
    with contextlib.suppress(OSError):  # it is gone by now, or another user's
        for line in (folder / "maps").read_text().splitlines():
            if "/" in line:
                yield line[line.index("/") :]
        for link in (folder / "fd").iterdir():
            yield str(link.readlink())


_HELPERS = (
    "multiprocessing.forkserver",
    "multiprocessing.resource_tracker",
    "ray::IDLE",
    "ray/_private/workers/default_worker.py",  # it will be called ray::IDLE
)


def _is_helper(command: str) -> bool:
    """Multiprocessing's own processes live as long as the caller; a Ray has idle ones in store."""
    return any(name in command for name in _HELPERS)


def _descriptors() -> Iterator[str]:
    has_ray = _is_connected_to_ray()
    for link in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # the listing's own descriptor is gone by now
            target = str(link.readlink())
            if not (has_ray and target.startswith(_OF_RAY)):
                yield f"{link.name} -> {target}"


_OF_RAY = ("socket:", "/dev/shm/plasma")  # noqa: S108 - compared with, not written to


def _is_connected_to_ray() -> bool:
    """Whether Ray opens and closes connections in this process as it sees fit."""
    ray = sys.modules.get("ray")
    return ray is not None and hasattr(ray, "is_initialized") and bool(ray.is_initialized())
