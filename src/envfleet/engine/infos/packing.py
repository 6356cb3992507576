"""A shard's infos in columns, for the way to the caller.

An env such as HalfCheetah gives the same numbers each step, and a few arrays travel and merge
faster than a dict per env. What comes out is what ``merge_infos`` makes of the same infos.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np

from envfleet.engine.infos.merging import OBJECTS, column_of, is_number
from envfleet.engine.rules.spaces import Array


class InfoBlock:
    """The infos of some envs with the same keys, a column per key.

    A column is an array of numbers of one type, or a list of what the envs gave.
    """

    __slots__ = ("columns", "env_ids", "native")

    def __init__(
        self,
        env_ids: Sequence[int],
        columns: Mapping[str, Array | list[Any]],
        native: frozenset[str],
    ) -> None:
        self.env_ids = env_ids
        self.columns = columns
        self.native = native
        """The keys whose numbers were Python's own."""

    def __reduce__(self) -> tuple[Any, ...]:
        return InfoBlock, (self.env_ids, self.columns, self.native)

    def infos(self) -> list[dict[str, Any]]:
        """What each env told, in new dicts."""
        keys = tuple(self.columns)
        if not keys:
            return [{} for _ in self.env_ids]
        return [
            dict(zip(keys, row, strict=True)) for row in zip(*map(self.values, keys), strict=True)
        ]

    def values(self, key: str) -> list[Any]:
        """The values of one key as the envs gave them."""
        column = self.columns[key]
        if isinstance(column, list):
            return column
        return column.tolist() if key in self.native else list(column)


class NumberBlock:
    """The infos of some envs with the same keys and nothing but numbers: a matrix, a row per env.

    ``kinds`` are the types of the keys' values; float64 holds all of them unchanged.
    """

    __slots__ = ("env_ids", "keys", "kinds", "matrix")

    def __init__(
        self,
        env_ids: Sequence[int],
        keys: tuple[str, ...],
        kinds: tuple[type, ...],
        matrix: Array,
    ) -> None:
        self.env_ids = env_ids
        self.keys = keys
        self.kinds = kinds
        self.matrix = matrix

    def __reduce__(self) -> tuple[Any, ...]:
        return _number_block, (self.env_ids, self.keys, self.kinds, self.matrix.tobytes())

    def infos(self) -> list[dict[str, Any]]:
        """What each env told, in new dicts."""
        columns = [
            column if kind is float else map(kind, column)
            for kind, column in zip(self.kinds, self.matrix.T.tolist(), strict=True)
        ]
        return [dict(zip(self.keys, row, strict=True)) for row in zip(*columns, strict=True)]

    def spread(self) -> InfoBlock:
        """The same infos in columns, each of its own type."""
        columns = {
            key: column.astype(kind)
            for key, column, kind in zip(self.keys, self.matrix.T, self.kinds, strict=True)
        }
        native = [key for key, kind in zip(self.keys, self.kinds, strict=True) if kind in _NATIVE]
        return InfoBlock(self.env_ids, columns, frozenset(native))


Block = InfoBlock | NumberBlock
Entry = tuple[int, dict[str, Any]]
"""An env and its info."""

_NATIVE = frozenset({float, int, bool})
_NUMBERS = frozenset({float, np.float64, np.float32, int, bool})
_FLOAT64 = frozenset({float, np.float64})
_EXACT = 2.0**53
"""Below it float64 holds every int."""


def _number_block(
    env_ids: Sequence[int],
    keys: tuple[str, ...],
    kinds: tuple[type, ...],
    flat: bytes | array[float],
) -> NumberBlock:
    matrix = np.frombuffer(flat).reshape(len(env_ids), len(keys))
    return NumberBlock(env_ids, keys, kinds, matrix)


def pack_infos(entries: Sequence[Entry]) -> list[Block]:
    """A shard's infos in blocks: one where all envs have the same keys, as they usually do."""
    if not entries:
        return []
    block = _pack_numbers(entries)
    if block is not None:
        return [block]
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        groups.setdefault(tuple(entry[1]), []).append(entry)
    return [_pack_group(keys, group) for keys, group in groups.items()]


