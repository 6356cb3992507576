"""WorkerShard: envs in a worker process; a state, a number, at most one command in flight.

    STARTING ──► IDLE ◄──► BUSY          any reply makes BUSY → IDLE
        │         │         ││
        │         │         │└──► GONE   it was told to close and did
        └─────────┴─────────┴──► DEAD    its wire ended or its process is gone

Every command and every answer makes these moves and no others, the plain step included. Only the
answer with the wanted number is kept. A call that is given up (after a time-out) leaves the worker
BUSY; the next command waits here until the late answer has come and been dropped. So nothing is
pushed at a worker that is not listening, and old data is never served as new.

An exception from a signal handler may leave it open whether the last command was sent, or its
answer taken. ``settle`` then asks for one more answer: once that has come, everything before it is
over.
"""

from __future__ import annotations

import contextlib
import time
from enum import IntEnum, auto
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import numpy as np

from envfleet.engine.arena.arena import Arena
from envfleet.engine.arena.signals import EPISODE_ENDED, INFOS_ON_BOARD, Signals
from envfleet.engine.arena.views import Views, shared_array
from envfleet.engine.arrivals import Arrivals
from envfleet.engine.failures import Failure
from envfleet.engine.infos.board import Board
from envfleet.engine.interrupts import held_signals, raise_interrupt
from envfleet.engine.messages import (
    ENDED,
    LOOK,
    SILENT,
    Ask,
    Attach,
    Close,
    Command,
    Outcome,
    Report,
    Settle,
    Step,
    decode_by_env,
    decode_outcome,
    encode_ask,
    encode_command,
    encode_number,
    is_by_env,
    number_of,
    serial_of,
)
from envfleet.engine.process.watch import Watch
from envfleet.engine.shard import Shard
from envfleet.engine.wire import Wire
from envfleet.errors import WorkerDied, name_envs

EXIT_PATIENCE = 1.0
"""Seconds to wait for the exit code of a worker whose wire has ended."""


class WorkerState(IntEnum):
    """What a worker is doing, as far as the caller knows; numbers, for their hash is quick."""

    STARTING = auto()
    IDLE = auto()
    BUSY = auto()
    DEAD = auto()
    GONE = auto()


_STARTING, _IDLE, _BUSY, _DEAD, _GONE = WorkerState

_LEGAL = {
    (_STARTING, _IDLE),
    (_STARTING, _DEAD),
    (_IDLE, _BUSY),
    (_IDLE, _DEAD),
    (_BUSY, _IDLE),
    (_BUSY, _DEAD),
    (_BUSY, _GONE),
}


