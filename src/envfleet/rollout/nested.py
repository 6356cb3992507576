"""Nested observations as nested tensors: the Dicts and Tuples of a space, a tensor per leaf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import Space, spaces
from numpy.typing import NDArray

Tree = Any
"""A tensor or array, a dict of trees, or a tuple of trees."""

ChannelsFirst = bool | Literal["auto"]


def tree_map(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply a function to the leaves of equally nested trees."""
    if isinstance(tree, dict):
        return {key: tree_map(function, tree[key], *(o[key] for o in others)) for key in tree}
    if isinstance(tree, tuple):
        branches = zip(tree, *others, strict=True)
        return tuple(tree_map(function, *branch) for branch in branches)
    return function(tree, *others)


def tree_leaves(tree: Tree) -> list[Any]:
    """The leaves, in the tree's order."""
    found: list[Any] = []
    tree_map(found.append, tree)
    return found


def is_channels_last(shape: tuple[int, ...]) -> bool:
    """Whether an image's last axis is its channels and its first is not.

    Channels are 1, 3 or 4, or a multiple of 3 smaller than both other axes; (84, 84, 3) qualifies
    although 84 is a multiple of 3 too, and a (4, 84, 84) stack of grey frames does not.
    """

    def channels(axis: int) -> bool:
        size = shape[axis]
        others = [other for i, other in enumerate(shape) if i != axis % 3]
        return size in (1, 3, 4) or (size % 3 == 0 and size < min(others))

    return len(shape) == 3 and channels(-1) and not channels(0)


class _Leaf:
    """How the values of one leaf are stored."""

    def __init__(
        self,
        space: Space[Any],
        path: str,
        channels_first: ChannelsFirst,
        wanted: torch.dtype | None = None,
    ) -> None:
        fixed = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
        if not isinstance(space, fixed):
            raise TypeError(
                f"observations{path} of type {type(space).__name__} have no fixed shape and cannot "
                "be tensors: wrap the envs so that they become a Box, Discrete, MultiDiscrete or "
                "MultiBinary space, or a Dict or Tuple of such."
            )
        self.space_shape = shape = tuple(space.shape or ())
        image = isinstance(space, spaces.Box) and len(shape) == 3
        self.moves = image and (
            is_channels_last(shape) if channels_first == "auto" else channels_first
        )
        self.shape = (shape[2], shape[0], shape[1]) if self.moves else shape
        kind = np.dtype(space.dtype)
        tensor = torch.from_numpy(np.zeros(0, dtype=kind))
        own = torch.get_default_dtype() if kind == np.float64 else tensor.dtype
        self.dtype = own if wanted is None else wanted

    def arrange(self, batch: NDArray[Any]) -> NDArray[Any]:
        """A batch of values with the axes as they are stored; a view."""
        return np.moveaxis(batch, -1, 1) if self.moves else batch


class ObservationFormat:
    """How the observations of a space are stored as tensors.

    Each leaf keeps its dtype, uint8 images too; only float64 becomes torch's default dtype, which
    is that of the networks. With ``dtype`` all leaves have that one. Images get their channels
    first.
    """

    def __init__(
        self, space: Space[Any], channels_first: ChannelsFirst, dtype: torch.dtype | None = None
    ) -> None:
        if channels_first not in (True, False, "auto"):
            raise ValueError(f"channels_first must be True, False or 'auto', got {channels_first}")
        self._leaves = _leaves(space, "", channels_first, dtype)
        self._flat = self._leaves if isinstance(self._leaves, _Leaf) else None

    def allocate(self, *lead: int) -> Tree:
        """Tensors with these leading axes."""
        return tree_map(
            lambda leaf: torch.zeros(*lead, *leaf.shape, dtype=leaf.dtype), self._leaves
        )

    def write(self, rows: Tree, batch: Tree) -> None:
        """Copy a batch of observations, as an engine returns them, into arrays of their shape."""
        if self._flat is not None:
            rows[...] = self._flat.arrange(batch)
        else:
            tree_map(_copy, self._leaves, rows, batch)

    def tensors(self, batch: Tree) -> Tree:
        """A batch of observations as tensors of their own."""

        def convert(leaf: _Leaf, values: Any) -> torch.Tensor:
            array = np.ascontiguousarray(leaf.arrange(np.asarray(values)))
            return torch.tensor(array, dtype=leaf.dtype)

        return tree_map(convert, self._leaves, batch)

    def stack(self, observations: list[Tree]) -> Tree:
        """Single observations as one batch."""
        return tree_map(lambda *values: np.stack(values[1:]), self._leaves, *observations)

    @property
    def shapes(self) -> Tree:
        """The leaves' shapes in the space, of one observation, nested as it is."""
        return tree_map(lambda leaf: leaf.space_shape, self._leaves)

    @property
    def dtypes(self) -> list[torch.dtype]:
        """The leaves' dtypes."""
        return [leaf.dtype for leaf in tree_leaves(self._leaves)]


def _copy(leaf: _Leaf, rows: NDArray[Any], values: NDArray[Any]) -> None:
    rows[...] = leaf.arrange(values)


def _leaves(
    space: Space[Any], path: str, channels_first: ChannelsFirst, dtype: torch.dtype | None
) -> Tree:
    if isinstance(space, spaces.Dict):
        return {
            key: _leaves(sub, f"{path}[{key!r}]", channels_first, dtype)
            for key, sub in space.spaces.items()
        }
    if isinstance(space, spaces.Tuple):
        return tuple(
            _leaves(sub, f"{path}[{i}]", channels_first, dtype)
            for i, sub in enumerate(space.spaces)
        )
    return _Leaf(space, path, channels_first, dtype)
