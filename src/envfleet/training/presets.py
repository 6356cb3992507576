"""Hyper-parameters that are known to work: rl-zoo's, CleanRL's, and our own where measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from envfleet.training.config import TrainConfig

_MUJOCO_NET: dict[str, Any] = {
    "hidden": (256, 256),
    "activation": "relu",
    "log_std": -2.0,
    "orthogonal": False,
}
_NORMALIZED: dict[str, Any] = {"normalize_observations": True, "normalize_rewards": True}

_LUNAR: dict[str, Any] = {
    "num_envs": 16, "rollout_steps": 1024, "batch_size": 64, "epochs": 4, "gamma": 0.999,
    "gae_lambda": 0.98, "entropy_coef": 0.01, "total_steps": 1_000_000,
}  # fmt: skip

_ATARI: dict[str, Any] = {
    "num_envs": 8, "rollout_steps": 128, "batch_size": 256, "epochs": 4, "learning_rate": 2.5e-4,
    "learning_rate_schedule": "linear", "clip_range": 0.1, "clip_range_schedule": "linear",
    "entropy_coef": 0.01, "total_steps": 10_000_000,
}  # fmt: skip

ZOO: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "num_envs": 8, "rollout_steps": 32, "batch_size": 256, "epochs": 20,
        "learning_rate": 1e-3, "learning_rate_schedule": "linear",
        "clip_range_schedule": "linear", "gamma": 0.98, "gae_lambda": 0.8, "total_steps": 100_000,
    },
    "Acrobot-v1": {
        "num_envs": 16, "rollout_steps": 256, "batch_size": 64, "epochs": 4, "gae_lambda": 0.94,
        "total_steps": 1_000_000, **_NORMALIZED,
    },
    "MountainCar-v0": {
        "num_envs": 16, "rollout_steps": 16, "batch_size": 64, "epochs": 4, "gae_lambda": 0.98,
        "total_steps": 1_000_000, **_NORMALIZED,
    },
    "Pendulum-v1": {
        "num_envs": 4, "rollout_steps": 1024, "batch_size": 64, "epochs": 10,
        "learning_rate": 1e-3, "gamma": 0.9, "total_steps": 100_000,
    },
    "LunarLander-v3": _LUNAR,
    "LunarLanderContinuous-v3": _LUNAR,
    "BipedalWalker-v3": {
        "num_envs": 32, "rollout_steps": 2048, "batch_size": 64, "epochs": 10, "gamma": 0.999,
        "clip_range": 0.18, "total_steps": 5_000_000, **_NORMALIZED,
    },
    "HalfCheetah": {
        "num_envs": 1, "rollout_steps": 512, "batch_size": 64, "epochs": 20,
        "learning_rate": 2.0633e-5, "gamma": 0.98, "gae_lambda": 0.92, "clip_range": 0.1,
        "entropy_coef": 4.01762e-4, "value_coef": 0.58096, "max_grad_norm": 0.8,
        "total_steps": 1_000_000, **_MUJOCO_NET, **_NORMALIZED,
    },
    "Hopper": {
        "num_envs": 1, "rollout_steps": 512, "batch_size": 32, "epochs": 5,
        "learning_rate": 9.80828e-5, "gamma": 0.999, "gae_lambda": 0.99,
        "entropy_coef": 2.29519e-3, "value_coef": 0.835671, "max_grad_norm": 0.7,
        "total_steps": 1_000_000, **_MUJOCO_NET, **_NORMALIZED,
    },
    "Walker2d": {
        "num_envs": 1, "rollout_steps": 512, "batch_size": 32, "epochs": 20,
        "learning_rate": 5.05041e-5, "clip_range": 0.1, "entropy_coef": 5.85045e-4,
        "value_coef": 0.871923, "max_grad_norm": 1.0, "total_steps": 1_000_000, **_NORMALIZED,
    },
    "Ant": {
        "num_envs": 1, "rollout_steps": 2048, "batch_size": 64, "epochs": 10,
        "total_steps": 1_000_000, **_NORMALIZED,
    },
    "ALE": _ATARI,
}  # fmt: skip
"""By env id, or by what an id begins with."""

# CleanRL halves the squared error of values before it weighs it by 0.5.
_CLEANRL_DISCRETE: dict[str, Any] = {
    "num_envs": 4, "rollout_steps": 128, "batch_size": 128, "epochs": 4, "learning_rate": 2.5e-4,
    "learning_rate_schedule": "linear", "clip_values": True, "entropy_coef": 0.01,
    "value_coef": 0.25, "total_steps": 500_000,
}  # fmt: skip
_CLEANRL_CONTINUOUS: dict[str, Any] = {
    "num_envs": 1, "rollout_steps": 2048, "batch_size": 64, "epochs": 10, "learning_rate": 3e-4,
    "learning_rate_schedule": "linear", "clip_values": True, "value_coef": 0.25,
    "total_steps": 1_000_000, **_NORMALIZED,
}  # fmt: skip
_CLEANRL_ATARI: dict[str, Any] = {
    **_ATARI, "clip_range_schedule": "constant", "clip_values": True, "value_coef": 0.25,
}  # fmt: skip

PRESETS = ("zoo", "cleanrl", "fast")

_FAST_MUJOCO: dict[str, Any] = {
    "num_envs": 16, "rollout_steps": 256, "batch_size": 256, "epochs": 10, "learning_rate": 1e-3,
    "learning_rate_schedule": "linear", "log_std": -0.5, "total_steps": 1_000_000, **_NORMALIZED,
}  # fmt: skip

FAST: dict[str, dict[str, Any]] = {
    "CartPole-v1": {**ZOO["CartPole-v1"], "epochs": 10, "total_steps": 150_000},
    "Pendulum-v1": {
        "num_envs": 16, "rollout_steps": 128, "batch_size": 64, "epochs": 10,
        "learning_rate": 1e-3, "learning_rate_schedule": "linear", "gamma": 0.9,
        "total_steps": 200_000,
    },
    "LunarLander-v3": {
        "num_envs": 32, "rollout_steps": 256, "batch_size": 512, "epochs": 6,
        "learning_rate": 2e-3, "learning_rate_schedule": "linear", "gamma": 0.999,
        "gae_lambda": 0.98, "entropy_coef": 0.01, "total_steps": 1_500_000,
    },
    "BipedalWalker-v3": {
        "num_envs": 32, "rollout_steps": 256, "batch_size": 512, "epochs": 10,
        "learning_rate": 1e-3, "learning_rate_schedule": "linear", "total_steps": 4_000_000,
        **_NORMALIZED,
    },
    "Hopper-v5": _FAST_MUJOCO,
    "Walker2d-v5": {**_FAST_MUJOCO, "learning_rate": 7e-4, "total_steps": 2_000_000},
    "HalfCheetah-v5": {
        **_FAST_MUJOCO, "gamma": 0.98, "gae_lambda": 0.92, "log_std": -1.0,
        "total_steps": 2_000_000,
    },
}  # fmt: skip
"""Soonest to the published return in wall-clock, where that was measured (docs/results.md)."""


def preset(env_id: str, name: str, *, continuous: bool = False, image: bool = False) -> TrainConfig:
    """The configuration of a preset for an env; CleanRL's depend on the kind of its spaces.

    Raises:
        ValueError: there is no such preset, or none for this env.
    """
    if name not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
    if name == "cleanrl":
        if image:
            found = _CLEANRL_ATARI
        else:
            found = _CLEANRL_CONTINUOUS if continuous else _CLEANRL_DISCRETE
        return replace(TrainConfig(env_id=env_id), **found)
    table = ZOO if name == "zoo" else FAST
    known_as = env_id.rpartition(":")[2]  # module:id
    if "NoFrameskip" in known_as:
        known_as = f"ALE/{known_as}"
    keys = [k for k in table if known_as == k or known_as.startswith((f"{k}-", f"{k}/"))]
    if not keys:
        known = ", ".join(table) or "no env yet"
        raise ValueError(f"there is no preset {name!r} for {env_id}; it is known for: {known}.")
    return replace(TrainConfig(env_id=env_id), **table[max(keys, key=len)])
