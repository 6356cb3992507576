"""One worker as the caller sees it: a state, a number, at most one command in flight.

    STARTING ──► IDLE ◄──► BUSY          any reply makes BUSY → IDLE
        │         │         ││
        │         │         │└──► GONE   it was told to close and did
        └─────────┴─────────┴──► DEAD    its wire ended or its process is gone

Only the reply with the wanted number is kept. A call that is given up (after a time-out) leaves the
worker BUSY; the next command waits here until the late reply has come and been dropped. So nothing
is pushed at a worker that is not listening, and old data is never served as new.

An exception from a signal handler may leave it open whether the last command was sent, or its reply
taken. ``settle`` then asks for one more reply: once that has come, everything before it is over.
"""

from __future__ import annotations

import contextlib
from enum import Enum, auto
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from envfleet.engine.arena.board import Board
from envfleet.engine.arena.signals import Signals
from envfleet.engine.failures import Failure
from envfleet.engine.interrupts import held_signals, raise_interrupt
from envfleet.engine.messages import (
    PLAIN_STEP,
    SILENT,
    Close,
    Command,
    Outcome,
    Settle,
    Step,
    decode_outcome,
    encode_command,
    encode_number,
    number_of,
)
from envfleet.engine.pool.watch import Watch
from envfleet.engine.wire import Wire
from envfleet.errors import WorkerDied, name_envs

EXIT_PATIENCE = 1.0
"""Seconds to wait for the exit code of a worker whose wire has ended."""


class WorkerState(Enum):
    """What a worker is doing, as far as the caller knows."""

    STARTING = auto()
    IDLE = auto()
    BUSY = auto()
    DEAD = auto()
    GONE = auto()


