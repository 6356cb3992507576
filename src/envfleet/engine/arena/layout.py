"""Where each column of the arena lies: offsets from shapes and dtypes, nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from envfleet.engine.arena.signals import WORDS
from envfleet.engine.infos.board import ROOM
from envfleet.engine.rules.spaces import Leaf

ALIGNMENT = 64
"""A cache line: no two columns share one."""
NOTE = 512
"""Bytes per env for what it tells beside its rows; the infos of Ant-v5 take 400."""


@dataclass(frozen=True, slots=True)
class Column:
    """One array of the arena: rows, usually one per env, at an offset."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class Layout:
    """Every column of the arena, and its size in bytes (never 0, which cannot be mapped)."""

    size: int
    observations: tuple[Column, ...]
    final_observations: tuple[Column, ...]
    actions: tuple[Column, ...]
    rewards: Column
    terminated: Column
    truncated: Column
    failed: Column
    infos: Column
    asked: Column
    done: Column
    stamps: Column
    notes: Column
    note_sizes: Column
    signals: Column
    """Not per env: a row for the caller and one per worker."""


def plan_layout(
    num_envs: int,
    observations: Sequence[Leaf],
    actions: Sequence[Leaf],
    *,
    final: bool,
    workers: int = 0,
) -> Layout:
    """Lay out the columns of ``num_envs`` envs with these fixed leaves, one behind the other.

    ``final`` adds columns for final observations, which only same-step autoreset needs.
    """
    end = 0

    def place(shape: tuple[int, ...], dtype: np.dtype[Any], rows: int = num_envs) -> Column:
        nonlocal end
        column = Column(end, (rows, *shape), dtype)
        size = math.prod(column.shape) * dtype.itemsize
        end += -(-size // ALIGNMENT) * ALIGNMENT
        return column

    def place_all(leaves: Sequence[Leaf]) -> tuple[Column, ...]:
        return tuple(place(leaf.shape, leaf.dtype) for leaf in leaves)

    signals = place((WORDS,), np.dtype(np.uint64), rows=workers + 1)
    rewards = place((), np.dtype(np.float64))
    terminated = place((), np.dtype(np.bool_))
    truncated = place((), np.dtype(np.bool_))
    failed = place((), np.dtype(np.bool_))
    infos = place((ROOM,), np.dtype(np.float64))
    asked, done = (place((), np.dtype(np.uint64)) for _ in range(2))
    stamps = place((), np.dtype(np.float64))
    notes, note_sizes = place((NOTE,), np.dtype(np.uint8)), place((), np.dtype(np.int64))
    columns = place_all(actions), place_all(observations), place_all(observations if final else ())
    return Layout(
        size=max(end, ALIGNMENT),
        actions=columns[0],
        observations=columns[1],
        final_observations=columns[2],
        rewards=rewards,
        terminated=terminated,
        truncated=truncated,
        failed=failed,
        infos=infos,
        asked=asked,
        done=done,
        stamps=stamps,
        notes=notes,
        note_sizes=note_sizes,
        signals=signals,
    )
