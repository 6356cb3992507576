"""Starting workers, and what stands in the way: mains that cannot run twice, forked threads."""

from __future__ import annotations

import contextlib
import errno
import itertools
import multiprocessing
import os
import random
import resource
import socket
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector.utils import clear_mpi_env_vars

from envfleet.engine.descriptors import above_standard
from envfleet.engine.interrupts import held_signals
from envfleet.engine.local import LocalShard
from envfleet.engine.pickling import dumps
from envfleet.engine.process.shard import WorkerShard
from envfleet.engine.rules.seeding import derived_seed, worker_seeds
from envfleet.engine.shard import Shard
from envfleet.engine.wire import Wire
from envfleet.engine.worker.guard import caller_ends, held_interrupts, own_workers
from envfleet.engine.worker.loop import run_worker
from envfleet.engine.worker.server import Job
from envfleet.engine.worker.threads import limits_to_inherit
from envfleet.errors import WorkerDied

DESCRIPTORS_PER_WORKER = 6
"""Wire, lifeline, watch, sentinels, and what starting takes for a moment."""

_fleet_numbers = itertools.count()

_NO_GUARD = 77
"""The exit code of a worker that found itself building the fleet it belongs to."""


def split_envs(num_envs: int, workers: int) -> list[range]:
    """Contiguous shards whose sizes differ by one at most, the larger ones first."""
    size, larger = divmod(num_envs, workers)
    ends = list(itertools.accumulate(size + (w < larger) for w in range(workers)))
    return [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]


class WorkerStarter:
    """Knows how to start each worker of one fleet, at first and again.

    Args:
        job: all envs of the fleet, and how they are to be handled.
        shards: how many shards share them.
        caller_steps: whether the last shard stays in this process.
        context: multiprocessing's start method; None is the platform's default.
        daemon: whether the workers are daemonic.
        name: what the processes' names begin with.
        threads: how many threads numerical libraries may use in a worker; None for any number.
    """

    survives_fork = False

    def __init__(
        self,
        job: Job,
        shards: int,
        *,
        caller_steps: bool = False,
        context: str | None,
        daemon: bool,
        name: str,
        threads: int | None,
    ) -> None:
        _refuse_missing_guard()
        self.count = shards
        self._env_ids = split_envs(len(job.env_fns), shards)
        self._job = job
        self._local = shards - 1 if caller_steps else None
        self._context: Any = multiprocessing.get_context(context)
        self.method = self._context.get_start_method()
        self._daemon = daemon
        self._name = name
        self._threads = threads
        state = random.getstate(), np.random.get_state()  # noqa: NPY002 - read, not drawn from
        self._seeds = worker_seeds(state, next(_fleet_numbers), shards)
        if self.method == "fork":
            _warn_of_fork()

    def limits(self) -> contextlib.AbstractContextManager[None]:
        """What must hold around ``start``, once for any number of them."""
        return limits_to_inherit(self._threads, forked=self.method == "fork")

    def start(self, index: int, adopt: Callable[[Shard], None], generation: int = 0) -> None:
        """Start shard ``index``; a later generation gets other global seeds.

        ``adopt`` takes it over before any interrupt can come.

        Raises:
            OSError: too few descriptors, with the number that is needed.
        """
        envs = self._env_ids[index]
        job = replace(self._job, env_fns=[self._job.env_fns[env] for env in envs])
        if index == self._local:
            adopt(LocalShard(index, envs, job, is_share=True))
            return
        try:
            self._start_worker(index, envs, job, adopt, generation)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise _too_few_descriptors(error, self.count) from error
            raise

    def _start_worker(
        self,
        index: int,
        envs: range,
        job: Job,
        adopt: Callable[[Shard], None],
        generation: int,
    ) -> None:
        forked = self.method == "fork"
        seed = derived_seed(self._seeds[index], generation)
        sent = job if forked else dumps(job, by_reference=False)
        # A fork server starts others' children too, which would never hear of Ctrl-C again.
        interrupts = contextlib.nullcontext() if self.method == "forkserver" else held_interrupts()
        with (
            held_signals(),
            above_standard(),
            contextlib.ExitStack() as ours,
            contextlib.ExitStack() as theirs,
        ):
            our_end, worker_end = socket.socketpair()
            our_end.setblocking(False)
            tied_end, lifeline = self._context.Pipe(duplex=False)
            for end in (our_end, lifeline):
                caller_ends.add(ours.enter_context(end))
            for end in (worker_end, tied_end):
                theirs.enter_context(end)
            process = self._context.Process(
                target=run_worker,
                name=f"{self._name}-{index}",
                args=(index, envs, worker_end, tied_end, seed, self._threads, sent),
                daemon=self._daemon,
            )
            with clear_mpi_env_vars(), _hidden_missing_main(), interrupts:
                process.start()
            own_workers.add(process)
            shard = WorkerShard(index, envs, process, Wire(our_end), lifeline, by_reference=forked)
            ours.pop_all()
            adopt(shard)


def _too_few_descriptors(error: OSError, workers: int) -> OSError:
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed = workers * DESCRIPTORS_PER_WORKER
    return OSError(
        error.errno,
        f"{workers} workers need about {needed} file descriptors beside those in use, and this "
        f"process may have {allowed}: use fewer workers, or raise the limit (ulimit -n)",
    )


def _refuse_missing_guard() -> None:
    """Leave at once if this process is a worker that has only come to re-import the main module.

    multiprocessing would refuse with a long traceback per worker; the caller tells it once.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(_NO_GUARD)


def raise_if_missing_guard(death: WorkerDied) -> None:
    """Say what a death at the start with that exit code means.

    Raises:
        RuntimeError: the program builds a fleet when its main module is imported.
    """
    if death.exitcode == _NO_GUARD and death.command == "start":
        raise RuntimeError(
            "the workers import the program's main module, and importing it builds a fleet: put "
            "that under  if __name__ == '__main__':  (start methods spawn and forkserver need it)"
        ) from None


@contextlib.contextmanager
def _hidden_missing_main() -> Iterator[None]:
    """Keep multiprocessing from running a main module again that is no file (``python -``)."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if path is None or Path(path).exists():
        yield
        return
    del main.__file__
    try:
        yield
    finally:
        main.__file__ = path


def _warn_of_fork() -> None:
    """Warn if OpenMP threads wait in this process (torch's are): a forked worker may freeze."""
    try:
        waiting = _openmp_threads_wait()
    except (OSError, ValueError):  # not Linux, or not allowed to look
        return
    if waiting:
        warnings.warn(
            "forking after torch or OpenMP has worked in this process: a worker that uses them may "
            'freeze. Build the fleet first, or pass context="forkserver".',
            stacklevel=4,
        )


def _openmp_threads_wait() -> bool:
    """Whether a thread of this process is blocked inside an OpenMP runtime."""
    runtime = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if any(name in line for name in ("libgomp", "libomp", "libiomp")):
            start, end = line.split()[0].split("-")
            runtime.append(range(int(start, 16), int(end, 16)))
    if not runtime:
        return False
    for task in Path("/proc/self/task").iterdir():
        # "running", or a system call whose last number is the instruction pointer.
        place = (task / "syscall").read_text().split()[-1]
        if place.startswith("0x") and any(int(place, 16) in mapped for mapped in runtime):
            return True
    return False
