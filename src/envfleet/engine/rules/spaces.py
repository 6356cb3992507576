"""A Gymnasium space as leaves, and the way between nested values and leaf columns.

A *fixed* leaf (Box, Discrete, MultiDiscrete, MultiBinary) has a shape and a dtype and can live in
the arena. A *loose* leaf (Text, Sequence, Graph, OneOf, a custom space) has neither: its values
travel as they are. Dict and Tuple are the branches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

# A branch maps keys or positions to subtrees; a leaf is its number in ``Structure.leaves``.
Tree: TypeAlias = "int | dict[Any, Tree] | tuple[Tree, ...]"

_FIXED = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
_LOOSE = (spaces.Text, spaces.Sequence, spaces.Graph, spaces.OneOf)


_OBJECT = np.dtype(object)


@dataclass(frozen=True)
class Leaf:
    """One leaf of a space: where it is, and what its values look like."""

    path: str
    """``['camera'][0]``; empty when the whole space is one leaf."""
    space: Space[Any]
    fixed: bool
    shape: tuple[int, ...] = ()
    dtype: np.dtype[Any] = _OBJECT

    @property
    def scalar(self) -> bool:
        """Whether its values are numbers and not arrays."""
        return isinstance(self.space, spaces.Discrete)

    def batch(self, values: tuple[Any, ...]) -> Any:
        """The batch of a loose leaf's values: what is registered for a custom space, or a tuple."""
        if not self.custom:
            return values
        out: Any = create_empty_array(self.space, n=len(values))
        return concatenate(self.space, values, out)

    @property
    def custom(self) -> bool:
        """Whether Gymnasium has no idea what this space is."""
        return not isinstance(self.space, (*_FIXED, *_LOOSE))


def same_space(one: Space[Any], other: Space[Any]) -> bool:
    """Whether two envs have the same space.

    A custom class without ``__eq__`` would have each space equal to itself alone, and to no copy in
    another process: its spaces count as the same.
    """
    if one == other:
        return True
    if isinstance(one, spaces.Dict) and isinstance(other, spaces.Dict):
        return one.spaces.keys() == other.spaces.keys() and all(
            same_space(space, other.spaces[key]) for key, space in one.spaces.items()
        )
    if isinstance(one, spaces.Tuple) and isinstance(other, spaces.Tuple):
        return len(one.spaces) == len(other.spaces) and all(
            map(same_space, one.spaces, other.spaces)
        )
    return type(one) is type(other) and type(one).__eq__ is object.__eq__