def _pack_numbers(entries: Sequence[Entry]) -> NumberBlock | None:
    """All infos as one matrix, if they have the same keys and nothing but numbers that fit.

    Doing this info by info in the loop over the envs, while each is in the cache, was tried: 2 to
    3 % slower (HalfCheetah-v5, 64 envs), for every call then costs more than a miss.
    """
    first = entries[0][1]
    keys, kinds = tuple(first), tuple(map(type, first.values()))
    size = len(keys)
    if size < 2 or not _NUMBERS.issuperset(kinds) or not set(keys).isdisjoint(OBJECTS):
        return None  # itemgetter has no tuple for one key
    get = itemgetter(*keys)
    try:
        rows = [get(info) for _, info in entries if len(info) == size]
    except KeyError:
        return None
    if len(rows) != len(entries):
        return None
    values = list(chain.from_iterable(rows))
    if tuple(map(type, values)) != kinds * len(rows):
        return None
    try:
        # np.float64 is a float: array takes it as such, at a sixth of the time of np.array.
        flat = array("d", values)
    except OverflowError:
        return None
    if int in kinds and not all(-_EXACT < v < _EXACT for v in values if type(v) is int):
        return None
    return _number_block(_compact([env for env, _ in entries]), keys, kinds, flat)


def _compact(env_ids: list[int]) -> Sequence[int]:
    """The same numbers, as a range where they are neighbours."""
    first, last = env_ids[0], env_ids[-1]
    return range(first, last + 1) if last - first + 1 == len(env_ids) else env_ids


def _pack_group(keys: tuple[str, ...], group: list[Entry]) -> InfoBlock:
    rows = zip(*[info.values() for _, info in group], strict=True)
    columns: dict[str, Array | list[Any]] = {}
    native = []
    for key, values in zip(keys, rows, strict=False):
        kinds = set(map(type, values))
        plain = len(kinds) == 1 and key not in OBJECTS
        packed = _pack(kinds, values) if plain else None
        columns[key] = list(values) if packed is None else packed
        if packed is not None and kinds <= _NATIVE:
            native.append(key)
    return InfoBlock(_compact([env for env, _ in group]), columns, frozenset(native))


def _pack(kinds: set[type], values: tuple[Any, ...]) -> Array | None:
    """Numbers of one type as an array; None where they are something else."""
    (kind,) = kinds
    if kind is not float and not is_number(kind):
        return None
    try:
        packed = np.array(values)
    except OverflowError:
        return None
    return packed if packed.dtype == np.dtype(kind) and packed.ndim == 1 else None


def unpack_infos(blocks: Sequence[Block]) -> list[Entry]:
    """The infos that were packed, ordered by env; the dicts are new ones."""
    entries: list[Entry] = []
    for block in blocks:
        entries += zip(block.env_ids, block.infos(), strict=True)
    if len(blocks) > 1:
        entries.sort(key=itemgetter(0))
    return entries


def _spread(block: Block) -> InfoBlock:
    return block.spread() if isinstance(block, NumberBlock) else block


def join_infos(blocks: Sequence[Block], num_envs: int) -> dict[str, Any]:
    """What ``merge_infos`` makes of the same infos, by blocks."""
    joined = _join_numbers(blocks, num_envs)
    return _join([_spread(block) for block in blocks], num_envs) if joined is None else joined


def _join_numbers(blocks: Sequence[Block], num_envs: int) -> dict[str, Any] | None:
    """The infos of a fleet all of whose envs have the same keys and nothing but numbers."""
    numbers = [block for block in blocks if isinstance(block, NumberBlock)]
    if not numbers or len(numbers) != len(blocks):
        return None
    keys, kinds = numbers[0].keys, numbers[0].kinds
    if any(block.keys != keys or block.kinds != kinds for block in numbers):
        return None
    if sum(len(block.env_ids) for block in numbers) != num_envs:
        return None
    whole = np.empty((len(keys), num_envs))
    for block in numbers:
        whole[:, _rows(block.env_ids)] = block.matrix.T
    masks = np.ones((len(keys), num_envs), dtype=np.bool_)
    merged: dict[str, Any] = {}
    for key, kind, row, mask in zip(keys, kinds, whole, masks, strict=True):
        merged[key] = row if kind in _FLOAT64 else row.astype(kind)
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
            merged[key] = column_of(key, sorted(values, key=lambda entry: entry[0]), num_envs)
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
