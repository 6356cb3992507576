"""Summary: the figures of one run that people ask for first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from envfleet.report.reading import RunData

RATE = "time/steps_per_second"
_ENOUGH_EPISODES = 100


@dataclass(frozen=True)
class Summary:
    """What a run has reached, and what it took; NaN where its files do not say."""

    run: RunData

    @cached_property
    def step(self) -> float:
        """The last one."""
        return self.run.last("step")

    @cached_property
    def best_return(self) -> float:
        """The highest mean return of any row."""
        values = self.run.column("return_mean")
        return math.nan if values is None else float(np.nanmax(values))

    @cached_property
    def parts(self) -> dict[str, float]:
        """Seconds by what they went into."""
        named = (n for n in self.run.columns if n.startswith("time/") and n != RATE)
        return {
            name.removeprefix("time/"): float(np.nansum(self.run.columns[name]))
            for name in named
            if self.run.column(name) is not None
        }

    @cached_property
    def seconds(self) -> float:
        """Of training."""
        return sum(self.parts.values()) if self.parts else math.nan

    @cached_property
    def rate(self) -> float:
        """Steps per second of the whole run."""
        if self.seconds > 0:
            return self.step / self.seconds
        values = self.run.column(RATE)
        return math.nan if values is None else float(np.nanmean(values))

    @cached_property
    def restarts(self) -> float:
        """Of all sessions; a run that was resumed counts from 0 again."""
        values = self.run.column("restarts")
        if values is None:
            return math.nan
        known = values[np.isfinite(values)]
        rises = np.diff(known, prepend=0.0)
        return float(np.where(rises < 0, known, rises).sum())

    @cached_property
    def status(self) -> str:
        """finished, solved, or how far it is; empty if the files do not say."""
        stop_at, total = self.run.options.get("stop_at"), self.run.config.get("total_steps")
        reached = (
            self.run.last("return_mean") if self.run.last("n") >= _ENOUGH_EPISODES else math.nan
        )
        if isinstance(stop_at, int | float) and reached >= stop_at:
            return f"solved (mean return of {_ENOUGH_EPISODES} episodes at least {stop_at:g})"
        if not isinstance(total, int | float) or total <= 0:
            return ""
        step = 0.0 if math.isnan(self.step) else self.step
        return "finished" if step >= total else f"{step / total:.0%} of {total:,.0f} steps"
