"""Replacement: a new worker in place of a dead one, or a new env in place of one that raised."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from envfleet.engine.failures import Failure
from envfleet.engine.messages import Outcome, Rebuild, Renew
from envfleet.engine.pool.pool import Pool
from envfleet.engine.restart.budget import RestartBudget
from envfleet.engine.restart.history import History
from envfleet.errors import WorkerDied

_log = logging.getLogger("envfleet")


class Replacement:
    """Restarts within a budget, and repeats to a new worker or env what its predecessor was told.

    Args:
        pool: the fleet's shards.
        budget: how often.
        history: what is repeated.
        patience: seconds for an answer of a living worker; None is no limit.
        start_patience: seconds for a start; a start that takes longer hangs.
    """

    def __init__(
        self,
        pool: Pool,
        budget: RestartBudget,
        history: History,
        patience: float | None,
        start_patience: float,
    ) -> None:
        self.budget = budget
        self.history = history
        self._pool = pool
        self._patience = patience
        self._start_patience = start_patience

    def replace_worker(self, death: WorkerDied) -> None:
        """Start a worker in place of a dead one, with the arena and what was set in its envs.

        The fleet counts as broken until the pool is told that it is ``restored``.

        Raises:
            WorkerDied: the budget is spent; the fleet stays broken.
            Exception: so it is, and an env could not be built, or not take what was set, again.
        """
        failed: BaseException | None = None
        while True:
            self._spend(death, failed)
            _log.warning("%s Restart %d.", death.what, self.budget.spent)
            shard = death.worker
            try:
                self._pool.revive(shard, self.budget.spent)
                failures = self._pool.converse(shard, None, self._start_patience).failures
                if not failures:
                    failures = self._pool.attach_again(shard).failures
                if not failures:
                    envs = self._pool.shards[shard].env_ids
                    self._pool.converse(shard, self.history.recorded(envs), self._patience)
                    failures = self._set_again(shard, envs)
            except WorkerDied as again:
                death = again
                continue
            if not failures:
                return
            failed = failures[0].exception(self._pool.shards[shard].place)

    def rebuild(self, shard: int, failure: Failure) -> None:
        """Build one env that raised anew, in its living worker.

        Raises:
            Exception: the env's own, when the budget is spent.
            WorkerDied: the worker died of it.
        """
        while self.budget.spend(time.monotonic()):
            _log.warning(
                "env %d raised %s in %s. Restart %d.",
                failure.env,
                failure.type_name,
                failure.phase,
                self.budget.spent,
            )
            built = self._pool.converse(shard, Rebuild([failure.env]), self._patience)
            failures = built.failures or self._set_again(shard, [failure.env])
            if not failures:
                return
            failure = failures[0]
        error = failure.exception(self._pool.shards[shard].place)
        error.add_note(self._exhausted())
        raise error

    def cut_off(self, shard: int, envs: Sequence[int], *, now: bool) -> Outcome:
        """Tell a worker that its envs' episodes were lost; seeds are derived from their old ones.

        Raises:
            WorkerDied: the worker died of it.
        """
        seeds = [self.fresh_seed(env) for env in envs]
        command = Renew(list(envs), seeds, *self.history.restore_rows(envs), now)
        return self._pool.converse(shard, command, self._patience)

    def fresh_seed(self, env: int) -> int | None:
        """A seed that the env has not had, if it ever had one."""
        return self.history.fresh_seed(env, self.budget.spent)

    def _set_again(self, shard: int, envs: Sequence[int]) -> list[Failure]:
        """Set what was set; returns what that raised in the envs."""
        failures: list[Failure] = []
        for command in self.history.settings(envs):
            failures += self._pool.converse(shard, command, self._patience).failures
        return failures

    def _spend(self, death: WorkerDied, failed: BaseException | None) -> None:
        if not self.budget.spend(time.monotonic()):
            self._pool.give_up(death)
            error = death if failed is None else failed
            error.add_note(self._exhausted())
            raise error

    def _exhausted(self) -> str:
        return (
            f"restarts=({self.budget.limit}, {self.budget.window}) allows no further restart: "
            f"{self.budget.limit} within {self.budget.window} s are spent"
        )
