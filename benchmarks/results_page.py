"""The tables and charts of docs/results.md, from what the steps of benchmarks/results.py found."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from tables import ROOT
from tables import write as write_between

Found = dict[str, Any]
"""What one step found."""

DATA = ROOT / "docs" / "data"
PUBLISHED = {
    "CartPole-v1": "500 ± 0",
    "Pendulum-v1": "-172 ± 104",
    "Acrobot-v1": "-74 ± 18",
    "MountainCar-v0": "-110 ± 20",
    "LunarLander-v3": "242 ± 32 (v2)",
    "LunarLanderContinuous-v3": "271 ± 32 (v2)",
    "BipedalWalker-v3": "288 ± 2",
}
"""rl-zoo's benchmark.md: one run each."""


def write(found: Iterable[Found]) -> None:
    """Put new findings in the place of old ones, and write the page anew."""
    path = DATA / "results.json"
    old = json.loads(path.read_text()) if path.exists() else []
    by_name = {_name(row): row for row in [*old, *map(shorter, found)]}
    rows = list(by_name.values())
    lines = ",\n".join(json.dumps(row) for row in rows)
    path.write_text(f"[\n{lines}\n]\n")
    page = ROOT / "docs" / "results.md"
    write_between(page, "zoo", zoo(rows))
    write_between(page, "fast", fast(rows))
    write_between(page, "taxi", taxi(rows))
    write_between(page, "dates", dates(rows))
    draw_zoo(rows)
    draw_fast(rows)
    draw_taxi(rows)


def shorter(row: Found) -> Found:
    """Without what no table shows: the returns and lengths of single episodes."""
    if "evaluation" not in row:
        return row
    played = row["evaluation"]
    kept = {name: round(played[name], 2) for name in ("step", "mean", "std")}
    return {**row, "evaluation": kept, "episodes": len(played["returns"])}


def zoo(rows: list[Found]) -> str:
    """Trained policies beside published ones."""
    lines = [
        "| command | steps | return by seed | mean | published |",
        "|---|---:|---|---:|---:|",
    ]
    for env, seeds in _of(rows, "zoo").items():
        means = [row["evaluation"]["mean"] for row in seeds]
        each = ", ".join(f"{mean:.0f}" for mean in means)
        step = int(seeds[0]["evaluation"]["step"])
        lines.append(
            f"| `envfleet train {env}` | {step:,} | {each} | {statistics.mean(means):.0f} | "
            f"{PUBLISHED[env]} |"
        )
    return "\n".join(lines)


def fast(rows: list[Found]) -> str:
    """Seconds to the threshold, beside Stable-Baselines3."""
    others = _of(rows, "sb3")
    lines = [
        (
            "| env | threshold | seconds by seed | median | steps, median | SB3, seconds by seed | "
            "median |"
        ),
        "|---|---:|---|---:|---:|---|---:|",
    ]
    for env, seeds in _of(rows, "fast").items():
        steps = [row["reached"][0] if row["reached"] else float("inf") for row in seeds]
        middle = statistics.median(steps)
        shown = "-" if middle == float("inf") else f"{middle:,.0f}"
        theirs = others.get(env, [])
        lines.append(
            f"| {env} | {seeds[0]['threshold']:,.0f} | {_each(seeds)} | {_median(seeds)} | {shown} "
            f"| {_each(theirs) or '-'} | {_median(theirs)} |"
        )
    return "\n".join(lines)


def taxi(rows: list[Found]) -> str:
    """Taxi with masks and without."""
    lines = [
        "| Taxi-v4 | steps to a mean return of 0, by seed | 100 episodes, by seed |",
        "|---|---|---|",
    ]
    names = {"masks": "with masks", "no-masks": "without masks (`--mask-key None`)"}
    for subject, seeds in _of(rows, "taxi").items():
        first = [
            next((f"{step:,}" for step, mean in row["curve"] if mean > 0), "never") for row in seeds
        ]
        means = [f"{row['evaluation']['mean']:.1f}" for row in seeds]
        lines.append(f"| {names[subject]} | {', '.join(first)} | {', '.join(means)} |")
    return "\n".join(lines)


