"""The envs of a run: found by id or module:callable; Atari games as the baselines play them."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import ModuleType
from typing import Any, cast

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from envfleet.envs import AtariEnv
from envfleet.training.env_options import UNCHANGED, EnvOptions, with_kwargs
from envfleet.training.failures import own_lines
from envfleet.vector.make import make
from envfleet.vector.packages import package_hint

CHANGED = " (changed)"
"""Ends the name of an env that differs from the registered one in what ``config.json`` cannot hold.
"""


class UnknownEnvError(ValueError):
    """There is no such env; says which ones are like it."""


@contextlib.contextmanager
def of_a_run() -> Iterator[None]:
    """Where an env is found by the name that a run's folder has: says what to do if it is not."""
    try:
        yield
    except UnknownEnvError as error:
        raise UnknownEnvError(
            f"{error} For a run of an env without an id, pass env= to envfleet.load or "
            "envfleet.resume."
        ) from error


def find_env(env_id: str) -> EnvSpec | Callable[..., gymnasium.Env[Any, Any]]:
    """What builds an env: a module's callable, or the spec of an id that Gymnasium knows.

    Raises:
        UnknownEnvError: neither is there.
    """
    if env_id.endswith(CHANGED):
        raise UnknownEnvError(
            f"the env differs from the registered {env_id.removesuffix(CHANGED)} in a way that "
            "config.json cannot hold."
        )
    module_name, _, name = env_id.rpartition(":")
    module = _import(env_id, module_name) if module_name else None
    found: Any = getattr(module, name, None)
    if callable(found):
        return cast("Callable[..., gymnasium.Env[Any, Any]]", found)
    if module is None and env_id not in gymnasium.registry:
        with contextlib.suppress(ImportError):
            importlib.import_module("ale_py")  # registers its envs
    try:
        return gymnasium.spec(name)
    except gymnasium.error.Error as error:
        if module is not None and name.isidentifier():
            raise UnknownEnvError(_not_in(module, name)) from error
        what = str(error).partition(" Did you mean")[0]  # Gymnasium's has no versions
        near = difflib.get_close_matches(name, list(gymnasium.registry), n=3)
        start = f"{module_name}:" if module_name else ""  # it is what registers them
        like = f"Did you mean {', '.join(start + other for other in near)}?" if near else None
        hint = None if module is not None else package_hint(env_id)
        raise UnknownEnvError(" ".join(filter(None, (what, hint or like)))) from error


def find_wrapper(name: str) -> Callable[..., Any]:
    """What wraps an env, by ``module:callable``.

    Raises:
        UnknownEnvError: it is not there.
    """
    module_name, _, attribute = name.rpartition(":")
    if not module_name:
        raise UnknownEnvError(f"a wrapper is module:callable, got {name!r}.")
    module = _import(name, module_name)
    found: Any = getattr(module, attribute, None)
    if not callable(found):
        raise UnknownEnvError(_not_in(module, attribute, "must wrap an env"))
    return cast("Callable[..., Any]", found)


def _import(env_id: str, name: str) -> ModuleType:
    """The module of ``module:callable``.

    Raises:
        UnknownEnvError: it is not there, or raises when it is imported.
    """
    try:
        return importlib.import_module(name)
    except Exception as error:  # a module may do anything when it is imported
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            hint = package_hint(env_id) or (
                "It is neither in the current folder nor among the installed packages."
            )
            raise UnknownEnvError(f"{env_id}: No module named {error.name!r}. {hint}") from error
        lines = own_lines("".join(traceback.format_tb(error.__traceback__)))
        raise UnknownEnvError(
            f"{env_id}: importing {name} failed with {type(error).__name__}: {error}\n{lines}"
        ) from error


def _not_in(module: ModuleType, name: str, task: str = "must build envs") -> str:
    """That a module has no callable of this name, and what is like it."""
    if hasattr(module, name):
        kind = type(getattr(module, name)).__name__
        return f"{name} of module {module.__name__} is of type {kind}: it {task}."
    callables = [other for other, value in vars(module).items() if callable(value)]
    near = difflib.get_close_matches(name, callables, n=3)
    hint = f" Did you mean {', '.join(f'{module.__name__}:{other}' for other in near)}?"
    return f"module {module.__name__} has no {name!r}.{hint if near else ''}"


