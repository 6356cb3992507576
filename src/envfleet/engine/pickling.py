"""Pickling for another process of a fleet: classes by name where that works, else by value."""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle

from envfleet.engine.interrupts import raise_interrupt


def dumps(value: Any, *, by_reference: bool) -> bytes:
    """Pickle a value that another process of this fleet will read.

    ``by_reference`` names a class by its module where that works. It does from any worker to the
    caller, and to a forked worker. To a spawned one it would name the class of a re-imported
    ``__main__``, which is not the one that the envs were built from: there classes of ``__main__``
    go by value, and cloudpickle keeps one identity per class on both sides.
    """
    if by_reference:
        try:
            return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # noqa: BLE001 - __reduce__ may raise anything
            raise_interrupt(error)  # anything else is told better by cloudpickle
    return cloudpickle.dumps(value)  # type: ignore[no-any-return]
