"""Recovery: brings a worker that died, or an env that raised, back to where a fleet can go on."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from envfleet.engine.failures import Failure
from envfleet.engine.messages import Attach, Outcome, Rebuild, Renew, SetAttr
from envfleet.engine.pool.supervisor import Pool
from envfleet.engine.rules.restarts import RestartBudget
from envfleet.engine.rules.seeding import ResetPlan, derived_seed
from envfleet.engine.rules.spaces import Array
from envfleet.errors import WorkerDied

_log = logging.getLogger("envfleet")


class Recovery:
    """Restarts within a budget, and remembers what a new worker or env must be told."""

    def __init__(
        self,
        pool: Pool,
        budget: RestartBudget,
        attach: Attach,
        descriptor: int,
        num_envs: int,
        patience: float | None,
        start_patience: float,
    ) -> None:
        self.budget = budget
        self._pool = pool
        self._attach = attach
        self._descriptor = pool.keep_descriptor(descriptor)
        self._patience = patience
        self._start_patience = start_patience
        self._settings: dict[str, dict[int, object]] = {}
        self._seeds: list[int | None] = [None] * num_envs

    def note_seeds(self, plan: ResetPlan) -> None:
        """Remember the seeds that envs were given; later ones are derived from them."""
        for env, seed in zip(plan.env_ids, plan.seeds, strict=True):
            if seed is not None:
                self._seeds[env] = seed

    def note_setting(self, name: str, values: Mapping[int, object]) -> None:
        """Remember what ``set_attr`` has set, by env."""
        self._settings.setdefault(name, {}).update(values)

    def replace_worker(self, death: WorkerDied) -> None:
        """Start a worker in place of a dead one, with the arena and what was set in its envs.

        Raises:
            WorkerDied: the budget is spent; the fleet stays broken.
            Exception: so it is, and an env could not be built, or not take what was set, again.
        """
        failed: BaseException | None = None
        while True:
            self._spend(death, failed)
            _log.warning("%s Restart %d.", death.what, self.budget.spent)
            try:
                self._pool.revive(death.worker, self.budget.spent)
                started = self._pool.converse(death.worker, None, timeout=self._start_patience)
                failures = started.failures
                if not failures:
                    attached = self._pool.attach_again(death.worker, self._attach, self._descriptor)
                    envs = self._pool.handles[death.worker].env_ids
                    failures = attached.failures or self._set_again(death.worker, envs)
                # The fleet counts as broken until the mender has called ``restored``.
            except WorkerDied as again:
                death = again
                continue
            if not failures:
                return
            failed = failures[0].exception(self._pool.handles[death.worker].place)

    def rebuild(self, worker: int, failure: Failure) -> None:
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
            built = self._pool.converse(worker, Rebuild([failure.env]), timeout=self._patience)
            failures = built.failures or self._set_again(worker, [failure.env])
            if not failures:
                return
            failure = failures[0]
        error = failure.exception(self._pool.handles[worker].place)
        error.add_note(self._exhausted())
        raise error

    def renew(
        self,
        worker: int,
        envs: Sequence[int],
        observations: list[Array],
        loose: list[list[Any]],
        *,
        now: bool,
    ) -> Outcome:
        """Tell a worker that its envs' episodes were lost; seeds are derived from their old ones.

        Raises:
            WorkerDied: the worker died of it.
        """
        seeds = [self.fresh_seed(env) for env in envs]
        command = Renew(list(envs), seeds, observations, loose, now)
        return self._pool.converse(worker, command, timeout=self._patience)

    def fresh_seed(self, env: int) -> int | None:
        """A seed derived from the env's last one, if it ever had one."""
        seed = self._seeds[env]
        return None if seed is None else derived_seed(seed, self.budget.spent)

    def _set_again(self, worker: int, envs: Iterable[int]) -> list[Failure]:
        """Set what was set; returns what that raised in the envs."""
        chosen = list(envs)
        failures: list[Failure] = []
        for name, values in self._settings.items():
            ours = [env for env in chosen if env in values]
            command = SetAttr(ours, name, [values[env] for env in ours])
            failures += self._pool.converse(worker, command, timeout=self._patience).failures
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
