"""What commands about runs share: refusals, and a run carried out to its end."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import gymnasium

from envfleet.errors import NoRoom
from envfleet.rollout.numbers import three_digits
from envfleet.track.durable import WriteError
from envfleet.track.lock import FolderInUseError
from envfleet.training import command
from envfleet.training.checkpoint import CheckpointError
from envfleet.training.failures import describe
from envfleet.training.loading import load_run
from envfleet.training.plot import write_pages
from envfleet.training.progress import Progress, make_progress, say
from envfleet.training.trainer import Run

REFUSALS = (
    ValueError,
    TypeError,
    OSError,
    ImportError,
    FolderInUseError,
    CheckpointError,
    NoRoom,
    gymnasium.error.Error,
)
"""What is wrong with what was asked for: told without a traceback, exit code 2."""


def refuse(error: Exception | str) -> int:
    """Say why it cannot be done; the exit code."""
    known = None if isinstance(error, str) else describe(error)
    text, code = known or (str(error), 2)
    print(text, file=sys.stderr)  # noqa: T201
    return code


def check_at_least(least: int, **values: int) -> None:
    """Refuse options that are smaller."""
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name} must be {least} or more, got {value}")


def trained(
    folder: Path, num_envs: int, checkpoint: str | None, *, trust: bool, render: bool = False
) -> tuple[Any, Any, int]:
    """A run's policy, a fleet for it, and the step it was trained to."""
    loaded = load_run(folder, checkpoint, trust=trust)
    envs = loaded.make_envs(num_envs, render=render)
    try:
        policy = loaded.policy(envs.single_observation_space, envs.single_action_space)
    except BaseException:
        envs.close()
        raise
    return policy, envs, loaded.step


def carry_out(run: Run, *, quiet: bool = False) -> int:
    """Train, tell how it goes, write curve and report; 128 and the signal's number if one came."""
    start = time.perf_counter()
    title = f"{run.config.env_id} {run.folder.name}"
    progress = Progress() if quiet else make_progress(title, run.config.last_step, run.steps)
    resume = command.of_run("resume", run.folder, run.record)
    try:
        with run:
            is_over = run.train(progress)
            window = run.collector.statistics.window
    except WriteError as error:  # a full disk
        return refuse(f"{error}; the run has stopped. With room on the disk: {resume}")
    except Exception as error:
        if run.updates:
            write_pages(run.folder, say)
            error.add_note(f"what was learnt is saved; continue with:\n{resume}")
        raise
    write_pages(run.folder, say)
    code = 0 if is_over else 128 + (run.stopped_by or 0)
    if quiet:
        return code
    how = how_it_ended(run.options.stop_at if run.is_solved else None) if is_over else "stopped"
    seconds = time.perf_counter() - start
    trained = sum(run.seconds.values())
    split = ", ".join(f"{name} {part / trained:.0%}" for name, part in run.seconds.items())
    result = "no episode has ended yet"
    if window.n:
        mean = three_digits(window.returns.mean)
        result = f"return {mean} over the last {window.n} episodes"
    say(
        f"{run.folder}: {how}, {run.steps:,} steps in {three_digits(seconds)} s, {result}\n"
        f"{three_digits(trained)} s of training: {split}"
    )
    say(what_is_left(run.folder))
    if is_over:
        say("next:")
        for word in ("eval", "record"):
            say(command.of_run(word, run.folder, run.record))
    else:
        say(f"continue with:\n{resume}")  # a line of its own, to be pasted
    return code


def what_is_left(folder: Path) -> str:
    """Where to look: the names of report, curve and videos, a line each."""
    lines = [
        f"{word}: {folder / name}"
        for word, name in (("report", "report.html"), ("curve", "curve.png"))
        if (folder / name).exists()
    ]
    videos = sorted((folder / "renders").glob("render_*.*"))
    if videos:
        more = f" (and {len(videos) - 1} more)" if len(videos) > 1 else ""
        lines.append(f"videos: {videos[-1]}{more}")
    return "\n".join(lines)


def how_it_ended(reached: float | None) -> str:
    """In a word or two."""
    return "finished" if reached is None else f"finished, solved (≥ {three_digits(reached)})"
