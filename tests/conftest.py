"""The leak check around every test, and the marks of the conformance tests."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest


def pytest_addoption(parser):
    parser.addoption(
        "--engines",
        choices=("ours", "gymnasium", "all"),
        default="ours",
        help="run the conformance tests on envfleet's engines, on Gymnasium's own, or on both",
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "engines(*kinds): which kinds of engine a test is about")
    config.addinivalue_line("markers", "differs(row, on=...): a row of docs/differences.md")


def pytest_collection_modifyitems(items):
    # A test about other engines than the chosen ones was given no engine at all.
    items[:] = [item for item in items if isinstance(_engine_of(item), str)]
    for item in items:
        engine = _engine_of(item)
        if not engine.startswith("gymnasium-"):
            continue
        item.add_marker(pytest.mark.filterwarnings("ignore"))  # it tells of failed envs that way
        for mark in item.iter_markers("differs"):
            if engine.split("-")[1] in mark.kwargs.get("on", ("sync", "async")):
                item.add_marker(pytest.mark.xfail(strict=True, reason=mark.args[0]))


def _engine_of(item):
    if item.module.__name__ != "test_conformance" or not hasattr(item, "callspec"):
        return ""
    return item.callspec.params.get("engine", "")


@dataclass(frozen=True)
class Snapshot:
    children: frozenset[int]
    descriptors: frozenset[str]
    threads: int
    shared_memory: frozenset[str]

    @classmethod
    def take(cls) -> Snapshot:
        return cls(
            frozenset(_children()),
            frozenset(_descriptors()),
            threading.active_count(),
            frozenset(path.name for path in Path("/dev/shm").glob("*")),
        )

    def leaks(self, before: Snapshot) -> list[str]:
        found = [f"process {pid}" for pid in self.children - before.children]
        found += [f"descriptor {fd}" for fd in self.descriptors - before.descriptors]
        found += [f"/dev/shm/{name}" for name in self.shared_memory - before.shared_memory]
        if self.threads > before.threads:
            found.append(f"{self.threads - before.threads} threads")
        return found


def _children():
    for child in psutil.Process().children(recursive=True):
        try:
            command = " ".join(child.cmdline())
            if child.status() != psutil.STATUS_ZOMBIE and not _is_helper(command):
                yield child.pid
        except psutil.NoSuchProcess:
            pass


def _is_helper(command: str) -> bool:
    """multiprocessing's own processes live as long as the caller."""
    return "multiprocessing.forkserver" in command or "multiprocessing.resource_tracker" in command


def _descriptors():
    for link in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # the listing's own descriptor is gone by now
            yield f"{link.name} -> {link.readlink()}"


@pytest.fixture(scope="session", autouse=True)
def _warm_up():
    """Start what multiprocessing starts once per process, so that it is not counted as a leak."""
    import multiprocessing as mp  # noqa: PLC0415
    from multiprocessing import forkserver, resource_tracker  # noqa: PLC0415

    resource_tracker.ensure_running()
    forkserver.ensure_running()
    process = mp.get_context("forkserver").Process(target=int)
    process.start()
    process.join()
    mp.Array("d", 1)  # the heap that Gymnasium's shared memory comes from
    # What was imported stays: looking through it in every gc.collect() would take most of the time.
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_leaks(_warm_up, request):
    """Nothing that a test starts or opens outlives it; Gymnasium's own engines are not asked."""
    if _engine_of(request.node).startswith("gymnasium-"):
        yield
        return
    gc.collect()
    before = Snapshot.take()
    yield
    deadline = time.monotonic() + 5
    while True:
        gc.collect()
        leaks = Snapshot.take().leaks(before)
        if not leaks:
            return
        if time.monotonic() > deadline:
            pytest.fail("left behind: " + ", ".join(leaks))
        time.sleep(0.02)
