"""Limits the threads of numerical libraries: workers with many each would fight for the cores."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

import threadpoolctl

VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)


@contextlib.contextmanager
def limits_to_inherit(count: int | None, *, forked: bool) -> Iterator[None]:
    """What is started in here is limited to ``count`` threads per library (None: to nothing).

    A forked process inherits the numbers of the libraries themselves. Set there they would cost
    more: OpenBLAS, asked for a number after a fork, starts threads that spin for 0.1 s.
    """
    if count is None:
        yield
        return
    before = {name: os.environ.get(name) for name in VARIABLES}
    os.environ.update(dict.fromkeys(VARIABLES, str(count)))
    try:
        with threadpoolctl.threadpool_limits(count if forked and _exceed(count) else None):
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _exceed(count: int) -> bool:
    return any(library["num_threads"] > count for library in threadpoolctl.threadpool_info())


def limit_threads(count: int, *, forked: bool) -> None:
    """Let libraries in this worker use ``count`` threads each, loaded already or later."""
    os.environ.update(dict.fromkeys(VARIABLES, str(count)))
    if not forked and _exceed(count):
        threadpoolctl.threadpool_limits(count)
    # These have numbers of their own, and are limited only where somebody has loaded them.
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(count)
    if (cv2 := sys.modules.get("cv2")) is not None:
        cv2.setNumThreads(count)
