"""The fleet behind an SB3VecEnv: built from env functions, or one that is there already."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from gymnasium.vector import AutoresetMode

from envfleet.adapters.sb3.envs import MASKS, MaskedFactory, SB3Host
from envfleet.engine.rules.envs import SHARED
from envfleet.envs.masks import SendMasks, mask_sender
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


def build(
    env_fns: Sequence[Callable[[], Any]],
    start_method: str | None,
    masks: str | None,
    options: dict[str, Any],
) -> Fleet[Any, Any]:
    """A fleet of what these functions build; ``options`` are those of ``envfleet.make``.

    Raises:
        TypeError: an option that there is not, or something else than functions.
        ValueError: no functions, two that return the same env, no such start method, or options
            that contradict each other.
    """
    if unknown := sorted(options.keys() - _OPTIONS):
        reason = "SB3VecEnv needs its own" if unknown[0] in _FIXED else "there is no such option"
        raise TypeError(
            f"{unknown[0]!r}: {reason}; those of envfleet.make are {', '.join(sorted(_OPTIONS))}, "
            "and start_method."
        )
    if not env_fns:
        raise ValueError("a fleet needs at least one env: the list of functions is empty")
    if start_method is not None:
        if "context" in options:
            raise TypeError("start_method and context are two names of one option: give one")
        options = {**options, "context": start_method}
    if masks is not None:
        env_fns = [MaskedFactory(env_fn, SendMasks(masks, MASKS)) for env_fn in env_fns]
    options.setdefault("worker", SB3Host)
    options.setdefault("observation_mode", "different")  # bounds may differ, as in DummyVecEnv
    try:
        fleet: Fleet[Any, Any] = make(
            env_fns, autoreset_mode=AutoresetMode.SAME_STEP, info_format="list", **options
        )
    except TypeError as error:
        if SHARED not in str(error):
            raise
        raise ValueError(f"{error}.") from error
    return fleet


def adopt(fleet: Fleet[Any, Any]) -> None:
    """Have a fleet do as Stable-Baselines3 expects: same-step autoreset, infos by env.

    Raises:
        RuntimeError: it has been reset in another mode, or is busy; nothing was changed.
    """
    fleet.autoreset_mode = AutoresetMode.SAME_STEP
    fleet.info_format = "list"


def key_of_masks(fleet: Fleet[Any, Any], masks: str) -> str:
    """The key of the infos that masks come along in, with every step.

    Raises:
        ValueError: they do not.
    """
    if fleet.infos != "all":
        raise ValueError(
            f"masks={masks!r} travel with the infos of every step: leave out infos={fleet.infos!r}."
        )
    senders = set(fleet.call(mask_sender))
    sender = senders.pop()
    if senders or sender is None or sender.method != masks:
        raise ValueError(
            f"masks={masks!r}, but the envs of this fleet do not send them: build it with "
            f"wrappers=[envfleet.envs.SendMasks({masks!r})], or pass SB3VecEnv the functions "
            "that build the envs."
        )
    return str(sender.key)
