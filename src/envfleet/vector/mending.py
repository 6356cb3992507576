"""Mender: what a fleet's caller sees of a worker or env that was restarted under it.

The interrupted transition is reported as truncated: the observation the caller was given last,
reward 0, and ``info["worker_restarted"]``. Same-step autoreset reports that observation as
``final_obs``, beside the first one of the new episode; next-step resets on the next step; without
autoreset the env waits for ``reset``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gymnasium.vector import AutoresetMode

from envfleet.engine.arena.views import Views
from envfleet.engine.failures import Failure
from envfleet.engine.messages import Outcome, Reset
from envfleet.engine.pool.recovery import Recovery
from envfleet.engine.pool.supervisor import Pool
from envfleet.engine.rules.seeding import ResetPlan
from envfleet.errors import WorkerDied


class Mender:
    """Replaces what failed during a ``reset`` or ``step``, and fills in what it owes the caller."""

    def __init__(
        self,
        pool: Pool,
        recovery: Recovery,
        views: Views,
        loose: list[list[Any]],
        mode: AutoresetMode,
        *,
        piped: bool,
    ) -> None:
        self.recovery = recovery
        self.owed: set[int] = set()
        """Workers that were replaced outside a step; their envs are cut off in the next one."""
        self._pool = pool
        self._views = views
        self._loose = loose
        self._same_step = mode == AutoresetMode.SAME_STEP
        self._piped = piped
        self._resets: dict[int, Reset] = {}
        self.remember()

    def remember(self) -> None:
        """Keep the observations that the caller gets: a dying worker may overwrite its rows."""
        self._given = [column.copy() for column in self._views.observations]
        self._given_loose = list(self._loose)

    def note_resets(self, commands: dict[int, Reset]) -> None:
        """Remember what a reset asks of each worker, in case it has to be repeated."""
        self._resets = commands
        for command in commands.values():
            self.recovery.note_seeds(command.plan)

    def with_owed_resets(self, commands: dict[int, Reset]) -> dict[int, Reset]:
        """A reset that touches a replaced worker resets all its envs: none has begun an episode."""
        complete = dict(commands)
        for worker in self.owed & commands.keys():
            complete[worker] = self._completed(worker, commands[worker])
        self.owed -= commands.keys()
        return complete

    def _completed(self, worker: int, command: Reset) -> Reset:
        envs = self._pool.handles[worker].env_ids
        seeds = [self.recovery.fresh_seed(env) for env in envs]
        everyone = ResetPlan(list(envs), seeds, [None] * len(envs))
        return Reset(command.plan.after(everyone))

    def replace_in_reset(self, death: WorkerDied) -> None:
        """Replace a worker that died in a reset, and have all its envs reset by the new one."""
        worker = death.worker
        if worker not in self._resets:
            self.replace_in_call(death)
            return
        asked = set(self._resets[worker].plan.env_ids)
        while True:
            self.recovery.replace_worker(death)
            command = self._completed(worker, self._resets[worker])
            try:
                outcome = self._pool.converse(worker, command)
            except WorkerDied as again:
                death = again
                continue
            handle = self._pool.handles[worker]
            for env in handle.env_ids:
                if env not in asked:
                    outcome.infos.append((env, {"worker_restarted": True}))
            outcome.infos.sort(key=lambda entry: entry[0])
            handle.outcome = outcome
            self._pool.restored()
            return

    def replace_in_step(self, death: WorkerDied) -> None:
        """Replace a worker that died in a step, and answer for it."""
        self.recovery.replace_worker(death)
        self.cut_off(death.worker)

    def replace_in_call(self, death: WorkerDied) -> None:
        """Replace a worker that died in a call; what the call was to do is lost."""
        self.recovery.replace_worker(death)
        self.owed.add(death.worker)
        self._pool.restored()

    def cut_off(self, worker: int) -> None:
        """Answer the current step for a new worker: every transition of its envs is truncated."""
        while True:
            handle = self._pool.handles[worker]
            try:
                renewed = self._renew(worker, handle.env_ids)
                answer = self._report(handle.env_ids, handle.env_ids, renewed)
                for failure in renewed.failures:
                    self._take_env(answer, worker, failure)
            except WorkerDied as death:
                self.recovery.replace_worker(death)
                continue
            handle.outcome = answer
            self.owed.discard(worker)
            self._pool.restored()
            return

    def mend_step(self, worker: int, outcome: Outcome) -> None:
        """Rebuild the envs that raised in a step; their failures become truncated transitions."""
        try:
            for failure in _taken(outcome, "step"):
                self._take_env(outcome, worker, failure)
        except WorkerDied as death:
            self.replace_in_step(death)

    def mend_reset(self, worker: int, outcome: Outcome) -> None:
        """Rebuild the envs that raised in a reset, and reset them again."""
        try:
            for failure in _taken(outcome, "reset"):
                self._reset_env(outcome, worker, failure)
        except WorkerDied as death:
            self.replace_in_reset(death)
            again = self._pool.handles[worker].outcome
            if again is not None:
                shard = self._pool.handles[worker].env_ids
                self._take_rows(shard, shard, again)
                self.mend_reset(worker, again)

    def _renew(self, worker: int, envs: Sequence[int]) -> Outcome:
        rows = list(envs)
        blocks = [given[rows] for given in self._given] if self._piped else []
        return self.recovery.renew(worker, rows, blocks, [self._given_loose[env] for env in rows])

    def _take_env(self, outcome: Outcome, worker: int, failure: Failure) -> None:
        """Rebuild one env and put its truncated transition into a shard's answer."""
        shard = self._pool.handles[worker].env_ids
        while True:
            self.recovery.rebuild(worker, failure)
            renewed = self._renew(worker, [failure.env])
            if not renewed.failures:
                break
            failure = renewed.failures[0]
        report = self._report(shard, [failure.env], renewed)
        outcome.infos = [entry for entry in outcome.infos if entry[0] != failure.env]
        outcome.infos += report.infos
        outcome.infos.sort(key=lambda entry: entry[0])
        outcome.final_loose = [*outcome.final_loose, *report.final_loose]

    def _reset_env(self, outcome: Outcome, worker: int, failure: Failure) -> None:
        """Rebuild one env and reset it as it was asked to."""
        shard = self._pool.handles[worker].env_ids
        plan = self._resets[worker].plan.shard(range(failure.env, failure.env + 1))
        while True:
            self.recovery.rebuild(worker, failure)
            again = self._pool.converse(worker, Reset(plan))
            self._take_rows(shard, [failure.env], again)
            if not again.failures:
                outcome.infos = sorted([*outcome.infos, *again.infos], key=lambda entry: entry[0])
                return
            failure = again.failures[0]

    def _report(self, shard: range, envs: Sequence[int], renewed: Outcome) -> Outcome:
        """Fill the rows of envs that were cut off; returns what goes beside them."""
        rows = list(envs)
        views = self._views
        if self._same_step:
            for final, given in zip(views.final_observations, self._given, strict=True):
                final[rows] = given[rows]
            self._take_rows(shard, rows, renewed)
        else:
            for column, given in zip(views.observations, self._given, strict=True):
                column[rows] = given[rows]
            for env in rows:
                self._loose[env] = self._given_loose[env]
        views.rewards[rows] = 0.0
        views.terminated[rows] = False
        views.truncated[rows] = True
        first = dict(renewed.infos)
        report = Outcome()
        for env in rows:
            info = {"final_info": {}, **first.get(env, {})} if self._same_step else {}
            report.infos.append((env, {**info, "worker_restarted": True}))
        if self._same_step and self._loose and self._loose[0]:
            report.final_loose = [(env, self._given_loose[env]) for env in rows]
        return report

    def _take_rows(self, shard: range, rows: Sequence[int], outcome: Outcome) -> None:
        """Take over what an answer carries of these envs and not of their neighbours."""
        local = [env - shard.start for env in rows]
        for env, i in zip(rows, local, strict=True):
            if outcome.loose:
                self._loose[env] = outcome.loose[i]
        for column, block in zip(self._views.observations, outcome.observations, strict=False):
            column[rows] = block[local]


def _taken(outcome: Outcome, phase: str) -> list[Failure]:
    """The failures of a phase, taken out of an answer."""
    taken = [failure for failure in outcome.failures if failure.phase == phase]
    outcome.failures = [failure for failure in outcome.failures if failure.phase != phase]
    return taken
