"""Markup: HTML from parts; plain text is always escaped, so that no text of a run becomes code."""

from __future__ import annotations

import html
import json
from typing import Any

_EMPTY = frozenset({"meta", "img", "path"})
"""Elements without content; in SVG they must be closed, in HTML they may."""


class Html(str):
    """Text that is HTML already. Whatever is made of one by ``+`` or formatting is plain again."""

    __slots__ = ()


def tag(name: str, /, *children: str | None, **attributes: str | float | bool | None) -> Html:
    """An element. Of attributes ``class_`` is class and ``aria_label`` is aria-label.

    None and False leave an attribute out, True gives it no value; a child that is None is left out.
    """
    told = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _EMPTY:
        return Html(f"<{name}{told}/>")
    return Html(f"<{name}{told}>{join(*children)}</{name}>")


def join(*parts: str | None) -> Html:
    """Parts one after the other."""
    return Html(
        "".join(part if isinstance(part, Html) else html.escape(part) for part in parts if part)
    )


def data(value: Any) -> Html:
    """A value for the page's script, in an element that is not run."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Html(f'<script type="application/json">{text}</script>')


def _attribute(key: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    key = key.rstrip("_").replace("_", "-")
    return f" {key}" if value is True else f' {key}="{html.escape(str(value))}"'
