"""Metrics as files: a row of metrics.csv and a line of metrics.jsonl per step, written at once."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, TextIO


class FolderInUseError(RuntimeError):
    """Somebody else writes to the folder."""


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
        self._lock = _locked(self._folder)
        for path in (self._table, self._lines, self._films):
            _mend(path)
        self._columns = _head(self._table)
        self._open: dict[Path, int] = {}

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """A row with the step and these numbers."""
        row = {"step": int(step)}
        row |= {key: _plain(value) for key, value in metrics.items() if key != "step"}
        self._append(self._lines, _json(row))
        new = [key for key in row if key not in self._columns]
        if new:
            self._widen(new)
        self._append(self._table, _csv([row.get(key, "") for key in self._columns]))

    def _widen(self, new: list[str]) -> None:
        """Give the table more columns, in a new file that takes the old one's place."""
        rows = _rows(self._table) if self._columns else []
        self._columns = [*self._columns, *new]
        padded = [[*row, *[""] * (len(self._columns) - len(row))] for row in rows[1:]]
        text = "".join(_csv(row) for row in [self._columns, *padded])
        _rewrite(self._table, [text])
        descriptor = self._open.pop(self._table, None)
        if descriptor is not None:
            os.close(descriptor)

    def forget_after(self, step: int) -> None:
        """Remove the rows of later steps, and films that began there: a run goes on from there."""
        for path, last in ((self._lines, step), (self._films, step - 1)):
            if path.exists():
                lines = path.read_text("utf-8").splitlines(keepends=True)
                _rewrite(path, [line for line in lines if json.loads(line)["step"] <= last])
        if self._columns:
            head, *rows = _rows(self._table)
            kept = [row for row in rows if int(row[0]) <= step]
            _rewrite(self._table, [_csv(row) for row in [head, *kept]])
        self._close_files()  # they are other files now

    def film(self, path: Path, step: int) -> None:
        """A line that says where the film is."""
        self._append(self._films, _json({"step": step, "path": str(path)}))

    def _append(self, path: Path, text: str) -> None:
        if path not in self._open:
            self._open[path] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        size = os.fstat(self._open[path]).st_size
        data = text.encode()
        try:
            while data:
                data = data[os.write(self._open[path], data) :]
        except OSError:
            os.ftruncate(self._open[path], size)  # no torn row among whole ones
            raise

    def close(self) -> None:
        """Close the files, and let somebody else have the folder."""
        self._close_files()
        self._lock.close()

    def _close_files(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _rewrite(path: Path, lines: list[str]) -> None:
    """Put a new file in the place of an old one."""
    new = path.with_name(f".{path.name}.new")
    new.write_text("".join(lines), encoding="utf-8", newline="")
    new.replace(path)


def _mend(path: Path) -> None:
    """Remove a last line that was not written to its end."""
    if path.exists():
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole != len(data):
            os.truncate(path, whole)


def _locked(folder: Path) -> TextIO:
    """A lock on a folder, until the file is closed or the process ends.

    Raises:
        FolderInUseError: somebody else has it.
    """
    file = (folder / ".tracker.lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise FolderInUseError(
            f"another tracker is writing to {folder}: close it, or choose another folder."
        ) from None
    return file


def _rows(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def _head(path: Path) -> list[str]:
    return next(iter(_rows(path)), []) if path.exists() else []


def _plain(value: Any) -> Any:
    """A number of Python's own, from NumPy's and torch's."""
    return value.item() if hasattr(value, "item") else value


def _csv(row: list[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(row)
    return text.getvalue()


def _json(row: Mapping[str, Any]) -> str:
    """One line; JSON knows no NaN, so that it is null."""
    broken = [k for k, v in row.items() if isinstance(v, float) and not math.isfinite(v)]
    return json.dumps({**row, **dict.fromkeys(broken)}) + "\n"
