"""Charts: curves as inline SVG that fits any width, with values for pointer, keys and ears.

The image is stretched to its place and lines keep their width; labels are HTML beside it, so that
they are as large on a phone as on a wide screen. Without the page's script it is a chart as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from envfleet.report.axes import NONE, count, number, tick_labels, ticks
from envfleet.report.curves import Curve
from envfleet.report.markup import Html, data, join, tag
from envfleet.report.reading import Column

WIDTH, HEIGHT = 1000.0, 300.0
COLOURS = 8
_DOTTED = 40
"""Curves of at most so many points show each of them."""
_TABLE_ROWS = 12


@dataclass(frozen=True)
class Chart:
    """Curves over steps."""

    title: str
    curves: Sequence[Curve]
    hint: str = ""
    """What it shows, in a sentence."""
    from_zero: bool = False
    percent: bool = False
    stacked: bool = False
    """Whether the bands are what is drawn, one upon the other."""
    tall: bool = False


@dataclass(frozen=True)
class _Scale:
    x: tuple[float, float]
    y: tuple[float, float]

    def points(self, x: Column, y: Column) -> list[str]:
        across = (x - self.x[0]) / (self.x[1] - self.x[0]) * WIDTH
        down = HEIGHT - (y - self.y[0]) / (self.y[1] - self.y[0]) * HEIGHT
        return [f"{a:.1f} {b:.1f}" for a, b in zip(across.tolist(), down.tolist(), strict=True)]


def draw(chart: Chart, ident: str) -> Html:
    """A chart as HTML; ``ident`` is its own on the page."""
    scale = _scale(chart)
    marks = [_marks(curve, index, scale, chart) for index, curve in enumerate(chart.curves)]
    grid, x_axis, y_axis = _axes(scale, chart)
    told = f"{chart.title} over steps. {' '.join(map(_summary, chart.curves))}"
    svg = tag(
        "svg",
        tag("title", f"{chart.title} over steps", id=f"{ident}-title"),
        tag("desc", told, id=f"{ident}-desc"),
        grid,
        *marks,
        viewBox=f"0 0 {WIDTH:.0f} {HEIGHT:.0f}",
        preserveAspectRatio="none",
        role="img",
        aria_labelledby=f"{ident}-title",
        aria_describedby=f"{ident}-desc",
    )
    return tag(
        "figure",
        tag(
            "figcaption",
            tag("h3", chart.title),
            tag("p", chart.hint, class_="hint") if chart.hint else None,
        ),
        _legend(chart, ident),
        tag(
            "div",
            y_axis,
            tag("div", svg, class_="area"),
            x_axis,
            tag("span", "steps", class_="of-x", aria_hidden="true"),
            class_="plot tall" if chart.tall else "plot",
        ),
        _values(chart),
        data(_for_script(chart, scale)),
        class_="chart",
        id=ident,
    )


def _scale(chart: Chart) -> _Scale:
    xs = np.concatenate([curve.x for curve in chart.curves])
    first, last = float(xs.min()), float(xs.max())
    if 0 <= first <= 0.3 * last or 0 < first == last:
        first = 0.0
    if first == last:
        first, last = first - 1, last + 1
    if chart.stacked:
        return _Scale((first, last), (0.0, 1.0))
    drawn = [part for c in chart.curves for part in (c.y, c.low, c.high) if part is not None]
    low, high = (float(f(np.concatenate(drawn))) for f in (np.nanmin, np.nanmax))
    if chart.from_zero:
        low = min(0.0, low)
    room = 0.05 * (high - low) or abs(high) * 0.1 or 1.0
    bottom = max(0.0, low - room) if low >= 0 else low - room
    return _Scale((first, last), (bottom, high + room))


def _axes(scale: _Scale, chart: Chart) -> tuple[Html, Html, Html]:
    """Grid lines in the image, and the labels below and beside it."""
    across, down = ticks(*scale.x), ticks(*scale.y)
    left = [f"{(t - scale.x[0]) / (scale.x[1] - scale.x[0]):.2%}" for t in across]
    top = [f"{1 - (t - scale.y[0]) / (scale.y[1] - scale.y[0]):.2%}" for t in down]
    lines = [
        f"M0 {HEIGHT - (t - scale.y[0]) / (scale.y[1] - scale.y[0]) * HEIGHT:.1f}H{WIDTH:.0f}"
        for t in down
    ]
    x_labels = [
        tag("span", label, style=f"left:{at}")
        for label, at in zip(tick_labels(across), left, strict=True)
    ]
    y_labels = [
        tag("span", label, style=f"top:{at}")
        for label, at in zip(tick_labels(down, percent=chart.percent), top, strict=True)
    ]
    return (
        tag("path", class_="grid", d="".join(lines)),
        tag("div", *x_labels, class_="x", aria_hidden="true"),
        tag("div", *y_labels, class_="y", aria_hidden="true"),
    )


def _marks(curve: Curve, index: int, scale: _Scale, chart: Chart) -> Html:
    """The band, the line and the dots of a curve."""
    parts: list[Html] = []
    if curve.low is not None and curve.high is not None:
        area = []
        for part in _segments(np.isfinite(curve.low) & np.isfinite(curve.high)):
            there = scale.points(curve.x[part], curve.high[part])
            back = scale.points(curve.x[part], curve.low[part])[::-1]
            area.append(f"M{'L'.join(there + back)}Z")
        parts.append(tag("path", class_="band", d="".join(area)))
    if not chart.stacked:
        pieces = [
            scale.points(curve.x[part], curve.y[part]) for part in _segments(np.isfinite(curve.y))
        ]
        parts.append(tag("path", class_="line", d="".join(f"M{'L'.join(p)}" for p in pieces)))
        few = len(curve.x) <= _DOTTED
        dots = "".join(f"M{at}h0" for p in pieces for at in p if few or len(p) == 1)
        parts.append(tag("path", class_="dots", d=dots) if dots else Html())
    kind = "stack" if chart.stacked else "curve"
    return tag("g", *parts, class_=f"{kind} c{curve.colour % COLOURS}", data_curve=index)


def _segments(known: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Iterator[slice]:
    """Where numbers stand without a gap."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(np.int8)))
    for start, stop in edges.reshape(-1, 2).tolist():
        yield slice(start, stop)


