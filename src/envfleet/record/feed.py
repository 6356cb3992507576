"""The program's end of the encoder: hands frames over without ever waiting for it."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pickle
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from pathlib import Path

from envfleet.record.encoder import Message, Show

CAPACITY = 256 * 2**20
"""Bytes of frames that may wait for the encoder; what comes then is dropped."""


_FEEDS: weakref.WeakSet[Feed] = weakref.WeakSet()


def _forget_in_child() -> None:
    """A forked child must not keep an encoder waiting for more frames."""
    for feed in list(_FEEDS):
        if feed.process.stdin is not None:
            with contextlib.suppress(OSError):
                os.close(feed.process.stdin.fileno())


os.register_at_fork(after_in_child=_forget_in_child)


class Feed:
    """Starts an encoder process and feeds it from a thread. Not for several threads."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._waiting: deque[Message] = deque()
        self._bytes = 0
        self._wake = threading.Condition()
        self._finished: deque[tuple[Path, int]] = deque()
        self._closing = False
        self.problem = ""
        """Why there is no encoder any more; empty while there is one."""
        path = os.pathsep.join(str(part) for part in sys.path if part)  # where envfleet was found
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-P",  # nothing in the current folder takes a library's place
                "-c",
                "from envfleet.record.encoder import main; raise SystemExit(main())",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        self._writer = threading.Thread(target=self._write, daemon=True, name="envfleet-videos")
        self._reader = threading.Thread(target=self._read, daemon=True, name="envfleet-videos-told")
        self._writer.start()
        self._reader.start()
        # A program that ends with Ctrl-C still hands over what waits.
        atexit.register(self.close)
        _FEEDS.add(self)

    def send(self, message: Message) -> bool:
        """Hand a message over; False if it is a frame and too many are waiting."""
        size = message.frame.nbytes if isinstance(message, Show) else 0
        with self._wake:
            if size and self._bytes + size > self._capacity:
                return False
            self._bytes += size
            self._waiting.append(message)
            self._wake.notify()
        return True

    def finished(self) -> list[tuple[Path, int]]:
        """The videos completed since the last time, with their numbers of frames."""
        found = []
        while self._finished:
            found.append(self._finished.popleft())
        return found

    def close(self, timeout: float = 60.0) -> None:
        """Let the encoder complete its videos and leave; after the time-out it is killed."""
        if self._closing:
            return
        self._closing = True
        _FEEDS.discard(self)
        atexit.unregister(self.close)
        end = time.monotonic() + timeout
        self.send(None)
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.problem = self.problem or f"the encoder did not finish within {timeout} s"
            self.process.kill()
            self.process.wait()
        self._writer.join(max(0.0, end - time.monotonic()) + 1.0)
        self._reader.join(max(0.0, end - time.monotonic()) + 1.0)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                # What is left of a message to an encoder that has ended cannot be written.
                with contextlib.suppress(OSError):
                    stream.close()

    def _write(self) -> None:
        pipe = self.process.stdin
        assert pipe is not None  # noqa: S101 - it was asked for
        while True:
            with self._wake:
                while not self._waiting:
                    self._wake.wait()
                message = self._waiting.popleft()
            try:
                pickle.dump(message, pipe, protocol=pickle.HIGHEST_PROTOCOL)
                pipe.flush()
            except (OSError, ValueError):
                self._reader.join(5.0)  # it may say why
                self.problem = self.problem or "the encoder's process has ended"
                self._waiting.clear()
                return
            finally:
                if isinstance(message, Show):
                    with self._wake:
                        self._bytes -= message.frame.nbytes
            if message is None:
                return

    def _read(self) -> None:
        pipe = self.process.stdout
        assert pipe is not None  # noqa: S101 - it was asked for
        for line in pipe:
            try:
                told = json.loads(line)
            except ValueError:
                continue  # somebody else in that process prints
            if "problem" in told:
                self.problem = told["problem"]
            else:
                self._finished.append((Path(told["path"]), told["frames"]))
