"""Flow: the envs of a fleet that were asked one by one, from asking them to receiving them.

    idle ── send ──► outstanding ── its env reports ──► ready ── receive ──► idle

The numbers say all of it, by env: ``asked`` is ahead of ``received`` while an env is outstanding,
and ``done``, which is equal to one of the two, is ahead of it once the env is ready. Each changes
by one assignment, between any two of which an interrupt may come: whoever looks afterwards finds an
env in one of these states.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.engine.arrivals import Arrivals
from envfleet.engine.failures import Failure
from envfleet.engine.messages import Ask, Outcome, Report
from envfleet.engine.pool.deadline import Deadline
from envfleet.engine.pool.doorbell import PULSE
from envfleet.engine.pool.pool import Pool
from envfleet.engine.rules.seeding import ResetPlan
from envfleet.errors import WorkerDied

Ids = NDArray[np.intp]
_Part = tuple[int, Any]
"""A shard's index, and what it is asked."""
_ONE = np.uint64(1)
PASSED_OVER = 4
"""Batches in a row for which no env of this process has moved, though one could."""


class Flow:
    """Who is outstanding, who is ready, and the way from one to the other.

    Args:
        pool: the shards.
        step_timeout: seconds after which a shard that owes reports and makes none is killed.
    """

    def __init__(self, pool: Pool, step_timeout: float | None) -> None:
        self.is_active = False
        """Whether an env may be outstanding; False is certain."""
        self._pool = pool
        self._step_timeout = step_timeout
        self._hangs = _Hangs(pool, step_timeout or 0.0)
        self._passed_over = 0
        self.is_turning = False
        """Set while envs of this process move. Found set afterwards, an interrupt came."""
        self.undelivered: tuple[Ids, NDArray[np.uint64], Sequence[_Part]] | None = None

    def follow(self, arrivals: Arrivals) -> None:
        """Use this arena's numbers from now on; nobody is outstanding."""
        views = arrivals.views
        self.arrivals = arrivals
        self.asked, self._done, self.stamps = views.asked, views.done, views.stamps
        self.received = views.asked.copy()
        """To receive envs is to set their number here to that in ``asked``, and nothing else: what
        was told may be looked at once more after an interrupt, and is forgotten when they are sent
        on."""
        self._plans: dict[int, ResetPlan] = {}
        counts = [len(shard.env_ids) for shard in self._pool.shards]
        self._shard_of = np.repeat(np.arange(len(counts)), counts)
        self._here = [shard for shard in self._pool.shards if shard.descriptor is None]
        self.is_mixed = 0 < len(self._here) < len(self._pool.shards)
        """Whether some envs live here, and others elsewhere."""

    def detach(self) -> None:
        """Let go of the arena."""
        self.follow(Arrivals(self.arrivals.views.detached()))

    # Who

    def outstanding(self) -> Ids:
        """The envs that were sent and have not been received."""
        outstanding: Ids = (self.asked != self.received).nonzero()[0]
        return outstanding

    def count(self) -> int:
        """How many they are."""
        if not self.is_active:
            return 0
        busy: bytes = (self.asked != self.received).tobytes()
        return busy.count(1)  # quicker than nonzero()

    def busy(self, env_ids: Sequence[int] | Ids | None) -> Ids:
        """Those of some envs that are outstanding; None is all envs."""
        if env_ids is None:
            return self.outstanding()
        ids: Ids = env_ids if isinstance(env_ids, np.ndarray) else np.array(env_ids, dtype=np.intp)
        busy: Ids = ids[self.asked[ids] != self.received[ids]]
        return busy

    def ready(self, among: Ids | None = None) -> Ids:
        """The envs, or those of some, that have reported and wait to be received."""
        ready: Ids
        if among is None:
            ready = (self._done != self.received).nonzero()[0]
        else:
            ready = among[self._done[among] != self.received[among]]
        return ready

    def failures(self) -> dict[int, tuple[Failure, str]]:
        """What outstanding envs have raised, with their places."""
        return {
            env: (failure, place)
            for env, (number, failure, place) in self.arrivals.failures.items()
            if number == self.asked[env] != self.received[env]
        }

    def reset_plan(self, env: int) -> ResetPlan | None:
        """What an outstanding env was asked, if it is a reset."""
        return self._plans.get(env)

    # Asking

    def send(
        self, env_ids: Ids, loose: Sequence[list[Any]] = (), plan: ResetPlan | None = None
    ) -> None:
        """Ask envs to step, with the arena's rows of actions, or to reset.

        An interrupt leaves it undone, or has it completed by the next call.

        Args:
            env_ids: which; none of them outstanding.
            loose: per loose leaf of the actions a list of these envs' values.
            plan: a reset of these envs, in the same order.
        """
        numbers = (self.asked[env_ids] | _ONE) + _ONE
        concerned = set(self._shard_of[env_ids].tolist())
        parts: list[_Part] = []
        for index in concerned:
            shard = self._pool.shards[index]
            if plan is None and not loose and shard.takes_rows:
                parts.append((index, None))
                continue
            at = np.flatnonzero(self._shard_of[env_ids] == index)
            numbers[at] |= _ONE
            ids = env_ids[at].tolist()
            payload = [[c[k] for c in loose] for k in at] if plan is None else plan.pick(ids)
            parts.append((index, shard.prepare_ask(Ask(ids, numbers[at].tolist(), payload))))
        if plan is not None:
            self._plans.update(zip(plan.env_ids, plan.singly(), strict=True))
        elif self._plans:
            for env in env_ids.tolist():
                self._plans.pop(env, None)
        if self.arrivals.told or self.arrivals.failures:
            self.arrivals.forget(env_ids.tolist())
        if self._step_timeout is not None:
            self._hangs.sent(concerned)
        self.is_active = True
        self.undelivered = env_ids, numbers, parts
        self.deliver()

    def send_again(self, plan: ResetPlan) -> None:
        """Have outstanding envs reset with this plan; what they were asked is given up."""
        ids = np.array(plan.env_ids)
        self.received[ids] = self._done[ids]
        self.send(ids, plan=plan)

    def deliver(self) -> None:
        """Complete what ``send`` has begun."""
        if self.undelivered is not None:
            env_ids, numbers, parts = self.undelivered
            self.asked[env_ids] = numbers
            for index, prepared in parts:
                self._pool.ask(index, prepared)
            self.undelivered = None

    # Waiting

    def wait(self, wanted: int, deadline: Deadline, among: Ids | None = None) -> Ids:
        """The envs that are ready, at least so many, of ``among`` where that is given.

        Fewer when the deadline came first, or an env has raised, or an interrupt has torn the turn
        of one in this process. Those that live in this process move in here, as long as too few
        are ready.

        Raises:
            FleetBroken: a worker died earlier.
            WorkerDied: one died now, or was killed for taking too long.
        """
        allowed = None if among is None else frozenset(among.tolist())
        has_waited = False
        if self._step_timeout is not None:
            self._hangs.begin()
        while True:
            mark = self._pool.hear_reports()
            ready = self.ready(among)
            missing = wanted - len(ready)
            if missing <= 0 and (wanted or len(ready) or has_waited):
                return ready
            if among is None and self.arrivals.failures and self.failures():
                return ready
            if has_waited and deadline.has_passed():
                return ready
            has_waited = True
            if (self._here and self._take_turn(max(missing, 1), allowed)) or wanted == 0:
                continue
            if self._step_timeout is None:
                self._pool.wait_reports(deadline, mark, missing)
            else:
                self._pool.wait_reports(self._hangs.or_earlier(deadline), mark, missing)
                self._hangs.check()

    def _take_turn(self, most: int, among: frozenset[int] | None) -> bool:
        for shard in self._here:
            self.is_turning = True
            has_moved = shard.take_turn(most, among)
            self.is_turning = False
            if has_moved:
                self._passed_over = 0
                return True
        return False

    def give_turn(self) -> None:
        """Let an env of this process move that was passed over a few times, so that none starves.

        Whoever is ready elsewhere is always enough where the caller takes its time.
        """
        if any(shard.owes_reports for shard in self._here):
            self._passed_over += 1
            if self._passed_over > PASSED_OVER:
                self._take_turn(1, None)

    def torn(self) -> list[int]:
        """Envs that an interrupt has left apart from what is known of them; not outstanding now."""
        self.is_turning = False
        torn = [env for shard in self._pool.shards for env in shard.torn_turns()]
        if torn:
            self.drop(np.array(torn))
        return torn

    def drop(self, env_ids: Ids) -> None:
        """These envs are not outstanding any more, and nobody gets their answers."""
        numbers = self.asked[env_ids]
        self._done[env_ids] = numbers
        self.received[env_ids] = numbers

    # After a death

    def salvage(self, index: int) -> tuple[list[int], list[int]]:
        """Envs of a shard that has died: those that owe a report, and of the others those ready."""
        shard = self._pool.shards[index]
        with contextlib.suppress(WorkerDied):
            shard.progress(rung=True)  # it may have told something before it ended
        own = slice(shard.env_ids.start, shard.env_ids.stop)
        asked, received, done = self.asked[own], self.received[own], self._done[own]
        owing = np.flatnonzero((asked != received) & (asked != done)) + own.start
        ready = np.flatnonzero((asked != received) & (asked == done)) + own.start
        return owing.tolist(), ready.tolist()

    def answer(self, env_ids: list[int], outcome: Outcome, index: int) -> None:
        """Have envs of a shard report what it answered for them, to a command."""
        shard = self._pool.shards[index]
        rows = [env - shard.env_ids.start for env in env_ids]
        outcome.unpack()
        own = replace(
            outcome,
            infos=[entry for entry in outcome.infos if entry[0] in env_ids],
            loose=[outcome.loose[i] for i in rows] if outcome.loose else (),
            observations=[column[rows] for column in outcome.observations],
            final_observations=[column[rows] for column in outcome.final_observations],
        )
        for env in env_ids:
            self.arrivals.failures.pop(env, None)
        numbers = self.asked[env_ids].tolist()
        self.arrivals.take(Report(env_ids, numbers, time.perf_counter(), own), shard.place)