_LEGAL = {
    WorkerState.STARTING: {WorkerState.IDLE, WorkerState.DEAD},
    WorkerState.IDLE: {WorkerState.BUSY, WorkerState.DEAD},
    WorkerState.BUSY: {WorkerState.IDLE, WorkerState.DEAD, WorkerState.GONE},
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
        wire: Wire,
        lifeline: Connection,
        *,
        by_reference: bool,
    ) -> None:
        self.index = index
        self.env_ids = env_ids
        self.process = process
        self.pid = process.pid or 0  # it has been started
        self.watch = Watch(self.pid)
        self.fd = wire.fileno()
        self._wire = wire
        self._lifeline = lifeline
        self.state = WorkerState.STARTING
        self.outcome: Outcome | None = None
        """The reply to the current command, once it has arrived."""
        self.queued: tuple[bytes, Command] | None = None
        """The command that waits for an abandoned one to be answered."""
        self.is_buried = False
        self._obituary: WorkerDied | None = None
        self._by_reference = by_reference
        self._signals: Signals | None = None
        self._board: Board | None = None
        self._sent: Command | None = None
        self._in_flight = 0
        self._number = 0
        self._wanted: int | None = 0

    @property
    def owes_reply(self) -> bool:
        """Whether a command, or the start, is still unanswered."""
        return self.state in (WorkerState.STARTING, WorkerState.BUSY)

    @property
    def is_over(self) -> bool:
        """Whether nothing more can come from this worker."""
        return self.state in (WorkerState.DEAD, WorkerState.GONE)

    @property
    def place(self) -> str:
        """How notes on exceptions name this worker."""
        return f", worker {self.index} (pid {self.pid})"

    @property
    def title(self) -> str:
        """What the worker is doing, in words."""
        if self.state is WorkerState.STARTING:
            return "start"
        if self.state is WorkerState.BUSY and self._sent is not None:
            return self._sent.title
        return "idle"

    def encode(self, command: Command) -> bytes:
        """The bytes of the next command; sends nothing, so that a pickling error costs nothing."""
        return encode_command(self._number + 1, command, by_reference=self._by_reference)

    @property
    def is_ready(self) -> bool:
        """Whether ``post_step`` may be called."""
        return self.state is WorkerState.IDLE and self._signals is not None

    def post_step(self) -> None:
        """Send a plain step, the short way.

        Raises:
            WorkerDied: the wire has ended.
        """
        self._number = number = self._number + 1
        self._wanted = number
        self.outcome = None
        if self._signals is not None and self._signals.post(number, on_wire=False):
            try:
                self._wire.send(encode_number(number))
            except OSError as error:
                raise_interrupt(error)
                raise self.died() from None
        self._sent = PLAIN_STEP
        self._in_flight = number
        self.state = WorkerState.BUSY

    def take_signal(self) -> bool:
        """Take an answer that is a signal and nothing else, the short way, if there is one."""
        signals = self._signals
        if signals is None or signals.answered() != self._in_flight << 1:
            return False
        if self._wanted == self._in_flight and self.state is WorkerState.BUSY:
            # In this order it may be interrupted, and done again.
            self.outcome = self._told_by_signal()
            self.state = WorkerState.IDLE
            return True
        return False

    def post(self, data: bytes, command: Command, descriptor: int | None = None) -> None:
        """Send an encoded command, or keep it until an abandoned one has been answered.

        A descriptor, which must outlive the answer, follows it at once.

        Raises:
            WorkerDied: the wire has ended.
        """
        self._number += 1
        self._wanted = self._number
        self.outcome = None
        if self.owes_reply:
            self.queued = data, command
        else:
            self._send(data, command, descriptor)

    @property
    def is_garbled(self) -> bool:
        """Whether an interrupt has cut something in two that the worker said, or was told."""
        return self._wire.is_garbled

    @property
    def is_deaf(self) -> bool:
        """Whether the worker has not even taken what it was sent."""
        return self._wire.is_sending or self._wire.is_unread()

    @property
    def is_stepping(self) -> bool:
        """Whether the command in flight is a step."""
        return self.state is WorkerState.BUSY and isinstance(self._sent, Step)

    @property
    def is_sending(self) -> bool:
        """Whether a part of a command waits for the worker to take it."""
        return self._wire.is_sending

    def abandon(self) -> None:
        """Nobody waits for the current reply any more; it is dropped when it comes."""
        self._wanted = None
        self.queued = None
        self.outcome = None

    def settle(self) -> None:
        """Find a known state again, whatever the last command has come to.

        Its reply, and any that comes before the one to this, is dropped.

        Raises:
            WorkerDied: the wire has ended.
        """
        if self.state not in (WorkerState.IDLE, WorkerState.BUSY):
            return
        self.abandon()
        if self._board is not None:
            self._board.forget()
        data = self.encode(Settle())
        self._number += 1
        self.state = WorkerState.IDLE
        self._send(data, Settle())

    def use(self, signals: Signals, board: Board) -> None:
        """Exchange signals from now on, which the next command tells the worker."""
        self._signals = signals
        self._board = board

    def has_answered(self) -> bool:
        """Whether a signal says that the command in flight is answered."""
        return self._signals is not None and self._signals.answered() >> 1 == self._in_flight

    def progress(self, *, rung: bool) -> None:
        """Send and receive what can be without waiting; one reply at most.

        Args:
            rung: whether there is something on the wire, and not only a signal.

        Raises:
            WorkerDied: the wire has ended.
        """
        try:
            if self._wire.is_sending:
                self._wire.flush()
            if rung or not self._take_silent():
                data = self._wire.receive()
                if data is not None:
                    self._take(number_of(data), data)
                else:
                    self._take_silent()
        except (EOFError, OSError) as error:
            raise_interrupt(error)
            if not self._take_silent():  # it may have answered before it ended
                raise self.died() from None

    def _take_silent(self) -> bool:
        """Take an answer that is a signal and nothing else, if there is one."""
        if not self.owes_reply or self._signals is None:
            return False
        if self._signals.answered() != self._in_flight << 1:
            return False
        self._take(self._in_flight, None)
        return True

    def _take(self, number: int, data: bytearray | None) -> None:
        if number != self._in_flight or not self.owes_reply:
            return  # it was to wake us, and we had seen the signal before we slept
        self._move(WorkerState.GONE if isinstance(self._sent, Close) else WorkerState.IDLE)
        if number == self._wanted:
            self.outcome = self._told_by_signal() if data is None else self._decode(data)
            return
        if data is not None:
            self._decode(data)  # what is dropped teaches keys too: the worker relies on it
        if self.queued is not None:
            queued, self.queued = self.queued, None
            self._send(*queued)

    def _told_by_signal(self) -> Outcome:
        """What an answer tells that is not on the wire."""
        if self._signals is not None and self._board is not None and self._signals.is_on_board():
            return Outcome(packed=self._board.read())
        return SILENT

    def died(self) -> WorkerDied:
        """Mark the worker dead; returns the error that says so, the same one each time."""
        if self._obituary is None:
            during = self.title
            if self.is_stepping and self._signals is not None:
                # It may have died before a step was announced to it.
                during = during if self._signals.taken() == self._in_flight else "idle"
            if not self.is_over:
                self._move(WorkerState.DEAD)
            ended = self.watch.wait(EXIT_PATIENCE)
            self.bury()
            exitcode = self._exitcode() if ended else None
            self._obituary = WorkerDied(self.index, self.pid, tuple(self.env_ids), exitcode, during)
        return self._obituary

    def _exitcode(self) -> int | None:
        try:
            return self.process.exitcode
        except ValueError:  # a signal handler has closed the fleet meanwhile
            return None

    def kill(self, reason: str) -> WorkerDied:
        """End a worker that does not answer; returns the error that says why."""
        during = f"{self.title} ({reason})"
        self.bury()
        self._obituary = WorkerDied(self.index, self.pid, tuple(self.env_ids), None, during)
        return self._obituary

    def bury(self) -> None:
        """End the process and what its envs have started, and join it; once."""
        if self.is_buried:
            return
        with held_signals():  # an exit status that is lost on the way would never come again
            self.watch.end_group()
            self.process.kill()
            self.process.join()
            self.is_buried = True
            self.queued = None
            if not self.is_over:
                self._move(WorkerState.DEAD)

    def discard(self) -> None:
        """Let go of a buried worker's descriptors."""
        self._signals = self._board = None  # they keep the arena alive
        with contextlib.suppress(ValueError):  # where SIGCHLD is ignored it never learns of the end
            self.process.close()
        self.watch.close()
        self._wire.close()
        self._lifeline.close()

    def _decode(self, data: bytearray) -> Outcome:
        try:
            outcome = decode_outcome(data)
            if outcome is SILENT:
                return self._told_by_signal()  # it was to wake us
            if self._board is not None and outcome.tells_infos_at_most():
                self._board.learn(outcome.packed)
        except Exception as error:  # noqa: BLE001 - an env's objects may raise anything
            raise_interrupt(error)
            # Which env's value it was cannot be told any more.
            text = (
                f"an answer of envs {name_envs(self.env_ids)} could not be unpickled here: {error}"
            )
            failure = Failure(self.env_ids[0], "answer", type(error).__name__, text, "")
            return Outcome(failures=[failure])
        return outcome

    def _send(self, data: bytes, command: Command, descriptor: int | None = None) -> None:
        number = number_of(data)
        # The whole of a plain step is its number.
        plain = self._signals is not None and isinstance(command, Step) and not command.loose
        try:
            if not plain:
                self._wire.send(data, descriptor)
            if self._signals is not None:
                asleep = self._signals.post(number, on_wire=not plain)
                if plain and asleep:
                    self._wire.send(data)
        except OSError as error:
            raise_interrupt(error)
            raise self.died() from None  # it was idle when it died: it never got the command
        self._sent = command
        self._in_flight = number
        self._move(WorkerState.BUSY)

    def _move(self, new: WorkerState) -> None:
        if new not in _LEGAL[self.state]:
            raise AssertionError(
                f"worker {self.index}: {self.state.name} -> {new.name} is not a legal move"
            )
        self.state = new
