"""``envfleet bench``: every engine beside the no-communication limit, and why a fleet is slow."""

from __future__ import annotations

import ast
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from envfleet.bench import chart, report
from envfleet.bench.contestants import NATIVE
from envfleet.bench.diagnosis import Diagnosis, Patient
from envfleet.bench.neighbours import busy_loops
from envfleet.bench.rounds import builders, measure_cell
from envfleet.bench.seats import Seat
from envfleet.bench.words import why as in_words
from envfleet.bench.works import WORKS, factory, has_native
from envfleet.training.envs import UnknownEnvError

AUTO = "envfleet auto"
"""The contestant that is looked into."""


@dataclass
class Bench:
    """Measure engines side by side, in one run, interleaved, and say why a fleet is slow.

    Prints a table of medians. The limit is as many processes as there are cores (as envs, where
    these wait), each looping over its share of the envs with no communication at all; large
    observations are copied once. Steps are counted as Gymnasium's benchmark_vector_step does: a row
    that only says that an env was reset is none. In each cell rewards, ends and infos are compared
    with Gymnasium's.

    Then: where the time of a fleet as make() builds it goes, and what would help most, tried.
    """

    works: Annotated[tuple[str, ...], tyro.conf.Positional] = ("CartPole-v1",)
    """Env ids that Gymnasium knows, module:callable, or Frame-210x160x3, Sleep-5ms,
    Breakout-84x84x4 (AtariEnv), Breakout-84x84x4-gymnasium (Gymnasium's own preprocessing)."""
    num_envs: tuple[int, ...] = (64,)
    """Fleet sizes; each work is measured with each."""
    rounds: int = 9
    """How often each engine takes its turn."""
    seconds: float = 0.8
    """How long a turn lasts."""
    engines: tuple[str, ...] = ()
    """Names of engines to measure; all by default (copy=False only when named, native where the env
    has such an implementation)."""
    why: bool = False
    """Measure no engines: only say why the fleet is slow."""
    fleet: tuple[str, ...] = ()
    """How to make the fleet that is looked into, as in: backend=process workers=4 copy=False. What
    is no option of make() is the env's."""
    busy: int = 0
    """So many busy loops run beside it, as on a machine that others use too."""
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
        if self.busy < 0:
            return _refuse(f"busy must be 0 or more, got {self.busy}")
        if self.why and (self.engines or self.png):
            return _refuse("--why measures no engines: leave out --engines and --png")
        try:
            options = fleet_options(self.fleet)
            for work in self.works:
                factory(work)
        except UnknownEnvError as error:
            return _refuse(f"{error} Works without an id: {', '.join(WORKS)}.")
        except ValueError as error:
            return _refuse(str(error))
        with busy_loops(self.busy):
            return self._measure(list(known), options)

    def _measure(self, known: list[str], options: dict[str, Any]) -> int:
        names = list(self.engines) or [name for name in known if "copy=False" not in name]
        looks = self.why or not self.engines or AUTO in self.engines
        cells: report.Cells = []
        texts = []
        for work in self.works:
            left_out = () if self.engines or has_native(work) else (NATIVE,)
            for num_envs in self.num_envs:
                results = {}
                if not self.why:
                    results = measure_cell(
                        work,
                        num_envs,
                        [name for name in names if name not in left_out],
                        rounds=self.rounds,
                        seconds=self.seconds,
                        peers=self.peers,
                        tell=_tell,
                    )
                cell = report.cell(work, num_envs, results)
                if looks:
                    title = f"{work}, {num_envs} envs"
                    found = self._look(work, num_envs, options)
                    if isinstance(found, Diagnosis):
                        cell["why"] = asdict(found)
                        texts.append(in_words(title, found))
                    else:
                        cell["why"] = {"problem": found}
                        texts.append(f"### Why is it slow? {title}\n\nIt cannot be said: {found}")
                cells.append(cell)
                if self.json is not None:
                    how = {"rounds": self.rounds, "seconds": self.seconds, "busy": self.busy}
                    report.write_json(self.json, cells, **how)
        _tell("")
        print("\n\n".join([*([] if self.why else [report.table(cells)]), *texts]))  # noqa: T201 - it is what was asked for
        if self.png is not None:
            chart.draw(self.png, cells)
        wrong = [c for c in cells if any(r["agrees"] is False for r in c["engines"].values())]
        silent = self.why and any("problem" in c["why"] for c in cells)
        return 1 if wrong or silent else 0

    def _look(self, work: str, num_envs: int, options: dict[str, Any]) -> Diagnosis | str:
        """Why a fleet is slow, or why that cannot be said."""
        _tell(f"{work} x {num_envs}: looking into it")
        rounds, seconds = min(self.rounds, 5), self.seconds / 2
        seat = Seat(partial(Patient, work, num_envs, options))
        try:
            patience = 180.0 + 20 * rounds * seconds
            found: Diagnosis | None = seat.ask("look", seconds, rounds, patience=patience)
        finally:
            seat.close()
        return seat.problem if found is None else found


def fleet_options(words: tuple[str, ...]) -> dict[str, Any]:
    """What ``--fleet`` says: names, and values as Python writes them; other words are strings.

    Raises:
        ValueError: a word is no ``name=value``, or is about the number of envs.
    """
    options: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise ValueError(f"--fleet takes name=value, as in workers=4 copy=False, got {word!r}")
        if name == "num_envs":
            raise ValueError(f"--fleet {word}: that is --num-envs {value}")
        try:
            options[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[name] = value
    return options


def _refuse(text: str) -> int:
    print(text, file=sys.stderr)  # noqa: T201
    return 2


def _tell(text: str) -> None:
    """What is going on, on one line of a terminal; nothing elsewhere."""
    if sys.stderr.isatty():
        print(f"\r{text:<78}", end="\r" if not text else "", file=sys.stderr, flush=True)  # noqa: T201
