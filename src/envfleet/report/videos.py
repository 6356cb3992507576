"""Videos: which ones a page has room for, and the elements that show them."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from envfleet.report.axes import count, size
from envfleet.report.markup import Html, tag
from envfleet.report.reading import RunData, Video

ROOM = 6_000_000
"""Bytes of all videos of a page; they become a third more as text."""

Choice = dict[str, list[Video]]
"""Videos by the name of their run, in the order of steps."""


def choose(runs: Sequence[RunData], room: int = ROOM) -> tuple[Choice, Choice]:
    """Videos that fit, and those that are left out.

    Each run's last one is the most telling, then its first one, then from the end to the beginning;
    runs take turns.
    """
    orders = {run.name: _by_worth(run.videos) for run in runs}
    kept: set[Video] = set()
    for turn in range(max((len(order) for order in orders.values()), default=0)):
        for order in orders.values():
            if turn < len(order) and order[turn].size <= room:
                kept.add(order[turn])
                room -= order[turn].size
    shown = {run.name: [v for v in run.videos if v in kept] for run in runs}
    left_out = {run.name: [v for v in run.videos if v not in kept] for run in runs}
    return shown, left_out


def _by_worth(videos: Sequence[Video]) -> list[Video]:
    if len(videos) < 3:
        return list(reversed(videos))
    first, *middle, last = videos
    return [last, first, *reversed(middle)]


def show(run: RunData, videos: Sequence[Video]) -> list[Html]:
    """The elements of a run's videos; a GIF gets a button of the page's script that stops it."""
    return [_figure(run, video) for video in videos]


def _figure(run: RunData, video: Video) -> Html:
    when = video.path.name if video.step is None else f"Step {count(video.step)}"
    name = f"{run.name}, {when[0].lower()}{when[1:]}"
    source = f"data:{video.media_type};base64,{base64.b64encode(video.path.read_bytes()).decode()}"
    if video.media_type == "video/mp4":
        shown = tag("video", src=source, controls=True, loop=True, muted=True, aria_label=name)
    else:
        shown = tag("img", src=source, alt=f"The agent playing: {name}", class_="gif")
    caption = tag("figcaption", tag("span", when), tag("span", video.path.name, class_="hint"))
    return tag("figure", shown, caption, class_="video")


def tell_left_out(left_out: Choice) -> Html | None:
    """What is not on the page, why, and where it is."""
    videos = [video for some in left_out.values() for video in some]
    if not videos:
        return None
    total = size(sum(video.size for video in videos))
    names = [
        tag("li", f"{run}: {video.path.name} ({size(video.size)})")
        for run, some in left_out.items()
        for video in some
    ]
    what = "1 video is" if len(videos) == 1 else f"{len(videos)} videos are"
    text = f"{what} left out ({total}): a page has room for {size(ROOM)} of them."
    where = "They are in the runs' folders, under renders."
    return tag(
        "div",
        tag("p", f"{text} {where}"),
        tag("details", tag("summary", "Which ones"), tag("ul", *names)),
        class_="notice",
    )
