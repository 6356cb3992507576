"""The learning curve of a run, as an image."""

from __future__ import annotations

import csv
from pathlib import Path


def draw_curve(folder: Path) -> Path | None:
    """Draw returns over steps into ``curve.png``; None without rows, or without matplotlib."""
    path = folder / "metrics.csv"
    rows = list(csv.DictReader(path.read_text("utf-8").splitlines())) if path.exists() else []
    rows = [row for row in rows if row.get("return_mean") not in (None, "", "nan")]
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and slow to import
    except ImportError:
        return None
    if not rows:
        return None
    columns = {
        name: [float(row[name]) for row in rows]
        for name in ("step", "return_mean", "return_p5", "return_p95")
    }
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    steps = columns["step"]
    axes.fill_between(
        steps, columns["return_p5"], columns["return_p95"], alpha=0.25, label="5-95 %"
    )
    axes.plot(steps, columns["return_mean"], label="mean of the last 100 episodes")
    axes.set_xlabel("steps")
    axes.set_ylabel("return")
    axes.legend()
    figure.savefig(folder / "curve.png", dpi=120)
    return folder / "curve.png"
