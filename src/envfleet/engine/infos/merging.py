"""The infos of many envs as one dict of arrays, as ``VectorEnv._add_info`` lays them out.

A key becomes an array with one row per env and a boolean mask ``_key`` of the envs that had it.
Dicts nest. Where the envs' values fit one array it is the array Gymnasium builds; where Gymnasium
would change a value to make it fit (or fail), the values decide: numbers get their common dtype if
that changes none of them, and everything else becomes an object array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from envfleet.engine.rules.spaces import Array

Entries = Sequence[tuple[int, Any]]

OBJECTS = ("final_obs", "final_frame")
"""Keys whose values are never stacked: few envs have them in a step, and they are large."""


def merge_infos(entries: Sequence[tuple[int, dict[str, Any]]], num_envs: int) -> dict[str, Any]:
    """One dict for the whole fleet from ``(env, info)`` pairs; envs without a pair have no info."""
    keyed: dict[str, list[tuple[int, Any]]] = {}
    for env, info in entries:
        for key, value in info.items():
            if key in keyed:
                keyed[key].append((env, value))
            else:
                keyed[key] = [(env, value)]
    merged: dict[str, Any] = {}
    for key, values in keyed.items():
        merged[key] = column_of(key, values, num_envs)
        merged[f"_{key}"] = _mask(values, num_envs)
    return merged


def _mask(values: Entries, num_envs: int) -> Array:
    if len(values) == num_envs:
        return np.ones(num_envs, dtype=np.bool_)
    mask = np.zeros(num_envs, dtype=np.bool_)
    mask[[env for env, _ in values]] = True
    return mask


def column_of(key: str, values: Entries, num_envs: int) -> Any:
    """One key's values, ordered by env, as a column for the whole fleet."""
    if key in OBJECTS:
        return _objects(values, num_envs)
    first = values[0][1]
    kinds = {type(value) for _, value in values}
    column = None
    if all(issubclass(kind, dict) for kind in kinds):
        return merge_infos(values, num_envs)
    if all(is_number(kind) for kind in kinds):
        column = _numbers(values, num_envs)
    elif all(issubclass(kind, np.ndarray) for kind in kinds):
        column = _arrays(values, num_envs)
    elif not isinstance(first, np.bool_) and all(_is_scalar(value) for _, value in values):
        column = _numbers(values, num_envs)
    return _objects(values, num_envs) if column is None else column


def is_number(kind: type) -> bool:
    """The types that Gymnasium opens a numeric column for; np.bool_ is not among them."""
    return kind in (int, float, bool) or issubclass(kind, np.number)


def _is_scalar(value: Any) -> bool:
    """What fits into a numeric column once another env has opened it."""
    if isinstance(value, np.ndarray):
        return value.ndim == 0 and value.dtype.kind in "biufc"
    return isinstance(value, np.bool_) or is_number(type(value))


def _numbers(values: Entries, num_envs: int) -> Array | None:
    """A numeric column, or None if no dtype holds every value unchanged."""
    dtypes = {_dtype(value) for _, value in values}
    try:
        column = np.zeros(num_envs, dtype=np.result_type(*dtypes))
        column[[env for env, _ in values]] = [value for _, value in values]
    except (OverflowError, TypeError):
        return None
    if len(dtypes) > 1 and not all(_same(column[env], value) for env, value in values):
        return None
    return column


def _arrays(values: Entries, num_envs: int) -> Array | None:
    """A column of equally shaped arrays, or None if no dtype holds every value unchanged."""
    first = values[0][1]
    if any(value.shape != first.shape for _, value in values):
        return None
    dtypes = {value.dtype for _, value in values}
    try:
        dtype = np.result_type(*dtypes) if len(dtypes) > 1 else first.dtype
    except TypeError:
        return None
    column = np.zeros((num_envs, *first.shape), dtype=dtype)
    for env, value in values:
        column[env] = value
    if len(dtypes) > 1 and not all(_same_array(column[env], value) for env, value in values):
        return None
    return column


def _dtype(value: Any) -> np.dtype[Any]:
    return value.dtype if isinstance(value, (np.generic, np.ndarray)) else np.dtype(type(value))


def _same(stored: Any, value: Any) -> bool:
    # Python compares a float and an int exactly; NumPy would round the int first.
    stored = stored.item()
    value = value.item() if isinstance(value, (np.generic, np.ndarray)) else value
    return bool(stored == value or (stored != stored and value != value))  # noqa: PLR0124 - NaN


def _same_array(stored: Array, value: Array) -> bool:
    if stored.dtype.kind not in "biufc" or value.dtype.kind not in "biufc":
        # Text of differing width is still text; anything else has been turned into another kind.
        return stored.dtype.kind == value.dtype.kind
    return all(_same(a, b) for a, b in zip(stored.flat, value.flat, strict=True))


def _objects(values: Entries, num_envs: int) -> Array:
    column = np.full(num_envs, fill_value=None, dtype=object)
    for env, value in values:
        column[env] = value
    return column
