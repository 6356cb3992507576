"""What ``reset`` and ``step`` of an env may return, and what to say when it is something else."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from envfleet.engine.interrupts import raise_interrupt

_RESET = "(observation, info)"
_STEP = "(observation, reward, terminated, truncated, info)"
_OLD_API = "the old Gym API: update the env, or wrap it (shimmy.GymV21CompatibilityV0)"


def reset_parts(answer: Any, env: int) -> tuple[Any, Any]:
    """Observation and info of what ``reset`` of env ``env`` returned.

    Raises:
        TypeError: it is not a pair, or its second part is not a dict. An observation of two parts
            must not be taken for such a pair.
    """
    if isinstance(answer, (tuple, list)) and len(answer) == 2:
        observation, info = answer
        if info is None or isinstance(info, dict):
            return observation, info
        got = f"{_returned(answer)}: info must be a dict, got {type(info).__name__}"
    else:
        got = _returned(answer)
    raise TypeError(
        f"env {env} in reset returned {got}; expected {_RESET}. An observation alone is {_OLD_API}."
    )


def step_problem(answer: Any, env: int) -> Exception | None:
    """What is wrong with the values that ``step`` of env ``env`` returned; None if they will do."""
    if not isinstance(answer, (tuple, list)):
        return TypeError(f"env {env} in step returned {_kind(answer)}; expected {_STEP}.")
    if len(answer) != 5:
        hint = f" Four values are {_OLD_API}." if len(answer) == 4 else ""
        return ValueError(
            f"env {env} in step returned {_returned(answer)}; expected {_STEP}.{hint}"
        )
    try:
        flag(answer[2], "terminated", env)
        flag(answer[3], "truncated", env)
    except ValueError as problem:
        return problem
    return None


def is_unpacking_a_step(error: BaseException) -> bool:
    """Whether this is what a wrapper raises around an env whose ``step`` returns 4 or 6 values."""
    return isinstance(error, ValueError) and "values to unpack (expected 5" in str(error)


def unpacking_note(env: int) -> str:
    """What to add to such an error: the wrapper's text names neither the env nor the cause."""
    return (
        f"if `step` of env {env} does not return five values: expected {_STEP}; four are {_OLD_API}"
    )


def number(value: Any, env: int) -> float:
    """The reward of env ``env``: a number, or an array or tensor of exactly one.

    Raises:
        ValueError: anything else: None, a string, several numbers, masked.
    """
    try:
        return _one_number(value)
    except _NotOneError as problem:
        got = str(problem)
    raise ValueError(f"env {env} in step returned {got} as `reward`; expected one number.")


def flag(value: Any, name: str, env: int) -> bool:
    """``terminated`` or ``truncated`` of env ``env``.

    True is ``True``, 1, or an array of one of these; False is whatever is false, None included.

    Raises:
        ValueError: something else that ``bool`` would take for True, or cannot decide.
    """
    if value.__class__ is bool or value.__class__ is np.bool_:
        return bool(value)
    try:
        if not value:
            return False
    except Exception as error:  # noqa: BLE001 - several values; told below
        raise_interrupt(error)
    try:
        if _one_number(value) == 1:
            return True
        got = repr(value)
    except _NotOneError as problem:
        got = str(problem)
    raise ValueError(f"env {env} in step returned {got} as `{name}`; expected True or False.")


class _NotOneError(Exception):
    """A value is not one number; the text says what it is."""


def _one_number(value: Any) -> float:
    masked = sys.modules.get("numpy.ma")  # not there: nothing can be masked
    if masked is not None and masked.is_masked(value):
        raise _NotOneError("masked (np.ma.masked), which has no value")
    if hasattr(value, "shape") and hasattr(value, "item"):  # NumPy, torch, jax
        try:
            value = value.item()
        except Exception as error:  # noqa: BLE001 - each library has its own
            raise_interrupt(error)
            raise _NotOneError(_kind(value)) from None
    if isinstance(value, (str, bytes, bytearray)):  # float("1.5") is 1.5
        raise _NotOneError(_kind(value))
    try:
        return float(value)
    except OverflowError:
        raise _NotOneError(f"{_kind(value)} too large for a float") from None
    except Exception as error:  # noqa: BLE001 - __float__ is anybody's
        raise_interrupt(error)
        raise _NotOneError(_kind(value)) from None


def _returned(answer: Any) -> str:
    if isinstance(answer, (tuple, list)):
        values = "value" if len(answer) == 1 else "values"
        types = ", ".join(type(value).__name__ for value in answer)
        return f"{len(answer)} {values} ({types})"
    return _kind(answer)


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    if hasattr(value, "shape"):
        return f"{_name(value)} of shape {tuple(value.shape)}"
    if isinstance(value, (str, bytes, bytearray)):
        text = repr(value)
        return f"the {type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
    return _name(value)


def _name(value: Any) -> str:
    name = "array" if isinstance(value, np.ndarray) else type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