def is_atari(env: object) -> bool:
    """Whether it is an Atari game that is seen on a screen."""
    if not isinstance(env, EnvSpec) or not str(env.entry_point).startswith("ale_py."):
        return False
    return env.kwargs.get("obs_type") != "ram"


def kind_of(env: Any, changes: EnvOptions = UNCHANGED) -> dict[str, bool]:
    """What ``preset`` asks about an env: whether its actions are continuous, and if it is seen.

    ``env`` is what ``build_fleet`` takes, or a fleet. Arguments and wrappers may change the answer.
    """
    if not isinstance(env, VectorEnv):
        with build_fleet(env, 1, changes=changes) as envs:
            return kind_of(envs)
    return {
        "continuous": isinstance(env.single_action_space, gymnasium.spaces.Box),
        "image": len(env.single_observation_space.shape or ()) == 3,
    }


def build_fleet(
    env: str | EnvSpec | Callable[..., gymnasium.Env[Any, Any]],
    num_envs: int,
    *,
    backend: str | None = None,
    faults: Mapping[str, Any] | None = None,
    rendered: int = 0,
    changes: EnvOptions = UNCHANGED,
    address: str | None = None,
) -> Any:
    """A fleet to train or evaluate in, of an id, a spec or a function that builds an env.

    ``faults`` are a run's ``fault_options``; with any, no env runs in this process. ``backend`` is
    by default the plainest that can do so, "serial" or "process". ``changes`` has the env's
    arguments and wrappers, and the info in which ``action_masks()`` are sent; ``address`` is that
    of the cluster for backend "ray". The first ``rendered`` envs can render.

    An Atari game is an ``AtariEnv`` as it is by default, seen as (4, 84, 84): lives are episodes
    for the learner, and statistics are of games and their scores. Observations are the fleet's own
    arrays until the next step: collectors copy them. A native engine has its own autoreset mode.

    Raises:
        ValueError: the engine cannot do what is asked for.
    """
    name = env.id if isinstance(env, EnvSpec) else env
    env = find_env(env) if isinstance(env, str) else env
    if backend is None:
        backend = "process" if faults else "serial"
    if backend == "native":
        extra: Any = {"render_mode": "rgb_array"} if rendered else {}
        return _native_fleet(env, num_envs, changes, isolate=bool(faults), extra=extra)
    if is_atari(env) and isinstance(name, str):
        env = partial(AtariEnv, name, channels_first=True)
    env = with_kwargs(env, changes.env_kwargs)
    return make(
        _first_render(env, num_envs, rendered) if rendered else env,
        num_envs,
        backend=backend,
        autoreset_mode="SameStep",
        isolate=bool(faults),
        copy=False,
        wrappers=changes.wrapping(find_wrapper),
        vector_kwargs=dict(faults or {}),
        **({"address": address} if address is not None and backend == "ray" else {}),
    )


def _first_render(
    env: EnvSpec | Callable[..., gymnasium.Env[Any, Any]], num_envs: int, rendered: int
) -> list[Callable[..., gymnasium.Env[Any, Any]]]:
    """Functions that build the envs, of which only the first ones render.

    Some envs are slower when they could render, even if nobody asks: LunarLander keeps each of its
    exhaust particles until the next frame, and moves them all in every step.
    """
    build = partial(gymnasium.make, env) if isinstance(env, EnvSpec) else env
    rendering = partial(build, render_mode="rgb_array")
    return [rendering] * rendered + [build] * (num_envs - rendered)


def _native_fleet(
    env: Any, num_envs: int, changes: EnvOptions, *, isolate: bool, extra: dict[str, Any]
) -> Any:
    """An env's own batched implementation, which resets its envs as it does."""
    if is_atari(env):
        raise ValueError(
            "ALE's engine begins a new game at every lost life, and training here continues it, "
            "as the baselines do. Take another backend, or pass train() a fleet from make_atari."
        )
    env = with_kwargs(env, changes.env_kwargs)
    wrappers = [find_wrapper(name) for name in changes.wrappers]
    return make(env, num_envs, backend="native", isolate=isolate, wrappers=wrappers, **extra)


def one_rendered(
    env: str | EnvSpec | Callable[..., gymnasium.Env[Any, Any]], changes: EnvOptions = UNCHANGED
) -> Any:
    """One env that renders, in a process of its own."""
    return build_fleet(env, 1, backend="process", rendered=1, changes=changes)
