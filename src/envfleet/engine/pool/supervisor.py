"""All workers of a fleet: started together, asked together, stopped together."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
from collections.abc import Mapping, Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import clear_mpi_env_vars

from envfleet.engine.failures import Failure
from envfleet.engine.messages import Attach, Close, Command, Outcome, dumps
from envfleet.engine.pool.doorbell import Deadline, Doorbell
from envfleet.engine.pool.handle import WorkerHandle, WorkerState
from envfleet.engine.rules.seeding import worker_seeds
from envfleet.engine.worker.guard import caller_ends
from envfleet.engine.worker.host import EnvFactory, EnvHost
from envfleet.engine.worker.loop import Job, run_worker
from envfleet.errors import FleetBroken, WorkerDied

CLOSE_PATIENCE = 30.0
"""Seconds that workers get for ``env.close()`` when the caller sets no time-out."""
TERM_PATIENCE = 1.0
"""Seconds between SIGTERM and SIGKILL."""

_fleet_numbers = itertools.count()


def split_envs(num_envs: int, workers: int) -> list[range]:
    """Contiguous shards whose sizes differ by one at most, the larger ones first."""
    size, larger = divmod(num_envs, workers)
    ends = list(itertools.accumulate(size + (w < larger) for w in range(workers)))
    return [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]


class Pool:
    """Owns the worker processes of one fleet. Not thread-safe; useless in a forked child."""

    def __init__(
        self,
        env_fns: Sequence[EnvFactory],
        workers: int,
        *,
        context: str | None,
        daemon: bool,
        host_class: type[EnvHost],
        autoreset_mode: AutoresetMode,
        name: str,
    ) -> None:
        """Start the workers; they build their envs at the same time.

        Raises whatever starting a process raises, after the workers already started were stopped.
        """
        self._owner = os.getpid()
        self._death: WorkerDied | None = None
        self.handles: list[WorkerHandle] = []
        ctx = multiprocessing.get_context(context)
        by_reference = ctx.get_start_method() == "fork"
        shards = split_envs(len(env_fns), workers)
        state = random.getstate(), np.random.get_state()  # noqa: NPY002 - read, not drawn from
        seeds = worker_seeds(state, next(_fleet_numbers), workers)
        try:
            with clear_mpi_env_vars():
                for index, envs in enumerate(shards):
                    job = Job([env_fns[i] for i in envs], host_class, autoreset_mode)
                    work = job if by_reference else dumps(job, by_reference=False)
                    process, pipe = _start(ctx, f"{name}-{index}", daemon, envs, seeds[index], work)
                    self.handles.append(
                        WorkerHandle(index, envs, process, pipe, by_reference=by_reference)
                    )
        except BaseException:
            self.stop(terminate=True)
            raise
        self._bell = Doorbell(self.handles)

    def attach(self, descriptor: int, command: Attach) -> None:
        """Give every worker the arena; returns when all have it."""
        messages = [handle.encode(command) for handle in self.handles]
        for handle, data in zip(self.handles, messages, strict=True):
            self._post(handle, data, "start")
            reduction.send_handle(handle.connection, descriptor, handle.process.pid)
        self.gather(Deadline(None))

    def post(self, commands: Mapping[int, Command], name: str) -> None:
        """Send one command each to some workers, by index; all are encoded before any is sent.

        Raises:
            FleetBroken: a worker died earlier.
            WorkerDied: one died now.
        """
        self.check()
        messages = [(self.handles[w], self.handles[w].encode(c)) for w, c in commands.items()]
        for handle in self.handles:
            handle.outcome = None
        for handle, data in messages:
            self._post(handle, data, name)

    def gather(self, deadline: Deadline) -> bool:
        """Wait until every worker has answered; False when the deadline came first.

        May be called again after False. The answers are the handles' ``outcome``.

        Raises:
            FleetBroken: a worker died earlier.
            WorkerDied: one died now.
        """
        self.check()
        waiting = sum(handle.owes_reply for handle in self.handles)
        while waiting:
            try:
                ready = self._bell.wait(deadline)
                for handle in ready:
                    handle.receive()
            except WorkerDied as death:
                self._death = death
                raise
            if not ready:
                return False
            waiting = sum(handle.owes_reply for handle in self.handles)
        return True

    def outcomes(self) -> list[tuple[WorkerHandle, Outcome]]:
        """The answers of the workers that were asked, in the envs' order."""
        return [(h, h.outcome) for h in self.handles if h.outcome is not None]

    def failures(self) -> list[tuple[Failure, str]]:
        """The failures in the current answers, each with the place where it happened."""
        return [
            (failure, handle.place)
            for handle, outcome in self.outcomes()
            for failure in outcome.failures
        ]

    def late_envs(self) -> list[int]:
        """The envs of workers that have not answered."""
        return [env for handle in self.handles if handle.owes_reply for env in handle.env_ids]

    def abandon(self) -> None:
        """Give up the current call: late replies are dropped, the next command waits for them."""
        for handle in self.handles:
            handle.abandon()

    def check(self) -> None:
        """Raise ``FleetBroken`` if a worker has died."""
        if self._death is not None:
            raise FleetBroken(
                f"this fleet lost a worker earlier ({self._death}) Only close() is left."
            ) from self._death

    def stop(self, timeout: float | None = None, *, terminate: bool = False) -> list[Failure]:
        """Stop every worker: ask, then SIGTERM, then SIGKILL; returns what ``env.close`` raised.

        Does nothing in a forked child of the process that started the workers.
        """
        if os.getpid() != self._owner:
            return []
        failures: list[Failure] = []
        if not terminate and self._death is None:
            failures = self._ask_to_close(CLOSE_PATIENCE if timeout is None else timeout)
        for handle in self.handles:
            if handle.state is not WorkerState.GONE:
                handle.process.terminate()
        deadline = Deadline(TERM_PATIENCE)
        for handle in self.handles:
            handle.process.join(deadline.left())
            if handle.process.is_alive():
                handle.process.kill()
        for handle in self.handles:
            handle.process.join()
            handle.connection.close()
        return failures

    def _ask_to_close(self, timeout: float) -> list[Failure]:
        deadline = Deadline(timeout)
        try:
            self.abandon()
            self.post({handle.index: Close() for handle in self.handles}, "close")
            self.gather(deadline)
        except (WorkerDied, FleetBroken):
            pass  # the rest of the ladder is for them
        failures = []
        for handle, outcome in self.outcomes():
            handle.left()
            failures += outcome.failures
        return failures

    def _post(self, handle: WorkerHandle, data: bytes, name: str) -> None:
        try:
            handle.post(data, name)
        except WorkerDied as death:
            self._death = death
            raise


def _start(
    ctx: Any, name: str, daemon: bool, envs: range, seed: int, job: Job | bytes
) -> tuple[BaseProcess, Connection]:
    ours, theirs = ctx.Pipe()
    caller_ends.add(ours)
    try:
        args = (theirs, envs, seed, job)
        process = ctx.Process(target=run_worker, name=name, args=args, daemon=daemon)
        process.start()
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, ours
