"""Curves: what a chart draws, from one run or from the seeds of a group, never too many points."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from envfleet.report.reading import Column, RunData
from envfleet.report.statistics import Group, iqm_of_known, on_shared_steps

POINTS = 600
"""Most points of a curve; a screen is hardly wider."""


@dataclass(frozen=True)
class Curve:
    """A line, and the band around it if there is one; NaN leaves a gap."""

    name: str
    x: Column
    y: Column
    low: Column | None = None
    high: Column | None = None
    band: str = ""
    """What the band is, in words."""
    colour: int = 0
    """Which of the page's; a group has the same in every chart."""


def of_run(run: RunData, key: str, name: str, band: tuple[str, str, str] | None = None) -> Curve:
    """A column of a run; ``band`` has the columns of its lower and upper end, and what it is."""
    values = run.columns[key]
    low = high = None
    words = ""
    if band is not None and run.column(band[0]) is not None and run.column(band[1]) is not None:
        low, high, words = run.columns[band[0]], run.columns[band[1]], band[2]
    first = int(np.argmax(np.isfinite(values)))
    low, high = (None if end is None else end[first:] for end in (low, high))
    return in_buckets(Curve(name, run.steps[first:], values[first:], low, high, words))


def of_group(group: Group, key: str) -> Curve:
    """A column of all runs of a group: the interquartile mean, and the seeds' range as band."""
    runs = [run for run in group.runs if run.column(key) is not None]
    if len(runs) == 1:
        return of_run(runs[0], key, group.name)
    curves = [in_buckets(Curve("", run.steps, run.columns[key])) for run in runs]
    x, rows = on_shared_steps([(curve.x, curve.y) for curve in curves], POINTS)
    known = np.isfinite(rows).any(0)
    x, rows = x[known], rows[:, known]
    low, high = np.nanmin(rows, axis=0), np.nanmax(rows, axis=0)
    words = f"lowest to highest of {len(runs)} runs"
    return Curve(group.name, x, iqm_of_known(rows), low, high, words)


def in_buckets(curve: Curve, points: int = POINTS) -> Curve:
    """A curve of at most so many points: means of buckets of rows, with their extremes as band.

    A spike stays visible however many rows there are. A band that the curve has becomes the lowest
    and the highest of the bucket.
    """
    n = len(curve.x)
    if n <= points:
        return curve
    starts = np.linspace(0, n, points, endpoint=False).astype(np.intp)
    low = curve.y if curve.low is None else curve.low
    high = curve.y if curve.high is None else curve.high
    known = np.isfinite(curve.y)
    counts = np.add.reduceat(known, starts, dtype=np.float64)
    sums = np.add.reduceat(np.where(known, curve.y, 0.0), starts)
    sizes = np.diff(np.append(starts, n))
    return replace(
        curve,
        x=np.add.reduceat(curve.x, starts) / sizes,
        y=np.divide(sums, counts, out=np.full(points, np.nan), where=counts > 0),
        low=np.fmin.reduceat(low, starts),
        high=np.fmax.reduceat(high, starts),
        band=curve.band or "lowest to highest of a bucket",
    )
