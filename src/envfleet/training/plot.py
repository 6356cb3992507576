"""What a run leaves to look at: its learning curve as an image, and its report."""

from __future__ import annotations

import csv
import threading
from collections.abc import Callable
from pathlib import Path

from envfleet.report import write_report


def write_pages(folder: Path, say: Callable[[str], None]) -> None:
    """Write ``curve.png`` and ``report.html``; if the disk is full, only say so."""
    try:
        draw_curve(folder)
        write_report(folder)
    except OSError as error:
        say(f"no curve or report was written: {error}")


def draw_curve(folder: Path) -> Path | None:
    """Draw returns over steps into ``curve.png``; None without rows, or without matplotlib.

    None too in any but the main thread: matplotlib is not thread-safe.
    """
    if threading.current_thread() is not threading.main_thread():
        return None
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
