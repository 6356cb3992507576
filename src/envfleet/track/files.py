"""Metrics as files: a row of metrics.csv and a line of metrics.jsonl per step, written at once."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self


class FileTracker:
    """Appends to ``metrics.csv``, ``metrics.jsonl`` and ``films.jsonl`` in a folder.

    Every row is one write, so that a crash loses none and tears at most the one being written,
    which the next tracker on the folder removes. Keys that come later become columns of the CSV
    file, empty in the rows before.
    """

    project: str | None = None
    run: str | None = None

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._table = self._folder / "metrics.csv"
        self._lines = self._folder / "metrics.jsonl"
        self._films = self._folder / "films.jsonl"
        for path in (self._table, self._lines, self._films):
            _mend(path)
        self._columns = _head(self._table)
        self._open: dict[Path, int] = {}

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """A row with the step and these numbers."""
        row = {"step": step, **metrics}
        self._append(self._lines, _json(row))
        new = [key for key in row if key not in self._columns]
        if new:
            self._widen(new)
        self._append(self._table, _csv([row.get(key, "") for key in self._columns]))

    def _widen(self, new: list[str]) -> None:
        """Give the table more columns, in a new file that takes the old one's place."""
        rows = list(csv.reader(self._table.read_text().splitlines())) if self._columns else []
        self._columns = [*self._columns, *new]
        padded = [[*row, *[""] * (len(self._columns) - len(row))] for row in rows[1:]]
        text = "".join(_csv(row) for row in [self._columns, *padded])
        wider = self._table.with_suffix(".csv.new")
        wider.write_text(text)
        wider.replace(self._table)
        descriptor = self._open.pop(self._table, None)
        if descriptor is not None:
            os.close(descriptor)

    def film(self, path: Path, step: int) -> None:
        """A line that says where the film is."""
        self._append(self._films, _json({"step": step, "path": str(path)}))

    def _append(self, path: Path, text: str) -> None:
        if path not in self._open:
            self._open[path] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.write(self._open[path], text.encode())

    def close(self) -> None:
        """Close the files."""
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _mend(path: Path) -> None:
    """Remove a last line that was not written to its end."""
    if path.exists():
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole != len(data):
            os.truncate(path, whole)


def _head(path: Path) -> list[str]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return next(csv.reader(file), [])


def _csv(row: list[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(row)
    return text.getvalue()


def _json(row: Mapping[str, Any]) -> str:
    """One line; JSON knows no NaN, so that it is null."""
    broken = [k for k, v in row.items() if isinstance(v, float) and not math.isfinite(v)]
    return json.dumps({**row, **dict.fromkeys(broken)}) + "\n"
