"""``envfleet bench``: every engine side by side, against the no-communication limit."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import gymnasium
import tyro

from envfleet.bench import chart, report
from envfleet.bench.contestants import NATIVE
from envfleet.bench.rounds import builders, measure_cell
from envfleet.bench.works import WORKS, factory, has_native


@dataclass
class Bench:
    """Measure engines side by side, in one run, interleaved; prints a table of medians.

    The limit is as many processes as there are cores, each looping over its share of the envs with
    no communication at all. In each cell rewards, ends and infos are compared with Gymnasium's.
    """

    works: Annotated[tuple[str, ...], tyro.conf.Positional] = ("CartPole-v1",)
    """Registered env ids, or Frame-210x160x3, Sleep-5ms, Breakout-84x84x4 (AtariEnv),
    Breakout-84x84x4-gymnasium (Gymnasium's own preprocessing)."""
    num_envs: tuple[int, ...] = (64,)
    """Fleet sizes; each work is measured with each."""
    rounds: int = 9
    """How often each engine takes its turn."""
    seconds: float = 0.8
    """How long a turn lasts."""
    engines: tuple[str, ...] = ()
    """Names of engines to measure; all by default (copy=False only when named, native where the env
    has such an implementation)."""
    peers: Path | None = None
    """A Python file with further engines (benchmarks/peers.py)."""
    json: Path | None = None
    """Write the figures here."""
    png: Path | None = None
    """Draw a chart here: lines for one work with three or more fleet sizes, else bars."""

    def run(self) -> int:
        """Measure; the exit code."""
        known = builders(self.peers)
        unknown = [name for name in self.engines if name not in known]
        if unknown:
            return _refuse(f"unknown engines {unknown}; known are {', '.join(known)}")
        if self.rounds < 1 or not self.seconds > 0 or min(self.num_envs, default=0) < 1:
            return _refuse("rounds and num-envs must be 1 or more, seconds above 0")
        for work in self.works:
            try:
                factory(work)
            except gymnasium.error.Error as error:
                return _refuse(f"{error} Works without an id: {', '.join(WORKS)}.")
        names = list(self.engines) or [name for name in known if "copy=False" not in name]
        cells: report.Cells = []
        for work in self.works:
            left_out = () if self.engines or has_native(work) else (NATIVE,)
            for num_envs in self.num_envs:
                results = measure_cell(
                    work,
                    num_envs,
                    [name for name in names if name not in left_out],
                    rounds=self.rounds,
                    seconds=self.seconds,
                    peers=self.peers,
                    tell=_tell,
                )
                cells.append(report.cell(work, num_envs, results))
                if self.json is not None:
                    how = {"rounds": self.rounds, "seconds": self.seconds}
                    report.write_json(self.json, cells, **how)
        _tell("")
        print(report.table(cells))  # noqa: T201 - it is what was asked for
        if self.png is not None:
            chart.draw(self.png, cells)
        wrong = [c for c in cells if any(r["agrees"] is False for r in c["engines"].values())]
        return 1 if wrong else 0


def _refuse(text: str) -> int:
    print(text, file=sys.stderr)  # noqa: T201
    return 2


def _tell(text: str) -> None:
    """What is going on, on one line of a terminal; nothing elsewhere."""
    if sys.stderr.isatty():
        print(f"\r{text:<78}", end="\r" if not text else "", file=sys.stderr, flush=True)  # noqa: T201
