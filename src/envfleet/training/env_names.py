"""What a run calls its env: the same env can be built from it again, or it leads to none."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv, VectorWrapper

from envfleet.training.build import EnvSource
from envfleet.training.env_options import UNCHANGED, EnvOptions, as_names, as_words, with_kwargs
from envfleet.training.envs import CHANGED, is_atari
from envfleet.vector.make import split_spec

_SAME_ENV = ("render_mode", "disable_env_checker")
"""Arguments with or without which an env is the same to a policy."""


@dataclass(frozen=True)
class EnvName:
    """What a run's folder and its config say of an env."""

    name: str
    """What people call it: in presets, folders and progress bars."""
    env_id: str
    """What it is found by; leads to no env where the same one could not be built again."""
    changes: EnvOptions = UNCHANGED
    """How it differs from the env that ``env_id`` is."""

    @classmethod
    def of(cls, env: EnvSource) -> EnvName:
        """The name of whatever can be trained in."""
        if isinstance(env, str):
            return cls(env, env)
        spec = env.spec if isinstance(env, VectorEnv) else env
        if not isinstance(spec, EnvSpec):
            name = type(env).__name__ if isinstance(env, VectorEnv) else _name_of_function(env)
            return cls(name, name)
        changes = None if isinstance(env, VectorWrapper) else _changes_of(spec)
        if changes is None or _is_atari(spec.id) != is_atari(env):
            return cls(spec.id, spec.id + CHANGED)
        return cls(spec.id, spec.id, changes)


def _changes_of(given: EnvSpec) -> EnvOptions | None:
    """How an env, or each of a fleet's, differs from the registered one; None if texts cannot."""
    spec, kwargs, of_fleet = split_spec(given)
    kwargs = {key: value for key, value in kwargs.items() if key not in _SAME_ENV}
    limit = kwargs.pop("max_episode_steps", spec.max_episode_steps)
    try:
        usual = gymnasium.spec(spec.id)
        changed = {k: v for k, v in kwargs.items() if not _is_same(v, usual.kwargs.get(k, usual))}
        if limit != usual.max_episode_steps:
            changed["max_episode_steps"] = limit
        told = EnvOptions(as_words(changed), as_names(of_fleet.get("wrappers", ())))
        built: Any = with_kwargs(usual, told.env_kwargs)
        found = {key: value for key, value in built.kwargs.items() if key not in _SAME_ENV}
        is_told = (
            (spec.entry_point, spec.additional_wrappers)
            == (usual.entry_point, usual.additional_wrappers)
            and built.max_episode_steps == limit
            and found.keys() == kwargs.keys()
            and all(_is_same(value, kwargs[key]) for key, value in found.items())
        )
    except (TypeError, ValueError, gymnasium.error.Error):
        return None
    return told if is_told else None


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are; raises ValueError for arrays, which texts cannot hold either."""
    return one is other or (type(one) is type(other) and bool(one == other))


def _is_atari(env_id: str) -> bool:
    """Whether training by this id is training in an ``AtariEnv``."""
    return is_atari(gymnasium.registry.get(env_id))


def _name_of_function(env: Any) -> str:
    """``module:name`` if that is where it is; else a name that leads nowhere."""
    module, name = getattr(env, "__module__", None), getattr(env, "__qualname__", "")
    if module and module != "__main__" and getattr(sys.modules.get(module), name, None) is env:
        return f"{module}:{name}"
    named = env.func if isinstance(env, partial) else env
    name = getattr(named, "__qualname__", type(named).__qualname__)
    return str(name).replace("<", "").replace(">", "")
