"""LocalShard: envs in this process; the serial engine is one, and so is the caller's share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container
from copy import deepcopy
from dataclasses import replace
from typing import Any

import gymnasium

from envfleet.engine.arena.arena import Arena
from envfleet.engine.arrivals import Arrivals
from envfleet.engine.messages import PLAIN_STEP, Ask, Command, Outcome, Step
from envfleet.engine.shard import Shard
from envfleet.engine.worker.server import Job, ShardServer


class LocalShard(Shard):
    """Obeys when its answer is waited for, after the shards elsewhere have been told.

    A crash or a hang of its envs is this process's own.
    """

    is_ready = True
    takes_rows = True

    def __init__(self, index: int, env_ids: range, job: Job, *, is_share: bool) -> None:
        """Own these envs: all of a fleet, or the caller's share of one (``is_share``)."""
        self.index = index
        self.env_ids = env_ids
        self._is_share = is_share
        self._server = ShardServer(env_ids, is_worker=False, watches_waiting=is_share)
        self._todo: Command | Job | Arena | None = job
        self.has_work = True
        self._arrivals: Arrivals | None = None

    @property
    def envs(self) -> list[gymnasium.Env[Any, Any]]:
        """The envs themselves."""
        return [] if self._server.host is None else self._server.host.envs

    def prepare(self, command: Command) -> Command:
        """A command whose actions belong to the envs."""
        if isinstance(command, Step) and command.loose:
            return replace(command, loose=deepcopy(command.loose))
        return command

    def post(self, command: Command, prepared: Command | None = None) -> None:
        """Have a command obeyed by the next ``work``."""
        self.outcome = None
        self._todo = command if prepared is None else prepared
        self.has_work = True

    def attach(self, arena: Arena, arrivals: Arrivals) -> None:
        """Have this arena used from the next ``work`` on."""
        self.outcome = None
        self._arrivals = arrivals
        self._todo = arena
        self.has_work = True

    @property
    def owes_answer(self) -> bool:
        """Whether there is something to be done by ``work``."""
        return self.has_work

    def work(self) -> None:
        """Obey what was posted."""
        todo, self._todo = self._todo, None
        self.has_work = False
        if todo is PLAIN_STEP:
            self.outcome = self._server.step(PLAIN_STEP)
            if self._is_share:
                self.outcome.info_blocks()  # packed now, while the workers do the same
        elif isinstance(todo, Job):
            self.outcome = self._server.build(todo)
        elif isinstance(todo, Arena):
            views = todo.views.shard(self.env_ids)
            self._server.attach(views, todo.terms, sends_columns=False)
            self.outcome = Outcome()
        elif todo is not None:
            self.outcome = self._server.obey(todo)

    def take(self) -> bool:
        """Whether there is nothing left to be done."""
        return not self.has_work

    def abandon(self) -> None:
        """Forget the last answer."""
        self.outcome = None

    def settle(self) -> None:
        """Forget what was asked, and what came of it."""
        self._todo = self.outcome = None
        self.has_work = False

    # Envs that are asked one by one

    def prepare_ask(self, ask: Ask) -> Ask:
        """An ask whose actions belong to the envs."""
        return replace(ask, payload=deepcopy(ask.payload))

    def ask(self, prepared: Ask | None = None) -> None:
        """Have envs move in ``take_turn``."""
        if prepared is None:
            self._server.turns.look()
        else:
            self._server.turns.add(prepared)

    @property
    def owes_reports(self) -> bool:
        """Whether an env waits for its turn."""
        return self._server.has_turns

    def take_turn(self, most: int, among: Container[int] | None) -> bool:
        """Let the next envs move, quick ones together."""
        server = self._server
        turns = server.turns
        turn = turns.take(most, among) if turns.queue else None
        if turn is None:
            return False
        if (tellers := server.tellers(turn)) and self._arrivals is not None:
            self._arrivals.take(server.report(turn, tellers))
        server.hand_back(turn, but=tellers)
        turns.end()
        return True

    def torn_turns(self) -> list[int]:
        """The envs that an interrupt has kept from reporting."""
        return self._server.turns.torn() if self._server.has_arena else []

    def terminate(self) -> None:
        """Close the envs, if they are not: there is no process to end."""
        self.settle()
        self.outcome = self._server.close()

    def release(self) -> None:
        """Let go of the arena."""
        self._arrivals = None
        self._server.detach()


class LocalStarter:
    """Starts a fleet that is one shard, in this process."""

    count = 1
    survives_fork = True

    def __init__(self, job: Job) -> None:
        self._job = job

    def limits(self) -> contextlib.AbstractContextManager[None]:
        """Nothing: this process has been started."""
        return contextlib.nullcontext()

    def start(self, index: int, adopt: Callable[[Shard], None], generation: int = 0) -> None:  # noqa: ARG002
        """Make the shard."""
        everyone = range(len(self._job.env_fns))
        adopt(LocalShard(index, everyone, self._job, is_share=False))
