"""register(): our engines, and envs if wanted, in the registries that XuanCe builds from."""

from __future__ import annotations

from envfleet.adapters.xuance.atari import Atari_Env
from envfleet.adapters.xuance.engines import (
    DummyVecEnv,
    DummyVecEnv_Atari,
    SubprocVecEnv,
    SubprocVecEnv_Atari,
)
from envfleet.adapters.xuance.envs import Gym_Env

ENGINES = {
    "DummyVecEnv": DummyVecEnv,
    "Dummy_Atari": DummyVecEnv_Atari,
    "SubprocVecEnv": SubprocVecEnv,
    "Subproc_Atari": SubprocVecEnv_Atari,
}
ENVS = {"Classic Control": Gym_Env, "Box2D": Gym_Env, "MuJoCo": Gym_Env, "Atari": Atari_Env}


def register(*, envs: bool = False) -> None:
    """Have XuanCe (1.4) build our engines wherever a configuration names one in ``vectorize``.

    Args:
        envs: our envs as well, for the ``env_name`` "Classic Control", "Box2D", "MuJoCo" and
            "Atari"; XuanCe's own run on our engines too.

    Raises:
        ModuleNotFoundError: XuanCe is not installed.
    """
    from xuance.environment import REGISTRY_ENV, REGISTRY_VEC_ENV  # noqa: PLC0415 - only if asked

    REGISTRY_VEC_ENV.update(ENGINES)
    if envs:
        REGISTRY_ENV.update(ENVS)
