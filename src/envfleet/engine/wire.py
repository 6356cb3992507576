"""The wire between the caller and a worker: whole messages, in order, and descriptors.

The caller's end never waits: a message goes out and comes in as far as the other side allows, and
the rest follows when the doorbell says so. That way neither a long message nor a stopped worker can
keep the caller beyond a deadline. A worker's end waits.
"""

from __future__ import annotations

import array
import errno
import fcntl
import select
import socket
import struct
import termios
from collections import deque
from dataclasses import dataclass

_LENGTH = struct.Struct("<Q")
_JOINED = 1 << 16
"""Bytes up to which a message is copied behind its length, to be sent in one go."""
_ATOMIC = 4096
"""Bytes up to which the kernel takes a message as a whole or not at all."""


@dataclass(frozen=True, slots=True)
class _Piece:
    data: memoryview
    descriptor: int | None = None
    is_whole: bool = True
    """Whether it is a message with its length, all of it, and nothing belongs to it."""


_Incoming = tuple[bytearray, int, bool]
"""What is being received, how much of it has come, and whether it is a message or its length."""


def _length_to_come() -> _Incoming:
    return bytearray(_LENGTH.size), 0, False


class Wire:
    """One end of a stream socket; blocking or not as the socket is."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._outgoing: deque[_Piece] = deque()
        # Replaced as a whole and never changed, so that nothing can interrupt a change.
        self._incoming: _Incoming = _length_to_come()
        self._never_waits = end.gettimeout() == 0
        self._shown = 0  # bytes of the message that ``peek`` has left in the kernel
        self.is_garbled = False
        """Set while bytes are being counted. Found set afterwards, it says that an exception from a
        signal handler came in between: nothing more can be understood on this wire."""

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

    def send(self, data: bytes, descriptor: int | None = None) -> None:
        """Send a message, behind what is still on its way, and perhaps a descriptor after it.

        The descriptor must stay open until it is gone (see ``is_sending``).

        Raises:
            OSError: the other end is closed.
        """
        length = _LENGTH.pack(len(data))
        if len(data) <= _JOINED:
            # With a descriptor behind it, it must not go twice.
            pieces = [_Piece(memoryview(length + data), is_whole=descriptor is None)]
        else:
            pieces = [_Piece(memoryview(part), is_whole=False) for part in (length, data)]
        if descriptor is not None:
            pieces.append(_Piece(memoryview(b"\0"), descriptor, is_whole=False))
        self._outgoing.extend(pieces)  # all of them or none, whatever interrupts this
        self.flush()

    def flush(self) -> None:
        """Send what the other side takes.

        Raises:
            OSError: the other end is closed.
        """
        while self._outgoing:
            piece = self._outgoing[0]
            # A short message goes as a whole or not at all, and may go twice: it is numbered.
            self.is_garbled = not piece.is_whole or len(piece.data) > _ATOMIC
            try:
                if piece.descriptor is None:
                    sent = self._socket.send(piece.data)
                else:
                    sent = socket.send_fds(self._socket, [piece.data], [piece.descriptor])
            except BlockingIOError:
                self.is_garbled = False
                return
            if sent < len(piece.data):
                self._outgoing[0] = _Piece(piece.data[sent:], is_whole=False)
            else:
                self._outgoing.popleft()
            self.is_garbled = False

    def receive(self) -> bytearray | None:
        """The next message; None when the rest of it is yet to come.

        Raises:
            EOFError: the other end is closed.
            OSError: so it is, with something left unread.
        """
        message = self.peek()
        if message is not None:
            self.drop()
        return message

    def drop(self) -> None:
        """Go on to the message behind the one that ``peek`` has shown."""
        if self._shown:
            self._socket.recv(self._shown)
        else:
            self._incoming = _length_to_come()

    def peek(self) -> bytearray | None:
        """As ``receive``, but the message stays the next one until ``drop``.

        An interrupt loses nothing of a short message: it stays in the kernel, and what was taken
        out of there need not be noted.
        """
        self._shown = 0
        buffer, got, is_body = self._incoming
        if self._never_waits and not got and not is_body:
            try:
                head = self._socket.recv(_ATOMIC, socket.MSG_PEEK)
            except BlockingIOError:
                return None
            if len(head) >= _LENGTH.size:
                end = _LENGTH.size + _LENGTH.unpack_from(head)[0]
                if len(head) >= end:
                    self._shown = end
                    return bytearray(head[_LENGTH.size : end])
        while True:
            buffer, got, is_body = self._incoming
            while got < len(buffer):
                rest = memoryview(buffer)[got:]
                self.is_garbled = True
                try:
                    count = self._socket.recv_into(rest)
                except BlockingIOError:
                    self.is_garbled = False
                    return None
                if count == 0:
                    raise EOFError
                got += count
                self._incoming = buffer, got, is_body
                self.is_garbled = False
            if is_body:
                return buffer
            self._incoming = bytearray(*_LENGTH.unpack(buffer)), 0, True

    def has_something(self) -> bool:
        """Whether there is something to be received now."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def receive_descriptor(self) -> int:
        """The descriptor that follows the last message; the caller of this closes it.

        Raises:
            EOFError: the other end is closed.
            OSError: this process may have no further descriptor.
        """
        data, descriptors, _, _ = socket.recv_fds(self._socket, 1, 1)
        if not data:
            raise EOFError
        if not descriptors:
            raise OSError(
                errno.EMFILE,
                "too few file descriptors for the arena's: raise the limit (ulimit -n)",
            )
        return descriptors[0]

    def is_unread(self) -> bool:
        """Whether the other side has yet to read something (where the system tells, else False)."""
        unread = array.array("i", [0])
        try:
            fcntl.ioctl(self._socket, termios.TIOCOUTQ, unread)
        except OSError:
            return False
        return unread[0] > 0
