"""Statistics: runs grouped by config, interquartile means, bootstrap intervals, shared steps."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.report.reading import Column, RunData

SEED = "seed"
_NO_MATTER = (SEED, "keep", "record_every", "video_length", "video_scale", "video_skip")
"""What runs of one group may differ in: how many checkpoints and videos they keep, and the seed."""
RESAMPLES, CONFIDENCE = 10_000, 0.95
_ROWS_AT_ONCE = 1_000_000


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seeds only."""

    name: str
    """What it has that other groups have not, else the env's id."""
    runs: tuple[RunData, ...]


@dataclass(frozen=True)
class Interval:
    """An estimate, and the bootstrap interval around it; NaN where one run cannot tell."""

    estimate: float
    low: float
    high: float


def settings(run: RunData) -> dict[str, Any]:
    """The config and the options of a run, under one name each."""
    return {**run.options, **run.config}


def group_runs(runs: Sequence[RunData]) -> list[Group]:
    """Groups in the order of their first runs."""
    grouped: dict[str, list[RunData]] = {}
    for run in runs:
        chosen = {k: v for k, v in settings(run).items() if k not in _NO_MATTER}
        key = json.dumps(chosen, sort_keys=True, default=str) if chosen else run.name
        grouped.setdefault(key, []).append(run)
    members = list(grouped.values())
    names = _names([group[0] for group in members])
    return [Group(name, tuple(group)) for name, group in zip(names, members, strict=True)]


def differing(runs: Sequence[RunData]) -> list[str]:
    """The settings that are not the same in all runs, besides the seed."""
    every = [settings(run) for run in runs]
    names = dict.fromkeys(name for told in every for name in told if name not in _NO_MATTER)
    return [n for n in names if len({json.dumps(t.get(n), default=str) for t in every}) > 1]


def _names(firsts: list[RunData]) -> list[str]:
    """Short names that tell groups apart."""
    if len(firsts) == 1:
        return [firsts[0].env_id]
    keys = sorted(differing(firsts), key=lambda key: key != "env_id")
    names = []
    for run in firsts:
        told = settings(run)
        parts = [
            str(told[key]) if key == "env_id" else f"{key}={told[key]}"
            for key in keys
            if key in told
        ]
        more = [f"and {len(parts) - 3} more"] if len(parts) > 3 else []
        names.append(", ".join(parts[:3] + more) or run.name)
    if len(set(names)) < len(names):
        return [f"{name} ({run.name})" for name, run in zip(names, firsts, strict=True)]
    return names


def iqm(values: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
    """The interquartile mean: the mean without the lowest and the highest quarter, rounded down.

    So it is ``scipy.stats.trim_mean(values, 0.25)``; of fewer than four values it is their mean.
    """
    values = np.sort(np.asarray(values, np.float64), axis=axis)
    n = values.shape[axis]
    cut = n // 4
    middle = np.take(values, range(cut, n - cut), axis=axis)
    return np.asarray(middle.mean(axis=axis), np.float64)


def iqm_interval(values: Sequence[float]) -> Interval:
    """The interquartile mean with its 95 % percentile bootstrap interval; the same on every call.

    One value has no interval, and none has no mean either.
    """
    known = np.array([value for value in values if math.isfinite(value)], np.float64)
    if len(known) == 0:
        return Interval(math.nan, math.nan, math.nan)
    if len(known) == 1:
        return Interval(float(known[0]), math.nan, math.nan)
    generator = np.random.default_rng(0)
    at_once = max(1, _ROWS_AT_ONCE // len(known))
    means = [
        iqm(known[generator.integers(0, len(known), (min(at_once, RESAMPLES - done), len(known)))])
        for done in range(0, RESAMPLES, at_once)
    ]
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(np.concatenate(means), [tail, 100 - tail])
    return Interval(float(iqm(known)), float(low), float(high))


def on_shared_steps(
    curves: Sequence[tuple[Column, Column]], points: int
) -> tuple[Column, NDArray[np.float64]]:
    """Curves (steps, values) on the same steps, as (steps, one row per curve).

    The curves' own steps if they agree and are few, else evenly spaced ones, linear in between. A
    curve is NaN before it begins and after it ends.
    """
    known = [(x[np.isfinite(y)], y[np.isfinite(y)]) for x, y in curves]
    steps = [x for x, _ in known if len(x)]
    if not steps:
        return np.empty(0), np.empty((len(known), 0))
    union = np.unique(np.concatenate(steps))
    if len(union) > points or any(len(x) != len(union) for x in steps):
        union = np.linspace(union[0], union[-1], min(points, max(len(x) for x in steps)))
    rows = [
        np.interp(union, x, y, left=np.nan, right=np.nan) if len(x) else np.full(len(union), np.nan)
        for x, y in known
    ]
    return union, np.array(rows)


def iqm_of_known(rows: NDArray[np.float64]) -> Column:
    """The interquartile mean of each column's numbers; NaN where there are none."""
    result = np.full(rows.shape[1], np.nan)
    counts = np.isfinite(rows).sum(0)
    for count in np.unique(counts[counts > 0]):
        columns = counts == count
        # NaN sorts last, so that the numbers come first.
        result[columns] = iqm(np.sort(rows[:, columns], axis=0)[:count], axis=0)
    return result
