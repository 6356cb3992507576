"""What is drawn on a frame before it is encoded: another size, and the return on a dark bar."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from envfleet.record.frames import Frame

SMALLEST = 11
"""Pixels: the size of a font that can still be read, in an MP4 too."""
WHITE = (255, 255, 255)
DARKNESS = 0.7
"""Of the bar: what is below shows through, and white text stands out from white."""

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def return_texts(value: float) -> tuple[str, ...]:
    """A return in words, the longest first: a small frame has room for a short one only."""
    return (f"Return: {value:.2f}", f"{value:.2f}", f"{value:.0f}", f"{value / 1000:.0f}k")


def prepare(frame: Frame, texts: Sequence[str], scale: float) -> Frame:
    """A frame in its final size with the first of the texts that fits; the frame itself stays.

    Where none fits there is no bar.
    """
    image = Image.fromarray(frame)
    if scale != 1.0:
        size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
        image = image.resize(size, Image.Resampling.BOX if scale < 1 else Image.Resampling.NEAREST)
    letters = max(SMALLEST, min(image.size) // 20)
    margin = letters // 3
    height = letters + 2 * (margin // 2)
    font = _font(letters)
    room = image.width - 2 * margin
    fitting = [text for text in texts if font.getlength(text) <= room]
    if fitting and height <= image.height:
        bar = image.crop((0, 0, image.width, height)).point(lambda value: value * (1 - DARKNESS))
        image.paste(bar)
        middle = margin, height / 2
        ImageDraw.Draw(image).text(middle, fitting[0], WHITE, font, anchor="lm")
    return np.asarray(image)


@functools.cache
def _font(size: int) -> Font:
    return ImageFont.load_default(size)
