"""Arrivals: what envs that were asked one by one have answered, until the caller receives it.

That an env has answered, its row of ``done`` says, wherever the env lives: a worker that shares the
arena writes it itself, and for any other shard whoever receives its reports does, here.
"""

from __future__ import annotations

import pickle

import numpy as np
from numpy.typing import NDArray

from envfleet.engine.arena.views import Views
from envfleet.engine.failures import Failure
from envfleet.engine.interrupts import raise_interrupt
from envfleet.engine.messages import ENDED, SILENT, Report, Told, told_by


class Arrivals:
    """The caller's rows, and what came beside them, by env.

    An entry counts only as long as its number is the one that the env was asked with last.
    """

    def __init__(self, views: Views) -> None:
        self.views = views
        self.has_notes = views.notes.shape[1] > 0
        """Whether there is room for notes."""
        self.told: dict[int, Told] = {}
        self.failures: dict[int, tuple[int, Failure, str]] = {}
        """The number, the failure and the place of envs that raised."""

    def take(self, report: Report, place: str = "") -> None:
        """Take a report over; twice is as good as once."""
        outcome, views = report.outcome, self.views
        rows = np.array(report.env_ids, dtype=np.intp)
        numbers = np.array(report.numbers, dtype=np.uint64)
        if outcome is not SILENT and outcome is not ENDED:
            number_of = dict(zip(report.env_ids, report.numbers, strict=True))
            for failure in outcome.failures:
                if failure.env in number_of:
                    self.failures[failure.env] = number_of[failure.env], failure, place
            self.told.update(told_by(report))
        for column, block in zip(views.observations, outcome.observations, strict=False):
            column[rows] = block
        for column, block in zip(
            views.final_observations, outcome.final_observations, strict=False
        ):
            column[rows] = block
        views.note_sizes[rows] = 0
        views.hand_back(rows, numbers, report.stamp)

    def forget(self, env_ids: list[int]) -> None:
        """Let go of what these envs told: they have been received."""
        for env in env_ids:
            self.told.pop(env, None)
            self.failures.pop(env, None)

    def read_notes(self, env_ids: NDArray[np.intp]) -> None:
        """Add what these envs have left in the arena to what is told; or that it is unreadable."""
        views = self.views
        sizes = views.note_sizes[env_ids]
        for env, size in zip(env_ids.tolist(), sizes.tolist(), strict=True):
            number = int(views.asked[env])
            if size and (env not in self.told or self.told[env].number != number):
                try:
                    self.told[env] = Told(number, *pickle.loads(views.notes[env, :size].tobytes()))
                except Exception as error:  # noqa: BLE001 - an env's objects may raise anything
                    raise_interrupt(error)
                    text = f"what env {env} told could not be unpickled here: {error}"
                    failure = Failure(env, "answer", type(error).__name__, text, "")
                    self.failures[env] = number, failure, ""
