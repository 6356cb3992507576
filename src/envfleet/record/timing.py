"""When frames are shown: how fast a game is, and delays that keep its speed as far as a GIF can."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

GIF_UNIT = 0.01
"""Seconds: the unit of a GIF's delays."""
GIF_LONGEST = 65535
"""Units: there is no room for more."""
GIF_SHORTEST = 2
"""Units: browsers show shorter delays as much longer ones."""
HELD = 1.0
"""Seconds that the last frame of a video is shown, so that one sees how it ended."""
DEFAULT_FPS = 30.0
ATARI_FPS = 60.0
"""Of the console. ALE's metadata says 30, whatever the frame skip."""
_SKIPS = {
    "AtariPreprocessing": "frame_skip",
    "MaxAndSkipObservation": "skip",
    "MaxAndSkipEnv": "skip",  # Stable-Baselines3's
}
"""Wrappers that take several steps of an env at once, and what they call the number."""
_USUAL_SKIP = 4
"""Of all of these wrappers, and of ALE."""


def natural_fps(metadata: Mapping[str, Any], spec: Any) -> float:
    """How many steps make a second of the game, from an env's metadata and its spec (or None)."""
    fps = float(metadata.get("render_fps") or DEFAULT_FPS)
    if spec is None:
        return fps
    if str(spec.entry_point).startswith("ale_py."):
        fps = ATARI_FPS / _mean(spec.kwargs.get("frameskip", _USUAL_SKIP))
    for wrapper in spec.additional_wrappers:
        if word := _SKIPS.get(wrapper.name):
            fps /= (wrapper.kwargs or {}).get(word, _USUAL_SKIP)
    return fps


def _mean(skip: int | tuple[int, int]) -> float:
    """The frames of a step; ALE draws them from a pair's range, the end excluded."""
    return skip if isinstance(skip, int) else (skip[0] + skip[1] - 1) / 2


def held_frames(fps: float) -> int:
    """For how many frames' time the last one is shown."""
    return max(1, round(HELD * fps))


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
