"""Files that are whole or not there: written beside their place, flushed to disk, then renamed."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path


class WriteError(OSError):
    """A file could not be written, often because the disk is full; its name is ``filename``."""

    def __str__(self) -> str:
        return f"cannot write {self.filename}: {self.strerror}"


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn any ``OSError`` into a ``WriteError`` that names the file."""
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        raise WriteError(error.errno, error.strerror or str(error), str(path)) from error


def write(path: Path, data: bytes) -> None:
    """Write a file and flush it to disk; the umask alone decides who may read it."""
    with writing(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it: one call may take a part only."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def replace(path: Path, data: bytes) -> None:
    """Put a new file in the place of an old one, which stays if anything fails."""
    draft = path.with_name(f".{path.name}.new")
    try:
        write(draft, data)
        with writing(path):
            draft.replace(path)
            flush_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def flush_folder(folder: Path) -> None:
    """Flush the names in a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems flush no folders
            raise
    finally:
        os.close(descriptor)
