"""FolderLock: at most one writer per folder, for as long as its process lives."""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
from pathlib import Path

NAME = ".tracker.lock"

_held: weakref.WeakSet[FolderLock] = weakref.WeakSet()


class FolderInUseError(RuntimeError):
    """Somebody else writes to the folder."""


class FolderLock:
    """A lock on a folder, until ``release`` or the end of the process.

    Raises:
        FolderInUseError: somebody else has it.
        OSError: there is no such folder, or it takes no lock.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        while True:
            self._descriptor, self._is_new = _open(self.path)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_open_file(self.path, self._descriptor):
                    break
                # Whoever had it has removed the file just now: it locks nothing any more.
                os.close(self._descriptor)
            except BlockingIOError:
                os.close(self._descriptor)
                raise FolderInUseError(
                    f"another run or another tracker is writing to {folder}: wait for its end, or "
                    "choose another name or folder."
                ) from None
            except BaseException:
                os.close(self._descriptor)
                raise
        _held.add(self)

    def release(self, *, remove: bool = False) -> None:
        """Let somebody else have the folder; ``remove`` the lock's file if it is new."""
        if self._descriptor < 0:
            return
        if remove and self._is_new:
            with contextlib.suppress(OSError):
                self.path.unlink()
        self._forget()

    def _forget(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)
        _held.discard(self)


def _open(path: Path) -> tuple[int, bool]:
    """A lock's file, and whether it is new."""
    while True:
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), True
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):  # removed in between
                return os.open(path, os.O_RDWR | os.O_CLOEXEC), False


def _is_open_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _forget_in_child() -> None:
    """A forked child must not hold the folder when its parent is gone."""
    for lock in list(_held):
        lock._forget()  # noqa: SLF001 - ours


os.register_at_fork(after_in_child=_forget_in_child)
