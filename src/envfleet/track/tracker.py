"""Tracker: what the library asks of whoever keeps metrics and videos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self


class Tracker(Protocol):
    """Keeps the metrics and videos of one run."""

    project: str | None
    run: str | None
    """Names, where there are any: videos go to ``renders/<project>/<run>``."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Numbers that belong to a step; steps do not fall."""

    def video(self, path: Path, step: int) -> None:
        """A video is complete in this file."""

    def close(self) -> None:
        """Nothing more will come."""


class Trackers:
    """Several trackers as one; the first one with names gives its own."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers: list[Tracker] = []
        self.project: str | None = None
        self.run: str | None = None
        for tracker in trackers:
            self.add(tracker)

    def add(self, tracker: Tracker) -> None:
        """Tell this one, too, from now on."""
        self._trackers.append(tracker)
        if tracker.project and tracker.run and not self.project:
            self.project, self.run = tracker.project, tracker.run

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Tell all."""
        for tracker in self._trackers:
            tracker.log(metrics, step)

    def video(self, path: Path, step: int) -> None:
        """Tell all."""
        for tracker in self._trackers:
            tracker.video(path, step)

    def close(self) -> None:
        """Close all, also when some raise; then the first error is raised."""
        errors = []
        for tracker in self._trackers:
            try:
                tracker.close()
            except Exception as error:  # noqa: BLE001 - told below
                errors.append(error)
        if errors:
            raise errors[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
