"""What a benchmark leaves behind: a table as text, figures as JSON, bars and curves as PNG."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from envfleet.bench.rounds import Result
from envfleet.engine.pool.cores import usable_cores

Cells = list[dict[str, Any]]


def machine() -> dict[str, Any]:
    """What the figures were made on."""
    model = platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":")[1].strip() if names else model
    return {
        "cores": usable_cores(),
        "processor": model,
        "system": platform.system(),
        "python": platform.python_version(),
        "gymnasium": gymnasium.__version__,
        "numpy": np.__version__,
    }


def cell(work: str, num_envs: int, results: dict[str, Result]) -> dict[str, Any]:
    """One cell as plain data."""
    return {
        "work": work,
        "num_envs": num_envs,
        "engines": {
            name: {
                "steps_per_second": None if result.rate is None else round(result.rate, 1),
                "started": round(result.started, 3),
                "memory": result.memory,
                "agrees": result.agrees,
                "plan": result.plan,
                "problem": result.problem,
            }
            for name, result in results.items()
        },
    }


def write_json(path: Path, cells: Cells, **how: Any) -> None:
    """Write all cells, the machine, and how they were measured."""
    data = {"machine": machine(), "how": how, "cells": cells}
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(data, indent=1) + "\n")
    temporary.replace(path)


def setting(data: dict[str, Any]) -> str:
    """In one sentence, where and how recorded figures were made."""
    on, how = data["machine"], data["how"]
    return (
        f"{on['cores']} cores ({on['processor']}, {on['system']}), Python {on['python']}, "
        f"Gymnasium {on['gymnasium']}, NumPy {on['numpy']}; medians of {how['rounds']} interleaved "
        f"rounds of {how['seconds']} s."
    )


def table(cells: Cells) -> str:
    """All cells as one Markdown table, a row per work, fleet size and engine."""
    lines = [
        "| work | envs | engine | steps/s | of the limit | vs Gymnasium async | same numbers |",
        "|---|---:|---|---:|---:|---:|---|",
    ]
    for one in cells:
        engines = one["engines"]
        limit, peer = (_rate(engines, name) for name in ("limit", "Gymnasium async"))
        for name, row in engines.items():
            rate = row["steps_per_second"]
            if rate is None:
                figures = [f"*{row['problem'] or 'failed'}*", "", "", ""]
            else:
                agrees = {True: "yes", False: "**no**", None: "not compared"}[row["agrees"]]
                figures = [f"{rate:,.0f}", _ratio(rate, limit), _times(rate, peer), agrees]
            lines.append(
                "| " + " | ".join([one["work"], str(one["num_envs"]), name, *figures]) + " |"
            )
    return "\n".join(lines)


def summary(cells: Cells) -> str:
    """A row per cell: what share of the limit each of our engines reaches, and the peers' rates."""
    ours = ["serial", "process", "process+caller", "auto"]
    lines = [
        "| work | envs | "
        + " | ".join(f"{name}, of the limit" for name in ours)
        + " | best vs Gymnasium async | best vs Gymnasium sync |",
        "|---|" + "---:|" * (len(ours) + 3),
    ]
    for one in cells:
        engines = one["engines"]
        limit = _rate(engines, "limit")
        rates = [_rate(engines, f"envfleet {name}") for name in ours]
        best = max(rate for rate in rates if rate is not None)
        shares = ["" if rate is None else _ratio(rate, limit) for rate in rates]
        peers = [_times(best, _rate(engines, f"Gymnasium {name}")) for name in ("async", "sync")]
        lines.append("| " + " | ".join([one["work"], str(one["num_envs"]), *shares, *peers]) + " |")
    return "\n".join(lines)


def growth(cells: Cells) -> str:
    """A row per fleet size and engine: rate, start, and memory per env."""
    lines = [
        "| work | envs | engine | steps/s | of the limit | start | memory per env |",
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    for one in cells:
        limit = _rate(one["engines"], "limit")
        for name, row in one["engines"].items():
            rate, memory = row["steps_per_second"], row.get("memory")
            if rate is None:
                continue
            size = "" if memory is None else f"{memory / one['num_envs'] / 1e6:.2f} MB"
            figures = [f"{rate:,.0f}", _ratio(rate, limit), f"{row['started']:.2f} s", size]
            cells_of = [one["work"], str(one["num_envs"]), name, *figures]
            lines.append("| " + " | ".join(cells_of) + " |")
    return "\n".join(lines)


def _rate(engines: dict[str, Any], name: str) -> float | None:
    rate: float | None = engines.get(name, {}).get("steps_per_second")
    return rate


def _ratio(rate: float, other: float | None) -> str:
    return "" if other is None else f"{rate / other:.2f}"


def _times(rate: float, other: float | None) -> str:
    return "" if other is None else f"{rate / other:.1f}x"


def plot(path: Path, cells: Cells) -> None:
    """Bars per engine for each cell; a curve over the number of envs where a work has several."""
    import matplotlib as mpl  # noqa: PLC0415 - an extra

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    sizes = {
        work: [c for c in cells if c["work"] == work] for work in _unique(c["work"] for c in cells)
    }
    curves = {work: of for work, of in sizes.items() if len(of) > 2}
    panels = len(cells) + len(curves)
    figure, axes = plt.subplots(panels, 1, figsize=(9, 2.6 * panels), squeeze=False)
    for axis, one in zip(axes[:, 0], cells, strict=False):
        rows = {n: r["steps_per_second"] or 0.0 for n, r in one["engines"].items()}
        axis.barh(list(rows), list(rows.values()), color=[_colour(name) for name in rows])
        axis.invert_yaxis()
        axis.set_title(f"{one['work']} x {one['num_envs']}: env steps per second")
    for axis, (work, of) in zip(axes[len(cells) :, 0], curves.items(), strict=True):
        for name in _unique(n for c in of for n in c["engines"]):
            points = [(c["num_envs"], _rate(c["engines"], name)) for c in of]
            known = [(x, y) for x, y in points if y is not None]
            axis.plot([x for x, _ in known], [y for _, y in known], marker="o", label=name)
        axis.set_xscale("log", base=2)
        axis.set_title(f"{work}: env steps per second over the number of envs")
        axis.legend(fontsize=6)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _unique(names: Iterable[str]) -> Sequence[str]:
    return list(dict.fromkeys(names))


def _colour(name: str) -> str:
    return "0.6" if name == "limit" else "tab:blue" if name.startswith("envfleet") else "tab:orange"
