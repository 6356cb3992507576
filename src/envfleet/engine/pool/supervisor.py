"""All workers of a fleet: started together, asked together, stopped together."""

from __future__ import annotations

import contextlib
import errno
import itertools
import multiprocessing
import os
import random
import resource
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import clear_mpi_env_vars

from envfleet.engine.failures import Failure, raise_first
from envfleet.engine.messages import Attach, Close, Command, Outcome, dumps
from envfleet.engine.pool.doorbell import Deadline, Doorbell
from envfleet.engine.pool.handle import WorkerHandle, WorkerState
from envfleet.engine.pool.starting import (
    hidden_missing_main,
    raise_if_missing_guard,
    refuse_missing_guard,
    warn_of_fork,
)
from envfleet.engine.rules.seeding import worker_seeds
from envfleet.engine.worker.guard import (
    caller_ends,
    held_interrupts,
    wait_for_end,
)
from envfleet.engine.worker.host import EnvFactory, EnvHost
from envfleet.engine.worker.loop import Job, run_worker
from envfleet.errors import FleetBroken, WorkerDied

CLOSE_PATIENCE = 30.0
"""Seconds that workers get for ``env.close()`` when the caller sets no time-out."""
STUCK_PATIENCE = 2.0
"""The same, for workers that have not answered an earlier command, or when one has died."""
TERM_PATIENCE = 1.0
"""Seconds between SIGTERM and SIGKILL."""

