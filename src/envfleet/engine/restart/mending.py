"""Mender: what a fleet's caller sees of a worker or env that was restarted under it.

The interrupted transition is reported as truncated: the observation the caller was given last,
reward 0, and ``info["worker_restarted"]``. Same-step autoreset reports that observation as
``final_obs``, beside the first one of the new episode; next-step resets on the next step; without
autoreset the env waits for ``reset``. The shard does all that (``Episodes.renew``); here is decided
which envs it concerns, and what is asked of a new worker again.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from gymnasium.vector.async_vector_env import AsyncState

from envfleet.engine.failures import Failure
from envfleet.engine.messages import Outcome, Reset
from envfleet.engine.pool.flow import Flow
from envfleet.engine.pool.pool import Pool
from envfleet.engine.restart.replacing import Replacement
from envfleet.engine.rules.seeding import ResetPlan
from envfleet.errors import WorkerDied


class Mender:
    """Replaces what failed during a call, so that the answers are complete again."""

    def __init__(self, pool: Pool, replacement: Replacement) -> None:
        self._pool = pool
        self._replacement = replacement
        self.history = replacement.history

    @property
    def count(self) -> int:
        """Restarts so far."""
        return self._replacement.budget.spent

    def replace(self, death: WorkerDied, pending: AsyncState) -> None:
        """Replace a worker that died while a call was pending.

        Afterwards it has answered a step (everything was cut off) or a reset (repeated). A call is
        not repeated: its envs' next step says that they were cut off.

        Raises:
            WorkerDied, Exception: it cannot be replaced (see ``Replacement``).
        """
        if pending is AsyncState.WAITING_STEP:
            self._replace_in_step(death)
        elif pending is AsyncState.WAITING_RESET:
            self._replace_in_reset(death)
        else:
            self._replace_in_call(death)

    def mend(self, pending: AsyncState) -> None:
        """Rebuild the envs that raised in the step or reset that has just been answered.

        Their failures become truncated transitions, or a repeated reset.

        Raises:
            WorkerDied, Exception: they cannot be replaced (see ``Replacement``).
        """
        for shard in range(len(self._pool.shards)):
            if pending is AsyncState.WAITING_STEP:
                self._mend_step(shard)
            elif pending is AsyncState.WAITING_RESET:
                self._mend_reset(shard)

    # Envs that are asked one by one

    def replace_in_flow(self, death: WorkerDied, flow: Flow) -> None:
        """Replace a worker that died while envs were outstanding.

        Those that owed a report have made one afterwards: that they were cut off. A reset is asked
        for again. What has been reported already stays as it is; these envs, and those that nobody
        has asked, say in their next step that they were cut off.

        Raises:
            WorkerDied, Exception: it cannot be replaced (see ``Replacement``).
        """
        shard = death.worker
        while True:
            owing, ready = flow.salvage(shard)
            flow.arrivals.read_notes(np.array(ready, dtype=np.intp))
            plans = [plan for env in owing if (plan := flow.reset_plan(env)) is not None]
            again = {env for plan in plans for env in plan.env_ids}
            cut = [env for env in owing if env not in again]
            self.history.remember_envs(ready, flow.arrivals.told)
            self._replacement.replace_worker(death)
            others = [env for env in self._pool.shards[shard].env_ids if env not in cut]
            try:
                if others:
                    self._replacement.cut_off(shard, others, now=False)
                if cut:
                    flow.answer(cut, self._replacement.cut_off(shard, cut, now=True), shard)
            except WorkerDied as once_more:
                death = once_more
                continue
            break
        self._pool.restored()
        if plans:
            flow.send_again(ResetPlan.joined(plans))

    def mend_in_flow(self, failure: Failure, flow: Flow) -> None:
        """Rebuild an env that raised in its turn, which then reports that it was cut off.

        A reset is asked for again.

        Raises:
            WorkerDied, Exception: it cannot be replaced (see ``Replacement``).
        """
        env = failure.env
        (shard,) = (s.index for s in self._pool.shards if env in s.env_ids)
        self._replacement.rebuild(shard, failure)
        plan = flow.reset_plan(env)
        if plan is None:
            flow.answer([env], self._replacement.cut_off(shard, [env], now=True), shard)
            return
        if plan.seeds == [None]:
            plan = replace(plan, seeds=[self._replacement.fresh_seed(env)])
        flow.send_again(plan)

    def _replace_in_step(self, death: WorkerDied) -> None:
        """Replace a worker that died in a step; the new one's answer is that all was cut off."""
        answer = self._replace(death, now=True)
        self._pool.shards[death.worker].outcome = answer
        self._pool.restored()

    def _replace_in_reset(self, death: WorkerDied) -> None:
        """Replace a worker that died in a reset, and repeat what was asked of it.

        Its other envs' episodes are lost: their next step says so.
        """
        shard = death.worker
        plan = self.history.reset_of(shard)
        if plan is None:
            self._replace_in_call(death)
            return
        while True:
            self._replace(death, now=False)
            try:
                answer = self._pool.converse(shard, Reset(plan))
            except WorkerDied as again:
                death = again
                continue
            self._pool.shards[shard].outcome = answer
            self._pool.restored()
            return

    def _replace_in_call(self, death: WorkerDied) -> None:
        """Replace a worker that died in a call; its envs' next step says that it was cut off."""
        self._replace(death, now=False)
        self._pool.restored()

    def _replace(self, death: WorkerDied, *, now: bool) -> Outcome:
        """Put a new worker in place of a dead one; its envs are cut off now, or one step later."""
        while True:
            self._replacement.replace_worker(death)
            shard = death.worker
            try:
                envs = self._pool.shards[shard].env_ids
                return self._replacement.cut_off(shard, envs, now=now)
            except WorkerDied as again:
                death = again

    def _mend_step(self, shard: int) -> None:
        while (answer := self._pool.shards[shard].outcome) is not None:
            try:
                for failure in _taken(answer, "step", "restart"):
                    self._rebuild_in_step(answer, shard, failure)
            except WorkerDied as death:
                self._replace_in_step(death)
                continue
            return

    def _mend_reset(self, shard: int) -> None:
        while (answer := self._pool.shards[shard].outcome) is not None:
            try:
                for failure in _taken(answer, "reset"):
                    self._rebuild_in_reset(answer, shard, failure)
            except WorkerDied as death:
                self._replace_in_reset(death)
                continue
            return

    def _rebuild_in_step(self, answer: Outcome, shard: int, failure: Failure) -> None:
        while True:
            self._replacement.rebuild(shard, failure)
            renewed = self._replacement.cut_off(shard, [failure.env], now=True)
            again = _taken(renewed, "restart")
            if not again:
                _take_over(answer, failure.env, renewed)
                return
            failure = again[0]

    def _rebuild_in_reset(self, answer: Outcome, shard: int, failure: Failure) -> None:
        asked = self.history.reset_of(shard)
        if asked is None:
            raise AssertionError("a shard that was not asked has answered")
        plan = asked.shard(range(failure.env, failure.env + 1))
        while True:
            self._replacement.rebuild(shard, failure)
            if plan.seeds == [None]:
                plan = replace(plan, seeds=[self._replacement.fresh_seed(failure.env)])
            later = self._pool.converse(shard, Reset(plan))
            again = _taken(later, "reset")
            if not again:
                _take_over(answer, failure.env, later)
                return
            failure = again[0]


MENDED = ("step", "reset", "restart")
"""The phases whose failures a new env can make good."""


def _take_over(answer: Outcome, env: int, later: Outcome) -> None:
    """Put what one env answered later into its shard's answer.

    Rows are a shard's current ones, so that the later ones are right for its other envs too.
    """
    answer.unpack()
    later.unpack()
    others = [entry for entry in answer.infos if entry[0] != env]
    answer.failures = [*answer.failures, *later.failures]
    answer.infos = sorted([*others, *later.infos], key=lambda entry: entry[0])
    answer.ended = answer.ended or later.ended
    answer.loose = later.loose
    answer.final_objects = [*answer.final_objects, *later.final_objects]
    answer.observations = later.observations
    answer.final_observations = later.final_observations or answer.final_observations


def _taken(outcome: Outcome, *phases: str) -> list[Failure]:
    """The failures of some phases, taken out of an answer."""
    if not outcome.failures:
        return []
    taken = [failure for failure in outcome.failures if failure.phase in phases]
    outcome.failures = [failure for failure in outcome.failures if failure.phase not in phases]
    return taken
