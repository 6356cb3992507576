"""Inputs: observations as what networks are given: images of scaled pixels, and flat rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from envfleet.rollout.nested import ObservationFormat, Tree, tree_leaves

SMALLEST_IMAGE = 36
"""Pixels of a side: the Nature CNN fits on nothing smaller."""


class Leaf:
    """One leaf of an observation space, as columns of a network's input."""

    def __init__(self, space: Space[Any], path: str, stored: tuple[int, ...]) -> None:
        """``stored`` is the leaf's shape as ``ObservationFormat`` keeps it: channels first."""
        self.path = path
        self.shape = tuple(space.shape or ())
        self.stored = stored
        self.is_number = isinstance(space, spaces.Box)
        """Whether the columns measure something: categories and bits need no normalising."""
        self._is_pixels = _is_pixels(space)
        axes = (2, 3) if self._is_pixels else (3,)
        self.is_image = (
            self.is_number and len(stored) in axes and min(stored[-2:]) >= SMALLEST_IMAGE
        )
        """Whether convolutions are for it. Two axes are a grey image only if they hold bytes."""
        self._space = space
        self._categories: _Categories | None = None
        if isinstance(space, spaces.Discrete):
            self._categories = _Categories([int(space.n)], [int(space.start)])
        elif isinstance(space, spaces.MultiDiscrete):
            self._categories = _Categories(
                space.nvec.ravel().tolist(), space.start.ravel().tolist()
            )
        self.width = self._categories.width if self._categories else math.prod(self.shape)

    def floats(self, values: Tensor) -> Tensor:
        """The values in their own shape; pixels from 0 to 1."""
        return values.float() / 255.0 if self._is_pixels else values.float()

    def image(self, values: Tensor) -> Tensor:
        """The values as floats: (N, C, H, W), in memory (N, H, W, C).

        Convolutions on the CPU are a third faster on that layout (Nature CNN, 256 images).
        """
        images = self.floats(values)
        images = images[:, None] if images.ndim == 3 else images
        return images.contiguous(memory_format=torch.channels_last)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Channels, height and width."""
        return self.stored if len(self.stored) == 3 else (1, *self.stored)

    def rows(self, values: Tensor) -> Tensor:
        """A row of ``width`` columns for each observation.

        Raises:
            ValueError: a category is not in its space.
        """
        if self._categories is None:
            return self.floats(values).reshape(len(values), -1)
        try:
            return self._categories.one_hot(values)
        except ValueError as error:
            raise ValueError(f"observation{self.path} {error} of {self._space}.") from None


class _Categories:
    """Integers, so many of them in each observation, as one-hot columns side by side."""

    def __init__(self, counts: list[int], first: list[int]) -> None:
        self._counts, self._first = torch.tensor(counts), torch.tensor(first)
        self._offsets = self._counts.cumsum(0) - self._counts
        self.width = sum(counts)

    def one_hot(self, values: Tensor) -> Tensor:
        device, number = values.device, len(values)
        chosen = values.long().reshape(number, -1) - self._first.to(device)
        if bool(((chosen < 0) | (chosen >= self._counts.to(device))).any()):
            raise ValueError("has values outside")
        rows = torch.zeros(number, self.width, device=device)
        return rows.scatter_(1, chosen + self._offsets.to(device), 1.0)


class Inputs:
    """How a network sees the observations of a space, in the layout of ``ObservationFormat``.

    However they are nested, leaves that are images of at least 36x36 are seen as such, and all
    others as columns of one row. Each Discrete and each component of a MultiDiscrete becomes
    one-hot, as in ``gymnasium.spaces.flatten``. Bytes from 0 to 255 are divided by 255 if they are
    such an image; smaller grids mostly hold symbols (MiniGrid's go to 10, although its space says
    255) and stay as they are.
    """

    def __init__(self, space: Space[Any]) -> None:
        example = ObservationFormat(space, "auto").allocate(1)
        stored = [tuple(leaf.shape[1:]) for leaf in tree_leaves(example)]
        leaves = [
            Leaf(sub, path, shape)
            for (path, sub), shape in zip(_leaves(space, ""), stored, strict=True)
        ]
        self._images = [(i, leaf) for i, leaf in enumerate(leaves) if leaf.is_image]
        self._columns = [(i, leaf) for i, leaf in enumerate(leaves) if not leaf.is_image]
        self.image_shapes = [leaf.image_shape for _, leaf in self._images]
        """Channels, height and width of each image."""
        self.flattened = [leaf for _, leaf in self._columns]
        """The leaves that are in ``rows``."""
        bare = isinstance(example, Tensor) and isinstance(space, spaces.Box)
        self.is_plain = bare and example.ndim == 2 and example.dtype == torch.float32
        """Whether observations are rows of floats as they are."""
        self.width = sum(leaf.width for leaf in self.flattened)

    @property
    def are_numbers(self) -> Tensor:
        """For each column, whether it is worth normalising."""
        return torch.tensor([leaf.is_number for leaf in self.flattened for _ in range(leaf.width)])

    def images(self, observations: Tree) -> list[Tensor]:
        """The images as floats."""
        values = tree_leaves(observations)
        return [leaf.image(values[i]) for i, leaf in self._images]

    def rows(self, observations: Tree) -> Tensor:
        """All that are no images as rows of ``width`` floats."""
        values = tree_leaves(observations)
        parts = [leaf.rows(values[i]) for i, leaf in self._columns]
        if not parts:
            return torch.empty(len(values[0]), 0, device=values[0].device)
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _is_pixels(space: Space[Any]) -> bool:
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) < 2:
        return False
    large = sorted(space.shape)[-2] >= SMALLEST_IMAGE
    return large and int(space.low.min()) == 0 and int(space.high.max()) == 255


def _leaves(space: Space[Any], path: str) -> list[tuple[str, Space[Any]]]:
    """The leaves with their paths, in the order of ``tree_leaves``."""
    if isinstance(space, spaces.Dict):
        branches = [(f"{path}[{key!r}]", sub) for key, sub in space.spaces.items()]
    elif isinstance(space, spaces.Tuple):
        branches = [(f"{path}[{i}]", sub) for i, sub in enumerate(space.spaces)]
    else:
        return [(path, space)]
    return [leaf for where, sub in branches for leaf in _leaves(sub, where)]
