"""What SB3VecEnv asks of single envs, where they live; nothing here imports Stable-Baselines3."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium

from envfleet.engine.worker.hooks import EnvFactory, EnvHost

Env = gymnasium.Env[Any, Any]

MASKS = "envfleet.masks"
"""The key of an info under which an env's action masks travel."""
_SENT = "envfleet_sent_masks"


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


@dataclass(frozen=True)
class SendMasks:
    """Has an env send its action masks along with every reset and step.

    A wrapper for ``make``, as ``make("My-v0", 8, wrappers=[SendMasks()])``, whose masks
    ``SB3VecEnv(envs, masks="action_masks")`` then finds. The env stays the object that it is.

    Args:
        method: the env's method that returns its masks.
    """

    method: str = "action_masks"

    def __call__(self, env: Env) -> Env:
        """Change how this env is reset and stepped.

        Raises:
            AttributeError: it has no such method.
        """
        masks, reset, step = env.get_wrapper_attr(self.method), env.reset, env.step

        def reset_with_masks(**kwargs: Any) -> tuple[Any, dict[str, Any]]:
            observation, info = reset(**kwargs)
            return observation, {**info, MASKS: masks()}

        def step_with_masks(action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
            observation, reward, terminated, truncated, info = step(action)
            return observation, reward, terminated, truncated, {**info, MASKS: masks()}

        env.reset = reset_with_masks  # type: ignore[method-assign]
        env.step = step_with_masks  # type: ignore[method-assign]
        setattr(env, _SENT, self.method)
        return env


@dataclass(frozen=True)
class MaskedFactory:
    """Builds one env that sends its masks."""

    build: EnvFactory
    send: SendMasks

    def __call__(self) -> Env:
        """Build it."""
        return self.send(self.build())


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


def sent_masks(env: Env) -> str | None:
    """The method whose masks the env sends along."""
    return next((getattr(layer, _SENT) for layer in _layers(env) if hasattr(layer, _SENT)), None)


def _wrappers(env: Any) -> Iterator[gymnasium.Wrapper[Any, Any, Any, Any]]:
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env


def _layers(env: Env) -> Iterator[Any]:
    yield from _wrappers(env)
    yield env.unwrapped
