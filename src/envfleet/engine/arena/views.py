"""The arena as NumPy arrays: columns for the whole fleet or one shard, rows for one env."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from envfleet.engine.arena.layout import Column, Layout
from envfleet.engine.interrupts import raise_interrupt
from envfleet.engine.rules.spaces import Array, Leaf, Structure, StructureError, fit
from envfleet.errors import ObservationMismatch

Rows = slice | NDArray[np.intp]
"""Some rows: a slice where they are neighbours, for that takes a fraction of the time."""
EVERYBODY = slice(None)
"""All rows."""


def pick_rows(rows: Sequence[int]) -> Rows:
    """These rows, as they are picked quickest."""
    first, end = rows[0], rows[0] + len(rows)
    if rows[-1] + 1 == end and list(rows) == list(range(first, end)):
        return slice(first, end)
    return np.array(rows, dtype=np.intp)


@dataclass(frozen=True, slots=True)
class Views:
    """One array per column; row ``i`` belongs to env ``i`` of the fleet or shard."""

    observations: list[Array]
    final_observations: list[Array]
    actions: list[Array]
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    failed: NDArray[np.bool_]
    """Envs that raised in ``reset`` or ``step`` and have not been reset since."""
    asked: NDArray[np.uint64]
    """The number of the last step or reset that an env alone was asked for, shifted by one; the
    lowest bit says that the rest of it is on the wire. The caller's to write."""
    done: NDArray[np.uint64]
    """The number that the env has answered; equal to ``asked``, it hands the rows back."""
    stamps: NDArray[np.float64]
    """When that was, by ``time.perf_counter``, which processes on one machine share."""
    notes: NDArray[np.uint8]
    """What the env told beside its rows, pickled, where there is room for it (``NOTE`` bytes)."""
    note_sizes: NDArray[np.int64]
    """How many bytes of it there are."""

    def shard(self, envs: range) -> Views:
        """The rows of some envs, on the same memory."""
        rows = slice(envs.start, envs.stop)
        return Views(
            [column[rows] for column in self.observations],
            [column[rows] for column in self.final_observations],
            [column[rows] for column in self.actions],
            self.rewards[rows],
            self.terminated[rows],
            self.truncated[rows],
            self.failed[rows],
            self.asked[rows],
            self.done[rows],
            self.stamps[rows],
            self.notes[rows],
            self.note_sizes[rows],
        )

    def hand_back(self, rows: Rows, numbers: NDArray[np.uint64], stamp: float) -> None:
        """Say that these rows answer what their envs were asked with these numbers."""
        self.stamps[rows] = stamp
        self.done[rows] = numbers

    def with_own_observations(self, leaves: Sequence[Leaf], *, final: bool) -> Views:
        """The same views, but with observation columns in this process's own memory."""
        count = len(self.rewards)
        return replace(
            self,
            observations=_zeros(leaves, count),
            final_observations=_zeros(leaves, count) if final else [],
        )

    def detached(self) -> Views:
        """A copy of all but actions and final observations, in memory of their own."""
        return Views(
            [column.copy() for column in self.observations],
            [],
            [],
            self.rewards.copy(),
            self.terminated.copy(),
            self.truncated.copy(),
            self.failed.copy(),
            self.asked.copy(),
            self.done.copy(),
            self.stamps.copy(),
            self.notes.copy(),
            self.note_sizes.copy(),
        )


def shared_array(column: Column, memory: mmap.mmap) -> Array:
    """One column in mapped memory, which it keeps alive."""
    return np.ndarray(column.shape, column.dtype, buffer=memory, offset=column.offset)


def shared_views(layout: Layout, memory: mmap.mmap) -> Views:
    """Views on mapped memory, which they keep alive."""

    def view(column: Column) -> Array:
        return shared_array(column, memory)

    return Views(
        [view(column) for column in layout.observations],
        [view(column) for column in layout.final_observations],
        [view(column) for column in layout.actions],
        view(layout.rewards),
        view(layout.terminated),
        view(layout.truncated),
        view(layout.failed),
        view(layout.asked),
        view(layout.done),
        view(layout.stamps),
        view(layout.notes),
        view(layout.note_sizes),
    )


def private_views(
    count: int, observations: Sequence[Leaf], actions: Sequence[Leaf] = (), *, final: bool
) -> Views:
    """Views in this process's own memory."""
    terminated, truncated, failed = (np.zeros(count, dtype=np.bool_) for _ in range(3))
    asked, done = (np.zeros(count, dtype=np.uint64) for _ in range(2))
    empty = Views(
        observations=[],
        final_observations=[],
        actions=_zeros(actions, count),
        rewards=np.zeros(count),
        terminated=terminated,
        truncated=truncated,
        failed=failed,
        asked=asked,
        done=done,
        stamps=np.zeros(count),
        notes=np.zeros((count, 0), dtype=np.uint8),
        note_sizes=np.zeros(count, dtype=np.int64),
    )
    return empty.with_own_observations(observations, final=final)


