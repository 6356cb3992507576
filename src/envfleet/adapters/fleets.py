"""The fleet behind an adapter: built from env functions, or one that is there already."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from gymnasium.vector import AutoresetMode

from envfleet.engine.rules.envs import SHARED
from envfleet.engine.worker.hooks import EnvHost
from envfleet.vector.fleet import Fleet
from envfleet.vector.make import make
from envfleet.vector.process import ProcessVectorEnv

_FIXED = ("autoreset_mode", "info_format")
_OPTIONS = {
    *inspect.signature(ProcessVectorEnv).parameters,
    "backend",
    "isolate",
} - {"env_fns", *_FIXED}
"""What may be said of a fleet that is built here."""


def build_or_adopt(
    owner: str,
    envs: Any,
    mode: AutoresetMode,
    worker: type[EnvHost],
    options: dict[str, Any],
) -> Fleet[Any, Any]:
    """A fleet in this autoreset mode whose infos are a list of dicts: built of functions, or taken.

    Args:
        owner: the adapter's name, for messages.
        envs: functions that build envs, or a fleet.
        mode: what happens when an episode ends.
        worker: how envs are handled that are built here, unless ``options`` say it.
        options: those of ``envfleet.make``, for functions only.

    Raises:
        TypeError: neither functions nor a fleet, an option that there is not, or options beside a
            fleet.
        ValueError: no functions, two that return the same env, or options that contradict each
            other.
        RuntimeError: a fleet that has been reset in another mode, or is busy; it is unchanged.
    """
    if isinstance(envs, Fleet):
        if options:
            raise TypeError(
                "options of the engine are for env functions: this fleet is built already."
            )
        envs.autoreset_mode = mode
        envs.info_format = "list"
        return envs
    if isinstance(envs, Sequence) and not isinstance(envs, str):
        return _build(owner, envs, mode, worker, options)
    raise TypeError(
        f"{owner} takes a fleet (SerialVectorEnv, ProcessVectorEnv) or a list of functions that "
        f"build envs, got {type(envs).__name__}"
    )


def _build(
    owner: str,
    env_fns: Sequence[Callable[[], Any]],
    mode: AutoresetMode,
    worker: type[EnvHost],
    options: dict[str, Any],
) -> Fleet[Any, Any]:
    if unknown := sorted(options.keys() - _OPTIONS):
        reason = f"{owner} needs its own" if unknown[0] in _FIXED else "there is no such option"
        raise TypeError(
            f"{unknown[0]!r}: {reason}; those of envfleet.make are {', '.join(sorted(_OPTIONS))}."
        )
    if not env_fns:
        raise ValueError("a fleet needs at least one env: the list of functions is empty")
    options = {"worker": worker, "observation_mode": "different", **options}  # bounds may differ
    try:
        fleet: Fleet[Any, Any] = make(
            list(env_fns), autoreset_mode=mode, info_format="list", **options
        )
    except TypeError as error:
        if SHARED not in str(error):
            raise
        raise ValueError(f"{error}.") from error
    return fleet
