"""RayShard: envs in a Ray actor; calls of it in their order, at most one of them a command.

    STARTING ──► IDLE ◄──► BUSY          any answer makes BUSY → IDLE
        │         │         ││
        └─────────┴─────────┴┴──► OVER   it was told to close and did, or Ray says that it died

An actor answers its calls in the order in which they were made, and answers are taken in that
order. The rest is as in a worker process: only the answer with the wanted number is kept, and a
command waits here while one that was given up is unanswered. No call is ever made twice: what an
actor did before Ray lost sight of it cannot be known, so that whatever Ray reports is its end.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum, auto
from typing import Any, NamedTuple

from envfleet.engine.arena.arena import Arena
from envfleet.engine.arena.views import Views
from envfleet.engine.arrivals import Arrivals
from envfleet.engine.descriptors import above_standard
from envfleet.engine.failures import Failure
from envfleet.engine.interrupts import raise_interrupt
from envfleet.engine.messages import (
    Ask,
    Close,
    Command,
    Outcome,
    Report,
    Settle,
    Step,
    decode_outcome,
    encode_ask,
    encode_command,
    encode_number,
)
from envfleet.engine.pickling import dumps
from envfleet.engine.ray.actor import Place, Reply, Rows, Turned
from envfleet.engine.rules.spaces import Array
from envfleet.engine.shard import Shard
from envfleet.errors import WorkerDied, name_envs

_SHORT = 300
"""Characters of what Ray says that fit into an error."""


class _State(Enum):
    STARTING = auto()
    IDLE = auto()
    BUSY = auto()
    OVER = auto()


class _Call(NamedTuple):
    """A call of the actor; ``number`` is that of a command, None with envs asked one by one."""

    answer: Future[Any]
    number: int | None


class RayShard(Shard):
    """Calls one actor and takes its answers.

    Args:
        index: its place in the fleet.
        env_ids: its envs.
        actor: a handle of a ``ShardActor`` that has not been called.
        job: what to build there, pickled.
        kill: ends the actor, whatever it is doing; may be called again.
        let_go: called once, by ``release``.
    """

    def __init__(
        self,
        index: int,
        env_ids: range,
        actor: Any,
        job: bytes,
        *,
        is_reachable: Callable[[], bool],
        kill: Callable[[], None],
        let_go: Callable[[], None],
    ) -> None:
        self.index = index
        self.env_ids = env_ids
        self.node: str = ""
        """The actor's node, as far as it is known."""
        self.pid: int | None = None
        self._actor = actor
        self._is_reachable = is_reachable
        self._kill = kill
        self._let_go = let_go
        self._bell = _Bell()
        self.descriptor = self._bell.descriptor
        self._state = _State.STARTING
        self._obituary: WorkerDied | None = None
        self._calls: deque[_Call] = deque()
        self._sent: Command | None = None
        self._queued: tuple[int, Command, bytes] | None = None
        self._number = self._in_flight = 0
        self._wanted: int | None = 0
        self._asks = 0
        self._arrivals: Arrivals | None = None
        self._own: Views | None = None
        """Its rows of the caller's."""
        self._call(0, actor.build, job)

    # Asking

    def prepare(self, command: Command) -> bytes:
        """The command's bytes; sends nothing, so that a pickling error costs nothing."""
        return encode_command(command, by_reference=False)

    def post(self, command: Command, prepared: bytes | None = None) -> None:
        """Send a command, or keep it until an abandoned one has been answered."""
        self._number = number = self._number + 1
        self._wanted = number
        self.outcome = None
        if self._state is _State.IDLE:
            self._send(number, command, prepared or b"")
        elif not self.is_over:
            self._queued = number, command, prepared or b""

    def attach(self, arena: Arena, arrivals: Arrivals) -> None:
        """Have the actor use rows like these, and write into these what it answers."""
        self._arrivals, self._own = arrivals, arena.views.shard(self.env_ids)
        self._number = number = self._number + 1
        self._wanted = number
        self.outcome = None
        own = self._own
        flags = [own.terminated, own.truncated, own.failed]
        terms = dumps(arena.terms, by_reference=False)
        self._begin(number, None)
        self._call(number, self._actor.attach, terms, flags, own.rewards)

    @property
    def is_ready(self) -> bool:
        """Whether it is idle, and has rows."""
        return self._state is _State.IDLE and self._own is not None

    @property
    def queued(self) -> Command | None:
        """The command that waits for an abandoned one to be answered."""
        return None if self._queued is None else self._queued[1]

    def _send(self, number: int, command: Command, body: bytes) -> None:
        own = self._own
        actions = own.actions if own is not None and isinstance(command, Step) else []
        self._begin(number, command)
        self._call(number, self._actor.obey, encode_number(number) + body, actions)

    def _begin(self, number: int, command: Command | None) -> None:
        self._sent, self._in_flight = command, number
        self._state = _State.BUSY

    def _call(self, number: int | None, method: Any, *args: Any) -> None:
        if not self._is_reachable():  # Ray would start, or ask, another cluster
            raise self._died(ConnectionError("this program has left the cluster that it ran on"))
        answer = method.remote(*args).future()
        self._calls.append(_Call(answer, number))
        answer.add_done_callback(self._bell.ring)

    # Answering

    @property
    def owes_answer(self) -> bool:
        """Whether a command, or the start, is still unanswered."""
        return self._state is _State.BUSY or self._state is _State.STARTING

    def take(self) -> bool:
        """Take the answers that are here.

        Raises:
            WorkerDied: Ray says so.
        """
        self._advance()
        return not self.owes_answer

    def progress(self, *, rung: bool) -> None:
        """Take the answers that are here.

        Raises:
            WorkerDied: Ray says so.
        """
        if rung:
            self._bell.hush()
        self._advance()

    def _advance(self) -> None:
        # A call leaves the list after it was taken: to take one twice does no harm.
        while self._calls and self._calls[0].answer.done():
            answer, number = self._calls[0]
            try:
                told = answer.result()
            except Exception as error:
                raise_interrupt(error)
                raise self._died(error) from error
            if number is None:
                self._take_turned(told)
            else:
                self._take(number, told)
            self._calls.popleft()

    def _take(self, number: int, told: Any) -> None:
        if number == 0:
            place, told = told
            self._found(place)
        reply = Reply(*told)
        if reply.rows is not None:
            self._write(reply.rows, slice(None))
        if number != self._in_flight or not self.owes_answer:
            return
        outcome = self._decode(reply.body)
        if number == self._wanted:
            self.outcome = outcome
        self._state = _State.OVER if isinstance(self._sent, Close) else _State.IDLE
        if self._queued is not None:
            queued, self._queued = self._queued, None
            self._send(*queued)

    def _found(self, place: Place) -> None:
        self.node, self.pid = place
        self.place = f", worker {self.index} (pid {self.pid} on node {self.node})"

    def _take_turned(self, told: Any) -> None:
        if told is None or self._arrivals is None or self._own is None:
            return
        turned = Turned(*told)
        outcome = self._decode(turned.body, turned.env_ids)
        self._write(turned.rows, [env - self.env_ids.start for env in turned.env_ids])
        # The actor's clock may be another machine's.
        report = Report(turned.env_ids, turned.numbers, time.perf_counter(), outcome)
        self._arrivals.take(report, self.place)
        if not turned.is_last and not self.is_over:
            self._call(None, self._actor.turn)

    def _write(self, rows: Rows, picked: Any) -> None:
        """Write rows where the caller sees them; in the calls' order none is older than another."""
        own = self._own
        if own is None:
            return
        rewards, flags, observations, finals = rows
        own.rewards[picked] = rewards
        own.terminated[picked], own.truncated[picked], own.failed[picked] = flags
        for column, block in zip(own.observations, observations, strict=False):
            column[picked] = block
        for column, block in zip(own.final_observations, finals, strict=False):
            column[picked] = block

    def _decode(self, body: bytes, env_ids: list[int] | None = None) -> Outcome:
        try:
            return decode_outcome(body)
        except Exception as error:  # noqa: BLE001 - an env's objects may raise anything
            raise_interrupt(error)
            name = type(error).__name__
            # Which env's value it was cannot be told any more.
            text = f"an answer of envs {name_envs(env_ids or self.env_ids)} could not be unpickled"
            envs = env_ids or [self.env_ids[0]]
            told = f"{text} here: {error}"
            return Outcome(failures=[Failure(env, "answer", name, told, "") for env in envs])

    @property
    def is_stepping(self) -> bool:
        """Whether the command in flight is a step."""
        return self._state is _State.BUSY and isinstance(self._sent, Step)

    def abandon(self) -> None:
        """Nobody waits for the current answer any more; it is dropped when it comes."""
        self._wanted = None
        self._queued = None
        self.outcome = None

    def settle(self) -> None:
        """Find a known state again: answers come in order, so what comes before this one's is old.

        Which command was in flight, and whether it was sent at all, does not matter then.
        """
        if self._state is _State.IDLE or self._state is _State.BUSY:
            self.abandon()
            command = Settle()
            self._number += 1
            self._send(self._number, command, self.prepare(command))

    # Envs that are asked one by one

    def prepare_ask(self, ask: Ask) -> tuple[bytes, list[Array]]:
        """The ask's bytes, and its envs' actions."""
        self._asks += 1
        body = encode_ask(ask, self._asks, by_reference=False)
        rows = [env - self.env_ids.start for env in ask.env_ids]
        own = self._own
        return body, [] if own is None else [column[rows] for column in own.actions]

    def ask(self, prepared: tuple[bytes, list[Array]] | None = None) -> None:
        """Send an ask."""
        if prepared is not None and not self.is_over:
            self._call(None, self._actor.ask, *prepared)

    @property
    def owes_reports(self) -> bool:
        """Whether an env was asked and is not known to have answered."""
        own = self._own
        return own is not None and own.asked.tobytes() != own.done.tobytes()

    def has_reports(self) -> bool:
        """Whether an answer is here that was not taken yet."""
        return bool(self._calls) and self._calls[0].answer.done()

    def reports(self) -> int:
        """How many envs have reported."""
        own = self._own
        return 0 if own is None else int(own.done.sum())

    # Ending

    @property
    def is_over(self) -> bool:
        """Whether nothing more can come from this actor."""
        return self._state is _State.OVER

    def has_ended(self, timeout: float | None = 0.0) -> bool:  # noqa: ARG002 - Ray tells by itself
        """Whether it is known to have ended."""
        return self.is_over

    def died(self) -> WorkerDied:
        """The error that tells of its end, the same one each time."""
        return self._died(None)

    def _died(self, error: Exception | None) -> WorkerDied:
        if self._obituary is None:
            self._obituary = self._death(self._doing)
            self._obituary.__cause__ = error
            if error is not None:
                self._obituary.add_note(f"Ray: {_first_lines(str(error))}")
            self.reap()
        return self._obituary

    def kill(self, reason: str) -> WorkerDied:
        """End an actor that does not answer; returns the error that says why."""
        self._obituary = self._death(f"{self._doing} ({reason})")
        self.reap()
        return self._obituary

    def _death(self, during: str) -> WorkerDied:
        node = self.node or "not known yet"
        return WorkerDied(self.index, self.pid, tuple(self.env_ids), None, during, node)

    @property
    def _doing(self) -> str:
        """What the actor is doing, in words."""
        if self._state is _State.STARTING:
            return "start"
        if self._state is _State.BUSY:
            return "start" if self._sent is None else self._sent.title
        return "step" if self.owes_reports else "idle"

    def terminate(self) -> None:
        """End the actor."""
        self._kill()

    def reap(self) -> None:
        """End the actor."""
        self._kill()
        self._queued = None
        self._state = _State.OVER

    def release(self) -> None:
        """Let go of the actor, of its answers and of the arena."""
        self._calls.clear()
        self._arrivals = self._own = None
        self._bell.close()
        let_go, self._let_go = self._let_go, _nothing
        let_go()


class _Bell:
    """A descriptor that Ray's threads make readable."""

    def __init__(self) -> None:
        with above_standard():
            self.descriptor, self._other = os.pipe()
        for end in (self.descriptor, self._other):
            os.set_blocking(end, False)
        self._lock = threading.Lock()
        self._is_open = True

    def ring(self, _: object = None) -> None:
        with self._lock:
            if self._is_open:
                with contextlib.suppress(BlockingIOError):  # it is readable enough
                    os.write(self._other, b"!")

    def hush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.descriptor, 4096)

    def close(self) -> None:
        with self._lock:
            if self._is_open:
                self._is_open = False
                os.close(self.descriptor)
                os.close(self._other)


def _first_lines(text: str) -> str:
    """What Ray says, without the pages behind it."""
    told = " ".join(text.split())
    return told if len(told) <= _SHORT else f"{told[:_SHORT]} ..."


def _nothing() -> None:
    pass
