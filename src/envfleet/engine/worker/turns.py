"""Turns: the envs of a shard that were asked one by one, and the portions in which they move.

Envs take their turn in the order in which they were asked, so that none starves. Quick ones move in
portions (``rules.portions``) and are told of together; a slow one moves alone. An env whose turn is
a reset, which is where envs tend to be slow, moves with others only while resets are quick too.
"""

from __future__ import annotations

import time
from collections.abc import Container, Sequence
from enum import IntEnum, auto
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envfleet.engine.arena.views import EVERYBODY, Rows, Views, pick_rows
from envfleet.engine.failures import Failure
from envfleet.engine.interrupts import raise_interrupt
from envfleet.engine.messages import Ask, Outcome
from envfleet.engine.rules.portions import SLOW, Portion
from envfleet.engine.rules.seeding import ResetPlan
from envfleet.engine.rules.spaces import Structure
from envfleet.engine.worker.episodes import Episodes


class _Kind(IntEnum):
    """What an env's turn is."""

    STEP = auto()
    AUTORESET = auto()
    RESET = auto()
    LOST = auto()
    """What it was asked could not be unpickled."""


class Turn(NamedTuple):
    """What a portion has answered: the rows of its envs, what each was asked, when, and what."""

    rows: list[int]
    picked: Rows
    numbers: NDArray[np.uint64]
    stamp: float
    outcome: Outcome


_ONE = np.uint64(1)


class Turns:
    """Who is next, and what each was asked beside its row of actions."""

    def __init__(self, episodes: Episodes, views: Views, actions: Structure, first: int) -> None:
        """Own the shard's rows; what was asked before is not this one's to do."""
        self._episodes = episodes
        self._actions = actions
        self._columns = views.actions
        self._asked = views.asked
        self._taken = views.asked.copy()
        self._first = first
        self.queue: list[int] = []
        """The rows of envs that wait for their turn."""
        self._errands: dict[int, Any] = {}
        self._moving: list[int] = []
        self._steps = Portion(len(views.asked))
        self._resets = Portion(len(views.asked))

    def look(self) -> None:
        """Take in envs whose row of actions is all that they were asked."""
        new = (self._asked != self._taken).nonzero()[0]
        numbers = self._asked[new]
        if int(np.bitwise_or.reduce(numbers)) & 1:  # the rest of some is on the wire, or came
            here = (numbers & _ONE == 0).nonzero()[0]
            new, numbers = new[here], numbers[here]
        queue = self.queue + new.tolist()
        self._taken[new] = numbers  # no interrupt can come between these two
        self.queue = queue

    def add(self, ask: Ask) -> None:
        """Take in envs that were asked more; an ask that came twice counts once."""
        errands: Sequence[Any]
        try:
            errands = ask.opened()
        except Exception as error:  # noqa: BLE001 - a user's objects may raise anything
            raise_interrupt(error)
            errands = [error] * len(ask.env_ids)
        rows = np.array(ask.env_ids) - self._first
        numbers = np.array(ask.numbers, dtype=np.uint64)
        at = (numbers > self._taken[rows]).nonzero()[0]
        new, numbers = rows[at], numbers[at]
        queue = self.queue + new.tolist()
        self._errands.update({int(rows[k]): errands[k] for k in at.tolist()})
        self._taken[new] = numbers  # no interrupt can come between these two
        self.queue = queue

    def take(self, most: int | None = None, among: Container[int] | None = None) -> Turn | None:
        """Let the next portion move; None if nobody is left.

        Args:
            most: how many envs may move.
            among: the envs that may.
        """
        kind, rows = self._next(most, among)
        if not rows:
            return None
        self._moving = rows
        self._remove(rows)
        if len(rows) < len(self._asked):
            picked = pick_rows(rows)
        else:
            picked = EVERYBODY
            rows.sort()
        begun = time.perf_counter()
        outcome = self._move(kind, rows, picked)
        now = time.perf_counter()
        self._note(kind, len(rows), now - begun)
        return Turn(rows, picked, self._taken[picked], now, outcome)

    def end(self) -> None:
        """What ``take`` returned has been told."""
        self._moving = []

    def torn(self) -> list[int]:
        """The envs of which an interrupt leaves it open what they did; told once."""
        torn, self._moving = self._moving, []
        self._remove(torn)
        for i in torn:
            self._errands.pop(i, None)  # or its next step would be this reset
        return [self._first + i for i in torn]

    def _remove(self, rows: list[int]) -> None:
        """Take rows out of the queue."""
        if self.queue[: len(rows)] == rows:
            del self.queue[: len(rows)]
        elif rows:
            gone = set(rows)
            self.queue = [i for i in self.queue if i not in gone]

    def _next(self, most: int | None, among: Container[int] | None) -> tuple[_Kind, list[int]]:
        """Who moves now: the head of the queue, and as many of its kind as fit."""
        queue = self.queue
        if among is not None:
            queue = [i for i in queue if self._first + i in among]
        if not queue:
            return _Kind.STEP, []
        if not self._errands and (self._resets.is_quick or True not in self._episodes.due):
            size = self._steps.size
            return _Kind.STEP, queue[: size if most is None else min(size, most)]
        kind = self._kind(queue[0])
        size = self._steps.size if kind is _Kind.STEP else self._resets.size
        size = size if most is None else min(size, most)
        alike = (i for i in queue if self._kind(i) is kind)
        return kind, list(islice(alike, 1 if kind is _Kind.LOST else size))

    def _kind(self, i: int) -> _Kind:
        errand = self._errands.get(i)
        if isinstance(errand, ResetPlan):
            return _Kind.RESET
        if isinstance(errand, Exception):
            return _Kind.LOST
        is_due = self._episodes.due[i] and not self._resets.is_quick
        return _Kind.AUTORESET if is_due else _Kind.STEP

    def _note(self, kind: _Kind, count: int, seconds: float) -> None:
        if kind is not _Kind.STEP:
            self._resets.note(count, seconds)
            return
        self._steps.note(count, seconds)
        if seconds > SLOW:
            self._resets.note(count, seconds)  # it may have been the reset of one of them

    def _move(self, kind: _Kind, rows: list[int], picked: Rows) -> Outcome:
        errands: list[Any] = []
        if self._errands:
            errands = [self._errands.pop(i, None) for i in rows]
        try:
            if kind is _Kind.LOST:
                raise errands[0]  # noqa: TRY301 - told as any failure of a command is
            if kind is _Kind.RESET:
                return self._episodes.reset(ResetPlan.joined(errands))
            # Copies: an env may keep its action, and the row is overwritten.
            columns: list[Any] = [column[picked] for column in self._columns]
            if isinstance(picked, slice):
                columns = [column.copy() for column in columns]
            if self._actions.loose:
                fixed, loose = iter(columns), zip(*errands, strict=True)
                columns = [
                    next(fixed) if leaf.fixed else list(next(loose))
                    for leaf in self._actions.leaves
                ]
            return self._episodes.step(columns, picked)
        except Exception as error:  # noqa: BLE001 - nothing that can be told may end a worker
            raise_interrupt(error)
            phase = "receiving a command" if kind is _Kind.LOST else "step"
            first = self._first
            return Outcome(failures=[Failure.capture(first + i, phase, error) for i in rows])
