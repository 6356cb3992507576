"""Memory without a name that two processes share by passing a descriptor."""

from __future__ import annotations

import mmap
import os
import sys
import tempfile

from envfleet.engine.descriptors import above_standard


def allocate(size: int) -> int:
    """A descriptor of ``size`` zeroed bytes of shared memory, all of them reserved now.

    The caller owns the descriptor. Nothing appears in /dev/shm, so nothing can be left there.

    Raises:
        MemoryError: there is not enough memory; without the reservation the first write to a
            missing page would kill a worker with SIGBUS.
    """
    with above_standard():
        fd = _open_anonymous()
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
        else:
            os.truncate(fd, size)
    except OSError as error:
        os.close(fd)
        raise MemoryError(
            f"the arena of this fleet needs {size:,} bytes of shared memory: {error.strerror}. "
            "Use fewer envs or smaller observations, or give the process (or its container) more."
        ) from error
    return fd


def map_shared(fd: int, size: int) -> mmap.mmap:
    """Map the memory behind a descriptor; it lives as long as any array on it does."""
    with above_standard():  # a mapping keeps a duplicate of the descriptor
        return mmap.mmap(fd, size)


def _open_anonymous() -> int:
    if sys.platform == "linux":
        return os.memfd_create("envfleet", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