class WorkerShard(Shard):
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
        self.place = f", worker {index} (pid {self.pid})"
        self.descriptor = wire.fileno()
        self.state = WorkerState.STARTING
        self.is_reaped = False
        self._watch = Watch(self.pid)
        self._wire = wire
        self._lifeline = lifeline
        self._by_reference = by_reference
        self._obituary: WorkerDied | None = None
        self._signals: Signals | None = None
        self._board: Board | None = None
        self._queued: tuple[int, Command, bytes] | None = None
        self._sent: Command | None = None
        self._in_flight = 0
        self._number = 0
        self._wanted: int | None = 0
        self._arrivals: Arrivals | None = None
        self._own: Views | None = None
        """Its rows of the caller's."""
        self._asks = self._messages = 0
        """On the wire so far, either way."""

    # Asking

    def prepare(self, command: Command) -> bytes:
        """The command's bytes; sends nothing, so that a pickling error costs nothing."""
        return encode_command(command, by_reference=self._by_reference)

    def post(self, command: Command, prepared: bytes | None = None) -> None:
        """Send a command, or keep it until an abandoned one has been answered.

        Raises:
            WorkerDied: the wire has ended.
        """
        self._number = number = self._number + 1
        self._wanted = number
        self.outcome = None
        if self.state is _IDLE:
            self._send(number, command, prepared or b"")
        elif not self.is_over:
            self._queued = number, command, prepared or b""

    def attach(self, arena: Arena, arrivals: Arrivals) -> None:
        """Send the arena, and exchange signals in it from now on.

        Raises:
            WorkerDied: the wire has ended.
        """
        command = Attach(arena.terms, arena.layout)
        body = self.prepare(command)
        self._arrivals, self._own = arrivals, arena.views.shard(self.env_ids)
        self._asks = self._messages = 0
        self.takes_rows = arena.terms.signals
        if arena.terms.signals:
            layout, memory = arena.layout, arena.memory
            words = shared_array(layout.signals, memory)
            words[self.index + 1] = 0  # a dead worker may have left its numbers there
            envs = self.env_ids
            infos = shared_array(layout.infos, memory)[envs.start : envs.stop]
            self._signals, self._board = Signals(words, self.index), Board(infos, envs)
        self._number = number = self._number + 1
        self._wanted = number
        self.outcome = None
        self._send(number, command, body, arena.descriptor)

    @property
    def is_ready(self) -> bool:
        """Whether it is idle and looks at signals."""
        return self.state is _IDLE and self._signals is not None

    @property
    def commands(self) -> int:
        """How many it has been given."""
        return self._number

    @property
    def queued(self) -> Command | None:
        """The command that waits for an abandoned one to be answered."""
        return None if self._queued is None else self._queued[1]

    def _send(
        self, number: int, command: Command, body: bytes, descriptor: int | None = None
    ) -> None:
        """Send a command; a descriptor, which must outlive the answer, follows it at once."""
        signals = self._signals
        try:
            if signals is None:
                self._wire.send(encode_number(number) + body, descriptor)
            elif body:
                self._wire.send(encode_number(number) + body, descriptor)
                signals.post(number, on_wire=True)
            elif signals.post(number, on_wire=False):
                self._wire.send(encode_number(number))  # it sleeps
        except OSError as error:
            raise_interrupt(error)
            raise self.died() from None  # it was idle when it died: it never got the command
        self._sent = command
        self._in_flight = number
        self._move(_BUSY)

    # Answering

    @property
    def owes_answer(self) -> bool:
        """Whether a command, or the start, is still unanswered."""
        return self.state is _BUSY or self.state is _STARTING

    def take(self) -> bool:
        """Take an answer that is a signal and nothing else, if there is one."""
        signals = self._signals
        if signals is None or signals.answered() != self._in_flight << 1:
            return False
        if self._wanted != self._in_flight or self.state is not _BUSY:
            return False
        self._take(self._in_flight, None)
        return True

    def has_answered(self) -> bool:
        """Whether a signal says that the command in flight is answered."""
        return self._signals is not None and self._signals.answered() >> 1 == self._in_flight

    def progress(self, *, rung: bool) -> None:
        """Send and receive what can be without waiting; one answer at most.

        Args:
            rung: whether there is something on the wire, and not only a signal.

        Raises:
            WorkerDied: the wire has ended.
        """
        try:
            if self._wire.is_sending:
                self._wire.flush()
            if rung or not self._take_silent():
                data = self._next_message()
                if data is not None:
                    self._take(number_of(data), data)
                    self._wire.drop()
                else:
                    self._take_silent()
        except (EOFError, OSError) as error:
            raise_interrupt(error)
            if not self._take_silent():  # it may have answered before it ended
                raise self.died() from None

    def _next_message(self) -> bytearray | None:
        """The next message that is no report; reports go to the arrivals on the way.

        Each is dropped after it was taken: an interrupt has it taken twice, which does no harm.
        """
        while (data := self._wire.peek()) is not None and is_by_env(data):
            report = self._decode_report(data)
            if report is not None and self._arrivals is not None:
                self._arrivals.take(report, self.place)
                self._messages = serial_of(data)
            self._wire.drop()
            if report is None:
                return None  # it was to wake us; what else there is, the doorbell tells
        return data

    def _take_silent(self) -> bool:
        """Take an answer that is a signal and nothing else, wanted or not, if there is one."""
        if not self.owes_answer or self._signals is None:
            return False
        if self._signals.answered() != self._in_flight << 1:
            return False
        self._take(self._in_flight, None)
        return True

    def _take(self, number: int, data: bytearray | None) -> None:
        """Take an answer; data is None where a signal is all there is.

        What a signal tells may be taken twice, so that an interrupt in here does no harm.
        """
        if number != self._in_flight or not self.owes_answer:
            return  # it was to wake us, and we had seen the signal before we slept
        # What is dropped is decoded too: it teaches keys of infos, which the worker relies on.
        outcome = self._told_by_signal() if data is None else self._decode(data)
        if number == self._wanted:
            self.outcome = outcome
        self._move(_GONE if self._sent.__class__ is Close else _IDLE)
        if self._queued is not None:
            queued, self._queued = self._queued, None
            self._send(*queued)

    def _told_by_signal(self) -> Outcome:
        """What an answer tells that is not on the wire."""
        signals = self._signals
        told = 0 if signals is None else signals.told()
        if not told:
            return SILENT
        if told & INFOS_ON_BOARD and self._board is not None:
            return Outcome(packed=self._board.read(), ended=bool(told & EPISODE_ENDED))
        return ENDED

    def _decode(self, data: bytearray) -> Outcome:
        try:
            outcome = decode_outcome(data)
            if outcome is SILENT:
                return self._told_by_signal()  # it was to wake us
            if self._board is not None and outcome.is_in_arena():
                self._board.learn(outcome.packed)
        except Exception as error:  # noqa: BLE001 - an env's objects may raise anything
            raise_interrupt(error)
            return Outcome(failures=[self._unreadable(self.env_ids[0], error)])
        return outcome

    def _unreadable(self, env: int, error: Exception) -> Failure:
        # Which env's value it was cannot be told any more.
        text = f"an answer of envs {name_envs(self.env_ids)} could not be unpickled here: {error}"
        return Failure(env, "answer", type(error).__name__, text, "")

    def _decode_report(self, data: bytearray) -> Report | None:
        """A report; one that does not unpickle is a failure of every env that may be in it."""
        try:
            report: Report | None = decode_by_env(data)
        except Exception as error:  # noqa: BLE001 - an env's objects may raise anything
            raise_interrupt(error)
            own = self._own
            late = [] if own is None else np.flatnonzero(own.asked != own.done).tolist()
            envs = [self.env_ids[i] for i in late]
            failures = [self._unreadable(env, error) for env in envs]
            numbers = [] if own is None else own.asked[late].tolist()
            return Report(envs, numbers, time.perf_counter(), Outcome(failures=failures))
        return report

    @property
    def is_sending(self) -> bool:
        """Whether a part of a command waits for the worker to take it."""
        return self._wire.is_sending

    @property
    def is_stepping(self) -> bool:
        """Whether the command in flight is a step."""
        return self.state is _BUSY and isinstance(self._sent, Step)

    # Envs that are asked one by one

    def prepare_ask(self, ask: Ask) -> bytes:
        """The ask's bytes."""
        # One that is never sent, since another cannot be pickled or an interrupt came, counts for
        # nothing: the worker would wait for it.
        return encode_ask(ask, self._asks + 1, by_reference=self._by_reference)

    def ask(self, prepared: bytes | None = None) -> None:
        """Send an ask, or say that rows have been asked.

        Raises:
            WorkerDied: the wire has ended.
        """
        if self.is_over:
            return
        try:
            if prepared is not None:
                self._wire.send(prepared)
                self._asks = serial_of(prepared)
            if self._signals is not None and self._signals.ask(self._asks):
                self._wire.send(LOOK)
        except OSError as error:
            raise_interrupt(error)
            raise self.died() from None

    @property
    def owes_reports(self) -> bool:
        """Whether an env was asked and is not known to have answered."""
        own = self._own
        return own is not None and own.asked.tobytes() != own.done.tobytes()

    def has_reports(self) -> bool:
        """Whether there is a report on the wire that was not received yet."""
        return self._signals is not None and self._signals.messages() != self._messages

    def reports(self) -> int:
        """How many envs have reported, as far as can be seen."""
        own = self._own
        return 0 if own is None else int(own.done.sum())

    def abandon(self) -> None:
        """Nobody waits for the current answer any more; it is dropped when it comes."""
        self._wanted = None
        self._queued = None
        self.outcome = None

    def settle(self) -> None:
        """Find a known state again, whatever the last command has come to.

        Its answer, and any that comes before the one to this, is dropped.

        Raises:
            WorkerDied: the wire has ended.
        """
        if self.state is not _IDLE and self.state is not _BUSY:
            return
        self.abandon()
        if self._board is not None:
            self._board.forget()
        command = Settle()
        self._number += 1
        self.state = _IDLE  # or BUSY: nobody knows, and the answer to this will tell
        self._send(self._number, command, self.prepare(command))

    # Ending

    @property
    def is_over(self) -> bool:
        """Whether nothing more can come from this worker."""
        return self.state is _DEAD or self.state is _GONE

    @property
    def is_garbled(self) -> bool:
        """Whether an interrupt has cut something in two that the worker said, or was told."""
        return self._wire.is_garbled

    @property
    def is_deaf(self) -> bool:
        """Whether the worker has not even taken what it was sent."""
        return self._wire.is_sending or self._wire.is_unread()

    @property
    def _doing(self) -> str:
        """What the worker is doing, in words."""
        if self.state is _STARTING:
            return "start"
        if self.state is _BUSY and self._sent is not None:
            return self._sent.title
        return "step" if self.owes_reports else "idle"

    def has_ended(self, timeout: float | None = 0.0) -> bool:
        """Whether its process has ended, within so many seconds."""
        return self._watch.wait(timeout)

    def died(self) -> WorkerDied:
        """Mark the worker dead; returns the error that says so, the same one each time."""
        if self._obituary is None:
            during = self._doing
            if self.is_stepping and self._signals is not None:
                # It may have died before a step was announced to it.
                during = during if self._signals.taken() == self._in_flight else "idle"
            if not self.is_over:
                self._move(_DEAD)
            ended = self._watch.wait(EXIT_PATIENCE)
            self.reap()
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
        during = f"{self._doing} ({reason})"
        self.reap()
        self._obituary = WorkerDied(self.index, self.pid, tuple(self.env_ids), None, during)
        return self._obituary

    def terminate(self) -> None:
        """Send SIGTERM, and end what the envs have started in sessions of their own."""
        if not self.is_reaped:
            self._watch.end_runaways()  # now: a process that has ended has no children any more
            self.process.terminate()

    def reap(self) -> None:
        """End the process and what its envs have started, and join it; once."""
        if self.is_reaped:
            return
        with held_signals():  # an exit status that is lost on the way would never come again
            self._watch.end_group()
            self.process.kill()
            self.process.join()
            self.is_reaped = True
            self._queued = None
            if not self.is_over:
                self._move(_DEAD)

    def release(self) -> None:
        """Let go of a reaped worker's descriptors, and of the arena."""
        self._signals = self._board = self._arrivals = self._own = None
        with contextlib.suppress(ValueError):  # where SIGCHLD is ignored it never learns of the end
            self.process.close()
        self._watch.close()
        self._wire.close()
        self._lifeline.close()

    def _move(self, new: WorkerState) -> None:
        if (self.state, new) not in _LEGAL:
            raise AssertionError(
                f"worker {self.index}: {self.state.name} -> {new.name} is not a legal move"
            )
        self.state = new
