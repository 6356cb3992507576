"""make: a fleet from an id, a spec or factories, with the argument names of make_vec."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec, _find_spec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from envfleet.engine.rules.choice import Plan
from envfleet.engine.worker.hooks import EnvFactory
from envfleet.vector.auto import plan_fleet
from envfleet.vector.fleet import Fleet
from envfleet.vector.native.building import build_native, native_of
from envfleet.vector.native.engine import NativeVectorEnv
from envfleet.vector.options import number_of_workers
from envfleet.vector.packages import noting_packages
from envfleet.vector.process import ProcessVectorEnv
from envfleet.vector.registry import NOT_ENGINES, check_backend, find_engine, options_of
from envfleet.vector.serial import SerialVectorEnv
from envfleet.vector.workers import WorkerFleet

Wrapper = Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]
EnvLike = str | EnvSpec | Callable[..., gymnasium.Env[Any, Any]] | Sequence[Callable[..., Any]]

_BACKEND_OF_MODE = {"sync": "serial", "async": "process", "vector_entry_point": "native"}
"""The words of ``make_vec(vectorization_mode=...)`` in ours."""
_ENGINE_WORDS = inspect.signature(ProcessVectorEnv).parameters.keys() - {"env_fns"}
"""Names that are always options of the engine. Others have some that are likely names of envs'
arguments (Ray's ``resources``): they count only where that engine was asked for."""


@overload
def make(
    env: EnvLike,
    num_envs: int = 1,
    *,
    backend: Literal["auto", "serial", "process", "ray"] = "auto",
    isolate: bool = False,
    workers: int | None = None,
    autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    wrappers: Sequence[Wrapper] | None = (),
    vector_kwargs: dict[str, Any] | None = None,
    **env_kwargs: Any,
) -> Fleet[Any, Any]: ...
@overload
def make(
    env: EnvLike, num_envs: int = 1, *, backend: Literal["native"], **options: Any
) -> NativeVectorEnv: ...
@overload
def make(env: EnvLike, num_envs: int = 1, *, backend: str, **options: Any) -> Any: ...
def make(
    env: EnvLike,
    num_envs: int = 1,
    *,
    backend: str = "auto",
    isolate: bool = False,
    workers: int | None = None,
    autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    wrappers: Sequence[Wrapper] | None = (),
    vector_kwargs: dict[str, Any] | None = None,
    **env_kwargs: Any,
) -> VectorEnv[Any, Any, Any]:
    """Build a fleet of envs.

    Every option of ``ProcessVectorEnv`` may be passed by name (``caller_steps=True``,
    ``on_failure="restart"``, ``infos="final"``, ``copy=False``), and every option of the engine
    that ``backend`` names; all other keywords are passed to the env.

    Args:
        env: a registered id (``module:Id-v0`` imports the module first), an ``EnvSpec``, a function
            that builds an env, or a list of such functions, one per env.
        num_envs: number of envs; may be omitted with a list.
        backend: "serial" (in this process), "process" (in workers), "ray" (in actors of a Ray
            cluster; see ``docs/scaling.md``), "native" (the env's own batched implementation; see
            ``docs/native.md``), or "auto": one env is measured for about 0.3 s in a separate
            process, to choose the engine expected to be fastest on this machine. This is never the
            native one, whose random numbers differ. See ``plan`` of the returned fleet, and the log
            "envfleet". Engines of your own: their names in ``envfleet.ENGINES``, or
            ``module:callable`` (docs/custom-engine.md).
        isolate: never run an env in this process, so that an env cannot crash or hang it.
        workers: number of worker processes, or actors; see ``ProcessVectorEnv``.
        autoreset_mode: what happens when an episode ends.
        wrappers: applied to every env, innermost first.
        vector_kwargs: options of the engine as ``make_vec`` takes them; the same as by name. By
            default, custom spaces go by pipe (``shared_memory="auto"``).
        **env_kwargs: passed unchanged to the constructor of every env, or to the function that
            builds it. A list is never split among the envs: for arguments that differ, pass a list
            of functions, ``make([partial(MyEnv, level=i) for i in range(4)])``. If an argument of
            the env has the name of an engine's option, pass a function that sets it.

    Returns:
        A ``SerialVectorEnv``, ``ProcessVectorEnv``, ``RayVectorEnv`` or ``NativeVectorEnv``, whose
        ``plan`` says which, and why; or what your own engine builds. From an id or a spec it has a
        ``spec`` that ``gymnasium.make_vec`` accepts.

    Raises:
        TypeError: ``env`` is none of these, or the engine has no such option.
        ValueError: an unknown backend, a bad number of envs, or options that contradict each other.
        gymnasium.error.Error: the id is unknown.
    """
    _check_words(backend, num_envs, env_kwargs)
    engine = None if backend in NOT_ENGINES else find_engine(backend)
    words = _ENGINE_WORDS if engine is None else _ENGINE_WORDS | options_of(engine)[0]
    named = {word: env_kwargs.pop(word) for word in words & env_kwargs.keys()}
    options = _engine_options(workers, autoreset_mode, named, vector_kwargs or {})
    if isolate:
        if backend != "auto" and not getattr(engine, "isolates", False):
            does = "runs" if engine in (None, SerialVectorEnv) else "may run"
            raise ValueError(f"isolate=True forbids {backend=}: it {does} envs in this process")
        if options.get("caller_steps"):
            raise ValueError("isolate=True forbids caller_steps=True: it runs envs in this process")
    wrappers = tuple(wrappers or ())
    if isinstance(env, str):
        with noting_packages(env):
            env = _find_spec(env)
    if not isinstance(env, EnvSpec):
        if backend == "native":
            raise ValueError("backend='native' needs an id or a spec: it builds no single envs")
        factories = _factories(env, num_envs, wrappers, env_kwargs)
        with _said_that_lists_are_not_split(env_kwargs, len(factories)):
            return _build(backend, factories, options, isolate=isolate, name=None)

    spec, kwargs, said = split_spec(env)
    # As in make_vec: what the spec of an earlier fleet says about that fleet wins.
    num_envs = said.get("num_envs", num_envs)
    wrappers = tuple(said.get("wrappers", wrappers))
    options.update(said.get("vector_kwargs", {}))
    if backend == "auto":
        backend = _BACKEND_OF_MODE.get(said.get("vectorization_mode", ""), "auto")
    if backend == "native":
        for theirs, ours in (("autoreset_mode", "autoreset_mode"), ("num_threads", "workers")):
            if said and theirs in kwargs:
                options.setdefault(ours, kwargs.pop(theirs))
        spec.kwargs = kwargs
        with noting_packages():
            native = build_native(spec, int(num_envs), env_kwargs, wrappers, options)
        native.reason = "backend='native' was asked for"
        return native
    if spec.entry_point is None:
        raise gymnasium.error.Error(
            f"Cannot create vectorized environment for {spec.id} because it doesn't have an entry "
            "point defined."
        )
    kwargs.update(env_kwargs)
    factories = [SpecFactory(spec, kwargs, wrappers)] * num_envs
    name = f"{spec.id} {kwargs or ''} {wrappers or ''}".strip()
    with _said_that_lists_are_not_split(env_kwargs, num_envs):
        envs = _build(backend, factories, options, isolate=isolate, name=name)
    if isinstance(envs, Fleet) and backend == "auto" and not wrappers:
        envs.native = native_of(env)
    envs.spec = _fleet_spec(envs, SpecFactory(spec, kwargs, wrappers), options)
    return envs


@dataclass(frozen=True)
class SpecFactory:
    """Builds one env from a spec, which contains everything a worker needs."""

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


def _check_words(backend: str, num_envs: Any, env_kwargs: dict[str, Any]) -> None:
    """Refuse what no engine understands, before anything is built."""
    check_backend(backend)
    if not isinstance(num_envs, (int, np.integer)) or num_envs < 1:
        raise ValueError(f"`num_envs` must be a positive integer, got {num_envs!r}")
    if "vectorization_mode" in env_kwargs:
        raise TypeError(
            "vectorization_mode is backend='serial' | 'process' | 'native' | 'ray' here"
        )


def _engine_options(
    workers: int | None,
    autoreset_mode: str | AutoresetMode,
    named: dict[str, Any],
    vector_kwargs: dict[str, Any],
) -> dict[str, Any]:
    """One dict of engine options, each of which may be in either place."""
    own = dict(named)
    if workers is not None:
        own["workers"] = workers
    if AutoresetMode(autoreset_mode) != AutoresetMode.NEXT_STEP:
        own["autoreset_mode"] = AutoresetMode(autoreset_mode)
    if twice := sorted(own.keys() & vector_kwargs.keys()):
        raise ValueError(f"{', '.join(twice)}: given twice, to make() and in vector_kwargs")
    return {**own, **vector_kwargs}


def split_spec(given: EnvSpec) -> tuple[EnvSpec, dict[str, Any], dict[str, Any]]:
    """A spec without arguments, the env's arguments, and what is said about a fleet."""
    spec = copy.deepcopy(given)
    kwargs, spec.kwargs = spec.kwargs, {}
    fleet_words = ("num_envs", "vectorization_mode", "vector_kwargs", "wrappers")
    said = {word: kwargs.pop(word) for word in fleet_words if word in kwargs}
    return spec, kwargs, said


def _factories(
    env: Any, num_envs: int, wrappers: tuple[Wrapper, ...], env_kwargs: dict[str, Any]
) -> list[EnvFactory]:
    """One function for all envs, or a list with one per env."""
    if callable(env):
        builders = [env] * num_envs
    elif isinstance(env, Sequence) and env and all(callable(build) for build in env):
        builders = list(env)
        if num_envs not in (1, len(builders)):
            raise ValueError(f"num_envs={num_envs}, but the list has {len(builders)} factories")
    else:
        raise TypeError(
            "`env` must be an id, an EnvSpec, a function that builds an env, or a list of such "
            f"functions, got {type(env).__name__}"
        )
    if env_kwargs:
        builders = [functools.partial(build, **env_kwargs) for build in builders]
    if wrappers:
        builders = [WrappedFactory(build, wrappers) for build in builders]
    return builders


@contextlib.contextmanager
def _said_that_lists_are_not_split(env_kwargs: dict[str, Any], num_envs: int) -> Iterator[None]:
    """Note on what a constructor raises that a list with one entry per env went to each of them."""
    try:
        yield
    except Exception as error:
        if not any("in construct" in note for note in getattr(error, "__notes__", ())):
            raise
        for name, value in env_kwargs.items():
            if num_envs > 1 and isinstance(value, (list, tuple)) and len(value) == num_envs:
                error.add_note(
                    f"{name}={value!r:.80} went to each of the {num_envs} envs as it is, not one "
                    "entry to each: for arguments that differ pass a list of functions that build "
                    "the envs"
                )
        raise


def _build(
    backend: str,
    factories: Sequence[EnvFactory],
    options: dict[str, Any],
    *,
    isolate: bool,
    name: str | None,
) -> VectorEnv[Any, Any, Any]:
    options = dict(options)
    reason, measured = f"backend={backend!r} was asked for", None
    if backend == "auto":
        choice = _choose(factories, options, isolate=isolate, name=name)
        backend, reason, measured = choice.backend, choice.reason, choice.measured
        if backend == "process":
            options.update(workers=choice.workers, caller_steps=choice.caller_steps)
    engine = find_engine(backend)
    named, takes_any = options_of(engine)
    unknown = options.keys() - named
    if unknown and not takes_any:
        raise TypeError(f"backend={backend!r} has no option {', '.join(sorted(unknown))}")
    if backend == "process":
        options.setdefault("shared_memory", "auto")
    with noting_packages():
        envs = engine(factories, **options)
    if not isinstance(envs, VectorEnv):
        raise TypeError(
            f"backend={backend!r} must build a gymnasium.vector.VectorEnv, not a "
            f"{type(envs).__name__}"
        )
    if isinstance(envs, Fleet):
        envs.reason, envs.measured = reason, measured
    return envs


def _choose(
    factories: Sequence[EnvFactory], options: dict[str, Any], *, isolate: bool, name: str | None
) -> Plan:
    """The plan for ``backend="auto"``, as far as the options leave a choice."""
    number = len(factories)
    most = options.get("max_concurrency")
    workers = number_of_workers(options.get("workers"), most, number)
    own = bool(options.get("caller_steps"))
    serial = not isolate and options.keys() <= inspect.signature(SerialVectorEnv).parameters.keys()
    caller = not isolate and not options.keys() & {"on_failure", "step_timeout", "caller_steps"}
    if multiprocessing.current_process().daemon:
        if not serial:
            raise ValueError(
                "this process is daemonic and may not start workers, and the options given need "
                "them: start it with daemon=False, or leave out what only backend='process' has."
            )
        return Plan("serial", 1, False, "this process is daemonic and may not start workers")
    if "workers" in options or own:
        return Plan("process", workers, own, "workers= or caller_steps= was given")
    if number == 1:
        return Plan("serial" if serial else "process", 1, False, "there is one env")
    return plan_fleet(
        factories[0],
        number,
        context=options.get("context"),
        most=number if most is None else most,
        serial=serial,
        caller=caller,
        name=name,
    )


def _fleet_spec(
    envs: VectorEnv[Any, Any, Any], factory: SpecFactory, options: dict[str, Any]
) -> EnvSpec:
    """The spec ``make_vec`` would have set, without options that only envfleet has."""
    process = isinstance(envs, WorkerFleet)  # what make_vec knows nothing about is async to it
    peer = inspect.signature(AsyncVectorEnv if process else SyncVectorEnv).parameters
    shared = {k: v for k, v in options.items() if k in peer and k != "worker"}
    spec = copy.deepcopy(factory.spec)
    spec.kwargs = {**factory.kwargs, "vectorization_mode": "async" if process else "sync"}
    if envs.num_envs != 1:
        spec.kwargs["num_envs"] = envs.num_envs
    if shared:
        spec.kwargs["vector_kwargs"] = shared
    if factory.wrappers:
        spec.kwargs["wrappers"] = factory.wrappers
    return spec
