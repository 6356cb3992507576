"""The worker's life: build the envs, tell about them, obey numbered commands, leave."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from gymnasium.vector import AutoresetMode

from envfleet.engine.arena.memory import map_shared
from envfleet.engine.arena.views import shared_views
from envfleet.engine.failures import Failure
from envfleet.engine.messages import (
    Attach,
    Call,
    Close,
    Command,
    Outcome,
    Rebuild,
    Renew,
    Reset,
    SetAttr,
    Step,
    decode_command,
    dumps,
    encode_outcome,
    number_of,
)
from envfleet.engine.wire import Wire
from envfleet.engine.worker import guard
from envfleet.engine.worker.host import EnvFactory, EnvHost
from envfleet.engine.worker.waiting import WaitMeter


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker is to do: which envs, in which kind of host."""

    env_fns: Sequence[EnvFactory]
    host_class: type[EnvHost]
    autoreset_mode: AutoresetMode


def run_worker(
    end: socket.socket, lifeline: Connection, env_ids: range, seed: int, job: Job | bytes
) -> None:
    """Serve one shard until told to close, or until the caller is gone.

    A job in bytes is unpickled here, so that a module the worker lacks is an error like any other.
    """
    guard.enter(seed, lifeline)
    worker = _Worker(Wire(end), env_ids)
    try:
        worker.introduce(job)
        worker.serve()
    except (EOFError, ConnectionError):
        pass  # the caller is gone, and with it everybody who could read an error
    finally:
        worker.leave()


class _Worker:
    host: EnvHost

    def __init__(self, wire: Wire, env_ids: range) -> None:
        self._wire = wire
        self._env_ids = env_ids
        self._meter = WaitMeter(len(env_ids))

    def introduce(self, job: Job | bytes) -> None:
        """Build the envs and answer the unspoken command 0 with their description."""
        first = self._env_ids.start
        try:
            job = pickle.loads(job) if isinstance(job, bytes) else job
            self.host = job.host_class(first, job.autoreset_mode)
            self.host.caught = (BaseException,)
            outcome = self.host.build(job.env_fns)
            if not outcome.failures:
                outcome.results = [self.host.describe()]
        except Exception as error:  # noqa: BLE001 - imports and a user's class may raise anything
            outcome = Outcome(failures=[Failure.capture(first, "construct", error)])
        self._reply(0, outcome)

    def leave(self) -> None:
        """Close what is still open, and end children that leaving would otherwise wait for."""
        if hasattr(self, "host"):
            self.host.close()
        for child in multiprocessing.active_children():
            child.terminate()

    def serve(self) -> None:
        while True:
            data = self._wire.receive()
            if data is None:
                continue
            command: Command | None = None
            try:
                command = decode_command(data)
                outcome = self._obey(command)
            except Exception as error:  # noqa: BLE001 - nothing that can be told may end a worker
                phase = "receiving a command" if command is None else command.title
                failure = Failure.capture(self._env_ids.start, phase, error)
                outcome = Outcome(failures=[failure])
            asked = command.env_ids if isinstance(command, Call) else ()
            self._reply(number_of(data), outcome, asked)
            if isinstance(command, Close):
                # Closed already: leaving must not close them twice.
                self.host.envs.clear()
                return

    def _obey(self, command: Command) -> Outcome:
        match command:
            case Step():
                return self._step(command)
            case Reset():
                return self._with_columns(self.host.reset(command.plan))
            case Call():
                return self.host.call(command.env_ids, command.name, command.args, command.kwargs)
            case SetAttr():
                return self.host.set_attr(command.env_ids, command.name, command.values)
            case Attach():
                return self._attach(command)
            case Rebuild():
                return self.host.rebuild(command.env_ids)
            case Renew():
                return self._with_columns(self.host.renew(command))
            case Close():
                return self.host.close()

    def _attach(self, command: Attach) -> Outcome:
        descriptor = self._wire.receive_descriptor()
        memory = map_shared(descriptor, command.layout.size)
        os.close(descriptor)
        views = shared_views(command.layout, memory).shard(self._env_ids)
        self._sends_columns = not command.shared_memory
        if self._sends_columns:
            final = self.host.autoreset_mode == AutoresetMode.SAME_STEP
            views = views.with_own_observations(command.observations.fixed, final=final)
        self._views = views
        self._actions = command.actions
        self.host.attach(views, command.observations, command.actions)
        return Outcome()

    def _step(self, command: Step) -> Outcome:
        fixed, loose = iter(self._views.actions), iter(command.loose)
        # A copy: an env may keep its action, and the caller overwrites the arena's.
        columns = [
            next(fixed).copy() if leaf.fixed else next(loose) for leaf in self._actions.leaves
        ]
        if not self._meter.measuring:
            return self._with_columns(self.host.step(columns))
        self._meter.start()
        outcome = self.host.step(columns)
        outcome.waits = self._meter.stop()
        return self._with_columns(outcome)

    def _with_columns(self, outcome: Outcome) -> Outcome:
        if self._sends_columns:
            outcome.observations = self._views.observations
            if (self._views.terminated | self._views.truncated).any():
                outcome.final_observations = self._views.final_observations
        return outcome

    def _reply(self, number: int, outcome: Outcome, env_ids: Sequence[int] = ()) -> None:
        if outcome.failures:
            outcome.failures = [failure.packed() for failure in outcome.failures]
        try:
            data = encode_outcome(number, outcome)
        except Exception:  # noqa: BLE001 - an env's objects may raise anything
            _drop_unpicklable(outcome, self._env_ids, env_ids)
            data = encode_outcome(number, outcome)
        self._wire.send(data)


def _drop_unpicklable(outcome: Outcome, shard: range, asked: Sequence[int]) -> None:
    """Replace what cannot be pickled by a failure that says whose and which value it was."""

    def unpicklable(env: int, name: str, value: Any) -> bool:
        try:
            dumps(value, by_reference=True)
        except Exception as error:  # noqa: BLE001 - __reduce__ may raise anything
            problem = TypeError(f"{name} cannot be pickled: {type(error).__name__}: {error}")
            outcome.failures.append(Failure.capture(env, "answer", problem).packed())
            return True
        return False

    outcome.infos = [
        (env, {k: v for k, v in info.items() if not unpicklable(env, f"info[{k!r}]", (k, v))})
        for env, info in outcome.infos
    ]
    outcome.results = [
        None if unpicklable(env, "the result", result) else result
        for env, result in zip(asked or shard, outcome.results, strict=False)
    ]
    outcome.loose = [
        [None if unpicklable(env, "the observation", value) else value for value in values]
        for env, values in zip(shard, outcome.loose, strict=False)
    ]
    outcome.final_loose = [
        (
            env,
            [
                None if unpicklable(env, "the final observation", value) else value
                for value in values
            ],
        )
        for env, values in outcome.final_loose
    ]
