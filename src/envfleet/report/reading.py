"""Reading: a run's folder as data; tolerates files that are missing, torn or of another version."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]

CONFIG, PLAN, TABLE, LINES = "config.json", "plan.json", "metrics.csv", "metrics.jsonl"
VIDEO_LIST, VIDEO_FOLDER = "videos.jsonl", "renders"
_KINDS = {".gif": ("image/gif", b"GIF8", 0), ".mp4": ("video/mp4", b"ftyp", 4)}
"""Suffix: media type, and the bytes that must be at a place of such a file."""


@dataclass(frozen=True)
class Video:
    """A recording inside the run's folder."""

    path: Path
    step: int | None
    """Where it begins; None if the files do not say."""
    size: int
    media_type: str


@dataclass(frozen=True)
class RunData:
    """What the files of a run say; a column has NaN in rows that do not have it."""

    name: str
    folder: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    """Hyper-parameters."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """How the run is carried out."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """How its envs run, and why."""
    columns: Mapping[str, Column] = field(default_factory=dict)
    videos: tuple[Video, ...] = ()
    notes: tuple[str, ...] = ()
    """What could not be read, for the page."""

    @property
    def steps(self) -> Column:
        """The step of each row; they do not fall."""
        return self.columns.get("step", np.empty(0))

    @property
    def env_id(self) -> str:
        """The env's id, or the name of the run if its files do not say."""
        return str(self.config.get("env_id") or self.name)

    def column(self, name: str) -> Column | None:
        """A column that has at least one number."""
        values = self.columns.get(name)
        return None if values is None or not np.isfinite(values).any() else values

    def last(self, name: str) -> float:
        """The last number of a column; NaN if it has none."""
        values = self.column(name)
        return math.nan if values is None else float(values[np.isfinite(values)][-1])


def read_run(folder: Path) -> RunData:
    """What is in a run's folder, also while the run is at work.

    Raises:
        FileNotFoundError: it is not a run's: it has neither a config nor metrics.
        OSError: a file cannot be read.
    """
    folder = folder.absolute()
    if not any((folder / name).is_file() for name in (CONFIG, TABLE, LINES)):
        raise FileNotFoundError(f"{folder} is not a run folder (no {CONFIG}, no {TABLE}).")
    notes: list[str] = []
    said = _json_object(folder / CONFIG, notes)
    config = said.get("config", {k: v for k, v in said.items() if not isinstance(v, dict)})
    plan = _json_object(folder / PLAN, notes) if (folder / PLAN).exists() else said.get("plan")
    return RunData(
        name=folder.name,
        folder=folder,
        config=_mapping(config),
        options=_mapping(said.get("options")),
        plan=_mapping(plan),
        columns=_in_order(_read_metrics(folder, notes)),
        videos=tuple(_read_videos(folder, notes)),
        notes=tuple(notes),
    )


def _json_object(path: Path, notes: list[str]) -> dict[str, Any]:
    if not path.exists():
        notes.append(f"{path.name} is missing.")
        return {}
    try:
        value = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        notes.append(f"{path.name} cannot be read: {error}")
        return {}
    return _mapping(value)


def _mapping(value: object) -> dict[str, Any]:
    return {str(k): v for k, v in value.items()} if isinstance(value, dict) else {}


def _read_metrics(folder: Path, notes: list[str]) -> dict[str, Column]:
    """The columns of the table, or of the lines if there is no table."""
    for name, parse in ((TABLE, _parse_table), (LINES, _parse_lines)):
        path = folder / name
        if path.exists():
            data = path.read_bytes()
            text = data[: data.rfind(b"\n") + 1].decode("utf-8", errors="replace")
            columns, unread = parse(text)
            if unread:
                notes.append(f"{name}: {unread} rows cannot be read and are left out.")
            if columns:
                return columns
    return {}


def _parse_table(text: str) -> tuple[dict[str, Column], int]:
    """Columns by name, and how many rows are no numbers."""
    head, _, body = text.partition("\n")
    names = next(csv.reader([head]), [])
    if not body.strip():
        return {}, 0
    try:
        # An empty field is a key that came later. numpy reads numbers only.
        filled = (
            re.sub(r"(?<=,)(?=,|\r?$)", "nan", body, flags=re.MULTILINE)
            if ",," in body or (",\n" in body or ",\r" in body)
            else body
        )
        values = np.loadtxt(io.StringIO(filled), delimiter=",", ndmin=2, comments=None)
        if values.shape[1] == len(names):
            return {name: values[:, i] for i, name in enumerate(names)}, 0
    except ValueError:
        pass
    rows, unread = [], 0
    for row in csv.reader(io.StringIO(body, newline="")):
        numbers = [_number(item) for item in row]
        if len(row) == len(names) and None not in numbers:
            rows.append(numbers)
        else:
            unread += 1
    values = np.array(rows, dtype=np.float64).reshape(len(rows), len(names))
    return {name: values[:, i] for i, name in enumerate(names)}, unread


def _number(text: str) -> float | None:
    try:
        return float(text) if text else math.nan
    except ValueError:
        return None


def _parse_lines(text: str) -> tuple[dict[str, Column], int]:
    """As ``_parse_table``, of JSON lines."""
    rows, unread = [], 0
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict) and "step" in row:
            rows.append(row)
        else:
            unread += 1
    names = dict.fromkeys(str(name) for row in rows for name in row)
    return {
        name: np.array([_plain(row.get(name)) for row in rows], dtype=np.float64) for name in names
    }, unread


def _plain(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _in_order(columns: dict[str, Column]) -> dict[str, Column]:
    """Rows that have a step, in the order of steps; what is infinite is no number to draw."""
    steps = columns.get("step")
    if steps is None:
        return {}
    order = np.argsort(steps, kind="stable")
    order = order[np.isfinite(steps[order])]
    ordered = {name: values[order] for name, values in columns.items()}
    return {name: np.where(np.isfinite(values), values, np.nan) for name, values in ordered.items()}


def _read_videos(folder: Path, notes: list[str]) -> Iterator[Video]:
    """Videos inside the folder, those without a step last.

    A folder may have been moved, so that a video is looked for by its name first. A path that leads
    out of the folder is never followed: the page would show a file that is not the run's.
    """
    steps: dict[Path, int | None] = {}
    if (folder / VIDEO_LIST).exists():
        lines = (folder / VIDEO_LIST).read_text("utf-8", errors="replace").splitlines()
        for row in filter(None, map(_json_line, lines)):
            path = Path(str(row.get("path", "")))
            step = row.get("step")
            found = folder / VIDEO_FOLDER / path.name
            found = found if found.is_file() else folder / path
            steps[found] = step if isinstance(step, int) else None
    for path in sorted((folder / VIDEO_FOLDER).glob("*")):
        named = re.search(r"_(\d+)$", path.stem) if path.stem.startswith("policy") else None
        if path.suffix in _KINDS:
            steps.setdefault(path, int(named[1]) if named else None)
    for path, step in sorted(steps.items(), key=lambda s: (s[1] is None, s[1] or 0, s[0].name)):
        if not path.is_file() or not path.resolve().is_relative_to(folder.resolve()):
            notes.append(f"video {path.name} is not in the run's folder.")
            continue
        kind, magic, at = _KINDS.get(path.suffix, ("", b"", 0))
        with path.open("rb") as file:
            head = file.read(16)
        if kind and head[at : at + 4] == magic:
            yield Video(path, step, path.stat().st_size, kind)
        else:
            notes.append(f"{path.name} is neither a GIF nor an MP4 file.")


def _json_line(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
