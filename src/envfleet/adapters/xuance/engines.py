"""XuanCe's vector engines by name: Dummy ones on a serial fleet, Subproc ones on processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import index
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from envfleet.adapters.xuance.hosts import AtariHost, XuanceHost, given_env
from envfleet.adapters.xuance.vec_env import VecEnv
from envfleet.vector.process import ProcessVectorEnv
from envfleet.vector.serial import SerialVectorEnv

EnvFns = Sequence[Callable[..., Any]]

_OPTIONS: dict[str, Any] = {
    "copy": False,  # VecEnv makes copies in the dtypes it wants
    "autoreset_mode": AutoresetMode.SAME_STEP,
    "info_format": "list",
}


class DummyVecEnv(VecEnv):
    """The envs one after the other, in this process.

    Args:
        env_fns: functions that build the envs.
        env_seed: env ``i`` is built by ``env_fns[i](env_seed=env_seed + i)``; None calls the
            functions without arguments.
    """

    _host: type[XuanceHost] = XuanceHost

    def __init__(self, env_fns: EnvFns, env_seed: int | None = None) -> None:
        super().__init__(SerialVectorEnv(_seeded(env_fns, env_seed), worker=self._host, **_OPTIONS))

    @property
    def envs(self) -> list[Any]:
        """The envs, as their functions returned them."""
        return [given_env(env) for env in self.fleet.envs]  # type: ignore[union-attr]


class SubprocVecEnv(VecEnv):
    """The envs in processes, ``in_series`` of them at most in each.

    Args:
        env_fns: functions that build the envs; what pickle cannot take, cloudpickle does.
        env_seed: see ``DummyVecEnv``.
        in_series: envs per process; their number need not be a multiple of it.
        context: the start method ("fork", "forkserver", "spawn"); None is the platform's default.

    Raises:
        ValueError: ``in_series`` is below 1, or there is no such start method.
    """

    _host: type[XuanceHost] = XuanceHost

    def __init__(
        self,
        env_fns: EnvFns,
        env_seed: int | None = None,
        in_series: int = 1,
        context: str | None = None,
    ) -> None:
        fns = _seeded(env_fns, env_seed)
        if index(in_series) < 1:
            raise ValueError(f"in_series must be 1 or more, got {in_series!r}")
        workers = max(1, -(-len(fns) // in_series))  # no envs at all, the fleet refuses
        super().__init__(
            ProcessVectorEnv(fns, context=context, worker=self._host, workers=workers, **_OPTIONS)
        )
        self.in_series = in_series

    @property
    def ps(self) -> list[Any]:
        """The processes; none after ``close``."""
        return self.fleet.processes  # type: ignore[union-attr]

    @property
    def n_remotes(self) -> int:
        """How many processes there are."""
        return self.fleet.workers  # type: ignore[union-attr]


class DummyVecEnv_Gym(DummyVecEnv):  # noqa: N801 - XuanCe's name
    """``DummyVecEnv`` by its earlier name."""


class SubprocVecEnv_Gym(SubprocVecEnv):  # noqa: N801 - XuanCe's name
    """``SubprocVecEnv`` by its earlier name, with the arguments that it had then."""

    def __init__(
        self,
        env_fns: EnvFns,
        context: str | None = "spawn",
        in_series: int = 1,
        *,
        env_seed: int | None = None,
    ) -> None:
        super().__init__(env_fns, env_seed, in_series, context)


class DummyVecEnv_Atari(DummyVecEnv):  # noqa: N801 - XuanCe's name
    """``DummyVecEnv`` with bytes as observations; a game that is over is ``truncated``."""

    _dtype = np.uint8
    _host = AtariHost


class SubprocVecEnv_Atari(SubprocVecEnv):  # noqa: N801 - XuanCe's name
    """``SubprocVecEnv`` with bytes as observations; a game that is over is ``truncated``."""

    _dtype = np.uint8
    _host = AtariHost


def _seeded(env_fns: EnvFns, env_seed: int | None) -> list[Callable[[], Any]]:
    if env_seed is None:
        return list(env_fns)
    return [partial(fn, env_seed=env_seed + i) for i, fn in enumerate(env_fns)]
