"""What makes a process a worker: its signals, its process group, its end with the caller's end."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import multiprocessing.process
import os
import random
import select
import signal
import socket
import sys
import threading
import weakref
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import numpy as np

caller_ends: weakref.WeakSet[Connection | socket.socket] = weakref.WeakSet()
"""The ends of pipes and wires that belong to the caller alone."""
own_workers: weakref.WeakSet[BaseProcess] = weakref.WeakSet()
"""The workers that this process has started."""


THREAD_PATIENCE = 1.0
"""Seconds for a thread of an env to end after ``env.close()``."""

_forks = 0
_is_stray = False
"""Whether this process was forked, and is not a worker."""


def forks() -> int:
    """How many forks lie between the program's start and this process."""
    return _forks


def _forget_inherited() -> None:
    """Make a forked child forget the caller's workers.

    As long as its copy of an end is open, the worker at the other end does not notice that the
    caller is gone. And at its exit multiprocessing would terminate what it takes for its children.
    """
    global _forks, _is_stray  # noqa: PLW0603 - they belong to the process
    _forks += 1
    _is_stray = True
    for end in list(caller_ends):
        with contextlib.suppress(OSError):
            end.close()
    for process in list(own_workers):
        multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]  # noqa: SLF001


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_inherited)


def enter(seed: int, lifeline: Connection) -> None:
    """Make this process a worker.

    Ctrl-C goes to the whole foreground process group: the caller handles it, workers ignore it.
    SIGTERM ends a worker at once whatever handler it inherited. A worker leads a process group of
    its own, so that what its envs have started can be ended with it; the group ends when the other
    end of ``lifeline`` is closed, which the caller's death does.
    """
    global _is_stray  # noqa: PLW0603 - it belongs to the process
    _is_stray = False
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    _tie_to(lifeline)
    with contextlib.suppress(Exception):  # stderr may be replaced by something without a descriptor
        faulthandler.enable()
    seed_globals(seed)


def _tie_to(lifeline: Connection) -> None:
    """End this process group when the other end of the pipe is closed.

    On Linux the kernel does it, also for a worker that is stuck in C code and holds the GIL: it
    signals the owner of an asynchronous descriptor, here with SIGKILL and here the whole group.
    """
    fd = lifeline.fileno()
    if sys.platform == "linux":
        leads = os.getpgid(0) == os.getpid()
        fcntl.fcntl(fd, fcntl.F_SETOWN, -os.getpid() if leads else os.getpid())
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
        poll = select.poll()  # not select(), which knows no descriptor above 1023
        poll.register(fd, select.POLLIN)
        if poll.poll(0):
            _end_with(lifeline)  # too late to be told
    else:
        threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()


def _end_with(lifeline: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv_bytes()
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def end_if_stray() -> None:
    """End a process that is not the worker but came back from one of its envs all the same.

    An env that forks and lets the child return, or raise, has made a second worker: its answers
    would pass for those of the first. (To ask for the process id would cost 0.2 us each time.)
    """
    if _is_stray:
        told = (
            f"envfleet: process {os.getpid()}, which an env has forked, came back from the env and "
            "ends here. A forked child should end by os._exit().\n"
        )
        with contextlib.suppress(OSError):
            os.write(2, told.encode())
        os._exit(1)


def leave() -> None:
    """Leave also if threads that an env has started, and not stopped, would not let a worker go."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(THREAD_PATIENCE)
            if thread.is_alive():
                with contextlib.suppress(OSError, ValueError, AttributeError):
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(0)


def seed_globals(seed: int, *, torch_too: bool = True) -> None:
    """Seed the generators that envs may use without asking: random, np.random, torch if loaded."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the legacy global generator is what envs may use
    if torch_too and (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)


@contextlib.contextmanager
def held_interrupts() -> Iterator[None]:
    """Keep Ctrl-C from a child that is being started, until ``enter`` makes it a worker."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
