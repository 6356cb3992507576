"""What SB3VecEnv asks of single envs, where they live; nothing here imports Stable-Baselines3."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium

from envfleet.engine.worker.hooks import EnvFactory, EnvHost

Env = gymnasium.Env[Any, Any]


class SB3Host(EnvHost):
    """Handles envs as Stable-Baselines3 does: those of the old Gym too, and options only if any."""

    def make_env(self, i: int, env_fn: EnvFactory) -> Env:
        """Build env ``i``; one of the old Gym is wrapped with shimmy, if that is installed."""
        env = super().make_env(i, env_fn)
        if isinstance(env, gymnasium.Env) or not type(env).__module__.startswith("gym"):
            return env  # what is no env at all, the fleet refuses
        from stable_baselines3.common.vec_env.patch_gym import _patch_env  # noqa: PLC0415

        return _patch_env(env)

    def reset_env(self, i: int, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Reset env ``i``, whose ``reset`` need not take options that nobody gives."""
        if not kwargs.get("options"):
            kwargs.pop("options", None)
        return super().reset_env(i, **kwargs)


# Functions for ``call_on``: each gets the env in all its wrappers.


def get_attribute(env: Env, name: str) -> Any:
    """An attribute, found through the wrappers, and not called."""
    return env.get_wrapper_attr(name)


def has_attribute(env: Env, name: str) -> bool:
    """Whether there is such an attribute, which need not travel."""
    try:
        env.get_wrapper_attr(name)
    except AttributeError:
        return False
    return True


def call_method(env: Env, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a method returns that is found through the wrappers."""
    return env.get_wrapper_attr(name)(*args, **kwargs)


def is_wrapped(env: Env, wrapper: type[Any]) -> bool:
    """Whether one of the env's wrappers is of this class."""
    return any(isinstance(layer, wrapper) for layer in _wrappers(env))


def _wrappers(env: Any) -> Iterator[gymnasium.Wrapper[Any, Any, Any, Any]]:
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
