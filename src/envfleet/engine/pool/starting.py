"""What stands in the way of starting workers: mains that cannot run twice, forked threads."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

from envfleet.engine.pool.cores import usable_cores
from envfleet.errors import WorkerDied

_NO_GUARD = 77
"""The exit code of a worker that found itself building the fleet it belongs to."""


def refuse_missing_guard() -> None:
    """Leave at once if this process is a worker that has only come to re-import the main module.

    multiprocessing would refuse with a long traceback per worker; the caller tells it once.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(_NO_GUARD)


def raise_if_missing_guard(death: WorkerDied) -> None:
    """Say what a death at the start with that exit code means.

    Raises:
        RuntimeError: the program builds a fleet when its main module is imported.
    """
    if death.exitcode == _NO_GUARD and death.command == "start":
        raise RuntimeError(
            "the workers import the program's main module, and importing it builds a fleet: put "
            "that under  if __name__ == '__main__':  (start methods spawn and forkserver need it)"
        ) from None


@contextlib.contextmanager
def hidden_missing_main() -> Iterator[None]:
    """Keep multiprocessing from running a main module again that is no file (``python -``)."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if path is None or Path(path).exists():
        yield
        return
    del main.__file__
    try:
        yield
    finally:
        main.__file__ = path


def warn_of_fork() -> None:
    """Warn if native threads of torch or OpenMP run here: a forked worker may freeze in them."""
    if "torch" not in sys.modules and not _openmp_is_loaded():
        return
    try:
        threads = len(list(Path("/proc/self/task").iterdir()))
    except OSError:
        return
    # NumPy's OpenBLAS keeps a thread per core too, but knows how to be forked.
    native = threads - threading.active_count() - (usable_cores() - 1)
    if native > 0:
        warnings.warn(
            "forking after torch or OpenMP has worked in this process: a worker that uses them may "
            'freeze. Build the fleet first, or pass context="forkserver".',
            stacklevel=4,
        )


def _openmp_is_loaded() -> bool:
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return False
    return any(name in maps for name in ("libgomp", "libomp", "libiomp"))
