"""Several frames as one image, with gaps between them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from envfleet.record.frames import Frame

GREY = 64
"""Between and behind the frames: neither black nor white nor the greys of games run into it."""


def tile(frames: Sequence[Frame]) -> Frame:
    """Frames side by side in rows of about as many as there are rows; smaller ones are padded."""
    columns = math.ceil(math.sqrt(len(frames)))
    rows = math.ceil(len(frames) / columns)
    height = max(frame.shape[0] for frame in frames)
    width = max(frame.shape[1] for frame in frames)
    gap = gap_of(height, width)
    shape = rows * (height + gap) - gap, columns * (width + gap) - gap, 3
    image = np.full(shape, GREY, dtype=np.uint8)
    for i, frame in enumerate(frames):
        top, left = i // columns * (height + gap), i % columns * (width + gap)
        image[top : top + frame.shape[0], left : left + frame.shape[1]] = frame
    return image


def gap_of(height: int, width: int) -> int:
    """Pixels between two frames of this size."""
    return 2 + min(height, width) // 100
