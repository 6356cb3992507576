"""Engines by name: another one is its file and a line here, or in a program of the user's own."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable
from typing import Any, cast

from gymnasium.vector import VectorEnv

from envfleet.vector.process import ProcessVectorEnv
from envfleet.vector.ray import RayVectorEnv
from envfleet.vector.serial import SerialVectorEnv

Engine = Callable[..., VectorEnv[Any, Any, Any]]
"""Builds a fleet from a list of functions, one per env, and options: a class, or a function.

If it can promise that envs never run in the calling process, it has an attribute ``isolates`` that
is True.
"""

ENGINES: dict[str, Engine] = {
    "serial": SerialVectorEnv,
    "process": ProcessVectorEnv,
    "ray": RayVectorEnv,
}
"""The engines that ``make(..., backend=name)`` and ``train`` know, by name; add your own."""

NOT_ENGINES = ("auto", "native")
"""One chooses among engines, the other builds no single envs."""


def backend_names() -> tuple[str, ...]:
    """All that ``backend`` may be, besides ``module:callable``."""
    auto, native = NOT_ENGINES
    return (auto, *ENGINES, native)


def check_backend(backend: str) -> None:
    """Refuse a backend that nobody knows; what is ``module:callable`` is not imported yet.

    Raises:
        ValueError: naming those like it, and the known ones.
    """
    names = backend_names()
    if backend in names or is_importable(backend):
        return
    near = difflib.get_close_matches(str(backend), names, n=2)
    meant = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    raise ValueError(
        f"`backend` must be one of {', '.join(map(repr, names))} or 'module:callable' for an "
        f"engine of your own, got {backend!r}.{meant}"
    )


def is_importable(backend: object) -> bool:
    """Whether it names a callable of a module."""
    module, _, name = backend.rpartition(":") if isinstance(backend, str) else ("", "", "")
    return name.isidentifier() and all(part.isidentifier() for part in module.split("."))


def find_engine(backend: str) -> Engine:
    """The engine of this name; that of ``module:callable`` is imported.

    Raises:
        ValueError: there is none.
        TypeError: it cannot be called.
        ImportError: its module cannot be imported.
    """
    check_backend(backend)
    if backend in ENGINES:
        return ENGINES[backend]
    module_name, _, name = backend.rpartition(":")
    try:
        found: Any = getattr(importlib.import_module(module_name), name, None)
    except ImportError as error:
        raise ImportError(f"backend={backend!r}: {error}", name=error.name) from error
    if found is None:
        raise ValueError(f"backend={backend!r}: module {module_name} has no {name!r}.")
    if not callable(found):
        kind = type(found).__name__
        raise TypeError(f"backend={backend!r}: {name} is of type {kind}: it must build fleets.")
    return cast("Engine", found)


def options_of(engine: Engine) -> tuple[set[str], bool]:
    """The names of an engine's options, and whether it takes any others too."""
    _env_fns, *options = inspect.signature(engine).parameters.values()
    any_others = inspect.Parameter.VAR_KEYWORD
    named = {option.name for option in options if option.kind != any_others}
    return named, any(option.kind == any_others for option in options)
