"""What a worker does before anything else: signals, inherited descriptors, global randomness."""

from __future__ import annotations

import contextlib
import random
import signal
import weakref
from multiprocessing.connection import Connection

import numpy as np

caller_ends: weakref.WeakSet[Connection] = weakref.WeakSet()
"""The pipe ends that belong to the caller. A forked worker inherits copies of them, and as long as
a copy is open the worker at the other end does not notice that the caller is gone."""


def enter(seed: int) -> None:
    """Make this process a worker.

    Ctrl-C goes to the whole process group: the caller handles it, workers ignore it. SIGTERM ends
    a worker at once whatever handler it inherited.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for connection in list(caller_ends):
        with contextlib.suppress(OSError):
            connection.close()
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the legacy global generator is what envs may use
