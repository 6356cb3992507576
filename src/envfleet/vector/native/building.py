"""Which ids have a native implementation, and building it in the words of make()."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode, VectorEnv

from envfleet.vector.native.atari import NAME, AtariNativeVectorEnv, atari_arguments, is_atari
from envfleet.vector.native.engine import NativeVectorEnv
from envfleet.vector.process import ProcessVectorEnv

_DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(ProcessVectorEnv).parameters.items()
}


def native_of(spec: EnvSpec) -> str:
    """The native implementation of an id, ``module:class``; empty if there is none."""
    if is_atari(spec):
        return NAME
    entry = spec.vector_entry_point
    if entry is None or isinstance(entry, str):
        return entry or ""
    return f"{entry.__module__}:{getattr(entry, '__qualname__', type(entry).__qualname__)}"


def build_native(
    spec: EnvSpec,
    num_envs: int,
    kwargs: dict[str, Any],
    wrappers: Sequence[Any],
    options: dict[str, Any],
) -> NativeVectorEnv:
    """Build the native implementation of an id; ``options`` are those of our engines.

    Its ``spec`` is one that ``gymnasium.make_vec`` accepts, and then builds the implementation.

    Raises:
        ValueError: there is none, or it cannot do what is asked for.
        TypeError: it has no such argument.
    """
    name = native_of(spec)
    if not name:
        raise ValueError(
            f"{spec.id} has no native implementation. These have one: {_known_ids()}. Take "
            "backend='auto', 'process' or 'serial' for the others."
        )
    if wrappers or spec.additional_wrappers:
        raise ValueError(
            f"{name} has no single envs to wrap: leave out wrappers, wrap what make() returns with "
            "gymnasium.wrappers.vector, or take backend='process'."
        )
    own = {word: v for word, v in options.items() if word not in ("autoreset_mode", "workers")}
    for word, value in own.items():
        if value is not _DEFAULTS[word] and value != _DEFAULTS[word]:
            raise ValueError(f"{name} cannot do {word}={value!r}. Take backend='process'.")
    mode = AutoresetMode(options.get("autoreset_mode", AutoresetMode.NEXT_STEP))
    workers = options.get("workers")
    built = copy.deepcopy(spec)
    envs: NativeVectorEnv
    if name == NAME:
        arguments = atari_arguments(spec, kwargs)
        envs = AtariNativeVectorEnv(num_envs, mode, workers, arguments)
        built.vector_entry_point = NAME
        built.kwargs = {**arguments, "num_threads": envs.threads, "autoreset_mode": mode.value}
    else:
        if workers is not None:
            raise ValueError(
                f"{name} runs in the calling thread and cannot do workers={workers!r}: leave it "
                "out, or take backend='process'."
            )
        arguments = {**spec.kwargs, **kwargs}
        if spec.max_episode_steps is not None:
            arguments.setdefault("max_episode_steps", spec.max_episode_steps)
        build = partial(_create, spec, num_envs, arguments)
        envs = NativeVectorEnv(build, mode, name)
        built.kwargs = arguments
    built.kwargs["vectorization_mode"] = "vector_entry_point"
    if num_envs != 1:
        built.kwargs["num_envs"] = num_envs
    envs.spec = built
    return envs


def _create(spec: EnvSpec, num_envs: int, arguments: dict[str, Any]) -> VectorEnv[Any, Any, Any]:
    entry: Any = spec.vector_entry_point
    create: Any = load_env_creator(entry) if isinstance(entry, str) else entry
    envs: VectorEnv[Any, Any, Any] = create(num_envs=num_envs, **arguments)
    envs.spec = spec
    return envs


def _known_ids() -> str:
    """The registered ids with a native implementation, Atari's as a family."""
    specs = gymnasium.registry.values()
    ids = sorted(spec.id for spec in specs if native_of(spec) not in ("", NAME))
    if any(is_atari(spec) for spec in specs):
        ids += ["ALE/<game>-v5", "<game>NoFrameskip-v4"]
    else:
        ids += ["ALE/<game>-v5 and <game>NoFrameskip-v4 (after import ale_py)"]
    return ", ".join(ids)