class _Hangs:
    """Since when shards that owe reports have made none."""

    def __init__(self, pool: Pool, timeout: float) -> None:
        self._pool = pool
        self._timeout = timeout
        self._since: dict[int, float] = {}
        self._seen: dict[int, int] = {}
        self._looked = 0.0

    def sent(self, shards: Iterable[int]) -> None:
        """These shards have been asked something."""
        self._since.update(dict.fromkeys(shards, time.monotonic()))

    def begin(self) -> None:
        """A wait begins: this process may have been stopped before it, and nobody would know."""
        self._looked = now = time.monotonic()
        earliest = now - self._timeout + min(self._timeout, 2 * PULSE)
        for index, since in self._since.items():
            self._since[index] = max(since, earliest)

    def or_earlier(self, deadline: Deadline) -> Deadline:
        """When to look next, at the latest."""
        return deadline.or_earlier(Deadline(min(PULSE, self._timeout / 4)))

    def check(self) -> None:
        """Kill a shard that takes too long.

        Raises:
            WorkerDied: it did.
        """
        now = time.monotonic()
        pause, self._looked = now - self._looked, now
        for shard in self._pool.shards:
            if shard.descriptor is None or not shard.owes_reports:
                continue
            since = self._since.get(shard.index, now)
            # This process may have been stopped (SIGSTOP, a suspended machine), and so may workers.
            since += max(0.0, pause - 2 * PULSE)
            reports = shard.reports()
            if self._seen.get(shard.index) != reports:
                self._seen[shard.index], since = reports, now
            self._since[shard.index] = since
            if now - since > self._timeout:
                raise self._pool.kill(shard, f"no answer within {self._timeout} s")
