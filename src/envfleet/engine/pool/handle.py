"""One worker as the caller sees it: a state, a number, at most one command in flight.

    STARTING ──► IDLE ◄──► BUSY          any reply makes BUSY → IDLE
        │         ││         │
        │         │└──► GONE │           it was told to close and did
        └─────────┴──────────┴──► DEAD   its pipe ended or its process is gone

Only the reply with the wanted number is kept. A call that is given up (after a time-out) leaves the
worker BUSY; the next command waits here until the late reply has come and been dropped. So nothing
is pushed at a worker that is not listening, and old data is never served as new.
"""

from __future__ import annotations

from enum import Enum, auto
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from envfleet.engine.messages import Command, Outcome, decode_outcome, encode_command
from envfleet.errors import WorkerDied

EXIT_PATIENCE = 1.0
"""Seconds to wait for the exit code of a worker whose pipe has ended."""


class WorkerState(Enum):
    """What a worker is doing, as far as the caller knows."""

    STARTING = auto()
    IDLE = auto()
    BUSY = auto()
    DEAD = auto()
    GONE = auto()


_LEGAL = {
    WorkerState.STARTING: {WorkerState.IDLE, WorkerState.DEAD},
    WorkerState.IDLE: {WorkerState.BUSY, WorkerState.DEAD, WorkerState.GONE},
    WorkerState.BUSY: {WorkerState.IDLE, WorkerState.DEAD},
    WorkerState.DEAD: set(),
    WorkerState.GONE: set(),
}


class WorkerHandle:
    """Sends commands to one worker and receives its outcomes."""

    def __init__(
        self,
        index: int,
        env_ids: range,
        process: BaseProcess,
        connection: Connection,
        *,
        by_reference: bool,
    ) -> None:
        self.index = index
        self.env_ids = env_ids
        self.process = process
        self.connection = connection
        self.state = WorkerState.STARTING
        self.command_name = "start"
        self.outcome: Outcome | None = None
        """The reply to the current command, once it has arrived."""
        self._by_reference = by_reference
        self._number = 0
        self._wanted: int | None = 0
        self._queued: tuple[bytes, str] | None = None

    @property
    def owes_reply(self) -> bool:
        """Whether a command, or the start, is still unanswered."""
        return self.state in (WorkerState.STARTING, WorkerState.BUSY)

    @property
    def place(self) -> str:
        """How notes on exceptions name this worker."""
        return f", worker {self.index} (pid {self.process.pid})"

    def encode(self, command: Command) -> bytes:
        """The bytes of the next command; sends nothing, so that a pickling error costs nothing."""
        return encode_command(self._number + 1, command, by_reference=self._by_reference)

    def post(self, data: bytes, name: str) -> None:
        """Send an encoded command, or keep it until an abandoned one has been answered.

        Raises:
            WorkerDied: the pipe has ended.
        """
        self._number += 1
        self._wanted = self._number
        self.outcome = None
        if self.owes_reply:
            self._queued = data, name
        else:
            self._send(data, name)

    def abandon(self) -> None:
        """Nobody waits for the current reply any more; it is dropped when it comes."""
        self._wanted = None
        self._queued = None

    def receive(self) -> None:
        """Read one reply; blocks only while a reply is arriving.

        Raises:
            WorkerDied: the pipe has ended.
        """
        try:
            number, outcome = decode_outcome(self.connection.recv_bytes())
        except (EOFError, OSError):
            raise self.died() from None
        self._move(WorkerState.IDLE)
        self.command_name = "idle"
        if number == self._wanted:
            self.outcome = outcome
        elif self._queued is not None:
            data, name = self._queued
            self._queued = None
            self._send(data, name)

    def left(self) -> None:
        """The worker has answered its last command and is leaving."""
        self._move(WorkerState.GONE)

    def died(self) -> WorkerDied:
        """Mark the worker dead; returns the error that says so."""
        if self.state is not WorkerState.DEAD:
            self._move(WorkerState.DEAD)
        self.process.join(EXIT_PATIENCE)
        return WorkerDied(
            self.index,
            self.process.pid,
            tuple(self.env_ids),
            self.process.exitcode,
            self.command_name,
        )

    def _send(self, data: bytes, name: str) -> None:
        self.command_name = name
        self._move(WorkerState.BUSY)
        try:
            self.connection.send_bytes(data)
        except OSError:
            raise self.died() from None

    def _move(self, new: WorkerState) -> None:
        if new not in _LEGAL[self.state]:
            raise AssertionError(
                f"worker {self.index}: {self.state.name} -> {new.name} is not a legal move"
            )
        self.state = new