DESCRIPTORS_PER_WORKER = 5
"""Pipe, sentinels, and what starting takes for a moment."""

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
        self._stopped = False
        self.handles: list[WorkerHandle] = []
        ctx = multiprocessing.get_context(context)
        refuse_missing_guard()
        by_reference = ctx.get_start_method() == "fork"
        if by_reference:
            warn_of_fork()
        shards = split_envs(len(env_fns), workers)
        state = random.getstate(), np.random.get_state()  # noqa: NPY002 - read, not drawn from
        seeds = worker_seeds(state, next(_fleet_numbers), workers)
        try:
            with clear_mpi_env_vars(), hidden_missing_main():
                for index, envs in enumerate(shards):
                    job = Job([env_fns[i] for i in envs], host_class, autoreset_mode)
                    sent = job if by_reference else dumps(job, by_reference=False)
                    process, pipe = _start(ctx, f"{name}-{index}", daemon, envs, seeds[index], sent)
                    self.handles.append(
                        WorkerHandle(index, envs, process, pipe, by_reference=by_reference)
                    )
        except BaseException as error:
            self.stop(terminate=True)
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                raise _too_few_descriptors(error, workers) from error
            raise
        self._bell = Doorbell(self.handles)

    def attach(self, descriptor: int, command: Attach) -> None:
        """Give every worker the arena; returns when all have it."""
        self.post({handle.index: command for handle in self.handles}, descriptor)
        self.gather(Deadline(None))
        self.raise_failures()

    def post(self, commands: Mapping[int, Command], descriptor: int | None = None) -> None:
        """Send one command each to some workers, by index; the answers of the last call are gone.

        All commands are encoded before anything else happens, so that an argument that cannot be
        pickled costs nothing. A descriptor follows the commands where one is given.

        Raises:
            FleetBroken: a worker died earlier.
            WorkerDied: one died now.
        """
        self.check()
        messages = {w: self.handles[w].encode(command) for w, command in commands.items()}
        for handle in self.handles:
            handle.abandon()
        for worker, command in commands.items():
            handle = self.handles[worker]
            try:
                handle.post(messages[worker], command)
                if descriptor is not None:
                    reduction.send_handle(handle.connection, descriptor, handle.pid)
            except WorkerDied as death:
                self._death = death
                raise

    def gather(self, deadline: Deadline) -> bool:
        """Wait until every worker has answered; False when the deadline came first.

        May be called again after False. The answers are the handles' ``outcome``.

        Raises:
            FleetBroken: a worker died earlier.
            WorkerDied: one died now.
        """
        self.check()
        try:
            while any(handle.owes_reply for handle in self.handles):
                ready = self._bell.wait(deadline)
                if not ready:
                    return False
                for handle in ready:
                    handle.receive()
        except WorkerDied as death:
            self._death = death
            raise_if_missing_guard(death)
            raise
        return True

    def outcomes(self) -> list[tuple[WorkerHandle, Outcome]]:
        """The answers that have come to the current call, in the envs' order."""
        return [(h, h.outcome) for h in self.handles if h.outcome is not None]

    def raise_failures(self) -> None:
        """Raise the failure of the lowest env in the current answers, if there is one."""
        raise_first(
            [
                (failure, f", worker {handle.index} (pid {handle.pid})")
                for handle, outcome in self.outcomes()
                for failure in outcome.failures
            ]
        )

    def late_envs(self) -> list[int]:
        """The envs of workers that have not answered."""
        return [env for handle in self.handles if handle.owes_reply for env in handle.env_ids]

    @property
    def is_broken(self) -> bool:
        """Whether a worker has died."""
        return self._death is not None

    def check(self) -> None:
        """Raise ``FleetBroken`` if the workers cannot be used."""
        if self._death is not None:
            raise FleetBroken(f"this fleet lost a worker earlier: {self._death}") from self._death
        if os.getpid() != self._owner:
            raise FleetBroken(
                f"this fleet belongs to process {self._owner}; process {os.getpid()} is a fork of "
                "it and must build a fleet of its own."
            )

    def stop(self, timeout: float | None = None, *, terminate: bool = False) -> list[Failure]:
        """Stop every worker: ask, then SIGTERM, then SIGKILL; returns what ``env.close`` raised.

        Does nothing the second time, and in a forked child of the process that started the workers.

        Args:
            timeout: seconds until SIGTERM; None gives those that answer 30 s and the others 2 s.
            terminate: do not ask.
        """
        if self._stopped or os.getpid() != self._owner:
            return []
        self._stopped = True
        deadline = Deadline(0.0 if terminate else CLOSE_PATIENCE if timeout is None else timeout)
        try:
            if terminate:
                return []
            self._ask_to_close()
            if timeout is None:
                self._await_close(
                    Deadline(STUCK_PATIENCE), lambda handle: handle.queued is not None
                )
                self._end([handle for handle in self.handles if handle.queued is not None])
            self._await_close(deadline, lambda handle: handle.owes_reply)
            return [failure for _, outcome in self.outcomes() for failure in outcome.failures]
        finally:
            for handle in self.handles:
                if handle.state is WorkerState.GONE:
                    wait_for_end(handle.pid, max(TERM_PATIENCE, deadline.left() or 0.0))
            self._end(self.handles)
            for handle in self.handles:
                handle.process.close()
                handle.connection.close()

    def _ask_to_close(self) -> None:
        for handle in self.handles:
            if not handle.is_over:
                handle.abandon()
                with contextlib.suppress(WorkerDied):
                    handle.post(handle.encode(Close()), Close())

    def _await_close(self, deadline: Deadline, is_awaited: Callable[[WorkerHandle], bool]) -> None:
        """Receive what comes until nobody is awaited any more, deaths included."""
        while any(is_awaited(handle) for handle in self.handles):
            for handle in self.handles:
                if handle.is_over:
                    self._bell.forget(handle)
            with contextlib.suppress(WorkerDied):
                ready = self._bell.wait(deadline)
                if not ready:
                    return
                for handle in ready:
                    handle.receive()

    @staticmethod
    def _end(handles: Sequence[WorkerHandle]) -> None:
        """End processes, and what they have started: SIGTERM, then SIGKILL."""
        left = [handle for handle in handles if not handle.is_buried]
        for handle in left:
            handle.process.terminate()
        patience = Deadline(TERM_PATIENCE)
        for handle in left:
            wait_for_end(handle.pid, patience.left())
            handle.bury()


def _too_few_descriptors(error: OSError, workers: int) -> OSError:
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed = workers * DESCRIPTORS_PER_WORKER
    return OSError(
        error.errno,
        f"{workers} workers need about {needed} file descriptors beside those in use, and this "
        f"process may have {allowed}: use fewer workers, or raise the limit (ulimit -n)",
    )


def _start(
    ctx: Any, name: str, daemon: bool, envs: range, seed: int, job: Job | bytes
) -> tuple[BaseProcess, Connection]:
    ours, theirs = ctx.Pipe()
    caller_ends.add(ours)
    try:
        # A forkserver is the workers' parent, ends with the caller, and starts others' children too.
        forkserver = ctx.get_start_method() == "forkserver"
        in_main = threading.current_thread() is threading.main_thread()
        caller = os.getpid(), in_main or forkserver
        args = (theirs, envs, seed, caller, job)
        process = ctx.Process(target=run_worker, name=name, args=args, daemon=daemon)
        with contextlib.nullcontext() if forkserver else held_interrupts():
            process.start()
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, ours
