"""XuanCe's environments and vector engines, by name, on our envs and fleets.

A program that imports them from here instead of from XuanCe runs as it is; ``register()`` does the
same for XuanCe's own runners and configuration files. Both generations of names are here: those of
the ``_Gym`` classes, and those of XuanCe 1.4. ``docs/xuance.md`` has every name and what differs.
XuanCe itself is imported by ``register()`` alone.
"""

from envfleet.adapters.xuance.atari import Atari_Env
from envfleet.adapters.xuance.engines import (
    DummyVecEnv,
    DummyVecEnv_Atari,
    DummyVecEnv_Gym,
    SubprocVecEnv,
    SubprocVecEnv_Atari,
    SubprocVecEnv_Gym,
)
from envfleet.adapters.xuance.envs import Gym_Env, LazyFrames, MountainCar
from envfleet.adapters.xuance.registration import register
from envfleet.adapters.xuance.vec_env import AlreadySteppingError, NotSteppingError, VecEnv

__all__ = [
    "AlreadySteppingError",
    "Atari_Env",
    "DummyVecEnv",
    "DummyVecEnv_Atari",
    "DummyVecEnv_Gym",
    "Gym_Env",
    "LazyFrames",
    "MountainCar",
    "NotSteppingError",
    "SubprocVecEnv",
    "SubprocVecEnv_Atari",
    "SubprocVecEnv_Gym",
    "VecEnv",
    "register",
]
