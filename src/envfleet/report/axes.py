"""Axes: where ticks stand, and numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from envfleet.rollout.numbers import three_digits

NONE = "\N{EN DASH}"
"""Stands where there is no number."""
_UNITS = ((1e9, "G"), (1e6, "M"), (1e4, "k"))
"""From which size on a unit is used; from 10,000 on thousands are written as k."""


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from ``low`` to ``high``, about so many."""
    size = 10.0 ** math.floor(math.log10((high - low) / about))

    def between(step: float) -> range:
        return range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)

    steps = [size * factor for factor in (1, 2, 2.5, 5, 10)]
    best = min(steps, key=lambda step: abs(len(between(step)) - about))
    return [best * i for i in between(best)]


def tick_labels(values: Sequence[float], *, percent: bool = False) -> list[str]:
    """One label per tick, all in the same unit."""
    if percent:
        return [f"{100 * value:.4g} %" for value in values]
    most = max((abs(value) for value in values), default=0.0)
    if 0 < most < 1e-3:
        return [f"{value:.3g}" if value else "0" for value in values]
    unit, letter = next((unit for unit in _UNITS if most >= unit[0]), (1.0, ""))
    unit = 1e3 if letter == "k" else unit
    return [f"{value / unit:.6g}{letter if value else ''}" for value in values]


def number(value: float) -> str:
    """A number with three digits; a dash where there is none."""
    return three_digits(value) if math.isfinite(value) else NONE


def count(value: float) -> str:
    """A whole number in full; a dash where there is none."""
    return f"{value:,.0f}" if math.isfinite(value) else NONE


def duration(seconds: float) -> str:
    """4.2 s, 3 min 20 s, 2 h 5 min."""
    if not math.isfinite(seconds):
        return NONE
    if seconds < 60:
        return f"{number(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min" if minutes else f"{hours:,} h"


def size(octets: int) -> str:
    """340 kB, 2.1 MB."""
    return f"{octets / 1e6:.1f} MB" if octets >= 1e6 else f"{math.ceil(octets / 1e3):,} kB"
