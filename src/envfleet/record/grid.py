"""Several frames as one picture."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from envfleet.record.frames import Frame


def tile(frames: Sequence[Frame]) -> Frame:
    """Frames side by side in rows of about as many as there are rows; smaller ones are padded."""
    columns = math.ceil(math.sqrt(len(frames)))
    rows = math.ceil(len(frames) / columns)
    height = max(frame.shape[0] for frame in frames)
    width = max(frame.shape[1] for frame in frames)
    picture = np.zeros((rows * height, columns * width, 3), dtype=np.uint8)
    for i, frame in enumerate(frames):
        top, left = i // columns * height, i % columns * width
        picture[top : top + frame.shape[0], left : left + frame.shape[1]] = frame
    return picture
