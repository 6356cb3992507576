"""The infos of many envs as one dict of arrays, as ``VectorEnv._add_info`` lays them out.

A key becomes an array with one row per env and a boolean mask ``_key`` of the envs that had it.
Dicts nest. Where the envs' values fit one array it is the array Gymnasium builds; where Gymnasium
would change a value to make it fit (or fail), the values decide: numbers get their common dtype if
that changes none of them, and everything else becomes an object array.

On the way to the caller the infos of a shard are packed in columns: an env such as HalfCheetah
gives the same numbers each step, and a few arrays travel and merge faster than a dict per env.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np

from envfleet.engine.rules.spaces import Array

Entries = Sequence[tuple[int, Any]]


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
        merged[key] = _column(key, values, num_envs)
        merged[f"_{key}"] = _mask(values, num_envs)
    return merged


def _mask(values: Entries, num_envs: int) -> Array:
    if len(values) == num_envs:
        return np.ones(num_envs, dtype=np.bool_)
    mask = np.zeros(num_envs, dtype=np.bool_)
    mask[[env for env, _ in values]] = True
    return mask


def _column(key: str, values: Entries, num_envs: int) -> Any:
    if key == "final_obs":
        return _objects(values, num_envs)
    first = values[0][1]
    kinds = {type(value) for _, value in values}
    column = None
    if all(issubclass(kind, dict) for kind in kinds):
        return merge_infos(values, num_envs)
    if all(_is_number(kind) for kind in kinds):
        column = _numbers(values, num_envs)
    elif all(issubclass(kind, np.ndarray) for kind in kinds):
        column = _arrays(values, num_envs)
    elif not isinstance(first, np.bool_) and all(_is_scalar(value) for _, value in values):
        column = _numbers(values, num_envs)
    return _objects(values, num_envs) if column is None else column


def _is_number(kind: type) -> bool:
    """The types that Gymnasium opens a numeric column for; np.bool_ is not among them."""
    return kind in (int, float, bool) or issubclass(kind, np.number)


def _is_scalar(value: Any) -> bool:
    """What fits into a numeric column once another env has opened it."""
    if isinstance(value, np.ndarray):
        return value.ndim == 0 and value.dtype.kind in "biufc"
    return isinstance(value, np.bool_) or _is_number(type(value))


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


class InfoBlock:
    """The infos of some envs with the same keys, a column per key.

    Where all values are floats they are one matrix, a row per key; elsewhere a column is an array
    of numbers of one type, or a list of what the envs gave.
    """

    __slots__ = ("columns", "env_ids", "matrix", "native")

    def __init__(
        self,
        env_ids: Sequence[int],
        columns: Mapping[str, Array | list[Any]],
        native: frozenset[str],
        matrix: Array | None = None,
    ) -> None:
        self.env_ids = env_ids
        self.columns = columns
        self.native = native
        """The keys whose numbers were Python's own."""
        self.matrix = matrix

    def __reduce__(self) -> tuple[Any, ...]:
        if self.matrix is None:
            return InfoBlock, (self.env_ids, self.columns, self.native)
        flat = self.matrix.tobytes()
        return _float_block, (self.env_ids, tuple(self.columns), bool(self.native), flat)

    def values(self, key: str) -> list[Any]:
        """The values of one key as the envs gave them."""
        column = self.columns[key]
        if isinstance(column, list):
            return column
        return column.tolist() if key in self.native else list(column)


def _float_block(
    env_ids: Sequence[int], keys: tuple[str, ...], native: bool, flat: bytes | array[float]
) -> InfoBlock:
    matrix = np.frombuffer(flat).reshape(len(keys), len(env_ids))
    columns = dict(zip(keys, matrix, strict=True))
    return InfoBlock(env_ids, columns, frozenset(keys) if native else frozenset(), matrix)


def pack_infos(entries: Sequence[tuple[int, dict[str, Any]]]) -> list[InfoBlock]:
    """A shard's infos in blocks: one where all envs have the same keys, as they usually do."""
    if not entries:
        return []
    block = _pack_floats(entries)
    if block is not None:
        return [block]
    groups: dict[tuple[str, ...], list[tuple[int, dict[str, Any]]]] = {}
    for entry in entries:
        groups.setdefault(tuple(entry[1]), []).append(entry)
    return [_pack_group(keys, group) for keys, group in groups.items()]