def _legend(chart: Chart, ident: str) -> Html:
    """What the colours are; with several curves each is a button that hides it."""
    single = len(chart.curves) == 1
    if single and not chart.curves[0].band:
        return Html()  # the title says it
    items = []
    for index, curve in enumerate(chart.curves):
        swatch = tag("i", class_=f"key c{curve.colour % COLOURS}")
        name = join(swatch, curve.name)
        if not single and not chart.stacked:
            name = tag("button", name, type="button", aria_pressed="true", data_hides=index)
        items.append(tag("li", name))
    bands = list(dict.fromkeys(c.band for c in chart.curves if c.band and not chart.stacked))
    items += [tag("li", tag("i", class_="key shade"), band) for band in bands]
    return tag(
        "ul", *items, class_="legend", aria_label=f"Legend of {chart.title}", id=f"{ident}-key"
    )


def _summary(curve: Curve) -> str:
    known = curve.y[np.isfinite(curve.y)]
    if not len(known):
        return f"{curve.name} has no values."
    return (
        f"{curve.name}: {number(known[0])} at first, {number(known[-1])} at last, "
        f"lowest {number(known.min())}, highest {number(known.max())}."
    )


def _values(chart: Chart) -> Html:
    """Some of the values as a table, for those who do not see the image."""
    shown = number if not chart.percent else lambda v: f"{v:.1%}" if math.isfinite(v) else NONE
    steps = np.unique(np.concatenate([curve.x for curve in chart.curves]))
    chosen = steps[np.unique(np.linspace(0, len(steps) - 1, _TABLE_ROWS).astype(int))]
    head = [tag("th", "step", scope="col")]
    columns: list[tuple[Column, Column]] = []
    for curve in chart.curves:
        parts = [("", curve.y)]
        if curve.low is not None and curve.high is not None and not chart.stacked:
            parts += [(", low", curve.low), (", high", curve.high)]
        for which, values in parts:
            head.append(tag("th", f"{curve.name}{which}", scope="col"))
            columns.append((curve.x, values))
    rows = []
    for step in chosen.tolist():
        cells = [tag("td", shown(_at(x, values, step))) for x, values in columns]
        rows.append(tag("tr", tag("th", count(step), scope="row"), *cells))
    caption = tag("caption", f"{chart.title}: {len(chosen)} of {len(steps):,} steps")
    table = tag("table", caption, tag("thead", tag("tr", *head)), tag("tbody", *rows))
    region = tag(
        "div",
        table,
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label=f"{chart.title}, values",
    )
    return tag("details", tag("summary", "Values as a table"), region)


def _at(x: Column, values: Column, step: float) -> float:
    """The value at a step, or at the nearest one before it."""
    index = int(np.searchsorted(x, step, side="right")) - 1
    return float(values[index]) if index >= 0 and step <= x[-1] else math.nan


def _for_script(chart: Chart, scale: _Scale) -> dict[str, object]:
    """What the page's script needs to tell values under the pointer."""
    return {
        "x": scale.x,
        "y": scale.y,
        "percent": chart.percent,
        "curves": [
            {
                "name": curve.name,
                "colour": curve.colour % COLOURS,
                "x": _rounded(curve.x),
                "y": _rounded(curve.y),
                "at": None if not chart.stacked or curve.high is None else _rounded(curve.high),
                "low": None if curve.low is None or chart.stacked else _rounded(curve.low),
                "high": None if curve.high is None or chart.stacked else _rounded(curve.high),
            }
            for curve in chart.curves
        ],
    }


def _rounded(values: Column) -> list[float | None]:
    """Numbers with six digits; steps, which are whole, as they are."""
    return [
        None if math.isnan(v) else int(v) if v == int(v) else float(f"{v:.6g}")
        for v in values.tolist()
    ]
