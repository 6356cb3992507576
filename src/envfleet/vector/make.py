"""make: a fleet from an id, a spec, a factory or a list of factories, in the words of make_vec."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec, _find_spec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from envfleet.engine.worker.host import EnvFactory
from envfleet.vector.fleet import Fleet
from envfleet.vector.process import ProcessVectorEnv
from envfleet.vector.serial import SerialVectorEnv

Wrapper = Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]
EnvLike = str | EnvSpec | Callable[..., gymnasium.Env[Any, Any]] | Sequence[Callable[..., Any]]

_BACKENDS: dict[str, Callable[..., Fleet[Any, Any]]] = {
    "serial": SerialVectorEnv,
    "process": ProcessVectorEnv,
}
_PEERS = {"serial": "sync", "process": "async"}
"""Our backends in the words of ``make_vec(vectorization_mode=...)``."""


def make(
    env: EnvLike,
    num_envs: int = 1,
    *,
    backend: str = "auto",
    workers: int | None = None,
    autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    wrappers: Sequence[Wrapper] = (),
    vector_kwargs: dict[str, Any] | None = None,
    **env_kwargs: Any,
) -> Fleet[Any, Any]:
    """Build a fleet of envs.

    Args:
        env: a registered id (``module:Id-v0`` imports the module first), an ``EnvSpec``, a function
            that builds an env, or a list of such functions, one per env.
        num_envs: how many; may be left out with a list.
        backend: "serial" (in this process), "process" (in workers), or "auto": serial for one env,
            workers for more.
        workers: how many worker processes; see ``ProcessVectorEnv``.
        autoreset_mode: what happens when an episode ends.
        wrappers: applied to every env, the first one innermost.
        vector_kwargs: further options of the engine, such as ``copy`` or ``context``.
        **env_kwargs: passed to the env's constructor, or to the function that builds it.

    Returns:
        A ``SerialVectorEnv`` or ``ProcessVectorEnv``. From an id or a spec it has a ``spec`` that
        ``gymnasium.make_vec`` accepts.

    Raises:
        TypeError: ``env`` is none of these, or an engine option is among ``env_kwargs``.
        ValueError: an unknown backend, a bad number of envs, or options that contradict each other.
        gymnasium.error.Error: the id is unknown.
    """
    order = _Order(
        num_envs=num_envs,
        backend=backend,
        workers=workers,
        autoreset_mode=AutoresetMode(autoreset_mode),
        wrappers=tuple(wrappers),
        vector_kwargs=dict(vector_kwargs or {}),
        env_kwargs=env_kwargs,
    )
    order.check()
    if isinstance(env, str):
        env = _find_spec(env)
    return order.from_spec(env) if isinstance(env, EnvSpec) else order.from_factories(env)


@dataclass(frozen=True)
class SpecFactory:
    """Builds one env from a spec, which carries all that a worker needs to know."""

    spec: EnvSpec
    kwargs: dict[str, Any]
    wrappers: tuple[Wrapper, ...]

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """Build it."""
        return _wrap(gymnasium.make(self.spec, **self.kwargs), self.wrappers)


@dataclass(frozen=True)
class WrappedFactory:
    """Builds one env with a function and wraps it."""

    build: Callable[[], gymnasium.Env[Any, Any]]
    wrappers: tuple[Wrapper, ...]

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """Build it."""
        return _wrap(self.build(), self.wrappers)


def _wrap(env: gymnasium.Env[Any, Any], wrappers: Sequence[Wrapper]) -> gymnasium.Env[Any, Any]:
    for wrapper in wrappers:
        env = wrapper(env)
    return env


@dataclass
class _Order:
    """What the caller of ``make`` asked for."""

    num_envs: int
    backend: str
    workers: int | None
    autoreset_mode: AutoresetMode
    wrappers: tuple[Wrapper, ...]
    vector_kwargs: dict[str, Any]
    env_kwargs: dict[str, Any]

    def check(self) -> None:
        """Refuse what no engine understands, before anything is built."""
        if self.backend not in ("auto", *_BACKENDS):
            names = ", ".join(repr(name) for name in ("auto", *_BACKENDS))
            raise ValueError(f"`backend` must be one of {names}, got {self.backend!r}")
        if not isinstance(self.num_envs, (int, np.integer)) or self.num_envs < 1:
            raise ValueError(f"`num_envs` must be a positive integer, got {self.num_envs!r}")
        options = set(inspect.signature(ProcessVectorEnv).parameters) - {"env_fns"}
        if misplaced := sorted(options & self.env_kwargs.keys()):
            hint = ", ".join(f"{name!r}: ..." for name in misplaced)
            raise TypeError(
                f"{', '.join(misplaced)}: an option of the engine, not of the env; pass "
                f"vector_kwargs={{{hint}}}"
            )
        if twice := sorted({"workers", "autoreset_mode"} & self.vector_kwargs.keys()):
            raise ValueError(f"{', '.join(twice)}: pass it to make() itself, not in vector_kwargs")

    def from_spec(self, given: EnvSpec) -> Fleet[Any, Any]:
        """As ``make_vec``: what the spec of an earlier fleet says about the fleet wins."""
        spec = copy.deepcopy(given)
        kwargs, spec.kwargs = {**spec.kwargs, **self.env_kwargs}, {}
        self.num_envs = kwargs.pop("num_envs", self.num_envs)
        self.wrappers = tuple(kwargs.pop("wrappers", self.wrappers))
        if "vector_kwargs" in kwargs:
            self.vector_kwargs = dict(kwargs.pop("vector_kwargs"))
            earlier = self.vector_kwargs.pop("autoreset_mode", self.autoreset_mode)
            self.autoreset_mode = AutoresetMode(earlier)
        mode = kwargs.pop("vectorization_mode", None)
        if self.backend == "auto":
            self.backend = next((ours for ours, peer in _PEERS.items() if peer == mode), "auto")
        if spec.entry_point is None:
            raise gymnasium.error.Error(
                f"Cannot create vectorized environment for {spec.id} because it doesn't have an "
                "entry point defined."
            )
        envs = self._build([SpecFactory(spec, kwargs, self.wrappers)] * self.num_envs)
        envs.spec = self._fleet_spec(envs, spec, kwargs)
        return envs

    def from_factories(self, env: Any) -> Fleet[Any, Any]:
        """One function for all envs, or a list with one per env."""
        if callable(env):
            builders = [env] * self.num_envs
        elif isinstance(env, Sequence) and env and all(callable(build) for build in env):
            builders = list(env)
            if self.num_envs not in (1, len(builders)):
                raise ValueError(
                    f"num_envs={self.num_envs}, but the list has {len(builders)} factories"
                )
        else:
            raise TypeError(
                "`env` must be an id, an EnvSpec, a function that builds an env, or a list of such "
                f"functions, got {type(env).__name__}"
            )
        if self.env_kwargs:
            builders = [functools.partial(build, **self.env_kwargs) for build in builders]
        if self.wrappers:
            builders = [WrappedFactory(build, self.wrappers) for build in builders]
        return self._build(builders)

    def _build(self, factories: Sequence[EnvFactory]) -> Fleet[Any, Any]:
        backend = self.backend
        if backend == "auto":
            backend = "serial" if len(factories) == 1 and self.workers is None else "process"
        options = dict(self.vector_kwargs)
        if backend == "process":
            options["workers"] = self.workers
        elif self.workers is not None:
            raise ValueError(f"workers={self.workers} needs backend='process', not {backend!r}")
        return _BACKENDS[backend](factories, autoreset_mode=self.autoreset_mode, **options)

    def _fleet_spec(self, envs: Fleet[Any, Any], spec: EnvSpec, kwargs: dict[str, Any]) -> EnvSpec:
        """The spec ``make_vec`` would have set, without options that only envfleet has."""
        process = isinstance(envs, ProcessVectorEnv)
        peer = inspect.signature(AsyncVectorEnv if process else SyncVectorEnv).parameters
        options = {k: v for k, v in self.vector_kwargs.items() if k in peer and k != "worker"}
        if self.autoreset_mode != AutoresetMode.NEXT_STEP:
            options["autoreset_mode"] = self.autoreset_mode
        mode = _PEERS["process" if process else "serial"]
        fleet_spec = copy.deepcopy(spec)
        fleet_spec.kwargs = {**kwargs, "vectorization_mode": mode}
        if envs.num_envs != 1:
            fleet_spec.kwargs["num_envs"] = envs.num_envs
        if options:
            fleet_spec.kwargs["vector_kwargs"] = options
        if self.wrappers:
            fleet_spec.kwargs["wrappers"] = self.wrappers
        return fleet_spec
