"""Notes: what envs tell beside their rows, left in the arena where it is short.

An env that was asked alone tells its info for itself, and a message on the wire for each of them
would wake the caller each time. What has no room here, and failures, go by wire all the same.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from envfleet.engine.arena.views import Views
from envfleet.engine.worker.turns import Turn


class Notes:
    """Writes the notes of one shard's envs, in its rows of the arena."""

    def __init__(self, views: Views, first: int) -> None:
        self._notes, self._sizes = views.notes, views.note_sizes
        self._room = views.notes.shape[1]
        self._first = first
        self.are_clean = False
        """Whether there is certainly no note; a worker that died may have left some."""

    def write(self, turn: Turn, tellers: set[int]) -> set[int]:
        """Note what these envs of a portion tell; returns those whose it is too much for a note."""
        self._sizes[turn.picked] = 0
        self.are_clean = not tellers and not self._sizes.any()
        outcome = turn.outcome
        infos, finals = dict(outcome.infos), dict(outcome.final_objects)
        failed = {failure.env - self._first for failure in outcome.failures}
        unnoted = tellers & failed
        for i in tellers - failed:
            env = self._first + i
            loose = outcome.loose[i] if outcome.loose else None
            if not self._note(i, (infos.get(env, {}), loose, finals.get(env))):
                unnoted.add(i)
        return unnoted

    def _note(self, i: int, told: tuple[Any, ...]) -> bool:
        try:
            data = pickle.dumps(told)
        except Exception:  # noqa: BLE001 - an env's objects may raise anything; the wire tells
            return False
        if len(data) > self._room:
            return False
        self._notes[i, : len(data)] = np.frombuffer(data, dtype=np.uint8)
        self._sizes[i] = len(data)
        return True
