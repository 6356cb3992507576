"""Watching a worker's process: whether it has ended, and ending it with all that it started."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

from envfleet.engine.worker.descendants import end_runaways

LONGEST = 1e6
"""Seconds, eleven days: as long as one wait in the kernel may be."""


class Watch:
    """Sure of one process, also when its number has been given to another one since.

    Somebody else may collect a dead worker's exit status and set its number free: a fork server
    does, and ``multiprocessing.active_children()`` too. A pidfd, where there are any, still means
    the process that it was opened for.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd: int | None = None
        self._ended = False
        if hasattr(os, "pidfd_open"):
            try:
                self._pidfd = os.pidfd_open(pid)
            except ProcessLookupError:
                self._ended = True
            except OSError:  # an old kernel, a filter that does not know the call, no more of them
                pass

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the process has ended, without joining it; False if it has not in time.

        Unlike a pipe to it, this cannot be kept open by something that the process has started.
        """
        if self._ended:
            return True
        if self._pidfd is not None:
            poll = select.poll()  # not select(), which knows no descriptor above 1023
            poll.register(self._pidfd, select.POLLIN)
            patience = None if timeout is None else min(timeout, LONGEST) * 1000
            self._ended = bool(poll.poll(patience))
            return self._ended
        deadline = None if timeout is None else time.monotonic() + timeout
        while not _has_ended(self.pid):
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(0.01)
        self._ended = True
        return True

    def end_runaways(self) -> None:
        """Kill what the process has started in groups and sessions of their own."""
        if not self._means_a_stranger():
            end_runaways(self.pid)

    def end_group(self) -> None:
        """Kill the process and what it has started; to be called before it is joined."""
        if self._means_a_stranger():
            return
        end_runaways(self.pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            # Nothing happens if it never led a group of its own.
            os.killpg(self.pid, signal.SIGKILL)

    def _means_a_stranger(self) -> bool:
        """Whether the number belongs to another process by now.

        While it belongs to nobody, it can only mean the group that our process has left behind.
        """
        if self._pidfd is None:
            return self._ended and _exists(self.pid)
        try:
            signal.pidfd_send_signal(self._pidfd, 0)
        except ProcessLookupError:  # collected
            return _exists(self.pid)
        except OSError:
            pass
        return False

    def close(self) -> None:
        """Let go of the descriptor; whether the process has ended cannot be asked any more."""
        descriptor, self._pidfd = self._pidfd, None
        if descriptor is not None:
            os.close(descriptor)


def _has_ended(pid: int) -> bool:
    """Whether a process is over, collected or not."""
    if hasattr(os, "waitid"):
        with contextlib.suppress(ChildProcessError):  # a fork server's child, or collected
            return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return not _exists(pid)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
