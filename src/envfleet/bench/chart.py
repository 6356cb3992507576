"""A benchmark as one small chart: bars per work, or lines over the number of envs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from envfleet.bench.report import Cells, table

Curve = tuple[list[int], list[float]]

_SHADES = {"limit": "Greys", "other": "Greens", "Gymnasium": "Oranges", "envfleet": "Blues"}
"""A family of engines each, in the order in which they are drawn."""


def draw(path: Path, cells: Cells) -> None:
    """Draw lines where one work was measured with three or more fleet sizes, else bars.

    The PNG carries its figures as a table, in the text named "Description".
    """
    import matplotlib as mpl  # noqa: PLC0415 - an extra

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    is_curve = len({c["work"] for c in cells}) == 1 and len({c["num_envs"] for c in cells}) > 2
    width = 8.0 if is_curve else max(8.0, 0.25 * len(cells) * len(bars(cells)))
    with plt.rc_context({"axes.spines.top": False, "axes.spines.right": False}):
        figure, axis = plt.subplots(figsize=(width, 3.8), layout="constrained")
    if is_curve:
        _draw_lines(axis, cells)
    else:
        _draw_bars(axis, cells)
    figure.savefig(path, dpi=200, facecolor="white", metadata={"Description": table(cells)})
    plt.close(figure)


def bars(cells: Cells) -> dict[str, list[float | None]]:
    """A height per cell for each engine: its share of the limit, or its rate if one has no limit.

    Engines that ran nowhere have no bars; nor has the limit where it is the unit.
    """
    rates = {name: [_rate(one, name) for one in cells] for name in _names(cells)}
    limits = rates.get("limit", [None])
    if None in limits or len(rates) == 1:
        return rates
    return {
        name: [rate and unit and rate / unit for rate, unit in zip(row, limits, strict=True)]
        for name, row in rates.items()
        if name != "limit"
    }


def curves(cells: Cells) -> dict[str, Curve]:
    """For each engine that ran: fleet sizes, from small to large, and its rates."""
    found: dict[str, Curve] = {}
    for name in _names(cells):
        rates = {one["num_envs"]: _rate(one, name) for one in cells}
        points = sorted((size, rate) for size, rate in rates.items() if rate is not None)
        found[name] = ([size for size, _ in points], [rate for _, rate in points])
    return found


def colours(names: list[str]) -> dict[str, Any]:
    """A colour of its own for each engine: ours are blue, Gymnasium's orange, others green."""
    import matplotlib as mpl  # noqa: PLC0415 - an extra

    chosen = {}
    for family, shades in _SHADES.items():
        members = [name for name in names if _family(name) == family]
        for i, name in enumerate(members):
            chosen[name] = mpl.colormaps[shades](0.25 + 0.65 * (i + 1) / len(members))
    return chosen


def _draw_bars(axis: Any, cells: Cells) -> None:
    heights = bars(cells)
    colour = colours(list(heights))
    thickness = 0.86 / max(1, len(heights))
    for i, (name, row) in enumerate(heights.items()):
        places = [x + (i - (len(heights) - 1) / 2) * thickness for x in range(len(cells))]
        drawn = axis.bar(places, [h or 0.0 for h in row], 0.92 * thickness, color=colour[name])
        drawn.set_label(name)
        if "limit" not in heights:
            labels = ["" if height is None else f"{height:.2f}" for height in row]
            axis.bar_label(drawn, labels, padding=1, fontsize=7)
    if "limit" in heights:
        axis.set_ylabel("env steps per second")
    else:
        axis.set_ylabel("share of the limit")
        axis.axhline(1.0, color="0.35", linewidth=1, linestyle="--")
    axis.set_xticks(range(len(cells)), [f"{c['work']}\n{c['num_envs']} envs" for c in cells])
    axis.tick_params(axis="x", length=0)
    if heights:
        axis.figure.legend(loc="outside upper center", ncols=3, **_LEGEND)


def _draw_lines(axis: Any, cells: Cells) -> None:
    found = curves(cells)
    colour = colours(list(found))
    for (name, (sizes, rates)), marker in zip(found.items(), "os^Dv<>Pp*hXd" * 9, strict=False):
        shape = {"linestyle": "--"} if name == "limit" else {"marker": marker}
        axis.plot(sizes, [r / 1000 for r in rates], label=name, color=colour[name], **shape)
    sizes = sorted({one["num_envs"] for one in cells})
    axis.set_xscale("log")
    axis.set_xticks(sizes, [str(size) for size in sizes])
    axis.set_xticks([], minor=True)
    axis.set_ylim(bottom=0)
    axis.set_xlabel(f"number of envs ({cells[0]['work']})")
    axis.set_ylabel("thousand env steps per second")
    axis.grid(axis="y", color="0.9")
    axis.figure.legend(loc="outside right center", reverse=True, **_LEGEND)


_LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 9, "handlelength": 1.6}


def _names(cells: Cells) -> list[str]:
    """Engines with any rate, by family, and in each as they were measured."""
    names = dict.fromkeys(name for one in cells for name in one["engines"])
    ran = [name for name in names if any(_rate(one, name) is not None for one in cells)]
    return sorted(ran, key=lambda name: list(_SHADES).index(_family(name)))


def _family(name: str) -> str:
    first = name.split(maxsplit=1)[0]
    return first if first in _SHADES else "other"


def _rate(one: dict[str, Any], name: str) -> float | None:
    rate: float | None = one["engines"].get(name, {}).get("steps_per_second")
    return rate
