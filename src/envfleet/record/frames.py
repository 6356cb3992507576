"""Frames: what envs render, as pictures of one kind."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Frame = NDArray[np.uint8]
"""Height, width, RGB."""


def as_frame(rendered: Any) -> Frame:
    """A picture in memory of its own, from whatever an env renders.

    Grey pictures get three channels, a fourth is left out, floats up to 1 are scaled to 255.

    Raises:
        ValueError: it is no picture.
    """
    if rendered is None:
        raise ValueError("an env rendered None, and no picture")
    picture = np.array(rendered)  # a copy: the env may draw the next one over it
    if picture.ndim == 2:
        picture = picture[:, :, None]
    if picture.ndim != 3 or picture.shape[2] not in (1, 3, 4) or picture.dtype.kind not in "buif":
        raise ValueError(
            f"an env rendered an array of shape {picture.shape} and dtype {picture.dtype}, which "
            "is no picture: (height, width), or with 1, 3 or 4 channels, is"
        )
    if picture.dtype.kind == "b" or (picture.dtype.kind == "f" and picture.max(initial=0) <= 1.0):
        picture = picture * 255.0
    if picture.dtype != np.uint8:
        picture = picture.clip(0, 255).astype(np.uint8)
    if picture.shape[2] == 1:
        picture = np.repeat(picture, 3, axis=2)
    return np.ascontiguousarray(picture[:, :, :3])


def fit(frame: Frame, shape: tuple[int, ...]) -> Frame:
    """A frame in another one's size: cut off, or padded with black."""
    if frame.shape == shape:
        return frame
    fitted = np.zeros(shape, dtype=np.uint8)
    height, width = min(shape[0], frame.shape[0]), min(shape[1], frame.shape[1])
    fitted[:height, :width] = frame[:height, :width]
    return fitted
