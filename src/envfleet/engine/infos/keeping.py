"""Which infos of an env are told, and what belongs to the end of an episode."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from envfleet.engine.interrupts import raise_interrupt

WHICH = ("all", "final", "none")
"""Infos of every step, of steps that end an episode, or of none; ``reset`` always tells its own."""

_ALWAYS = ("final_frame", "final_frame_error")
"""Asked for by themselves, they are told whichever infos are wanted."""


def checked(info: Any) -> dict[str, Any]:
    """The info, which must be a dict."""
    if isinstance(info, dict):
        return info
    raise TypeError(f"info must be a dict, got {type(info).__name__}")


def at_end(info: Any, which: str) -> dict[str, Any]:
    """What is told of a step that ends an episode, where not all infos are."""
    told = checked(info or {})
    return told if which == "final" else {key: told[key] for key in _ALWAYS if key in told}


def final_info(info: Any) -> dict[str, Any]:
    """What the ended episode's info is reported as, once the env has been reset.

    A copy that the reset cannot change; a shallow one where something in it resists copying.
    """
    try:
        return {"final_info": deepcopy(checked(info))}
    except Exception as error:
        raise_interrupt(error)
        if not isinstance(info, dict):
            raise
        return {"final_info": dict(info)}
