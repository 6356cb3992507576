"""Page: the sections of a report as one HTML file, with its style and script inside."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from datetime import datetime
from importlib import resources

from envfleet.report.markup import Html, join, tag
from envfleet.report.sections import sections
from envfleet.report.statistics import Group
from envfleet.report.summary import Summary
from envfleet.report.tables import of_groups, of_runs


def render(groups: Sequence[Group], now: datetime) -> str:
    """The page of these runs, written at this moment."""
    runs = [run for group in groups for run in group.runs]
    parts = list(sections(groups))
    envs = list(dict.fromkeys(run.env_id for run in runs))
    env = ", ".join(envs[:3]) + (" …" if len(envs) > 3 else "")
    what = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    if len(groups) > 1:
        what += f" in {len(groups)} groups"
    state = Summary(runs[0]).status if len(runs) == 1 else ""
    header = tag(
        "header",
        tag("div", tag("h1", env, " ", tag("span", what)), _about(state, now), class_="title"),
        tag("button", "Dark theme", type="button", id="theme", aria_pressed="false", hidden=True),
    )
    links = [tag("li", tag("a", part.title, href=f"#{part.ident}")) for part in parts]
    main = [
        tag(
            "section",
            tag("h2", part.title, id=f"{part.ident}-heading"),
            part.content,
            id=part.ident,
            aria_labelledby=f"{part.ident}-heading",
        )
        for part in parts
    ]
    body = tag(
        "body",
        tag("a", "Skip to the report", href="#report", class_="skip"),
        header,
        tag("nav", tag("ul", *links), aria_label="Sections"),
        tag("main", *main, id="report", tabindex=-1),
        _footer(groups),
        tag("script", Html(_asset("page.js"))),
    )
    return "<!doctype html>\n" + tag("html", _head(f"{env}: {what}"), body, lang="en") + "\n"


def _head(title: str) -> Html:
    digest = base64.b64encode(hashlib.sha256(_asset("page.js").encode()).digest()).decode()
    # Nothing is ever fetched, and no script but ours is run, whatever a run's files contain.
    policy = (
        "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'"
    )
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{title} · envfleet"),
        tag("style", Html(_asset("page.css"))),
    )


def _about(state: str, now: datetime) -> Html:
    when = tag("time", f"{now:%d %B %Y, %H:%M}", datetime=now.isoformat(timespec="minutes"))
    return tag("p", f"{state} · " if state else None, "report of ", when, class_="hint")


def _footer(groups: Sequence[Group]) -> Html:
    downloads = [
        _download("Groups as CSV", "groups.csv", "text/csv", of_groups(groups).csv()),
        _download("Runs as CSV", "runs.csv", "text/csv", of_runs(groups).csv()),
        _download("Runs as Markdown", "runs.md", "text/markdown", of_runs(groups).markdown()),
    ]
    return tag("footer", tag("p", join("Written by envfleet. Download: "), *downloads))


def _download(label: str, name: str, kind: str, text: str) -> Html:
    content = base64.b64encode(text.encode()).decode()
    address = f"data:{kind};charset=utf-8;base64,{content}"
    return tag("a", label, href=address, download=name)


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")