def dates(rows: list[Found]) -> str:
    """When it was run, and how long that took."""
    days = sorted({row["date"] for row in rows})
    span = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    minutes = sum(row["minutes"] for row in rows)
    return f"Run on {span}: {len(rows)} steps, {minutes / 60:.1f} hours."


def draw_zoo(rows: list[Found]) -> None:
    """A small chart per env: the seeds' learning curves."""
    groups = _of(rows, "zoo")
    figure = Figure(figsize=(9, 4.4), layout="constrained")
    charts = figure.subplots(2, 4).flat
    for axes, (env, seeds) in zip(charts, groups.items(), strict=False):
        for row in seeds:
            axes.plot(*zip(*row["curve"], strict=True), linewidth=1)
        axes.set_title(env, fontsize=9)
        axes.tick_params(labelsize=7)
        axes.ticklabel_format(axis="x", style="sci", scilimits=(3, 3))
    for axes in list(figure.axes)[len(groups) :]:
        axes.set_axis_off()
    figure.supxlabel("steps", fontsize=8)
    figure.supylabel("mean return of the last 100 episodes", fontsize=8)
    figure.savefig(DATA / "results-zoo.png", dpi=110)


def draw_fast(rows: list[Found]) -> None:
    """A small chart per env: deterministic returns over seconds, beside Stable-Baselines3's."""
    mine, others = _of(rows, "fast"), _of(rows, "sb3")
    figure = Figure(figsize=(9, 4.4), layout="constrained")
    charts = figure.subplots(2, 4).flat
    for axes, (env, seeds) in zip(charts, mine.items(), strict=False):
        sides = {"envfleet --preset fast": seeds, "Stable-Baselines3, zoo": others.get(env, [])}
        for (side, curves), colour in zip(sides.items(), ("C0", "C1"), strict=True):
            for i, row in enumerate(curves):
                seconds, means = [c[1] for c in row["curve"]], [c[2] for c in row["curve"]]
                label = side if i == 0 else None
                axes.plot(seconds, means, color=colour, linewidth=1, label=label)
        axes.axhline(seeds[0]["threshold"], color="0.5", linewidth=0.7, linestyle="--")
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_title(env, fontsize=9)
        axes.tick_params(labelsize=7)
    for axes in list(figure.axes)[len(mine) :]:
        axes.set_axis_off()
    known = [axes.get_legend_handles_labels() for axes in figure.axes]
    figure.axes[-1].legend(*max(known, key=lambda one: len(one[1])), fontsize=8, loc="center")
    figure.supxlabel("seconds of training", fontsize=8)
    figure.supylabel("mean return of 20 deterministic episodes", fontsize=8)
    figure.savefig(DATA / "results-fast.png", dpi=110)


def draw_taxi(rows: list[Found]) -> None:
    """The seeds' learning curves with masks and without."""
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    for (subject, seeds), colour in zip(_of(rows, "taxi").items(), ("C0", "C1"), strict=False):
        for i, row in enumerate(seeds):
            label = subject.replace("-", " ") if i == 0 else None
            axes.plot(*zip(*row["curve"], strict=True), color=colour, linewidth=1, label=label)
    axes.set(xlabel="steps", ylabel="mean return", ylim=(-650, 50), title="PPO on Taxi-v4")
    axes.legend()
    figure.savefig(DATA / "masks.png", dpi=110)


def _of(rows: list[Found], group: str) -> dict[str, list[Found]]:
    """The findings of a group by subject, seeds in order."""
    found: dict[str, list[Found]] = {}
    for row in sorted((r for r in rows if r["group"] == group), key=lambda r: int(r["seed"])):
        found.setdefault(row["subject"], []).append(row)
    return found


def _name(row: Found) -> tuple[str, str, int]:
    return row["group"], row["subject"], row["seed"]


def _seconds(row: Found) -> tuple[float, str]:
    """Seconds to the threshold, for sorting and for reading."""
    if row["reached"]:
        return row["reached"][1], f"{row['reached'][1]:.0f}"
    return float("inf"), f"> {row['seconds']:.0f} ({row['curve'][-1][0]:,} steps)"


def _each(rows: list[Found]) -> str:
    return ", ".join(_seconds(row)[1] for row in rows)


def _median(rows: list[Found]) -> str:
    if not rows:
        return "-"
    return sorted(map(_seconds, rows))[len(rows) // 2][1].split(" (")[0]
