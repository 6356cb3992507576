"""ShardActor: the envs of one shard in a Ray actor, asked by the same commands as a worker.

An answer is a tuple of bytes and NumPy arrays: arrays travel through Ray's object store without
being pickled, and envs' own objects in bytes, so that one that cannot be unpickled is a failure of
its env and not of the call.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from envfleet.engine.arena.arena import Terms
from envfleet.engine.arena.views import Views, private_views
from envfleet.engine.failures import Failure
from envfleet.engine.messages import (
    Ask,
    Call,
    Close,
    Command,
    Outcome,
    Renew,
    Reset,
    Settle,
    Step,
    decode_by_env,
    decode_command,
)
from envfleet.engine.rules.spaces import Array
from envfleet.engine.worker.descendants import end_runaways
from envfleet.engine.worker.server import ShardServer
from envfleet.engine.worker.telling import encode_any_outcome
from envfleet.engine.worker.threads import limit_threads
from envfleet.errors import name_envs


class Rows(NamedTuple):
    """Rows of envs that have moved."""

    rewards: Array
    flags: Array
    """Terminated, truncated and failed, one above the other."""
    observations: list[Array]
    final_observations: list[Array]
    """Empty where no episode ended, and where the autoreset mode needs none."""


class Reply(NamedTuple):
    """The answer to a command."""

    body: bytes
    """An encoded outcome without rows."""
    rows: Rows | None = None
    """Of all envs of the shard, after a command that may have moved some."""


class Turned(NamedTuple):
    """What some envs that were asked one by one have answered, each to its number."""

    body: bytes
    rows: Rows
    env_ids: list[int]
    numbers: list[int]
    is_last: bool
    """Whether no other env waits for its turn; otherwise ``turn`` lets the next ones move."""


class Place(NamedTuple):
    """Where an actor is."""

    node: str
    pid: int


class ShardActor:
    """Runs in a Ray actor, which runs one method at a time, in the order of the calls."""

    def __init__(self, env_ids: range, threads: int | None) -> None:
        if threads is not None:
            limit_threads(threads, forked=False)
        self._server = ShardServer(env_ids, is_worker=True)
        self._views: Views | None = None

    def build(self, job: bytes) -> tuple[Place, Reply]:
        """Build the envs; the first thing to call."""
        import ray  # noqa: PLC0415 - this module is read where there may be none, too

        outcome = self._server.build(job)
        node = f"{ray.util.get_node_ip_address()} ({ray.get_runtime_context().get_node_id()[:8]})"
        return Place(node, os.getpid()), self._reply(outcome)

    def attach(self, pickled: bytes, flags: list[Array], rewards: Array) -> Reply:
        """Learn the fleet's terms; rows begin as the caller knows them of envs before these."""
        count = len(self._server.env_ids)
        try:
            terms: Terms = pickle.loads(pickled)
        except Exception as error:  # noqa: BLE001 - a user's spaces may raise anything
            failure = Failure.capture(self._server.env_ids[0], "start", error)
            return self._reply(Outcome(failures=[failure]))
        leaves, actions = terms.observations.fixed, terms.actions.fixed
        self._views = views = private_views(count, leaves, actions, final=terms.keeps_final)
        views.rewards[...] = rewards
        views.terminated[...], views.truncated[...], views.failed[...] = flags
        self._server.attach(views, terms, sends_columns=True)
        return self._reply(Outcome())

    def obey(self, body: bytes, actions: list[Array]) -> Reply:
        """Do what a command says; actions are those of a step."""
        command: Command | None = None
        try:
            command = decode_command(body)
            self._write(actions)
            outcome = Outcome() if isinstance(command, Settle) else self._server.obey(command)
        except Exception as error:  # noqa: BLE001 - whatever can be told may not end an actor
            phase = "receiving a command" if command is None else command.title
            outcome = Outcome(failures=[Failure.capture(self._server.env_ids[0], phase, error)])
        if isinstance(command, Close):
            for child in multiprocessing.active_children():
                child.terminate()
            end_runaways(os.getpid())
        asked = command.env_ids if isinstance(command, Call) else ()
        moved = isinstance(command, (Step, Reset, Renew))
        return self._reply(outcome, asked, with_rows=moved)

    def ask(self, body: bytes, actions: list[Array]) -> Turned | None:
        """Have envs wait for their turn, and let the first ones take it."""
        ask: Ask = decode_by_env(body)
        rows = np.array(ask.env_ids) - self._server.env_ids.start
        self._write(actions, rows)
        self._server.turns.add(ask)
        return self.turn()

    def turn(self) -> Turned | None:
        """Let the next envs that wait for it take their turn; None if there is none."""
        server = self._server
        turn = server.turns.take() if server.has_turns else None
        if turn is None:
            return None
        report = server.report(turn, set(turn.rows))
        outcome = report.outcome
        rows = self._rows(turn.picked, outcome)
        body = self._encoded(outcome, report.env_ids)
        return Turned(body, rows, report.env_ids, report.numbers, not server.has_turns)

    def __repr__(self) -> str:
        return f"envs {name_envs(self._server.env_ids)}"  # in front of what envs print

    def _write(self, actions: list[Array], rows: Any = ...) -> None:
        if actions and self._views is not None:
            for column, block in zip(self._views.actions, actions, strict=True):
                column[rows] = block

    def _reply(self, outcome: Outcome, asked: Any = (), *, with_rows: bool = False) -> Reply:
        rows = self._rows(slice(None), outcome) if with_rows else None
        return Reply(self._encoded(outcome, self._server.env_ids, asked), rows)

    def _rows(self, picked: Any, outcome: Outcome) -> Rows:
        views = self._views
        if views is None:
            raise AssertionError("the shard has no rows yet")
        flags = np.stack([views.terminated[picked], views.truncated[picked], views.failed[picked]])
        finals = list(outcome.final_observations)
        return Rows(views.rewards[picked], flags, list(outcome.observations), finals)

    def _encoded(self, outcome: Outcome, envs: Any, asked: Any = ()) -> bytes:
        outcome = replace(outcome, observations=(), final_observations=())
        return encode_any_outcome(0, outcome, envs, asked)
