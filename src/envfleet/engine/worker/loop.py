"""The worker's life: build the envs, tell about them, obey numbered commands, leave."""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection

from envfleet.engine.arena.memory import map_shared
from envfleet.engine.arena.signals import EPISODE_ENDED, INFOS_ON_BOARD, Signals
from envfleet.engine.arena.views import shared_array, shared_views
from envfleet.engine.descriptors import above_standard
from envfleet.engine.failures import Failure
from envfleet.engine.infos.board import Board
from envfleet.engine.messages import (
    ANNOUNCED_STEP,
    LOOK,
    PLAIN_STEP,
    Attach,
    Call,
    Close,
    Command,
    Outcome,
    Settle,
    decode_by_env,
    decode_command,
    encode_number,
    is_by_env,
    number_of,
    serial_of,
)
from envfleet.engine.scheduler import ask_for_short_turns
from envfleet.engine.spin import LONGEST, Patience
from envfleet.engine.wire import Wire
from envfleet.engine.worker import guard
from envfleet.engine.worker.descendants import end_runaways
from envfleet.engine.worker.notes import Notes
from envfleet.engine.worker.server import Job, ShardServer
from envfleet.engine.worker.telling import encode_any_outcome, encode_any_report
from envfleet.engine.worker.threads import limit_threads


def run_worker(
    index: int,
    env_ids: range,
    end: socket.socket,
    lifeline: Connection,
    seed: int,
    threads: int | None,
    job: Job | bytes,
) -> None:
    """Serve one shard until told to close, or until the caller is gone.

    A job in bytes is unpickled here, so that a module the worker lacks is an error like any other.
    """
    guard.enter(seed, lifeline)
    if threads is not None:
        limit_threads(threads, forked=not isinstance(job, bytes))
    worker = _Worker(index, env_ids, Wire(end))
    try:
        worker.reply(0, worker.server.build(job))
        worker.serve()
    except (EOFError, ConnectionError):
        pass  # the caller is gone, and with it everybody who could read an error
    finally:
        worker.leave()
        guard.leave()


