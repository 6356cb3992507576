"""RayVectorEnv: a fleet in Ray actors, several envs per actor, on one or more machines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gymnasium import Env
from gymnasium.core import ActType, ObsType
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from envfleet.engine.arena.arena import Arena, Terms
from envfleet.engine.process.starting import split_envs
from envfleet.engine.ray.session import RaySession
from envfleet.engine.ray.shard import RayShard
from envfleet.engine.ray.starting import RayStarter, check_resources, cluster_cpus
from envfleet.engine.restart.budget import RestartBudget
from envfleet.engine.worker.hooks import EnvHost
from envfleet.engine.worker.server import Job
from envfleet.vector.options import FleetOptions, WorkerOptions, number_of_workers
from envfleet.vector.spaces import ObservationMode
from envfleet.vector.workers import WorkerFleet


# VectorEnv once more: skrl and others look for it among a class's direct bases only.
class RayVectorEnv(WorkerFleet[ObsType, ActType], VectorEnv[ObsType, ActType, NDArray[Any]]):
    """``ProcessVectorEnv`` with Ray actors as workers; a step takes one message per actor.

    Same numbers, same methods, same errors. A message takes most of a millisecond, so this is
    worthwhile for envs that are slow, or too many for one machine; ``RayCollector`` sends one
    message per rollout instead (docs/scaling.md). No env is built in the calling process. If an
    actor or node dies, a ``WorkerDied`` names the node and the envs, or the actor is replaced
    (``on_failure="restart"``); no step is ever sent twice.

    If this program has already joined a Ray cluster, that one is used and left as it is. Otherwise
    the fleet joins or starts one, which is left or stopped with the last fleet that uses it.

    Args:
        env_fns: functions that build the envs, each in its actor. Those of a module are
            sent by name, others by value; modules must be installed there, or be sent with
            ``runtime_env``.
        copy: whether ``reset`` and ``step`` return copies of the observations.
        observation_mode: see ``ProcessVectorEnv``.
        autoreset_mode: what happens when an episode ends.
        workers: number of actors that share the envs; by default the number of CPUs in the
            cluster, and never more than envs.
        address: address of a Ray cluster, "auto" for one that runs on this machine, "local" for a
            new one; None uses an existing one, else starts one.
        resources: what each actor requests, in the names of ``ray.cluster_resources()``; None is
            ``{"CPU": 1}``.
        runtime_env: Ray's runtime environment for the actors: packages, working directory,
            variables.
        start_timeout: seconds to wait until the cluster has room for all actors.
        worker: a subclass of ``envfleet.EnvHost`` that customises how an actor handles its envs.
        on_failure: "raise" the error, or "restart" the actor that died or the env that raised; the
            interrupted transition is reported as truncated, with
            ``info["worker_restarted"]``.
        restarts: the number of restarts allowed, and within how many seconds.
        step_timeout: seconds after which an actor that has not finished its step counts as dead.
        infos: see ``ProcessVectorEnv``.
        info_format: see ``ProcessVectorEnv``.
        worker_threads: number of threads that BLAS, OpenMP, torch and OpenCV may use in each
            actor; None leaves that to Ray.

    Raises:
        ImportError: Ray is not installed.
        NoRoom: the cluster has no room for the actors.
    """

    _backend = "ray"

    def __init__(
        self,
        env_fns: Iterable[Callable[[], Env[Any, Any]]],
        copy: bool = True,
        observation_mode: ObservationMode = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        *,
        workers: int | None = None,
        address: str | None = None,
        resources: Mapping[str, float] | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        start_timeout: float = 10.0,
        worker: type[EnvHost] | None = None,
        on_failure: str = "raise",
        restarts: tuple[int, float] = (5, 60.0),
        step_timeout: float | None = None,
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
        options = WorkerOptions(
            workers=number_of_workers(workers, None, self.num_envs),
            on_failure=on_failure,
            budget=RestartBudget(*restarts),
            step_timeout=step_timeout,
            worker_threads=worker_threads,
        )
        asked = check_resources(resources)
        self.on_failure = on_failure
        self.restarts = restarts
        self.step_timeout = step_timeout
        self.worker_threads = worker_threads
        begun = time.monotonic()
        session = RaySession(type(self).__name__, address)
        count = options.workers
        if workers is None:
            count = min(max(cluster_cpus(), 1), self.num_envs)
        self.workers = count
        starter = RayStarter(
            Job(self.env_fns, worker or EnvHost, common.autoreset_mode),
            split_envs(self.num_envs, count),
            session,
            resources=asked,
            start_timeout=start_timeout,
            runtime_env=runtime_env,
            threads=worker_threads,
        )
        self._start(starter, step_timeout)
        self._allow_restarts(options, begun, piped=True)

    def _make_arena(self, terms: Terms) -> Arena:
        return Arena.private(terms, self.num_envs)

    @property
    def nodes(self) -> list[str]:
        """The node of each actor; empty after ``close``."""
        if self.closed:
            return []
        return [shard.node for shard in self._pool.shards if isinstance(shard, RayShard)]
