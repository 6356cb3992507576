"""ProcessVectorEnv: the envs of a fleet in worker processes, several envs per worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from gymnasium import Env
from gymnasium.core import ActType, ObsType
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from envfleet.engine.arena.arena import Arena, Terms
from envfleet.engine.arena.signals import CAN_SPIN
from envfleet.engine.cores import usable_cores
from envfleet.engine.process.shard import WorkerShard
from envfleet.engine.process.starting import WorkerStarter, raise_if_missing_guard
from envfleet.engine.restart.budget import RestartBudget
from envfleet.engine.worker.hooks import EnvHost
from envfleet.engine.worker.server import Job
from envfleet.errors import WorkerDied
from envfleet.vector.options import (
    FleetOptions,
    ProcessOptions,
    check_shared_memory,
    number_of_workers,
    refuse_custom_spaces,
)
from envfleet.vector.spaces import ObservationMode
from envfleet.vector.workers import WorkerFleet


# VectorEnv once more: skrl and others look for it among a class's direct bases only.
class ProcessVectorEnv(WorkerFleet[ObsType, ActType], VectorEnv[ObsType, ActType, NDArray[Any]]):
    """``gymnasium.vector.AsyncVectorEnv``, argument by argument, with several envs per worker.

    Observations, actions, rewards and flags cross the process boundary in shared memory; a step
    costs one message per worker. An exception in one env does not affect the others: it is raised
    here with the worker's traceback as ``__cause__``, the other envs have done their step, and
    ``reset`` brings that env back. ``docs/differences.md`` lists what is not as in Gymnasium.

    Args:
        env_fns: functions that build the envs, each in its worker.
        shared_memory: whether observations travel in shared memory; otherwise all by pipe. Custom
            spaces (a subclass of ``Space`` that Gymnasium does not know) have no place there: True
            refuses them, "auto" sends them by pipe and the rest in shared memory.
        copy: whether ``reset`` and ``step`` return copies of the observations.
        context: the start method ("fork", "forkserver", "spawn"); None is the platform's default.
        daemon: whether workers are daemonic, which forbids envs to start multiprocessing children.
        worker: a subclass of ``envfleet.EnvHost`` that handles the envs of a worker its own way.
        observation_mode: "same" if all envs have equal observation spaces, "different" if they
            only share shape and dtype, or a pair of spaces: the batched one and the single one.
        autoreset_mode: what happens when an episode ends.
        max_concurrency: an upper bound on the number of workers.
        workers: how many processes share the envs; by default the cores this process may use, and
            never more than envs. ``workers=num_envs`` gives every env a process of its own.
        on_failure: "raise" what went wrong, or "restart" the worker that died or the env that
            raised; the interrupted transition is reported as truncated, with
            ``info["worker_restarted"]``.
        restarts: how many restarts are allowed within how many seconds.
        step_timeout: seconds after which a worker that has not finished its step counts as dead.
        caller_steps: whether the calling process steps one of the ``workers`` shards itself instead
            of waiting for the others. Faster where cores are few; its envs have the serial engine's
            guarantees, so that restarts and step time-outs are refused.
        infos: which infos of a step travel: "all", "final" (those of steps that end an episode), or
            "none" (``final_obs`` and ``worker_restarted`` are there in any case).
        info_format: "columns" for one dict of arrays as in Gymnasium, "list" for one dict per env.
        worker_threads: how many threads BLAS, OpenMP, torch and OpenCV may use in each worker; None
            leaves them alone, and then every worker may use as many as there are cores.
    """

    _backend = "process"

    def __init__(
        self,
        env_fns: Iterable[Callable[[], Env[Any, Any]]],
        shared_memory: bool | str = True,
        copy: bool = True,
        context: str | None = None,
        daemon: bool = True,
        worker: type[EnvHost] | None = None,
        observation_mode: ObservationMode = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        max_concurrency: int | None = None,
        *,
        workers: int | None = None,
        on_failure: str = "raise",
        restarts: tuple[int, float] = (5, 60.0),
        step_timeout: float | None = None,
        caller_steps: bool = False,
        infos: str = "all",
        info_format: str = "columns",
        worker_threads: int | None = 1,
    ) -> None:
        common = FleetOptions(
            copy=copy,
            observation_mode=observation_mode,
            autoreset_mode=AutoresetMode(autoreset_mode),
            infos=infos,
            info_format=info_format,
            worker=worker,
        )
        super().__init__(env_fns, common)
        options = self._process_options = ProcessOptions(
            workers=number_of_workers(workers, max_concurrency, self.num_envs),
            shared_memory=bool(check_shared_memory(shared_memory)),
            refuses_custom_spaces=bool(shared_memory) and shared_memory != "auto",
            on_failure=on_failure,
            budget=RestartBudget(*restarts),
            step_timeout=step_timeout,
            caller_steps=caller_steps,
            worker_threads=worker_threads,
        )
        self.shared_memory = options.shared_memory
        self.context = context
        self.daemon = daemon
        self.max_concurrency = max_concurrency
        self.workers = options.workers
        self.worker_threads = worker_threads
        self.caller_steps = caller_steps
        self.on_failure = on_failure
        self.restarts = restarts
        self.step_timeout = step_timeout
        begun = time.monotonic()
        job = Job(self.env_fns, worker or EnvHost, common.autoreset_mode)
        starter = WorkerStarter(
            job,
            options.workers,
            caller_steps=caller_steps,
            context=context,
            daemon=daemon,
            name=f"Worker<{type(self).__name__}>",
            threads=worker_threads,
        )
        try:
            self._start(starter, step_timeout)
        except WorkerDied as death:
            raise_if_missing_guard(death)
            raise
        self._allow_restarts(options, begun, piped=not self.shared_memory)

    def _make_arena(self, terms: Terms) -> Arena:
        options = self._process_options
        if options.refuses_custom_spaces:
            refuse_custom_spaces(terms.observations)
        processes = len(self.processes)
        terms = replace(
            terms,
            shared_memory=options.shared_memory,
            signals=CAN_SPIN and processes > 0,
            crowded=processes + 1 > usable_cores(),
        )
        return Arena.shared(terms, self.num_envs, processes)

    def _leaves_by_pipe(self) -> tuple[str, ...]:
        structure = self._observation_structure
        leaves = structure.loose if self.shared_memory else structure.leaves
        return tuple(f"{leaf.path} ({type(leaf.space).__name__})" for leaf in leaves)

    @property
    def processes(self) -> list[Any]:
        """The worker processes; none after ``close``."""
        if self.closed:
            return []
        return [shard.process for shard in self._pool.shards if isinstance(shard, WorkerShard)]
