"""Mender: what a fleet's caller sees of a worker or env that was restarted under it.

The interrupted transition is reported as truncated: the observation the caller was given last,
reward 0, and ``info["worker_restarted"]``. Same-step autoreset reports that observation as
``final_obs``, beside the first one of the new episode; next-step resets on the next step; without
autoreset the env waits for ``reset``. The host does all that (``EnvHost.renew``); here is decided
which envs it concerns, and what is asked of a new worker again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from envfleet.engine.arena.views import Views
from envfleet.engine.failures import Failure
from envfleet.engine.messages import Outcome, Reset
from envfleet.engine.pool.recovery import Recovery
from envfleet.engine.pool.supervisor import Pool
from envfleet.errors import WorkerDied


class Mender:
    """Replaces what failed during a call, so that the answers are complete again."""

    def __init__(
        self, pool: Pool, recovery: Recovery, views: Views, loose: list[list[Any]], *, piped: bool
    ) -> None:
        self.recovery = recovery
        self._pool = pool
        self._views = views
        self._loose = loose
        self._piped = piped
        self._resets: dict[int, Reset] = {}
        self._given = [column.copy() for column in self._views.observations]
        self.remember()

    def remember(self) -> None:
        """Keep the observations that the caller gets: a dying worker may overwrite its rows."""
        for given, column in zip(self._given, self._views.observations, strict=True):
            given[...] = column
        self._given_loose = list(self._loose)

    def note_resets(self, commands: dict[int, Reset]) -> None:
        """Remember what a reset asks of each worker, in case it has to be repeated."""
        self._resets = commands
        for command in commands.values():
            self.recovery.note_seeds(command.plan)

    def replace_in_step(self, death: WorkerDied) -> None:
        """Replace a worker that died in a step; the new one's answer is that all was cut off."""
        answer = self._replace(death, now=True)
        self._pool.handles[death.worker].outcome = answer
        self._pool.restored()

    def replace_in_reset(self, death: WorkerDied) -> None:
        """Replace a worker that died in a reset, and repeat what was asked of it.

        Its other envs' episodes are lost: their next step says so.
        """
        worker = death.worker
        if worker not in self._resets:
            self.replace_in_call(death)
            return
        while True:
            self._replace(death, now=False)
            try:
                answer = self._pool.converse(worker, self._resets[worker])
            except WorkerDied as again:
                death = again
                continue
            self._pool.handles[worker].outcome = answer
            self._pool.restored()
            return

    def replace_in_call(self, death: WorkerDied) -> None:
        """Replace a worker that died in a call; its envs' next step says that it was cut off."""
        self._replace(death, now=False)
        self._pool.restored()

    def mend_step(self, worker: int) -> None:
        """Rebuild the envs that raised in a step; their failures become truncated transitions."""
        while (answer := self._pool.handles[worker].outcome) is not None:
            try:
                for failure in _taken(answer, "step", "restart"):
                    self._rebuild_in_step(answer, worker, failure)
            except WorkerDied as death:
                self.replace_in_step(death)
                continue
            return

    def mend_reset(self, worker: int) -> None:
        """Rebuild the envs that raised in a reset, and reset them again."""
        while (answer := self._pool.handles[worker].outcome) is not None:
            try:
                for failure in _taken(answer, "reset"):
                    self._rebuild_in_reset(answer, worker, failure)
            except WorkerDied as death:
                self.replace_in_reset(death)
                continue
            return

    def _replace(self, death: WorkerDied, *, now: bool) -> Outcome:
        """Put a new worker in place of a dead one; its envs are cut off now, or one step later."""
        while True:
            self.recovery.replace_worker(death)
            try:
                shard = self._pool.handles[death.worker].env_ids
                return self._cut_off(death.worker, shard, now=now)
            except WorkerDied as again:
                death = again

    def _cut_off(self, worker: int, envs: Sequence[int], *, now: bool) -> Outcome:
        rows = list(envs)
        for column, given in zip(self._views.observations, self._given, strict=True):
            column[rows] = given[rows]
        blocks = [given[rows] for given in self._given] if self._piped else []
        loose = [self._given_loose[env] for env in rows]
        return self.recovery.renew(worker, rows, blocks, loose, now=now)

    def _rebuild_in_step(self, answer: Outcome, worker: int, failure: Failure) -> None:
        while True:
            self.recovery.rebuild(worker, failure)
            renewed = self._cut_off(worker, [failure.env], now=True)
            again = _taken(renewed, "restart")
            if not again:
                _take_over(answer, failure.env, renewed)
                return
            failure = again[0]

    def _rebuild_in_reset(self, answer: Outcome, worker: int, failure: Failure) -> None:
        plan = self._resets[worker].plan.shard(range(failure.env, failure.env + 1))
        while True:
            self.recovery.rebuild(worker, failure)
            if plan.seeds == [None]:
                plan = replace(plan, seeds=[self.recovery.fresh_seed(failure.env)])
            later = self._pool.converse(worker, Reset(plan))
            again = _taken(later, "reset")
            if not again:
                _take_over(answer, failure.env, later)
                return
            failure = again[0]


def _take_over(answer: Outcome, env: int, later: Outcome) -> None:
    """Put what one env answered later into its shard's answer.

    Rows are a shard's current ones, so that the later ones are right for its other envs too.
    """
    answer.unpack()
    later.unpack()
    others = [entry for entry in answer.infos if entry[0] != env]
    answer.failures = [*answer.failures, *later.failures]
    answer.infos = sorted([*others, *later.infos], key=lambda entry: entry[0])
    answer.loose = later.loose
    answer.final_loose = [*answer.final_loose, *later.final_loose]
    answer.observations = later.observations
    answer.final_observations = later.final_observations or answer.final_observations


def _taken(outcome: Outcome, *phases: str) -> list[Failure]:
    """The failures of some phases, taken out of an answer."""
    taken = [failure for failure in outcome.failures if failure.phase in phases]
    outcome.failures = [failure for failure in outcome.failures if failure.phase not in phases]
    return taken
