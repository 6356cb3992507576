"""The wire between the caller and a worker: whole messages, in order, and descriptors.

The caller's end never waits: a message goes out and comes in as far as the other side allows, and
the rest follows when the doorbell says so. That way neither a long message nor a stopped worker can
keep the caller beyond a deadline. A worker's end waits.
"""

from __future__ import annotations

import socket
import struct
from collections import deque

_LENGTH = struct.Struct("<Q")
_JOINED = 1 << 16
"""Bytes up to which a message is copied behind its length, to be sent in one go."""


class Wire:
    """One end of a stream socket; blocking or not as the socket is."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._outgoing: deque[tuple[memoryview, int | None]] = deque()
        self._start()

    def _start(self) -> None:
        """Expect the length of the next message."""
        self._incoming = bytearray(_LENGTH.size)
        self._got = 0
        self._has_length = False

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()

    @property
    def is_sending(self) -> bool:
        """Whether something waits for the other side to take it."""
        return bool(self._outgoing)

    def send(self, data: bytes) -> None:
        """Send a message, behind what is still on its way.

        Raises:
            OSError: the other end is closed.
        """
        length = _LENGTH.pack(len(data))
        if len(data) <= _JOINED:
            self._outgoing.append((memoryview(length + data), None))
        else:
            self._outgoing.append((memoryview(length), None))
            self._outgoing.append((memoryview(data), None))
        self.flush()

    def send_descriptor(self, descriptor: int) -> None:
        """Send a descriptor, which must stay open until it is gone (see ``is_sending``).

        Raises:
            OSError: the other end is closed.
        """
        self._outgoing.append((memoryview(b"\0"), descriptor))
        self.flush()

    def flush(self) -> None:
        """Send what the other side takes.

        Raises:
            OSError: the other end is closed.
        """
        try:
            while self._outgoing:
                data, descriptor = self._outgoing[0]
                if descriptor is None:
                    sent = self._socket.send(data)
                else:
                    sent = socket.send_fds(self._socket, [data], [descriptor])
                if sent < len(data):
                    self._outgoing[0] = data[sent:], None
                else:
                    self._outgoing.popleft()
        except BlockingIOError:
            pass

    def receive(self) -> bytearray | None:
        """The next message; None when the rest of it is yet to come.

        Raises:
            EOFError: the other end is closed.
            OSError: so it is, with something left unread.
        """
        try:
            while True:
                while self._got < len(self._incoming):
                    count = self._socket.recv_into(memoryview(self._incoming)[self._got :])
                    if count == 0:
                        raise EOFError
                    self._got += count
                message = self._incoming
                if self._has_length:
                    self._start()
                    return message
                self._incoming = bytearray(*_LENGTH.unpack(message))
                self._got = 0
                self._has_length = True
        except BlockingIOError:
            return None

    def receive_descriptor(self) -> int:
        """The descriptor that follows the last message; the caller of this closes it.

        Raises:
            EOFError: the other end is closed.
        """
        data, descriptors, _, _ = socket.recv_fds(self._socket, 1, 1)
        if not data:
            raise EOFError
        return descriptors[0]
