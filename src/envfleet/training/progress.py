"""Progress: what is shown of a run while it trains. The one place for bars, lines and panels."""

from __future__ import annotations

import math
import os
import sys
import time
from typing import Any, Self

from envfleet.rollout.numbers import three_digits
from envfleet.rollout.progress import in_notebook, is_terminal, progress_bar


class Progress:
    """Shows nothing; the interface of those that do. ``with`` is around the training loop."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, step: int, metrics: dict[str, float]) -> None:
        """An update is over: returns, losses, ``restarts``, and ``time/...``, the time's split."""

    def message(self, text: str) -> None:
        """Something that people should read, once."""


class BarProgress(Progress):
    """A bar, in a notebook or where only standard error is a terminal."""

    def __init__(self, total: int, begun: int) -> None:
        self._bar: Any = progress_bar(total, True, "Training", "step", begun)
        self._step = begun

    def __exit__(self, *_: object) -> None:
        self._bar.__exit__(None, None, None)

    def update(self, step: int, metrics: dict[str, float]) -> None:
        """Move the bar."""
        self._bar.set_postfix_str(returns_text(metrics), refresh=False)
        self._bar.update(step - self._step)
        self._step = step

    def message(self, text: str) -> None:
        """Below the bar."""
        say(text)


class LineProgress(Progress):
    """A line every few seconds, where there is no terminal."""

    def __init__(self, total: int, begun: int) -> None:
        self._total, self._first = total, begun
        self._start = self._last = time.perf_counter()

    def update(self, step: int, metrics: dict[str, float]) -> None:
        """A line, if the last one is a while ago or it is the end."""
        now = time.perf_counter()
        if now - self._last <= 5.0 and step < self._total:
            return
        self._last = now
        rate = (step - self._first) / (now - self._start)
        left = max(0, self._total - step) / rate  # restarts may take a rollout more
        say(
            f"{step:,} of {self._total:,} steps, {three_digits(rate)}/s, {returns_text(metrics)}, "
            f"{three_digits(left)} s left"
        )

    def message(self, text: str) -> None:
        """A line."""
        say(text)


def make_progress(title: str, total: int, begun: int) -> Progress:
    """A panel on a terminal, lines elsewhere; a bar in a notebook or if only stderr is seen."""
    if is_terminal() and sys.stdout is not None and sys.stdout.isatty():
        from envfleet.training.panel import PanelProgress  # noqa: PLC0415 - it builds on this file

        return PanelProgress(title, total, begun)
    return (BarProgress if is_terminal() or in_notebook() else LineProgress)(total, begun)


def returns_text(metrics: dict[str, float]) -> str:
    """The percentiles of the returns in a few words, and how envs flow where they do."""
    returns = [metrics[f"return_{name}"] for name in ("p5", "p50", "p95")]
    text = "return " + "/".join("-" if math.isnan(r) else three_digits(r) for r in returns)
    text += " (5/50/95 %)"
    if "flow/mean_batch" in metrics:
        text += f", {metrics['flow/mean_batch']:.1f} envs at a time"
    return text


def say(text: str) -> None:
    """Print to whoever listens; if nobody does any more, training goes on all the same."""
    try:
        print(text, flush=True)  # noqa: T201
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