def _zeros(leaves: Sequence[Leaf], count: int) -> list[Array]:
    return [np.zeros((count, *leaf.shape), dtype=leaf.dtype) for leaf in leaves]


class ObservationWriter:
    """Copies observations of a shard's envs into their rows, and keeps the loose leaves' values."""

    def __init__(
        self, structure: Structure, columns: Sequence[Array], first: int, count: int
    ) -> None:
        self._structure = structure
        self._first = first
        fixed = iter(columns)
        self._places = [
            _LeafColumn(next(fixed), leaf) if leaf.fixed else None for leaf in structure.leaves
        ]
        self.loose: list[list[Any]] = [structure.blank_loose()] * count
        """Per env the current values of the loose leaves, in their order."""

    def write(self, i: int, observation: Any) -> None:
        """Record the observation of env ``i`` of the shard.

        Raises:
            ObservationMismatch: it does not have the structure, shapes or kinds of its space.
        """
        try:
            values = self._structure.split(observation)
        except StructureError as error:
            raise ObservationMismatch(self._first + i, error.path, error.problem) from None
        loose = []
        for place, value in zip(self._places, values, strict=True):
            if place is None:
                loose.append(value)
                continue
            try:
                place.write(i, value)
            except (TypeError, ValueError, OverflowError) as problem:
                raise_interrupt(problem)
                env, path = self._first + i, place.leaf.path
                raise ObservationMismatch(env, path, str(problem)) from None
        self.loose[i] = loose

    def write_all(self, observations: Sequence[Any], rows: Rows = EVERYBODY) -> bool:
        """Record the observations of all envs, or of these rows, if each is what its space says.

        False means that at least one needs ``write``; nothing can be said about the rows then.
        """
        if self._structure.loose:
            return False
        try:
            if self._structure.flat:
                return self._places[0].write_all(observations, rows)  # type: ignore[union-attr]
            columns = self._structure.columns(observations)
            return all(
                place is not None and place.write_all(values, rows)
                for place, values in zip(self._places, columns, strict=True)
            )
        except Exception as error:  # noqa: BLE001 - ``write`` finds out whose it is
            raise_interrupt(error)
            return False


class _LeafColumn:
    """One fixed leaf of all envs of a shard."""

    def __init__(self, column: Array, leaf: Leaf) -> None:
        count = len(column)
        self.leaf = leaf
        self._column = column
        self._rows = [column[i, ...] for i in range(count)]
        # What a scalar integer leaf takes without a closer look.
        bits = 8 * leaf.dtype.itemsize - 1
        signed = leaf.dtype.kind == "i" and not leaf.shape
        self._integers = range(-(2**bits), 2**bits) if signed else range(0)
        # Any number may become a float; that an integer fits, only ``fit`` can tell.
        self._casting: Literal["same_kind", "no"] = "same_kind" if leaf.dtype.kind == "f" else "no"
        self._lengths: list[int] = []
        if leaf.shape:
            self._lengths = [leaf.shape[0]] * count
            # The rows end to end along their first axis, as np.concatenate lays them.
            self._joined = column.reshape(count * leaf.shape[0], *leaf.shape[1:])

    def write(self, i: int, value: Any) -> None:
        leaf = self.leaf
        if value.__class__ is int and value in self._integers:
            self._rows[i][...] = value
        elif hasattr(value, "write_into") and self._suits(value):
            value.write_into(self._rows[i])
        else:
            self._rows[i][...] = fit(value, leaf.shape, leaf.dtype)

    def write_all(self, values: Sequence[Any], rows: Rows = EVERYBODY) -> bool:
        """Copy arrays that all have the leaf's shape; raises TypeError or ValueError if not.

        np.concatenate compares kinds and all axes but the first, and costs half of one copy per
        row (0.13 us against 0.26 us per env). What writes itself into a row is not joined first.
        """
        if values[0].__class__ is not np.ndarray and hasattr(values[0], "write_into"):
            if isinstance(rows, slice):
                places = self._rows[rows]
            else:
                places = [self._rows[i] for i in rows.tolist()]
            for row, value in zip(places, values, strict=True):
                if not self._suits(value):
                    return False
                value.write_into(row)
            return True
        if list(map(len, values)) != self._lengths[: len(values)]:
            return False
        if rows is EVERYBODY:
            np.concatenate(values, out=self._joined, casting=self._casting)
        elif isinstance(rows, slice):
            height = self._lengths[0]
            joined = self._joined[rows.start * height : rows.stop * height]
            np.concatenate(values, out=joined, casting=self._casting)
        else:
            joined = np.concatenate(values, dtype=self.leaf.dtype, casting=self._casting)
            self._column[rows] = joined.reshape(len(rows), *self.leaf.shape)
        return True

    def _suits(self, value: Any) -> bool:
        """Whether a value that may write itself is just what the leaf says.

        Such a value has ``shape``, ``dtype`` and ``write_into(row)``: it looks like an array but is
        in parts, as ``envfleet.envs.LazyFrames`` are.
        """
        leaf = self.leaf
        return bool(value.shape == leaf.shape and value.dtype == leaf.dtype)
