"""SerialVectorEnv: the envs of a fleet one after the other, in the calling process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gymnasium import Env
from gymnasium.core import ActType, ObsType
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from envfleet.engine.arena.arena import Arena, Terms
from envfleet.engine.local import LocalShard, LocalStarter
from envfleet.engine.worker.hooks import EnvHost
from envfleet.engine.worker.server import Job
from envfleet.vector.fleet import Fleet
from envfleet.vector.options import FleetOptions
from envfleet.vector.spaces import ObservationMode, Refusals


# VectorEnv once more: skrl and others look for it among a class's direct bases only.
class SerialVectorEnv(Fleet[ObsType, ActType], VectorEnv[ObsType, ActType, NDArray[Any]]):
    """``gymnasium.vector.SyncVectorEnv``, argument by argument, as a fleet of one shard.

    An exception in one env does not keep the others from their step; afterwards it is raised, with
    a note that names the env, which then waits for ``reset``. ``docs/differences.md`` lists what
    else is not as in Gymnasium. The ``*_async`` methods are here as in the process engine; envs
    work in the ``*_wait`` ones, which cannot time out.

    Args:
        env_fns: functions that build the envs.
        copy: whether ``reset`` and ``step`` return copies of the observations.
        observation_mode: "same" if all envs have equal observation spaces, "different" if they
            only share shape and dtype, or a pair of spaces: the batched one and the single one.
        autoreset_mode: what happens when an episode ends.
        infos: which infos of a step are returned: "all", "final" (those of steps that end an
            episode), or "none" (``final_obs`` is there in any case).
        info_format: "columns" for one dict of arrays as in Gymnasium, "list" for one dict per env.
        worker: a subclass of ``envfleet.EnvHost`` that handles the envs its own way.
    """

    _backend = "serial"
    _refusals = Refusals(
        not_same=(
            "SyncVectorEnv(..., observation_mode='same') however the sub-environments observation "
            "spaces are not equivalent. single_observation_space={single}, sub-environment "
            "observation_space={space}. If this is intentional, use "
            "`observation_mode='different'` instead."
        ),
        not_alike=(
            "SyncVectorEnv(..., observation_mode='different' or custom space) however the "
            "sub-environments observation spaces do not share a common shape and dtype, "
            "single_observation_space={single}, sub-environment observation space={space}"
        ),
        other_action=(
            "Sub-environment action space doesn't make the `single_action_space`, "
            "action_space={space}, single_action_space={single}"
        ),
    )

    def __init__(
        self,
        env_fns: Iterable[Callable[[], Env[Any, Any]]],
        copy: bool = True,
        observation_mode: ObservationMode = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        *,
        infos: str = "all",
        info_format: str = "columns",
        worker: type[EnvHost] | None = None,
    ) -> None:
        options = FleetOptions(
            copy=copy,
            observation_mode=observation_mode,
            autoreset_mode=AutoresetMode(autoreset_mode),
            infos=infos,
            info_format=info_format,
            worker=worker,
        )
        super().__init__(env_fns, options)
        job = Job(self.env_fns, worker or EnvHost, options.autoreset_mode)
        self._start(LocalStarter(job))

    @property
    def envs(self) -> list[Env[Any, Any]]:
        """The envs themselves."""
        (shard,) = self._pool.shards
        return shard.envs if isinstance(shard, LocalShard) else []

    def close_extras(self, **_: Any) -> None:
        """Close every env; an error in one is a warning that names it."""
        self._close_shards()

    def _make_arena(self, terms: Terms) -> Arena:
        return Arena.private(terms, self.num_envs)
