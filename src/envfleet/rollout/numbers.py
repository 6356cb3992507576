"""Measured numbers as people read them: three significant digits."""

from __future__ import annotations

import math


def three_digits(value: float) -> str:
    """12.3, 1,230, 0.00123; whole numbers below 1,000 as they are."""
    if not math.isfinite(value) or value == 0:
        return f"{value + 0.0:.0f}"  # no "-0"
    if abs(value) < 1e-4:
        return f"{value:.2e}"
    rounded = float(f"{value:.2e}")
    if value == int(value):
        return f"{rounded:,.0f}"
    return f"{rounded:,.{max(0, 2 - math.floor(math.log10(abs(rounded))))}f}"
