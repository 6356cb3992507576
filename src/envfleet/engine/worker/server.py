"""ShardServer: obeys commands with the envs of one shard, in a worker or in the caller."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from envfleet.engine.arena.arena import Terms
from envfleet.engine.arena.views import Views, private_views
from envfleet.engine.failures import Failure
from envfleet.engine.interrupts import raise_interrupt
from envfleet.engine.messages import (
    ENDED,
    PLAIN_STEP,
    SILENT,
    Call,
    Close,
    Command,
    KeepFinalFrames,
    Outcome,
    Rebuild,
    Renew,
    Report,
    Reset,
    SeedGlobals,
    SetAttr,
    Step,
)
from envfleet.engine.worker.episodes import Episodes
from envfleet.engine.worker.guard import seed_globals
from envfleet.engine.worker.hooks import EnvFactory, EnvHost
from envfleet.engine.worker.host import Host
from envfleet.engine.worker.turns import Turn, Turns
from envfleet.engine.worker.waiting import WaitMeter

_NOBODY: set[int] = set()


@dataclass(frozen=True, slots=True)
class Job:
    """What a shard is to be: which envs, in which kind of host."""

    env_fns: Sequence[EnvFactory]
    host_class: type[EnvHost]
    autoreset_mode: AutoresetMode


class ShardServer:
    """The envs of one shard, asked by commands: ``build``, ``attach``, then ``obey`` and ``step``.

    Args:
        env_ids: the shard's envs.
        is_worker: whether this is a worker process (see ``Host``).
        watches_waiting: whether to find out if the envs wait rather than compute.
    """

    host: Host | None = None

    def __init__(self, env_ids: range, *, is_worker: bool, watches_waiting: bool = True) -> None:
        self.env_ids = env_ids
        self._is_worker = is_worker
        # Alone in its shard an env may wait as long as it likes.
        self._meter = WaitMeter(len(env_ids) if watches_waiting else 1)
        self._turns: Turns | None = None
        self._is_closed = False

    def build(self, job: Job | bytes) -> Outcome:
        """Build the envs; the outcome describes them. A job in bytes is unpickled first."""
        first = self.env_ids.start
        try:
            job = pickle.loads(job) if isinstance(job, bytes) else job
            hooks = job.host_class(first, job.autoreset_mode)
            self.host = Host(hooks, is_worker=self._is_worker)
            self._episodes = Episodes(self.host)
            return self.host.build(job.env_fns)
        except Exception as error:  # noqa: BLE001 - imports and a user's class may raise anything
            raise_interrupt(error)
            return Outcome(failures=[Failure.capture(first, "construct", error)])

    def attach(self, views: Views, terms: Terms, *, sends_columns: bool) -> None:
        """Use these rows, the shard's own, from now on.

        Args:
            views: the rows.
            terms: what the fleet has agreed on.
            sends_columns: whether the caller cannot see the rows' observations.
        """
        self._views = views
        self._terms = terms
        self._sends_columns = sends_columns
        self._is_plain = not sends_columns and not terms.actions.loose
        self._built_host().hooks.autoreset_mode = terms.autoreset_mode
        self._episodes.attach(views, terms)
        self._turns = Turns(self._episodes, views, terms.actions, self.env_ids.start)

    def detach(self) -> None:
        """Let go of the arena, also where somebody keeps an exception and with it the host."""
        if hasattr(self, "_terms"):
            terms = self._terms
            leaves = terms.observations.fixed
            views = private_views(len(self.env_ids), leaves, final=terms.keeps_final)
            self.attach(views, terms, sends_columns=False)

    def obey(self, command: Command) -> Outcome:
        """Do what a command other than ``Attach`` and ``Settle`` says."""
        match command:
            case Step():
                return self.step(command)
            case Reset():
                return self._with_columns(self._episodes.reset(command.plan))
            case Call():
                return self._built_host().call(command)
            case SetAttr():
                return self._built_host().set_attr(command)
            case KeepFinalFrames():
                self._built_host().recorded = frozenset(command.env_ids)
                return Outcome()
            case Rebuild():
                return self._built_host().rebuild(command.env_ids)
            case Renew():
                return self._with_columns(self._episodes.renew(command))
            case SeedGlobals():
                # In the caller's process torch's is the policy's.
                seed_globals(command.seed, torch_too=self._is_worker)
                return Outcome()
            case Close():
                return self.close()
        raise AssertionError(command)

    def step(self, command: Step) -> Outcome:
        """Step envs with the arena's actions, and the loose ones that the command carries."""
        if command is PLAIN_STEP and self._is_plain and not self._meter.measuring:
            return self._episodes.step(list(map(np.ndarray.copy, self._views.actions)))
        columns, env_ids = self._action_columns(command), command.env_ids
        if env_ids is not None:
            rows = np.array(env_ids, dtype=np.intp) - self.env_ids.start
            outcome = self._episodes.step(columns, rows)
        elif not self._meter.measuring:
            outcome = self._episodes.step(columns)
        else:
            self._meter.start()
            outcome = self._episodes.step(columns)
            if self._meter.stop():
                outcome = replace(outcome, waits=True)
        return self._with_columns(outcome) if self._sends_columns else outcome

    @property
    def turns(self) -> Turns:
        """The envs that were asked one by one; there is an arena by then."""
        if self._turns is None:
            raise AssertionError("the shard has no arena")
        return self._turns

    @property
    def has_arena(self) -> bool:
        """Whether there is an arena."""
        return self._turns is not None

    @property
    def has_turns(self) -> bool:
        """Whether an env waits for its turn."""
        return self._turns is not None and bool(self._turns.queue)

    def tellers(self, turn: Turn) -> set[int]:
        """The rows of envs whose answer is more than rows that the caller can see."""
        if self._sends_columns:
            return set(turn.rows)
        outcome = turn.outcome
        if outcome is SILENT or outcome is ENDED:
            return _NOBODY
        if outcome.loose:
            return set(turn.rows)
        told = [env for env, _ in outcome.infos] + [env for env, _ in outcome.final_objects]
        told += [failure.env for failure in outcome.failures]
        return {env - self.env_ids.start for env in told}

    def hand_back(self, turn: Turn, but: set[int]) -> None:
        """Hand the rows of a portion back to the caller, but for some."""
        picked, numbers = turn.picked, turn.numbers
        if but:
            kept = [k for k, i in enumerate(turn.rows) if i not in but]
            picked, numbers = np.array(turn.rows)[kept], numbers[kept]
        self._views.hand_back(picked, numbers, turn.stamp)

    def report(self, turn: Turn, tellers: set[int]) -> Report:
        """What some envs of a portion have answered, with their rows that the caller cannot see."""
        outcome, views, first = turn.outcome, self._views, self.env_ids.start
        chosen = [k for k, i in enumerate(turn.rows) if i in tellers]
        rows, numbers = np.array(turn.rows)[chosen], turn.numbers[chosen].tolist()
        envs = (rows + first).tolist()
        if len(chosen) < len(turn.rows):
            outcome = replace(outcome, infos=[e for e in outcome.infos if e[0] - first in tellers])
        if self._sends_columns:
            ended = (views.terminated[rows] | views.truncated[rows]).any()
            final = [column[rows] for column in views.final_observations] if ended else ()
            observations = [column[rows] for column in views.observations]
            outcome = replace(outcome, observations=observations, final_observations=final)
        if outcome.loose:
            outcome = replace(outcome, loose=[outcome.loose[i] for i in rows.tolist()])
        return Report(envs, numbers, turn.stamp, outcome)

    def close(self) -> Outcome:
        """Close the envs that there are; once."""
        if self.host is None or self._is_closed:
            return Outcome()
        self._is_closed = True
        return self.host.close()

    def _built_host(self) -> Host:
        if self.host is None:
            raise AssertionError("the shard's envs were never built")
        return self.host

    def _action_columns(self, command: Step) -> list[Any]:
        """The actions of a step. Copies: an env may keep its own, and the arena is overwritten."""
        actions = self._terms.actions
        columns = self._views.actions
        if command.env_ids is not None:
            rows = [env - self.env_ids.start for env in command.env_ids]
            columns = [column[rows] for column in columns]
        else:
            columns = list(map(np.ndarray.copy, columns))
        if not actions.loose:
            return columns
        fixed, loose = iter(columns), iter(command.loose)
        return [next(fixed) if leaf.fixed else next(loose) for leaf in actions.leaves]

    def _with_columns(self, outcome: Outcome) -> Outcome:
        views = self._views
        if not self._sends_columns:
            return outcome
        ended = (views.terminated | views.truncated).any()
        final = views.final_observations if ended else ()
        return replace(outcome, observations=views.observations, final_observations=final)
