"""What a benchmark leaves behind: figures as JSON, and tables of them as Markdown."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from envfleet.bench.rounds import Result
from envfleet.engine.cores import usable_cores

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
    """A row per cell: Gymnasium's rates, and the rate of the engine that ``make`` chooses."""
    names = ["env", "envs", "Gymnasium sync", "Gymnasium async", "envfleet"]
    names += ["vs sync", "vs async", "of the limit"]
    lines = ["| " + " | ".join(names) + " |", "|---|" + "---:|" * (len(names) - 1)]
    for one in cells:
        sync, other, ours, limit = (
            one["engines"][name]["steps_per_second"]
            for name in ("Gymnasium sync", "Gymnasium async", "envfleet auto", "limit")
        )
        rates = [f"{rate:,.0f}" for rate in (sync, other, ours)]
        ratios = [_times(ours, sync), _times(ours, other), f"{ours / limit:.0%}"]
        lines.append("| " + " | ".join([one["work"], str(one["num_envs"]), *rates, *ratios]) + " |")
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
