"""Writing: run folders in, a page out, and its tables beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from envfleet.report.page import render
from envfleet.report.reading import RunData, read_run
from envfleet.report.statistics import Group, group_runs
from envfleet.report.tables import of_groups, of_runs
from envfleet.track import durable

NAME = "report.html"


def write_report(folder: Path) -> Path:
    """Write ``report.html`` into a run's folder; its path.

    Raises:
        FileNotFoundError: it is not a run's folder.
        OSError: a file cannot be read or written.
    """
    return write_comparison([folder], folder / NAME, tables=False)[0]


def write_comparison(folders: Sequence[Path], out: Path, *, tables: bool = True) -> list[Path]:
    """Write one page of all these runs, and its tables as Markdown and CSV; the files' paths.

    Raises:
        ValueError: there are no folders, or one of them is given twice.
        FileNotFoundError: one of them is not a run's; nothing is written then.
        OSError: a file cannot be read or written.
    """
    if not folders:
        raise ValueError("a report needs at least one run's folder.")
    places = Counter(folder.resolve() for folder in folders)
    for place, times in places.items():
        if times > 1:
            raise ValueError(f"{place} is given {times} times: name each run once.")
    groups = group_runs(_named_apart([read_run(folder) for folder in folders]))
    made = {out: render(groups, datetime.now().astimezone())}
    if tables:
        made[out.with_suffix(".md")] = _markdown(groups)
        made[out.with_suffix(".csv")] = of_groups(groups).csv()
    for path, text in made.items():
        durable.replace(path, text.encode())
    return list(made)


def _named_apart(runs: list[RunData]) -> list[RunData]:
    """Runs whose names are their own: with their parent's name where two are alike."""
    named = runs
    for depth in range(2, 10):
        times = Counter(run.name for run in named)
        if max(times.values()) == 1:
            break
        named = [
            replace(run, name="/".join(run.folder.parts[-depth:])) if times[run.name] > 1 else run
            for run in named
        ]
    return named


def _markdown(groups: list[Group]) -> str:
    """Both tables, with their captions as headings."""
    tables = (of_groups(groups), of_runs(groups))
    return "\n".join(f"## {table.caption}\n\n{table.markdown()}" for table in tables)
