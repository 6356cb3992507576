from __future__ import annotations

import os
import random
import socket
import threading

import pytest

from envfleet.engine.wire import Wire


@pytest.fixture
def ends():
    """A caller's end, which does not wait, and a worker's, which does."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield Wire(ours), Wire(theirs)


@pytest.mark.parametrize("size", [0, 1, 1 << 16, (1 << 16) + 1])
def test_messages_arrive_whole_and_in_order(ends, size):
    ours, theirs = ends
    for number in range(3):
        ours.send(bytes([number]) * size)
        theirs.send(bytes([number]) * size)
    assert [theirs.receive() for _ in range(3)] == [bytes([n]) * size for n in range(3)]
    assert [ours.receive() for _ in range(3)] == [bytes([n]) * size for n in range(3)]
    assert ours.receive() is None


def test_a_long_message_does_not_hold_the_end_that_does_not_wait(ends):
    ours, theirs = ends
    data = random.Random(1).randbytes(5_000_000)
    ours.send(data)
    ours.send(b"next")
    assert ours.is_sending
    found = []
    reader = threading.Thread(target=lambda: found.extend(theirs.receive() for _ in range(2)))
    reader.start()
    while ours.is_sending:
        ours.flush()
    reader.join()
    assert found == [data, b"next"]


def test_a_long_message_comes_in_pieces(ends):
    ours, theirs = ends
    data = random.Random(2).randbytes(5_000_000)
    writer = threading.Thread(target=theirs.send, args=(data,))
    writer.start()
    while (found := ours.receive()) is None:
        pass
    writer.join()
    assert found == data


def test_a_descriptor_follows_its_message(ends):
    ours, theirs = ends
    read, write = os.pipe()
    ours.send(b"take this", write)
    ours.send(b"and go on")
    os.close(write)
    assert theirs.receive() == b"take this"
    taken = theirs.receive_descriptor()
    assert theirs.receive() == b"and go on"
    os.write(taken, b"hello")
    os.close(taken)
    assert os.read(read, 10) == b"hello"
    os.close(read)


def test_what_was_not_read_is_known(ends):
    ours, theirs = ends
    assert not ours.is_unread()
    ours.send(b"message")
    assert ours.is_unread()
    theirs.receive()
    assert not ours.is_unread()


def test_the_end_of_the_other_side_is_told(ends):
    ours, theirs = ends
    theirs.send(b"last words")
    theirs.close()
    assert ours.receive() == b"last words"
    with pytest.raises(EOFError):
        ours.receive()
    with pytest.raises(OSError, match="Broken pipe"):
        ours.send(b"too late")


def test_a_descriptor_that_never_comes_is_the_end(ends):
    ours, theirs = ends
    ours.close()
    with pytest.raises(EOFError):
        theirs.receive_descriptor()
