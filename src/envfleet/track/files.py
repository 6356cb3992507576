"""Metrics as files: a row of metrics.csv and a line of metrics.jsonl per step, written at once."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from envfleet.track.durable import replace, write_all, writing
from envfleet.track.lock import FolderLock

TABLE, LINES, VIDEOS = "metrics.csv", "metrics.jsonl", "videos.jsonl"


class FileTracker:
    """Appends to ``metrics.csv``, ``metrics.jsonl`` and ``videos.jsonl`` in a folder.

    Every row is one write, so that a crash loses none and tears at most the one being written,
    which the next tracker on the folder removes. Keys that come later become columns of the CSV
    file, empty in the rows before. Whoever holds the folder's ``lock`` already passes it, and
    keeps it.

    Raises:
        FolderInUseError: somebody else writes to the folder.
        ValueError: the table in it is not as it was written.
    """

    project: str | None = None
    run: str | None = None

    def __init__(self, folder: Path | str, *, lock: FolderLock | None = None) -> None:
        self._folder = Path(folder).absolute()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._table = self._folder / TABLE
        self._lines = self._folder / LINES
        self._videos = self._folder / VIDEOS
        self._open: dict[Path, int] = {}
        self._own_lock = FolderLock(self._folder) if lock is None else None
        try:
            self._columns = _head(self._table)
            for path in (self._table, self._lines, self._videos):
                _mend(path)
        except BaseException:
            self.close()
            raise

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
        columns = [*self._columns, *new]
        padded = [[*row, *[""] * (len(columns) - len(row))] for row in rows[1:]]
        text = "".join(_csv(row) for row in [columns, *padded])
        replace(self._table, text.encode())
        self._columns = columns
        descriptor = self._open.pop(self._table, None)
        if descriptor is not None:
            os.close(descriptor)

    def forget_after(self, step: int) -> None:
        """Remove the rows of later steps, and videos that began there: a run goes on from there.

        Raises:
            ValueError: a file is not as it was written; nothing is removed then.
        """
        for path, text in rows_until(self._folder, step).items():
            replace(path, text.encode())
        self._close_files()  # they are other files now

    def sync(self) -> None:
        """Flush what was written to disk."""
        for path, descriptor in self._open.items():
            with writing(path):
                os.fsync(descriptor)

    def video(self, path: Path, step: int) -> None:
        """A line that says where the video is."""
        self._append(self._videos, _json({"step": step, "path": str(path)}))

    def _append(self, path: Path, text: str) -> None:
        with writing(path):
            if path not in self._open:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
                self._open[path] = os.open(path, flags, 0o666)
            size = os.fstat(self._open[path]).st_size
            try:
                write_all(self._open[path], text.encode())
            except OSError:
                os.ftruncate(self._open[path], size)  # no torn row among whole ones
                raise

    def close(self) -> None:
        """Close the files, and let somebody else have the folder."""
        self._close_files()
        if self._own_lock is not None:
            self._own_lock.release()

    def _close_files(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def rows_until(folder: Path, step: float = math.inf) -> dict[Path, str]:
    """The files of a folder without the rows of later steps; reads all, and writes nothing.

    Raises:
        ValueError: one of them is not as it was written; names the file and the line.
    """
    kept: dict[Path, str] = {}
    for name, last in ((LINES, step), (VIDEOS, step - 1)):
        path = folder / name
        if path.exists():
            kept[path] = "".join(text for at, text in _read_lines(path) if at <= last)
    path = folder / TABLE
    if path.exists() and (rows := list(_read_table(path))):
        kept[path] = "".join(text for at, text in rows if at <= step)
    return kept


def _read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The step and the text of each line."""
    for number, line in enumerate(_whole_text(path).split("\n")[:-1], 1):
        if not line.strip():
            raise _not_as_written(path, number, "the line is blank")
        if line.endswith("\r"):
            raise _not_as_written(path, number, "the line ends with CR LF")
        try:
            row = json.loads(line)
            step = row["step"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise _not_as_written(path, number, "it is no JSON object with a step") from None
        if type(step) is not int:
            raise _not_as_written(path, number, f"the step is {step!r}")
        yield step, line + "\n"


def _read_table(path: Path) -> Iterator[tuple[float, str]]:
    """The step and the text of each row; the head is before all steps."""
    text = _whole_text(path)
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise _not_as_written(path, reader.line_num, str(error)) from None
    if "\r" in text and text != "".join(_csv(row) for _, row in rows):
        raise _not_as_written(path, 1, "lines end with CR LF")
    head = rows[0][1] if rows else ["step"]
    if not head or head[0] != "step":
        raise _not_as_written(path, 1, "the first column is not named step")
    for index, (number, row) in enumerate(rows):
        if not row:
            raise _not_as_written(path, number, "the line is blank")
        if len(row) != len(head):
            raise _not_as_written(path, number, f"{len(row)} values for {len(head)} columns")
        if index == 0:
            yield -math.inf, _csv(row)
        elif row[0].isascii() and row[0].lstrip("-").isdigit():
            yield int(row[0]), _csv(row)
        else:
            raise _not_as_written(path, number, f"the step is {row[0]!r}")


def _whole_text(path: Path) -> str:
    """A file up to its last complete line."""
    data = path.read_bytes()
    try:
        text = data[: data.rfind(b"\n") + 1].decode()
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise _not_as_written(path, number, "it is not UTF-8") from None
    if text.startswith("\ufeff"):
        raise _not_as_written(path, 1, "the file begins with a byte order mark")
    return text


def _not_as_written(path: Path, line: int, why: str) -> ValueError:
    return ValueError(
        f"{path}, line {line}: {why}. Another program has changed the file: restore it, or move it "
        "away to go on without its rows."
    )


def _mend(path: Path) -> None:
    """Remove a last line that was not written to its end."""
    if path.exists():
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole != len(data):
            os.truncate(path, whole)


def _rows(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def _head(path: Path) -> list[str]:
    if not path.exists():
        return []
    head = next(iter(_read_table(path)), None)
    return [] if head is None else next(csv.reader(io.StringIO(head[1], newline="")))


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
