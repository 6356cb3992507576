"""LazyFrames: a stack of frames that stays apart, so that stacks share the frames they have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class LazyFrames:
    """Frames that look like one array: joined along ``axis`` whenever they are read, never before.

    Nothing that is joined is kept, so a frame that is part of four observations is stored once,
    also after all four were read. ``shape``, ``dtype``, ``len`` and ``[]`` are those of the joined
    array; ``np.asarray(lazy)`` is that array, a new one each time, and belongs to the caller. Two
    LazyFrames are equal if their joined arrays are; beside an array ``==`` is NumPy's, element by
    element. Frames that are shared in memory are shared in a pickle too.

    Args:
        frames: arrays of one shape and dtype, the oldest first. They are kept, not copied: whoever
            writes into one changes every observation that it is part of.
        axis: along which they are joined, an axis that they have.

    Raises:
        ValueError: there are none, they differ in shape or dtype, or do not have the axis.
    """

    __slots__ = ("_axis", "_frames")
    __hash__ = None  # type: ignore[assignment]  # as arrays

    def __init__(self, frames: Sequence[NDArray[Any]], axis: int = -1) -> None:
        self._frames = tuple(frames)
        self._axis = axis
        if not self._frames:
            raise ValueError("LazyFrames needs at least one frame, got none")
        first = self._frames[0]
        for frame in self._frames:
            if frame is not first and (frame.shape != first.shape or frame.dtype != first.dtype):
                raise ValueError(
                    "frames must have one shape and dtype, got "
                    f"{first.shape} {first.dtype} and {frame.shape} {frame.dtype}"
                )
        if not -first.ndim <= axis < first.ndim:
            raise ValueError(f"axis {axis} is not one of frames of shape {first.shape}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the joined array."""
        shape = list(self._frames[0].shape)
        shape[self._axis] *= len(self._frames)
        return tuple(shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the frames, and so of the joined array."""
        return self._frames[0].dtype

    def frame(self, i: int) -> NDArray[Any]:
        """Frame ``i`` itself, not a copy; the oldest is 0, the latest -1."""
        return self._frames[i]

    def write_into(self, out: NDArray[Any]) -> None:
        """Copy the frames to their places in ``out``, which has this shape and dtype.

        This is how a fleet takes an observation: without an array in between.
        """
        np.concatenate(self._frames, axis=self._axis, out=out, casting="no")

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("LazyFrames are joined when they are read, which is a copy")
        joined = np.concatenate(self._frames, axis=self._axis)
        return joined if dtype is None else joined.astype(dtype, copy=False)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        return self.__array__()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.__array__())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LazyFrames):
            return NotImplemented
        if self.shape != other.shape or self.dtype != other.dtype:
            return False
        return np.array_equal(self.__array__(), other.__array__())

    def __reduce__(self) -> tuple[Any, ...]:
        return LazyFrames, (self._frames, self._axis)

    def __repr__(self) -> str:
        return f"LazyFrames({len(self._frames)} frames, shape={self.shape}, dtype={self.dtype})"
