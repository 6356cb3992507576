"""Tables: what a report tells in rows, as HTML, Markdown and CSV."""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from envfleet.report.axes import count, number
from envfleet.report.markup import Html, tag
from envfleet.report.statistics import SEED, Group, iqm_interval
from envfleet.report.summary import Summary

Cell = str | float

_WHOLE = frozenset({"runs", "steps", "restarts", "seed"})
"""Columns of whole numbers, which are told in full."""


@dataclass(frozen=True)
class Table:
    """Rows whose first cell is their name."""

    caption: str
    head: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]

    def html(self) -> Html:
        """A table that scrolls by itself where it is too wide."""
        head = [
            tag("th", name, scope="col", class_=self._kind(i)) for i, name in enumerate(self.head)
        ]
        body = []
        for row in self.rows:
            cells = [
                tag("td", self._text(i, cell), class_=self._kind(i))
                for i, cell in enumerate(row)
                if i > 0
            ]
            body.append(tag("tr", tag("th", self._text(0, row[0]), scope="row"), *cells))
        table = tag(
            "table",
            tag("caption", self.caption),
            tag("thead", tag("tr", *head)),
            tag("tbody", *body),
        )
        return tag(
            "div", table, class_="scroll", tabindex=0, role="region", aria_label=self.caption
        )

    def markdown(self) -> str:
        """The same for a README or an issue."""
        rules = ["---:" if self._kind(i) else "---" for i in range(len(self.head))]
        rows = [[self._text(i, cell) for i, cell in enumerate(row)] for row in self.rows]
        lines = [list(self.head), *rows]
        told = ["| " + " | ".join(map(_markdown, line)) + " |" for line in lines]
        return "\n".join([told[0], "|" + "|".join(rules) + "|", *told[1:]]) + "\n"

    def csv(self) -> str:
        """The same for programs: numbers in full, nothing where there is none."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.head)
        for row in self.rows:
            writer.writerow(["" if isinstance(c, float) and math.isnan(c) else c for c in row])
        return text.getvalue()

    def _kind(self, column: int) -> str | None:
        """The class of a column's cells."""
        return "number" if any(not isinstance(row[column], str) for row in self.rows) else None

    def _text(self, column: int, cell: Cell) -> str:
        if isinstance(cell, str):
            return cell
        return count(cell) if self.head[column] in _WHOLE else number(cell)


def _markdown(text: str) -> str:
    """Text that neither ends a cell nor becomes markup."""
    text = " ".join(html.escape(text, quote=False).split())
    for letter in "\\|*_`[]":
        text = text.replace(letter, f"\\{letter}")
    return text


def of_groups(groups: Sequence[Group]) -> Table:
    """A row per group: its last returns with their interval, and its speed."""
    head: tuple[str, ...] = (
        "group",
        "runs",
        "steps",
        "return (IQM)",
        "95 % low",
        "95 % high",
        "worst run",
    )
    head += ("best run", "length", "steps/s", "restarts")
    rows: list[tuple[Cell, ...]] = []
    for group in groups:
        told = [Summary(run) for run in group.runs]
        returns = [run.last("return_mean") for run in group.runs]
        interval = iqm_interval(returns)
        rows.append(
            (
                group.name,
                len(group.runs),
                _most(s.step for s in told),
                interval.estimate,
                interval.low,
                interval.high,
                _least(returns),
                _most(returns),
                iqm_interval([run.last("length_mean") for run in group.runs]).estimate,
                iqm_interval([s.rate for s in told]).estimate,
                _sum(s.restarts for s in told),
            )
        )
    return Table("Groups: runs that differ in their seeds only", head, rows)


def of_runs(groups: Sequence[Group]) -> Table:
    """A row per run."""
    head: tuple[str, ...] = (
        "run",
        "group",
        "seed",
        "steps",
        "return",
        "best mean return",
        "length",
        "steps/s",
    )
    head += ("seconds", "restarts", "state")
    rows: list[tuple[Cell, ...]] = []
    for group in groups:
        for run in group.runs:
            told = Summary(run)
            seed = run.config.get(SEED)
            rows.append(
                (
                    run.name,
                    group.name,
                    seed if isinstance(seed, int | float) else math.nan,
                    told.step,
                    run.last("return_mean"),
                    told.best_return,
                    run.last("length_mean"),
                    told.rate,
                    told.seconds,
                    told.restarts,
                    told.status,
                )
            )
    return Table("Runs", head, rows)


def _known(values: Iterable[float]) -> list[float]:
    return [v for v in values if math.isfinite(v)]


def _most(values: Iterable[float]) -> float:
    return max(_known(values), default=math.nan)


def _least(values: Iterable[float]) -> float:
    return min(_known(values), default=math.nan)


def _sum(values: Iterable[float]) -> float:
    known = _known(values)
    return sum(known) if known else math.nan
