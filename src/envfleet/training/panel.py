"""Panel: a run at a glance in a terminal, drawn anew now and then, whatever its width."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from envfleet.rollout.numbers import three_digits
from envfleet.training.progress import Progress

COST = 0.004
"""The share of a run's time that drawing may take: the interval follows from what a draw costs."""
_SHORTEST = 0.25
"""Seconds between two draws, at least."""
_WIDE = 120
"""Columns from which on returns are beside the rest, not below it."""
_BLOCKS = " ▁▂▃▄▅▆▇█"
_COLOURS = ("blue", "magenta", "green", "yellow", "red", "cyan", "white")
_PERCENTILES = (("p95", "95 %", "green"), ("p50", "50 %", "cyan"), ("p5", " 5 %", "yellow"))


class PanelProgress(Progress):
    """Shows a run as a panel that stays where it is; what is said appears above it, too."""

    def __init__(
        self, title: str, total: int, begun: int, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.state = RunState(title, total, begun, clock)
        self._clock = clock
        self._live = Live(auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._log = _ToPanel(self)
        self._next = -math.inf
        self._show_warning: Any = None

    def __enter__(self) -> Self:
        logging.getLogger("envfleet").addHandler(self._log)
        self._show_warning = warnings.showwarning
        warnings.showwarning = self._warn  # type: ignore[assignment] # it needs not all
        self._live.start()
        self._draw()
        return self

    def __exit__(self, *_: object) -> None:
        warnings.showwarning = self._show_warning
        logging.getLogger("envfleet").removeHandler(self._log)
        self._draw()
        self._live.stop()

    def update(self, step: int, metrics: dict[str, float]) -> None:
        """Note an update, and draw if the last time is long enough ago."""
        self.state.note(step, metrics)
        if self._clock() >= self._next:
            self._draw()

    def message(self, text: str) -> None:
        """Above the panel, and as its last line."""
        self.state.last_message = " ".join(text.split())
        self._live.console.print(text, highlight=False, markup=False)
        self._draw()

    def _warn(self, message: Warning | str, category: type[Warning], *_: Any) -> None:
        self.message(f"{category.__name__}: {message}")

    def _draw(self) -> None:
        begin = self._clock()
        self._live.update(draw(self.state, self._live.console.width), refresh=True)
        end = self._clock()
        self._next = end + max(_SHORTEST, (end - begin) / COST)


class _ToPanel(logging.Handler):
    """What the log "envfleet" warns of, in the panel."""

    def __init__(self, panel: PanelProgress) -> None:
        super().__init__(logging.WARNING)
        self._panel = panel

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record."""
        self._panel.message(record.getMessage())


class RunState:
    """What is known of a run: its last update, the curves of its returns, sums of time."""

    def __init__(
        self, title: str, total: int, begun: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.title, self.total, self.step = title, total, begun
        self.metrics: dict[str, float] = {}
        self.seconds: dict[str, float] = {}
        self.returns: dict[str, Curve] = {name: Curve() for name, *_ in _PERCENTILES}
        self.last_message = ""
        self._clock = clock
        self._begun, self._start = begun, clock()

    def note(self, step: int, metrics: dict[str, float]) -> None:
        """An update is over."""
        self.step, self.metrics = step, metrics
        for name, curve in self.returns.items():
            curve.add(metrics.get(f"return_{name}", math.nan))
        for key, value in metrics.items():
            kind, _, part = key.partition("/")
            if kind == "time" and part != "steps_per_second":
                self.seconds[part] = self.seconds.get(part, 0.0) + value

    @property
    def elapsed(self) -> float:
        """Seconds since it was begun or resumed."""
        return self._clock() - self._start

    @property
    def rate(self) -> float:
        """Steps per second since then."""
        return (self.step - self._begun) / max(self.elapsed, 1e-9)

    @property
    def left(self) -> float:
        """Seconds until the end at this rate; infinite before the first update."""
        return max(0, self.total - self.step) / self.rate if self.rate else math.inf


class Curve:
    """A series in bounded memory: when there are too many values, neighbours are averaged."""

    def __init__(self, most: int = 512) -> None:
        self.values: list[float] = []
        self._most, self._per_value = most, 1
        self._pending: list[float] = []

    def add(self, value: float) -> None:
        """Append a value."""
        self._pending.append(value)
        if len(self._pending) == self._per_value:
            self.values.append(mean(self._pending))
            self._pending = []
        if len(self.values) == self._most:
            pairs = zip(self.values[::2], self.values[1::2], strict=True)
            self.values = [mean(pair) for pair in pairs]
            self._per_value *= 2


def mean(values: Sequence[float]) -> float:
    """Of those that are numbers; NaN if none is."""
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan


def sparkline(values: Sequence[float], low: float, high: float, width: int) -> str:
    """A curve in one row of blocks between two bounds; gaps where nothing is known."""
    if not values:
        return ""
    cells = min(width, len(values))
    edges = [round(i * len(values) / cells) for i in range(cells + 1)]
    line = ""
    for begin, end in pairwise(edges):
        value = mean(values[begin:end])
        if math.isnan(value):
            line += " "
            continue
        share = (value - low) / (high - low) if high > low else 0.5
        line += _BLOCKS[1 + round(share * (len(_BLOCKS) - 2))]
    return line


def draw(state: RunState, width: int) -> RenderableType:
    """The panel of a run for a terminal of so many columns."""
    inner = width - 4
    if width < _WIDE:
        content: RenderableType = Group(
            _bar(state, inner), _speed(state), _returns(state, inner), _details(state, inner)
        )
    else:
        left = inner // 2 - 2
        content = Table.grid(expand=True, padding=(0, 2))
        content.add_column(width=left)
        content.add_column()
        content.add_row(
            Group(_bar(state, left), _speed(state), _details(state, left)),
            _returns(state, inner - left - 4),
        )
    return Panel(content, title=Text(state.title, "bold"), title_align="left", width=width)


def _bar(state: RunState, width: int) -> RenderableType:
    text = f" {state.step:,} of {state.total:,} steps"
    grid = Table.grid()
    bar = ProgressBar(state.total, min(state.step, state.total), width=max(8, width - len(text)))
    grid.add_row(bar, text)
    return grid


def _speed(state: RunState) -> Text:
    left = "" if math.isinf(state.left) else f" · {duration(state.left)} left"
    speed = f"{three_digits(state.rate)} steps/s · {duration(state.elapsed)} elapsed{left}"
    return Text(speed if state.metrics else "collecting the first rollout", "bold")


def _returns(state: RunState, width: int) -> RenderableType:
    known = [v for c in state.returns.values() for v in c.values if math.isfinite(v)]
    if not known:
        return Text("return  no episode has ended yet", "dim")
    grid = Table.grid(padding=(0, 1))
    for name, label, colour in _PERCENTILES:
        values = state.returns[name].values
        line = sparkline(values, min(known), max(known), max(8, width - 24))
        last = state.metrics.get(f"return_{name}", math.nan)
        text = "" if math.isnan(last) else three_digits(last)
        grid.add_row(
            "return" if name == "p95" else "", label, Text(line, colour), Text(text, colour)
        )
    rest = [f"mean {_figure(state, 'return_mean')}", f"length {_figure(state, 'length_mean')}"]
    rest.append(f"last {_figure(state, 'n')} episodes")
    return Group(grid, Text(" · ".join(rest), "dim"))


def _details(state: RunState, width: int) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="dim")
    grid.add_column(width=width - 9, overflow="ellipsis")
    total = sum(state.seconds.values())
    if total > 0:
        parts = sorted(state.seconds.items(), key=lambda item: -item[1])
        text, bar, so_far = Text(), Text(), 0.0
        for (name, seconds), colour in zip(parts, _COLOURS, strict=False):
            so_far += seconds
            text.append(f"{name} {seconds / total:.0%}  ", colour)
            bar.append("━" * (round(so_far / total * (width - 9)) - len(bar)), colour)
        grid.add_row("time", bar)
        grid.add_row("", text)
    losses = {k[5:]: v for k, v in state.metrics.items() if k.startswith("loss/")}
    if losses:
        told = [
            f"{name.removesuffix('_loss').replace('_', ' ')} {three_digits(value)}"
            for name, value in losses.items()
        ]
        grid.add_row("losses", Text("  ".join(told)))
    if "restarts" in state.metrics:
        count = int(state.metrics["restarts"])
        text = Text(f"{count} restart{'s' * (count != 1)}", "yellow" if count else "")
        if "flow/mean_batch" in state.metrics:
            late = state.metrics.get("flow/partial", math.nan)
            text.append(f" · {state.metrics['flow/mean_batch']:.1f} envs at a time", "default")
            text.append("" if math.isnan(late) else f", {late:.0%} without late envs", "default")
        if "actors/late" in state.metrics:
            late, dropped = (int(state.metrics[f"actors/{key}"]) for key in ("late", "dropped"))
            words = f" · {late} actor{'s' * (late != 1)} late, {dropped} rollouts dropped"
            text.append(words, "yellow" if late else "default")
        grid.add_row("fleet", text)
    if state.last_message:
        grid.add_row("said", Text(state.last_message, "yellow", no_wrap=True, overflow="ellipsis"))
    return grid


def _figure(state: RunState, key: str) -> str:
    value = state.metrics.get(key, math.nan)
    return "-" if math.isnan(value) else three_digits(value)


def duration(seconds: float) -> str:
    """As on a clock: ``0:42``, ``12:05``, ``3:00:00``."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    rest = f"{whole % 60:02}"
    return f"{hours}:{minutes:02}:{rest}" if hours else f"{minutes}:{rest}"
