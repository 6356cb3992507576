"""Frames: what envs render, as images of one kind."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Frame = NDArray[np.uint8]
"""Height, width, RGB."""


def as_frame(rendered: Any) -> Frame:
    """An image in memory of its own, from whatever an env renders.

    Grey images get three channels, a fourth is left out, floats up to 1 are scaled to 255.

    Raises:
        ValueError: it is no image.
    """
    if rendered is None:
        raise ValueError("an env rendered None, and no image")
    image = np.array(rendered)  # a copy: the env may draw the next one over it
    if image.ndim == 2:
        image = image[:, :, None]
    if image.ndim != 3 or image.shape[2] not in (1, 3, 4) or image.dtype.kind not in "buif":
        raise ValueError(
            f"an env rendered an array of shape {image.shape} and dtype {image.dtype}, which "
            "is no image: (height, width), or with 1, 3 or 4 channels, is"
        )
    if image.dtype.kind == "b" or (image.dtype.kind == "f" and image.max(initial=0) <= 1.0):
        image = image * 255.0
    if image.dtype != np.uint8:
        image = image.clip(0, 255).astype(np.uint8)
    if image.shape[2] == 1:
        image = np.repeat(image, 3, axis=2)
    return np.ascontiguousarray(image[:, :, :3])


def fit(frame: Frame, shape: tuple[int, ...]) -> Frame:
    """A frame in another one's size: cut off, or padded with black."""
    if frame.shape == shape:
        return frame
    fitted = np.zeros(shape, dtype=np.uint8)
    height, width = min(shape[0], frame.shape[0]), min(shape[1], frame.shape[1])
    fitted[:height, :width] = frame[:height, :width]
    return fitted
