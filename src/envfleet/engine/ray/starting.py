"""Starting actors: a place for each of a group is reserved first, or an error says what is missing.

Ray reserves all places or none (a placement group), so that two programs never hold half of what
each needs; an actor that takes a dead one's place finds it still reserved.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from envfleet.engine.interrupts import held_signals
from envfleet.engine.pickling import dumps
from envfleet.engine.ray.actor import ShardActor
from envfleet.engine.ray.session import RaySession
from envfleet.engine.ray.shard import RayShard
from envfleet.engine.shard import Shard
from envfleet.engine.worker.server import Job
from envfleet.errors import NoRoom

ONE_CPU: Mapping[str, float] = {"CPU": 1}
"""What an actor asks for where nothing else is said."""


def check_resources(resources: Mapping[str, float] | None) -> dict[str, float]:
    """What each actor asks for, in the words of ``ray.cluster_resources()``; one CPU by default.

    Raises:
        TypeError, ValueError: it is no such mapping.
    """
    if resources is None:
        return dict(ONE_CPU)
    if not isinstance(resources, Mapping):
        raise TypeError(
            f"`resources` maps names of resources to amounts, as {{'CPU': 1}}, got {resources!r}"
        )
    for name, amount in resources.items():
        if not isinstance(name, str) or not isinstance(amount, (int, float)) or amount < 0:
            raise ValueError(
                "`resources` maps names as ray.cluster_resources() has them ('CPU', 'GPU', "
                f"'memory', or your own) to amounts of 0 or more, got {dict(resources)!r}"
            )
    return dict(resources)


class Places:
    """Room for a number of actors, reserved on the cluster until ``close``.

    Args:
        session: the hold on Ray.
        count: how many actors.
        resources: what each asks for.
        timeout: seconds until there must be room.
        runtime_env: Ray's, for the actors: packages, files, variables.

    Raises:
        NoRoom: there is no room in time; it says what was asked for and what there is.
    """

    def __init__(
        self,
        session: RaySession,
        count: int,
        resources: Mapping[str, float],
        timeout: float,
        runtime_env: Mapping[str, Any] | None = None,
    ) -> None:
        import ray  # noqa: PLC0415 - the session has found it
        from ray.util import placement_group  # noqa: PLC0415

        self._ray = ray
        self._session = session
        self._resources = {name: amount for name, amount in resources.items() if amount > 0}
        self._runtime_env = None if runtime_env is None else dict(runtime_env)
        self._group: Any = None
        if not self._resources:
            return
        self._group = placement_group([self._resources] * count, strategy="SPREAD")
        try:
            self._await_room(count, timeout)
        except BaseException:
            self.close()
            raise

    def _await_room(self, count: int, timeout: float) -> None:
        if not self._group.wait(timeout):
            raise NoRoom(_no_room(self._ray, count, self._resources, timeout))

    def start(self, index: int, actor_class: type, *args: Any) -> Any:
        """Start an actor in a place, for once: Ray neither restarts it nor repeats a call."""
        from ray.util.scheduling_strategies import (  # noqa: PLC0415
            PlacementGroupSchedulingStrategy,
        )

        words = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
        options: dict[str, Any] = {word: 0 for name, word in words.items() if name != "memory"}
        options |= {words[name]: n for name, n in self._resources.items() if name in words}
        own = {name: n for name, n in self._resources.items() if name not in words}
        if self._group is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(self._group, index)
        else:
            options["scheduling_strategy"] = "SPREAD"
        remote = self._ray.remote(actor_class).options(
            **options,
            resources=own or None,
            runtime_env=self._runtime_env,
            max_restarts=0,
            max_task_retries=0,
        )
        return remote.remote(*args)

    def kill(self, actor: Any) -> None:
        """End an actor, if it is not gone already, or all of Ray is."""
        if self._session.is_connected:
            with contextlib.suppress(Exception):
                self._ray.kill(actor, no_restart=True)

    def close(self) -> None:
        """Give the room back; actors that are still there end."""
        from ray.util import remove_placement_group  # noqa: PLC0415

        group, self._group = self._group, None
        if group is not None and self._session.is_connected:
            with contextlib.suppress(Exception):
                remove_placement_group(group)


def cluster_cpus() -> int:
    """How many CPUs the cluster has."""
    import ray  # noqa: PLC0415 - a session has found it

    return int(ray.cluster_resources().get("CPU", 0))


def _no_room(ray: Any, count: int, resources: Mapping[str, float], timeout: float) -> str:
    asked = " and ".join(f"{amount:g} {name}" for name, amount in resources.items())
    free, whole = ray.available_resources(), ray.cluster_resources()
    there = ", ".join(
        f"{free.get(name, 0):g} of {whole.get(name, 0):g} {name}" for name in resources
    )
    return (
        f"the Ray cluster has had no room for {count} actors with {asked} each for {timeout:g} s: "
        f"{there} free, on {sum(node['Alive'] for node in ray.nodes())} node(s). Ask for fewer "
        "actors, or less for each (resources={'CPU': 0.5}), close what else runs there, or wait "
        "longer for nodes to come (start_timeout=)."
    )


class RayStarter:
    """Knows how to start each actor of one fleet, at first and again.

    Args:
        job: all envs of the fleet, and how they are to be handled.
        env_ids: the envs of each shard.
        session: the hold on Ray; the starter's from here on, also where this raises.
        resources: what each actor asks for.
        start_timeout: seconds until there must be room for all.
        runtime_env: Ray's, for the actors.
        threads: how many threads numerical libraries may use in an actor; None for any number.
    """

    survives_fork = False

    def __init__(
        self,
        job: Job,
        env_ids: Sequence[range],
        session: RaySession,
        *,
        resources: Mapping[str, float],
        start_timeout: float,
        runtime_env: Mapping[str, Any] | None,
        threads: int | None,
    ) -> None:
        self.count = len(env_ids)
        self._job = job
        self._env_ids = env_ids
        self._session = session
        self._threads = threads
        self._living = 0
        try:
            self._places = Places(session, self.count, resources, start_timeout, runtime_env)
        except BaseException:
            session.close()
            raise

    def limits(self) -> contextlib.AbstractContextManager[None]:
        """Nothing: Ray starts processes, not this one."""
        return contextlib.nullcontext()

    def start(self, index: int, adopt: Callable[[Shard], None], generation: int = 0) -> None:  # noqa: ARG002
        """Start shard ``index``; ``adopt`` takes it over before any interrupt can come."""
        envs = self._env_ids[index]
        with held_signals():
            self._living += 1
            try:
                # By value, and in bytes: what an actor cannot import is an env's failure.
                job = replace(self._job, env_fns=[self._job.env_fns[env] for env in envs])
                pickled = dumps(job, by_reference=False)
                actor = self._places.start(index, ShardActor, envs, self._threads)
                shard = RayShard(
                    index,
                    envs,
                    actor,
                    pickled,
                    is_reachable=lambda: self._session.is_connected,
                    kill=lambda: self._places.kill(actor),
                    let_go=self._let_go,
                )
            except BaseException:
                self._let_go()
                raise
            adopt(shard)

    def _let_go(self) -> None:
        """One shard less; with the last one goes the room on the cluster, and the hold on Ray."""
        self._living -= 1
        if not self._living:
            self._places.close()
            self._session.close()