class Structure:
    """The shape of the nested values of one space."""

    leaves: tuple[Leaf, ...]

    def __init__(self, space: Space[Any]) -> None:
        found: list[Leaf] = []
        self.tree = _plan(space, "", found)
        self.leaves = tuple(found)
        self.fixed = tuple(leaf for leaf in found if leaf.fixed)
        self.loose = tuple(leaf for leaf in found if not leaf.fixed)
        self.objects = tuple(k for k, leaf in enumerate(found) if leaf.scalar or not leaf.fixed)
        """The numbers of the leaves whose values are no arrays."""
        self.flat = self.tree == 0 and self.leaves[0].fixed
        """Whether the space is a single fixed leaf, the common case with short cuts."""

    def split(self, value: Any) -> list[Any]:
        """The leaf values of one nested value.

        Raises:
            StructureError: a branch is not what the space says: its keys, its length.
        """
        out: list[Any] = []
        _split(self.tree, value, "", out)
        return out

    def columns(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        """The leaf values of many nested values, leaf by leaf; raises as ``split``."""
        return list(zip(*[self.split(value) for value in values], strict=True))

    def blank_loose(self) -> list[Any]:
        """What Gymnasium shows for the loose leaves of an env that was never reset."""
        blanks: list[Any] = [create_empty_array(leaf.space, n=1) for leaf in self.loose]
        return [None if blank is None else blank[0] for blank in blanks]

    def join(self, values: Sequence[Any]) -> Any:
        """The nested value of these leaf values (or the nested batch of these leaf columns)."""
        return _join(self.tree, values)

    def rows(self, columns: Sequence[Any]) -> Iterable[Any]:
        """One nested value per row of the leaf columns.

        A scalar leaf's value is a NumPy scalar, another leaf's a view of its row.
        """
        return cast("Array", columns[0]) if self.flat else _rows(self.tree, columns)


class StructureError(ValueError):
    """A nested value has other branches than its space; ``path`` says where."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path, self.problem = path, problem

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"


def fit(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """``value`` as an array of exactly this shape and dtype; never broadcast, never truncated.

    Integers fit any integer dtype that can hold their values; any number fits a float dtype, in
    that dtype's precision. May return ``value`` itself or a view of it.

    Raises:
        ValueError: another shape, or an integer that the dtype cannot hold.
        TypeError: another kind, such as floats for an integer leaf.
    """
    array = np.asarray(value)
    if array.shape != shape:
        raise ValueError(f"has shape {array.shape}, its space says {shape}")
    if array.dtype == dtype:
        return array
    kind = array.dtype.kind
    if dtype.kind == "f" and kind in "buif":
        return array.astype(dtype)
    if dtype.kind in "bui" and kind in "bui":
        cast = array.astype(dtype)
        if not np.array_equal(cast, array):
            raise ValueError(f"has values that do not fit {dtype}")
        return cast
    if dtype.kind in "iu" and not isinstance(value, np.ndarray):
        # NumPy makes floats or objects of Python integers beyond int64; they may fit all the same.
        exact = np.asarray(value, dtype=object)
        if all(isinstance(item, int) for item in exact.flat):
            try:
                return exact.astype(dtype)
            except OverflowError:
                raise ValueError(f"has values that do not fit {dtype}") from None
    raise TypeError(f"has dtype {array.dtype}, its space says {dtype}")


def row_bytes(structure: Structure) -> int:
    """The bytes of one nested value's fixed leaves."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in structure.fixed)


def _plan(space: Space[Any], path: str, found: list[Leaf]) -> Tree:
    if isinstance(space, spaces.Dict):
        return {k: _plan(sub, f"{path}[{k!r}]", found) for k, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_plan(sub, f"{path}[{i}]", found) for i, sub in enumerate(space.spaces))
    if isinstance(space, _FIXED):
        # Gymnasium types both as optional; these four always have them.
        shape, dtype = tuple(space.shape or ()), np.dtype(space.dtype)
        found.append(Leaf(path, space, fixed=True, shape=shape, dtype=dtype))
    else:
        found.append(Leaf(path, space, fixed=False))
    return len(found) - 1


def _split(tree: Tree, value: Any, path: str, out: list[Any]) -> None:
    if isinstance(tree, int):
        out.append(value)
    elif isinstance(tree, dict):
        if not isinstance(value, Mapping):
            raise StructureError(path, f"is a {type(value).__name__}, its space says Dict")
        if value.keys() != tree.keys():
            missing = sorted(map(str, tree.keys() - value.keys()))
            extra = sorted(map(str, value.keys() - tree.keys()))
            raise StructureError(path, f"misses keys {missing}, has unknown keys {extra}")
        for key, branch in tree.items():
            _split(branch, value[key], f"{path}[{key!r}]", out)
    else:
        if not isinstance(value, (tuple, list, np.ndarray)) or (
            isinstance(value, np.ndarray) and value.ndim == 0
        ):
            raise StructureError(path, f"is a {type(value).__name__}, its space says Tuple")
        if len(value) != len(tree):
            raise StructureError(path, f"has {len(value)} parts, its space says {len(tree)}")
        for i, branch in enumerate(tree):
            _split(branch, value[i], f"{path}[{i}]", out)


def _join(tree: Tree, values: Sequence[Any]) -> Any:
    if isinstance(tree, int):
        return values[tree]
    if isinstance(tree, dict):
        return {key: _join(branch, values) for key, branch in tree.items()}
    return tuple(_join(branch, values) for branch in tree)


def _rows(tree: Tree, columns: Sequence[Any]) -> list[Any]:
    if isinstance(tree, int):
        return list(columns[tree])
    if isinstance(tree, dict):
        parts = [_rows(branch, columns) for branch in tree.values()]
        return [dict(zip(tree, row, strict=True)) for row in zip(*parts, strict=True)]
    return list(zip(*[_rows(branch, columns) for branch in tree], strict=True))