def _pack_floats(entries: Sequence[tuple[int, dict[str, Any]]]) -> InfoBlock | None:
    """All infos as one matrix, if they have the same keys and nothing but floats."""
    keys = tuple(entries[0][1])
    size = len(keys)
    if size < 2 or "final_obs" in keys:  # itemgetter has no tuple for one key
        return None
    get = itemgetter(*keys)
    try:
        rows = [get(info) for _, info in entries if len(info) == size]
    except KeyError:
        return None
    if len(rows) != len(entries):
        return None
    kinds = set(map(type, chain.from_iterable(rows)))
    if kinds not in ({float}, {np.float64}):
        return None
    # np.float64 is a float: array takes it as such, at a sixth of the time of np.array.
    flat = array("d", chain.from_iterable(zip(*rows, strict=True)))
    return _float_block(_compact([env for env, _ in entries]), keys, kinds == {float}, flat)


def _compact(env_ids: list[int]) -> Sequence[int]:
    """The same numbers, as a range where they are neighbours."""
    first, last = env_ids[0], env_ids[-1]
    return range(first, last + 1) if last - first + 1 == len(env_ids) else env_ids


def _pack_group(keys: tuple[str, ...], group: list[tuple[int, dict[str, Any]]]) -> InfoBlock:
    rows = zip(*[info.values() for _, info in group], strict=True)
    columns: dict[str, Array | list[Any]] = {}
    native = []
    for key, values in zip(keys, rows, strict=False):
        kinds = set(map(type, values))
        plain = len(kinds) == 1 and key != "final_obs"
        packed = _pack(kinds, values) if plain else None
        columns[key] = list(values) if packed is None else packed
        if packed is not None and kinds <= _NATIVE:
            native.append(key)
    return InfoBlock(_compact([env for env, _ in group]), columns, frozenset(native))


_NATIVE = frozenset({float, int, bool})


def _pack(kinds: set[type], values: tuple[Any, ...]) -> Array | None:
    """Numbers of one type as an array; None where they are something else."""
    (kind,) = kinds
    if kind is not float and not _is_number(kind):
        return None
    try:
        packed = np.array(values)
    except OverflowError:
        return None
    return packed if packed.dtype == np.dtype(kind) and packed.ndim == 1 else None


def unpack_infos(blocks: Sequence[InfoBlock]) -> list[tuple[int, dict[str, Any]]]:
    """The infos that were packed, ordered by env."""
    entries = []
    for block in blocks:
        columns = [block.values(key) for key in block.columns]
        for i, env in enumerate(block.env_ids):
            info = {key: column[i] for key, column in zip(block.columns, columns, strict=True)}
            entries.append((env, info))
    return sorted(entries, key=lambda entry: entry[0])


def join_infos(blocks: Sequence[InfoBlock], num_envs: int) -> dict[str, Any]:
    """What ``merge_infos`` makes of the same infos, by blocks."""
    joined = _join_floats(blocks, num_envs)
    return _join(blocks, num_envs) if joined is None else joined


def _join_floats(blocks: Sequence[InfoBlock], num_envs: int) -> dict[str, Any] | None:
    """The infos of a fleet all of whose envs have the same keys and nothing but floats."""
    if not blocks or sum(len(block.env_ids) for block in blocks) != num_envs:
        return None
    keys = list(blocks[0].columns)
    whole = np.empty((len(keys), num_envs))
    for block in blocks:
        if block.matrix is None or list(block.columns) != keys:
            return None
        whole[:, _rows(block.env_ids)] = block.matrix
    masks = np.ones((len(keys), num_envs), dtype=np.bool_)
    merged: dict[str, Any] = {}
    for key, row, mask in zip(keys, whole, masks, strict=True):
        merged[key] = row
        merged[f"_{key}"] = mask
    return merged


def _join(blocks: Sequence[InfoBlock], num_envs: int) -> dict[str, Any]:
    holders: dict[str, list[InfoBlock]] = {}
    for block in blocks:
        for key in block.columns:
            holders.setdefault(key, []).append(block)
    rows = {id(block): _rows(block.env_ids) for block in blocks}
    merged: dict[str, Any] = {}
    for key, having in holders.items():
        columns = [block.columns[key] for block in having]
        kinds = {column.dtype if isinstance(column, np.ndarray) else None for column in columns}
        if len(kinds) == 1 and None not in kinds:
            (dtype,) = kinds
            joined = np.zeros(num_envs, dtype=dtype)
            for block, column in zip(having, columns, strict=True):
                joined[rows[id(block)]] = column
            merged[key] = joined
        else:
            values = [v for b in having for v in zip(b.env_ids, b.values(key), strict=True)]
            merged[key] = _column(key, sorted(values, key=lambda entry: entry[0]), num_envs)
        mask = np.zeros(num_envs, dtype=np.bool_)
        for block in having:
            mask[rows[id(block)]] = True
        merged[f"_{key}"] = mask
    return merged


def _rows(env_ids: Sequence[int]) -> slice | list[int]:
    """A slice where the envs are neighbours: it costs a tenth of a list."""
    if isinstance(env_ids, range):
        return slice(env_ids.start, env_ids.stop)
    return list(env_ids)
