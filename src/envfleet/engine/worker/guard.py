"""What makes a process a worker: its signals, its process group, its end with the caller's end."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import random
import select
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from multiprocessing.connection import Connection

import numpy as np

caller_ends: weakref.WeakSet[Connection] = weakref.WeakSet()
"""The pipe ends that belong to the caller. A forked worker inherits copies of them, and as long as
a copy is open the worker at the other end does not notice that the caller is gone."""

_PR_SET_PDEATHSIG = 1


def enter(seed: int, caller: int, *, dies_with_parent: bool) -> None:
    """Make this process a worker of the process ``caller``.

    Ctrl-C goes to the whole foreground process group: the caller handles it, workers ignore it.
    SIGTERM ends a worker at once whatever handler it inherited. A worker leads a process group of
    its own, so that what its envs have started can be ended with it. When the caller is gone, the
    group ends, also in the middle of a step; ``dies_with_parent`` lets the kernel see to the worker
    itself, which needs no Python but must not be asked when a mere thread of the caller is the
    parent: the kernel would take the end of that thread for the end of the caller.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    for connection in list(caller_ends):
        with contextlib.suppress(OSError):
            connection.close()
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    if dies_with_parent and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_end_with, args=(caller,), name="caller-watch", daemon=True).start()
    with contextlib.suppress(Exception):  # stderr may be replaced by something without a descriptor
        faulthandler.enable()
    seed_globals(seed)


def seed_globals(seed: int) -> None:
    """Seed the generators that envs may use without asking: random, np.random, torch if loaded."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the legacy global generator is what envs may use
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)


def _end_with(caller: int) -> None:
    """Wait for the caller's end, then end this process and all that its envs have started."""
    try:
        wait_for_end(caller)
    finally:
        end_group(os.getpid())
        os.kill(os.getpid(), signal.SIGKILL)


def end_group(pid: int) -> None:
    """Kill a worker and what its envs have started; nothing if it never led a group of its own.

    To be called before the worker is joined: as long as it is not, nobody else has its pid.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def wait_for_end(pid: int, timeout: float | None = None) -> bool:
    """Wait until a process has ended, without joining it; False if it has not in time.

    Unlike a pipe to it, this cannot be kept open by something that the process has started.
    """
    if hasattr(os, "pidfd_open"):
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        except OSError:  # an old kernel, or a filter that does not know the call
            pass
        else:
            try:
                return bool(select.select([descriptor], [], [], timeout)[0])
            finally:
                os.close(descriptor)
    deadline = None if timeout is None else time.monotonic() + timeout
    while _exists(pid):
        if deadline is not None and time.monotonic() >= deadline:
            return False
        time.sleep(0.01 if deadline is not None else 1.0)
    return True


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextlib.contextmanager
def held_interrupts() -> Iterator[None]:
    """Keep Ctrl-C from a child that is being started, until ``enter`` makes it a worker."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
