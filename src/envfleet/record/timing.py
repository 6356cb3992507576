"""When frames are shown: strides and delays that keep a film's speed as far as a GIF can."""

from __future__ import annotations

import math

GIF_UNIT = 0.01
"""Seconds: the unit of a GIF's delays."""
GIF_LONGEST = 65535
"""Units: there is no room for more."""
GIF_SHORTEST = 2
"""Units: browsers show shorter delays as much longer ones."""


def gif_stride(fps: float) -> int:
    """Every how many frames a GIF can show one, so that none is too short."""
    return max(1, math.ceil(GIF_SHORTEST * GIF_UNIT * fps - 1e-9))


class GifClock:
    """Delays, in units of 10 ms, that are right on average and never below 20 ms."""

    def __init__(self, fps: float) -> None:
        if not fps > 0:
            raise ValueError(f"fps must be above 0, got {fps}")
        self._fps = fps
        self._shown_until = 0

    def delay(self, next_frame: int) -> int:
        """How long to show a frame if the one with this number comes after it."""
        until = max(round(next_frame / self._fps / GIF_UNIT), self._shown_until + GIF_SHORTEST)
        delay, self._shown_until = until - self._shown_until, until
        return min(delay, GIF_LONGEST)
