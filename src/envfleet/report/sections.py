"""Sections: the parts of a report, each only where the runs' files have something to tell."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from envfleet.report import videos, words
from envfleet.report.axes import NONE, count, duration, number
from envfleet.report.charts import COLOURS, Chart, draw
from envfleet.report.curves import POINTS, Curve, in_buckets, of_group, of_run
from envfleet.report.markup import Html, join, tag
from envfleet.report.reading import RunData
from envfleet.report.statistics import SEED, Group, differing, settings
from envfleet.report.summary import RATE, Summary
from envfleet.report.tables import Table, of_groups, of_runs

_EPISODES = ("return", "length")
_COUNTERS = ("step", "updates", "n", "restarts")


@dataclass(frozen=True)
class Section:
    """A part of the page, with a heading and an entry in its navigation."""

    ident: str
    title: str
    content: Html


def sections(groups: Sequence[Group]) -> Iterator[Section]:
    """All sections that there is something for."""
    runs = [run for group in groups for run in group.runs]
    made = (
        Section("overview", "Overview", _overview(groups, runs)),
        Section("learning", "Learning", _learning(groups, runs)),
        Section("videos", "Videos", _videos(runs)),
        Section("losses", "Losses", _losses(groups, runs)),
        Section("speed", "Speed", _speed(groups, runs)),
        Section("engine", "Engine", _engine(groups, runs)),
        Section("more", "More metrics", _more(groups, runs)),
        Section("config", "Configuration", _config(groups, runs)),
    )
    for section in made:
        if section.content:
            yield section


def _charts(charts: Sequence[Chart], prefix: str) -> Html:
    if not charts:
        return Html()
    drawn = [draw(chart, f"{prefix}-{index}") for index, chart in enumerate(charts)]
    return tag("div", *drawn, class_="charts one" if len(charts) == 1 else "charts")


def _curves(groups: Sequence[Group], key: str, label: str) -> list[Curve]:
    """A curve per group that has this column; of a single run it is named by what it shows."""
    return [
        of_run(group.runs[0], key, label)
        if len(groups) == len(group.runs) == 1
        else replace(of_group(group, key), colour=index)
        for index, group in enumerate(groups)
        if any(run.column(key) is not None for run in group.runs)
    ]


def _overview(groups: Sequence[Group], runs: Sequence[RunData]) -> Html:
    notes = [f"{run.name}: {note}" for run in runs for note in run.notes]
    for group in groups:
        seeds = [run.config.get(SEED) for run in group.runs if SEED in run.config]
        if len({str(seed) for seed in seeds}) < len(seeds):
            notes.append(f"{group.name}: runs share a seed, so they are not independent.")
    told = tag("ul", *[tag("li", note) for note in notes], class_="notice") if notes else None
    most = max(len(run.steps) for run in runs)
    if most > POINTS:
        text = f"Charts show {most:,} rows in {POINTS} buckets: the line is the mean of a bucket."
        told = join(tag("p", text, class_="hint below"), told)
    if len(runs) == 1:
        return join(_tiles(Summary(runs[0])), told)
    about = (
        "Runs whose settings differ in the seed only are one group. IQM is the interquartile mean "
        "of their last mean returns, with a 95 % bootstrap interval; one run has none."
    )
    return join(
        tag("p", about, class_="hint"), of_groups(groups).html(), of_runs(groups).html(), told
    )


def _tiles(told: Summary) -> Html:
    run = told.run
    episodes = run.last("n")
    spread = f"5 to 95 %: {number(run.last('return_p5'))} to {number(run.last('return_p95'))}"
    ended = math.isfinite(run.last("return_mean"))
    returns = f"mean of the last {count(episodes)} episodes, {spread}"
    tiles = [
        ("Return", number(run.last("return_mean")), returns if ended else "no episode has ended"),
        ("Best mean return", number(told.best_return), "highest of all updates"),
        ("Episode length", number(run.last("length_mean")), "mean of the same episodes"),
        ("Steps", count(told.step), told.status),
        ("Steps per second", number(told.rate), f"{duration(told.seconds)} of training"),
        ("Restarts", count(told.restarts), "workers and envs that were replaced"),
    ]
    boxes = [
        tag("div", tag("dt", name), tag("dd", value, tag("small", about)), class_="tile")
        for name, value, about in tiles
        if value != NONE or name == "Return"
    ]
    return tag("dl", *boxes, class_="tiles")


def _learning(groups: Sequence[Group], runs: Sequence[RunData]) -> Html:
    charts = []
    for name in _EPISODES:
        key = f"{name}_mean"
        if len(runs) == 1:
            if runs[0].column(key) is None:
                continue
            band = (f"{name}_p5", f"{name}_p95", "5 to 95 % of episodes")
            curves = [of_run(runs[0], key, f"mean {name}", band)]
            hint = "Of the last 100 episodes."
        else:
            curves = _curves(groups, key, f"mean {name}")
            hint = "Mean of the last 100 episodes; with several seeds their interquartile mean."
        if curves:
            title = "Return" if name == "return" else "Episode length"
            charts.append(Chart(title, curves, hint, tall=name == "return"))
    if not charts and any(len(run.steps) for run in runs):
        return tag("p", "No episode has ended yet, so there is no return to show.", class_="notice")
    if not charts:
        return tag("p", "There are no metrics yet.", class_="notice")
    return _charts(charts, "learning")


def _videos(runs: Sequence[RunData]) -> Html:
    shown, left_out = videos.choose(runs)
    parts = []
    for run in runs:
        if shown[run.name]:
            parts.append(tag("h3", run.name) if len(runs) > 1 else None)
            parts.append(tag("div", *videos.show(run, shown[run.name]), class_="videos"))
    return join(*parts, videos.tell_left_out(left_out))


def _keys(runs: Sequence[RunData], prefix: str) -> list[str]:
    """Columns of any run that begin so and have numbers."""
    names = dict.fromkeys(name for run in runs for name in run.columns if name.startswith(prefix))
    return [name for name in names if any(run.column(name) is not None for run in runs)]


def _losses(groups: Sequence[Group], runs: Sequence[RunData]) -> Html:
    keys = sorted((k.removeprefix("loss/") for k in _keys(runs, "loss/")), key=words.loss_order)
    charts = []
    for key in keys:
        title, hint = words.loss(key)
        charts.append(Chart(title, _curves(groups, f"loss/{key}", title.lower()), hint))
    return _charts(charts, "losses")


def _speed(groups: Sequence[Group], runs: Sequence[RunData]) -> Html:
    charts = []
    if rates := _curves(groups, RATE, "steps per second"):
        hint = "Steps of all envs together, per update."
        charts.append(Chart("Throughput", rates, hint, from_zero=True))
    if len(runs) == 1 and len(split := _time_split(runs[0])) > 1:
        hint = "Share of each part in the time of an update."
        charts.append(Chart("Time split", split, hint, percent=True, stacked=True))
    return join(_charts(charts, "speed"), _time_table(groups))


def _time_split(run: RunData) -> list[Curve]:
    """The parts of the time as bands, one upon the other."""
    names = list(Summary(run).parts)
    few = [in_buckets(Curve(name, run.steps, run.columns[f"time/{name}"])) for name in names]
    if not few:
        return []
    rows = np.nan_to_num(np.array([curve.y for curve in few]))
    total = rows.sum(0)
    shares = np.divide(rows, total, out=np.full_like(rows, np.nan), where=total > 0)
    tops = shares.cumsum(0)
    return [
        Curve(words.part(name), few[0].x, share, top - share, top, "", index)
        for index, (name, share, top) in enumerate(zip(names, shares, tops, strict=True))
    ]


def _time_table(groups: Sequence[Group]) -> Html:
    """Where the time went in all: a bar and a row per group."""
    told = [(g, [Summary(run).parts for run in g.runs]) for g in groups]
    names = list(dict.fromkeys(name for _, parts in told for part in parts for name in part))
    if not names:
        return Html()
    bars: list[Html | None] = []
    rows: list[tuple[str, ...]] = []
    for group, parts in told:
        seconds = [sum(part.get(name, 0.0) for part in parts) for name in names]
        total = sum(seconds)
        if not total > 0:
            continue
        shares = [value / total for value in seconds]
        pieces = [
            tag("span", class_=f"c{index % COLOURS}", style=f"flex-grow:{share:.4f}")
            for index, share in enumerate(shares)
        ]
        bars.append(tag("div", *pieces, class_="bar", aria_hidden="true"))
        bars.append(tag("p", group.name, class_="hint") if len(groups) > 1 else None)
        rows.append((group.name, duration(total), *[f"{share:.1%}" for share in shares]))
    keys = [
        tag("li", tag("i", class_=f"key c{index % COLOURS}"), words.part(name))
        for index, name in enumerate(names)
    ]
    head = ("run" if len(groups) == 1 else "group", "time", *map(words.part, names))
    table = Table("Where the time went", head, rows)
    return tag(
        "div",
        tag("h3", "Where the time went"),
        tag("ul", *keys, class_="legend", aria_label="Legend of the bars"),
        *bars,
        table.html(),
        class_="card",
    )


def _engine(groups: Sequence[Group], runs: Sequence[RunData]) -> Html:
    ways: dict[tuple[str, ...], list[str]] = {}
    for run in runs:
        if run.plan:
            ways.setdefault(_plan_cells(run.plan), []).append(run.name)
    rows = [(", ".join(names), *cells) for cells, names in ways.items()]
    head = ("runs", "backend", "workers", "caller steps", "why")
    plans = Table("Engine plan: how the envs run", head, rows).html() if rows else None
    charts = []
    if any(Summary(run).restarts > 0 for run in runs):
        hint = "Workers and envs that were replaced so far."
        curves = _curves(groups, "restarts", "restarts")
        charts.append(Chart("Restarts", curves, hint, from_zero=True))
        calm = None
    else:
        known = any(run.column("restarts") is not None for run in runs)
        calm = (
            tag("p", "No worker and no env had to be restarted.", class_="hint below")
            if known
            else None
        )
    charts += [
        Chart(f"Flow: {words.plain(key).lower()}", _curves(groups, key, words.plain(key).lower()))
        for key in _keys(runs, "flow/")
    ]
    return join(plans, calm, _charts(charts, "engine"))


def _plan_cells(plan: Any) -> tuple[str, str, str, str]:
    steps = plan.get("caller_steps")
    shares = "" if steps is None else "yes" if steps else "no"
    told = [str(plan.get(key) or "") for key in ("reason", "native")]
    why = "; native implementation: ".join(filter(None, told))
    by_pipe = plan.get("by_pipe")
    why += f"; by pipe: {', '.join(map(str, by_pipe))}" if by_pipe else ""
    return str(plan.get("backend", "")), str(plan.get("workers", "")), shares, why


def _more(groups: Sequence[Group], runs: Sequence[RunData]) -> Html:
    """Whatever else was logged."""
    known = ("loss/", "time/", "flow/", *(f"{name}_" for name in _EPISODES))
    keys = [k for k in _keys(runs, "") if not k.startswith(known) and k not in _COUNTERS]
    charts = [Chart(key, _curves(groups, key, key)) for key in keys]
    return _charts(charts, "more")


def _config(groups: Sequence[Group], runs: Sequence[RunData]) -> Html:
    if len(runs) == 1:
        parts = (("Hyperparameters", runs[0].config), ("How it runs", runs[0].options))
        return join(*(_settings(title, part) for title, part in parts if part))
    names = differing([group.runs[0] for group in groups])
    rows = []
    for group in groups:
        told = settings(group.runs[0])
        seeds = ", ".join(str(run.config[SEED]) for run in group.runs if SEED in run.config)
        rows.append((group.name, seeds, *(_value(told.get(name)) for name in names)))
    told = settings(runs[0])
    same = {k: v for k, v in told.items() if k not in (SEED, *names)}
    if not names and not same:
        return Html()
    return join(
        Table("What groups differ in", ("group", "seeds", *names), rows).html(),
        _settings("The same in all groups", same),
    )


def _settings(title: str, told: Mapping[str, Any]) -> Html:
    pairs = [tag("div", tag("dt", name), tag("dd", _value(v))) for name, v in told.items()]
    return tag("div", tag("h3", title), tag("dl", *pairs, class_="settings"), class_="card")


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
