"""Failures of envs, as whoever gave the command should read them: none of our own traceback."""

from __future__ import annotations

import importlib
import re
import traceback
from pathlib import Path

import gymnasium

from envfleet.errors import EnvError
from envfleet.vector.packages import install_hint

_OURS, _GYMNASIUM = Path(__file__).parent.parent, gymnasium.__path__[0]
_PLUMBING = (
    f"{_OURS}/",
    f"{_GYMNASIUM}/core.py",
    f"{_GYMNASIUM}/envs/registration.py",
    f"{_GYMNASIUM}/wrappers/common.py",
    "<frozen importlib",
    str(importlib.__file__),
)
"""How the files begin that are between a command and an env."""
_FRAME = re.compile(
    r'^  File "(.*?)", line \d+.*\n(?:    .*\n|  \[Previous line .*\n)*', re.MULTILINE
)


def describe(error: BaseException) -> tuple[str, int] | None:
    """What to print, and the exit code: 2 for a missing package, 1 for an env; None otherwise."""
    hint = install_hint(error)
    if hint is not None:
        return hint, 2
    failure = env_failure(error)
    return None if failure is None else (failure, 1)


def env_failure(error: BaseException) -> str | None:
    """How an env has failed, which one, and where in its own code; None if no env has raised it.

    Expects what a fleet raises: the env's exception with a note, or an ``EnvError``.
    """
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    if not any(note.startswith("raised by env ") for note in notes):
        return None
    cause = error if isinstance(error, EnvError) else error.__cause__
    if isinstance(cause, EnvError):  # it came from a worker, as text
        text = cause.traceback
    else:
        trace = error.__traceback__
        while trace and not trace.tb_frame.f_code.co_filename.startswith(f"{_OURS}/"):
            trace = trace.tb_next  # whoever called us is no env
        told = traceback.TracebackException(type(error), error, trace)
        told.__notes__ = None
        text = "".join(told.format())
    return "\n".join([own_lines(text), *_few(notes)])


def _few(notes: list[str]) -> list[str]:
    """Notes of which one is enough of a kind: other envs mostly fail as the first one."""
    others = [note for note in notes if re.match(r"env \d+ also raised ", note)]
    if len(others) < 2:
        return notes
    kept = [note for note in notes if note not in others]
    return [kept[0], f"{len(others)} other envs have raised as well", *kept[1:]]


def own_lines(text: str) -> str:
    """A traceback as text, without the frames of the machinery."""

    def keep(frame: re.Match[str]) -> str:
        is_env = frame[1].startswith(f"{_OURS}/testing/")  # FaultEnv
        return frame[0] if is_env or not frame[1].startswith(_PLUMBING) else ""

    text = _FRAME.sub(keep, text.replace("Traceback (most recent call last):\n", ""))
    return re.sub(r"\n\n+", "\n", text).strip("\n")