class _Worker:
    def __init__(self, index: int, env_ids: range, wire: Wire) -> None:
        self.server = ShardServer(env_ids, is_worker=True)
        self._index = index
        self._wire = wire
        self._signals: Signals | None = None
        self._board: Board | None = None
        self._patience = Patience(0.0)
        self._yields = False
        self._number = 0  # of the last command
        self._commands: deque[bytearray] = deque()  # read and not obeyed yet
        self._asks = self._asks_on_wire = 0  # that were heard
        self._notes: Notes | None = None
        self._messages = 0  # of envs that were asked one by one
        self._has_short_turns = False

    def leave(self) -> None:
        """Close what is still open, and end what the envs have started and left."""
        self.server.close()
        for child in multiprocessing.active_children():
            child.terminate()
        end_runaways(os.getpid())

    def serve(self) -> None:
        """Obey until told to close."""
        while True:
            data = self._next()
            if data is None:
                self._take_turn()
                continue
            command: Command | None = None
            try:
                if data is ANNOUNCED_STEP:
                    command = PLAIN_STEP
                    self.reply(self._number, self.server.step(command))
                    continue
                command = decode_command(data)
                outcome = self._obey(command)
            except Exception as error:  # noqa: BLE001 - nothing that can be told may end a worker
                phase = "receiving a command" if command is None else command.title
                failure = Failure.capture(self.server.env_ids.start, phase, error)
                outcome = Outcome(failures=[failure])
            asked = command.env_ids if isinstance(command, Call) else ()
            self.reply(self._number, outcome, asked)
            if isinstance(command, Close):
                return

    def _obey(self, command: Command) -> Outcome:
        if isinstance(command, Settle):
            if self._board is not None:
                self._board.forget()
            return Outcome()
        if not isinstance(command, Attach):
            return self.server.obey(command)
        with above_standard():
            descriptor = self._wire.receive_descriptor()
        memory = map_shared(descriptor, command.layout.size)
        os.close(descriptor)
        terms, envs = command.terms, self.server.env_ids
        views = shared_views(command.layout, memory).shard(envs)
        if not terms.shared_memory:
            fixed = terms.observations.fixed
            views = views.with_own_observations(fixed, final=terms.keeps_final)
        self.server.attach(views, terms, sends_columns=not terms.shared_memory)
        self._asks = self._asks_on_wire = self._messages = 0
        if terms.signals:
            self._signals = Signals(shared_array(command.layout.signals, memory), self._index)
            infos = shared_array(command.layout.infos, memory)[envs.start : envs.stop]
            self._board = Board(infos, envs)
            self._notes = Notes(views, envs.start) if terms.shared_memory else None
            self._patience = Patience(LONGEST, self._is_held_up)
            self._yields = terms.crowded
        return Outcome()

    # Hearing: what the next command is, and meanwhile which envs are asked one by one

    def _next(self) -> bytes | bytearray | None:
        """The next command; None if there is none yet, but perhaps an env has its turn."""
        signals = self._signals
        if self.server.has_turns:
            return self._glance()
        if signals is None:
            return self._read()
        start = time.perf_counter()
        word = self._look(signals, start + self._patience.bound)
        data = self._sleep(signals) if word is None else self._heard(signals, word)
        self._patience.note(time.perf_counter() - start)
        return data

    def _is_held_up(self) -> bool:
        """Whether others have the cores; then short turns get one soon after waking."""
        held_up = self._signals is not None and self._signals.is_held_up()
        if held_up is not self._has_short_turns:
            self._has_short_turns = held_up
            ask_for_short_turns(held_up)
        return held_up

    def _look(self, signals: Signals, until: float) -> int | None:
        """Look for a signal, without sleeping: the word of a command, or 0 for an ask."""
        seen, posted, now = self._number << 1 | 1, signals.posted, time.perf_counter
        asks, heard = signals.asks, self._asks
        while (word := posted()) <= seen:
            if asks() != heard:
                return 0
            if now() >= until:
                return None
            if self._yields:
                os.sched_yield()
        return word

    def _glance(self) -> bytes | bytearray | None:
        """What is new, without waiting for it."""
        if self._signals is not None:
            return self._heard(self._signals, self._signals.posted())
        return self._read() if self._wire.has_something() else None

    def _sleep(self, signals: Signals) -> bytes | bytearray | None:
        signals.worker_sleeps(True)
        data, word = None, signals.posted()
        if word <= self._number << 1 | 1 and signals.asks() == self._asks:
            data = self._read()
        signals.worker_sleeps(False)
        return self._heard(signals, signals.posted()) if data is None else data

    def _heard(self, signals: Signals, word: int) -> bytes | bytearray | None:
        """The command that a word announces, if it is new; and envs that were asked."""
        if signals.asks() != self._asks:
            self._asks = signals.asks()
            while self._asks_on_wire < signals.asks_on_wire():
                self._receive()
            self.server.turns.look()
        if word <= self._number << 1 | 1:
            return None
        if word & 1:
            while not self._commands:
                self._receive()
            return self._taken(self._commands.popleft())
        self._number = word >> 1
        signals.take(self._number)
        return ANNOUNCED_STEP

    def _read(self) -> bytearray | None:
        """The next message on the wire, if it is a command."""
        if not self._commands:
            self._receive()
        return self._taken(self._commands.popleft()) if self._commands else None

    def _taken(self, data: bytearray) -> bytearray:
        self._number = number_of(data)
        if self._signals is not None:
            self._signals.take(self._number)
        return data

    def _receive(self) -> None:
        """Wait for a message on the wire, and keep it if it is more than a wake-up."""
        data = self._wire.receive()
        if data is None:
            return
        if not is_by_env(data):
            # What is not new was to wake a sleeper that had seen the signal before it slept.
            if number_of(data) > self._number:
                self._commands.append(data)
        elif (ask := decode_by_env(data)) is not None:
            self._asks_on_wire = serial_of(data)
            self.server.turns.add(ask)

    # Answering

    def _take_turn(self) -> None:
        """Let the next envs move that were asked one by one, and tell of them."""
        if not self.server.has_turns or (turn := self.server.turns.take()) is None:
            return
        guard.end_if_stray()
        signals, notes = self._signals, self._notes
        if signals is None:
            tellers = set(turn.rows)
        else:
            tellers = self.server.tellers(turn)
            if notes is not None and (tellers or not notes.are_clean):
                tellers = notes.write(turn, tellers)
        if tellers:
            self._messages += 1
            report = self.server.report(turn, tellers)
            self._wire.send(encode_any_report(report, self._messages))
        if signals is not None:
            if len(tellers) < len(turn.rows):
                self.server.hand_back(turn, but=tellers)
            if signals.report(len(turn.rows), self._messages):
                self._wire.send(LOOK)

    def reply(self, number: int, outcome: Outcome, env_ids: Sequence[int] = ()) -> None:
        """Answer a command; ``env_ids`` are those that a call has asked, in its order."""
        guard.end_if_stray()
        signals, board = self._signals, self._board
        if signals is not None and board is not None and outcome.is_in_arena():
            blocks = outcome.info_blocks()
            if not blocks or board.write(blocks):
                told = INFOS_ON_BOARD if blocks else 0
                if outcome.ended:
                    told |= EPISODE_ENDED
                if signals.answer(number, on_wire=False, told=told):
                    self._wire.send(encode_number(number))
                return
            board.learn(blocks)
        self._wire.send(encode_any_outcome(number, outcome, self.server.env_ids, env_ids))
        if signals is not None:
            signals.answer(number, on_wire=True)
