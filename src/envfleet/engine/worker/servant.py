"""Servant: obeys commands with a host of its own, in a worker or, for its share, in the caller."""

from __future__ import annotations

import mmap
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gymnasium.vector import AutoresetMode

from envfleet.engine.arena.views import private_views, shared_views
from envfleet.engine.failures import Failure
from envfleet.engine.interrupts import raise_interrupt
from envfleet.engine.messages import (
    Attach,
    Call,
    Close,
    Command,
    Outcome,
    Rebuild,
    Renew,
    Reset,
    SeedGlobals,
    SetAttr,
    Step,
)
from envfleet.engine.worker.guard import seed_globals
from envfleet.engine.worker.host import EnvFactory, EnvHost
from envfleet.engine.worker.waiting import WaitMeter


@dataclass(frozen=True, slots=True)
class Job:
    """What a shard is to be: which envs, in which kind of host."""

    env_fns: Sequence[EnvFactory]
    host_class: type[EnvHost]
    autoreset_mode: AutoresetMode


class Servant:
    """The envs of one shard, asked by commands."""

    host: EnvHost

    def __init__(
        self, env_ids: range, caught: tuple[type[BaseException], ...] | None = None
    ) -> None:
        """Serve these envs; ``caught`` is what counts as their failure, if not the host's own."""
        self.env_ids = env_ids
        self._caught = caught
        self._meter = WaitMeter(len(env_ids))

    def introduce(self, job: Job | bytes) -> Outcome:
        """Build the envs; the outcome describes them. A job in bytes is unpickled first."""
        first = self.env_ids.start
        try:
            job = pickle.loads(job) if isinstance(job, bytes) else job
            self.host = job.host_class(first, job.autoreset_mode)
            if self._caught is not None:
                self.host.caught = self._caught
                self.host.is_workers = True
            outcome = self.host.build(job.env_fns)
            if not outcome.failures:
                outcome.results = [self.host.describe()]
        except Exception as error:  # noqa: BLE001 - imports and a user's class may raise anything
            raise_interrupt(error)
            outcome = Outcome(failures=[Failure.capture(first, "construct", error)])
        return outcome

    def attach(self, command: Attach, memory: mmap.mmap) -> None:
        """Use this arena from now on."""
        views = shared_views(command.layout, memory).shard(self.env_ids)
        self._sends_columns = not command.shared_memory
        if self._sends_columns:
            final = self.host.autoreset_mode == AutoresetMode.SAME_STEP
            views = views.with_own_observations(command.observations.fixed, final=final)
        self._views = views
        self._observations, self._actions = command.observations, command.actions
        self.host.attach(views, command.observations, command.actions, command.infos)

    def obey(self, command: Command) -> Outcome:
        """Do what a command other than ``Attach`` says."""
        match command:
            case Step():
                return self.step(command.loose)
            case Reset():
                return self._with_columns(self.host.reset(command.plan))
            case Call():
                return self.host.call(command.env_ids, command.name, command.args, command.kwargs)
            case SetAttr():
                return self.host.set_attr(command.env_ids, command.name, command.values)
            case Rebuild():
                return self.host.rebuild(command.env_ids)
            case Renew():
                return self._with_columns(self.host.renew(command))
            case SeedGlobals():
                # In the caller's process torch's is the policy's.
                seed_globals(command.seed, torch_too=self._caught is not None)
                return Outcome()
            case Close():
                outcome = self.host.close()
                self.host.envs.clear()  # leaving must not close them twice
                return outcome
        raise AssertionError(command)

    def detach(self) -> None:
        """Let go of the arena, also where somebody keeps an exception and with it the host."""
        final = self.host.autoreset_mode == AutoresetMode.SAME_STEP
        leaves = self._observations.fixed
        self._views = private_views(len(self.env_ids), leaves, final=final)
        self.host.attach(self._views, self._observations, self._actions)

    def leave(self) -> None:
        """Close what is still open."""
        if hasattr(self, "host"):
            self.host.close()

    def step(self, loose: Sequence[list[Any]] = ()) -> Outcome:
        """Step every env, with the arena's actions and the values of loose leaves, if there are."""
        columns = self._action_columns(loose)
        if not self._meter.measuring:
            return self._with_columns(self.host.step(columns))
        self._meter.start()
        outcome = self.host.step(columns)
        outcome.waits = self._meter.stop()
        return self._with_columns(outcome)

    def _action_columns(self, loose: Sequence[list[Any]]) -> list[Any]:
        """The actions of a step. Copies: an env may keep its own, and the arena is overwritten."""
        if self._actions.flat:
            return [self._views.actions[0].copy()]
        fixed, others = iter(self._views.actions), iter(loose)
        return [next(fixed).copy() if leaf.fixed else next(others) for leaf in self._actions.leaves]

    def _with_columns(self, outcome: Outcome) -> Outcome:
        if self._sends_columns:
            outcome.observations = self._views.observations
            if (self._views.terminated | self._views.truncated).any():
                outcome.final_observations = self._views.final_observations
        return outcome
