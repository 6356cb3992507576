"""Arrivals: what envs that were asked one by one have answered, until the caller receives it.

That an env has answered, its row of ``done`` says, wherever the env lives: a worker that shares the
arena writes it itself, and for any other shard whoever receives its reports does, here.
"""

from __future__ import annotations

from envfleet.engine.arena.views import Views
from envfleet.engine.failures import Failure
from envfleet.engine.messages import Report, Told, told_by


class Arrivals:
    """The caller's rows, and what came beside them, by env.

    An entry counts only as long as its number is the one that the env was asked with last.
    """

    def __init__(self, views: Views) -> None:
        self.views = views
        self.told: dict[int, Told] = {}
        self.failures: dict[int, tuple[int, Failure, str]] = {}
        """The number, the failure and the place of envs that raised."""

    def take(self, report: Report, place: str = "") -> None:
        """Take a report over; twice is as good as once."""
        outcome, rows = report.outcome, report.env_ids
        if report.tellers():
            number_of = dict(zip(report.env_ids, report.numbers, strict=True))
            for failure in outcome.failures:
                if failure.env in number_of:
                    self.failures[failure.env] = number_of[failure.env], failure, place
            self.told.update(told_by(report))
        views = self.views
        for column, block in zip(views.observations, outcome.observations, strict=False):
            column[rows] = block
        for column, block in zip(
            views.final_observations, outcome.final_observations, strict=False
        ):
            column[rows] = block
        views.hand_back(rows, report.numbers, report.stamp)
