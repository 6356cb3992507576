"""What is drawn on a frame before it is encoded: a line of text, another size."""

from __future__ import annotations

import functools

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from envfleet.record.frames import Frame

GREEN = (0, 204, 102)
BLACK = (0, 0, 0)


@functools.cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def prepare(frame: Frame, text: str, scale: float) -> Frame:
    """A frame in its final size, with a text in its upper left corner; the frame itself stays."""
    image = Image.fromarray(frame)
    if scale != 1.0:
        size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
        image = image.resize(size, Image.Resampling.BOX if scale < 1 else Image.Resampling.NEAREST)
    if text:
        height = max(10, image.height // 20)
        place = (image.width // 40, image.height // 40)
        edge = max(1, height // 12)
        ImageDraw.Draw(image).text(
            place, text, GREEN, _font(height), stroke_width=edge, stroke_fill=BLACK
        )
    return np.asarray(image)
