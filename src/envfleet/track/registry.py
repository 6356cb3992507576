"""Trackers by name: a third one is its file and a line here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from envfleet.track.tensorboard import TensorBoardTracker
from envfleet.track.tracker import Tracker
from envfleet.track.wandb import WandbTracker

TRACKERS: dict[str, Callable[[Path, int], Tracker]] = {
    "tensorboard": TensorBoardTracker.of_run,
    "wandb": WandbTracker.of_run,
}
"""Per name what makes a tracker, given a run's folder and the step it begins at."""


def make_trackers(names: Iterable[str], folder: Path, step: int) -> list[Tracker]:
    """The trackers of these names; if one cannot be made, those before it are closed.

    Raises:
        ImportError: its package is not installed.
        ValueError: there is none of that name, or its own reason (no account, no network).
    """
    names = tuple(names)
    made: list[Tracker] = []
    try:
        made.extend(_known(name)(folder, step) for name in names)
    except Exception as error:
        for tracker in made:
            tracker.close()
        if isinstance(error, ImportError):
            raise
        raise ValueError(f"track {' '.join(names)}: {error}") from error
    return made


def _known(name: str) -> Callable[[Path, int], Tracker]:
    if name not in TRACKERS:
        raise ValueError(f"there is no tracker {name!r}; there are: {', '.join(TRACKERS)}.")
    return TRACKERS[name]
