"""Descriptors of ours are never 0, 1 or 2: whoever prints would write into them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def above_standard() -> Iterator[None]:
    """What is opened in here gets a descriptor above 2, also where 0, 1 or 2 have been closed.

    Daemons close them, and so do some envs. They are closed again afterwards.
    """
    held: list[int] = []
    try:
        while True:
            held.append(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
            if held[-1] > 2:
                break
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
