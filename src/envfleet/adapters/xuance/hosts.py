"""How XuanCe's engines handle their envs: any class will do, and ``reset`` takes no arguments."""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium

from envfleet.adapters.xuance.atari import Atari_Env, GameOverIsTruncated
from envfleet.engine.worker.hooks import EnvFactory, EnvHost
from envfleet.envs.atari import AtariEnv

UNKNOWN_LIMIT = 1000
"""``max_episode_steps`` of an env that does not tell."""


class PlainEnv(gymnasium.Env[Any, Any]):
    """An env of XuanCe's kind, which has an env's methods and spaces but is no ``gymnasium.Env``.

    Args:
        plain: the env; anything that it has beside an env's methods is found on ``plain``.
    """

    def __init__(self, plain: Any) -> None:
        self.plain = plain
        self.observation_space = plain.observation_space
        self.action_space = plain.action_space
        self.metadata = getattr(plain, "metadata", {})
        self.render_mode = getattr(plain, "render_mode", None)
        self.step = plain.step  # type: ignore[method-assign] # without a call in between

    @property
    def unwrapped(self) -> Any:
        """The env inside."""
        return getattr(self.plain, "unwrapped", self.plain)

    def reset(self, **_: Any) -> Any:
        """The env's ``reset()``."""
        return self.plain.reset()

    def render(self, *mode: Any) -> Any:
        """The env's ``render``."""
        return self.plain.render(*mode)

    def close(self) -> None:
        """Close the env, if it can be closed."""
        if hasattr(self.plain, "close"):
            self.plain.close()


class XuanceHost(EnvHost):
    """Makes a ``gymnasium.Env`` of what a factory returns, and calls ``reset()`` as XuanCe does."""

    def make_env(self, i: int, env_fn: EnvFactory) -> gymnasium.Env[Any, Any]:
        """Build env ``i``."""
        env = super().make_env(i, env_fn)
        parts = ("reset", "step", "observation_space", "action_space")
        if isinstance(env, gymnasium.Env) or not all(hasattr(env, part) for part in parts):
            return env  # what is no env at all, the fleet refuses
        return PlainEnv(env)

    def reset_env(self, i: int, **_: Any) -> tuple[Any, dict[str, Any]]:
        """``reset()`` of env ``i``: these engines know no seeds and no options."""
        return self.envs[i].reset()


class AtariHost(XuanceHost):
    """The same, with XuanCe's flags for our ``AtariEnv``, which has Gymnasium's."""

    def make_env(self, i: int, env_fn: EnvFactory) -> gymnasium.Env[Any, Any]:
        """Build env ``i``."""
        env = super().make_env(i, env_fn)
        inner = getattr(env, "unwrapped", env)
        if isinstance(inner, AtariEnv) and not isinstance(inner, Atari_Env):
            return GameOverIsTruncated(env)
        return env


def given_env(env: gymnasium.Env[Any, Any]) -> Any:
    """The env that the factory returned."""
    if isinstance(env, GameOverIsTruncated):
        env = env.env
    return env.plain if isinstance(env, PlainEnv) else env


def render_env(env: gymnasium.Env[Any, Any], mode: Any) -> Any:
    """``render(mode)`` of an env, or ``render()`` of one that takes no mode, as Gymnasium's."""
    render = given_env(env).render
    try:
        inspect.signature(render).bind(mode)
    except TypeError:
        return render()
    return render(mode)


def episode_limit(env: gymnasium.Env[Any, Any]) -> int:
    """The env's ``max_episode_steps``, or its spec's; 1000 if neither tells."""
    given = given_env(env)
    limit = getattr(given, "max_episode_steps", None)
    if limit is None and isinstance(given, gymnasium.Env):
        if given.has_wrapper_attr("max_episode_steps"):
            limit = given.get_wrapper_attr("max_episode_steps")
        elif given.spec is not None:
            limit = given.spec.max_episode_steps
    return UNKNOWN_LIMIT if limit is None else limit
