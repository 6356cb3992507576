"""PartialBatches: step the envs that are ready, without waiting for slow ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Generic, NamedTuple, SupportsIndex, cast

import numpy as np
from gymnasium.core import ActType, ObsType
from gymnasium.error import NoAsyncCallError
from numpy.typing import NDArray

from envfleet.engine.failures import raise_first
from envfleet.engine.pool.deadline import Deadline
from envfleet.engine.pool.flow import Flow, Ids
from envfleet.engine.restart.mending import MENDED
from envfleet.engine.rules.actions import action_columns
from envfleet.engine.rules.autoreset import check_steppable, refuse_interrupted
from envfleet.engine.rules.ids import batch_bounds, checked_ids
from envfleet.engine.rules.seeding import plan_subset
from envfleet.errors import WaitTimeout, WorkerDied, name_envs
from envfleet.vector.calls import EnvCalls
from envfleet.vector.traffic import FlowCounts, Traffic

EnvIds = Iterable[SupportsIndex] | NDArray[np.integer[Any]]
_NEVER = Deadline(None)


class Batch(NamedTuple):
    """The results of some envs: row ``i`` is that of env ``env_ids[i]``. The caller owns it."""

    env_ids: NDArray[np.intp]
    """In ascending order, or in the order passed to ``recv``."""
    observations: Any
    rewards: NDArray[np.float64]
    terminations: NDArray[np.bool_]
    truncations: NDArray[np.bool_]
    infos: Any
    """The infos of these rows, in the fleet's ``info_format``."""


class PartialBatches(EnvCalls[ObsType, ActType], Generic[ObsType, ActType]):
    """Send actions to some envs and receive the results of those that are ready.

    An env is *outstanding* from ``send`` to the ``recv`` that returns it, and has at most one
    action in that time. Any other call on it is refused; envs that are not outstanding may be
    called by their ``env_ids``. If an env raises an exception, ``recv`` raises it as soon as it is
    known; that env then needs a reset, and the others continue.
    """

    _traffic: Traffic | None = None
    _latest: Ids | None = None
    """The envs that were asked last: this array is theirs alone."""

    @property
    def outstanding(self) -> NDArray[np.intp]:
        """The envs that were sent and have not been received, in ascending order."""
        self._assert_is_running()
        self._call.flow.deliver()
        return self._call.flow.outstanding()

    def flow(self) -> FlowCounts:
        """Counts of what was received since the last call; a guide to ``min_envs``."""
        self._assert_is_open()
        return self._counted().take()

    # Sending

    def send(self, actions: ActType, env_ids: EnvIds | None = None) -> None:
        """Have envs step, each as soon as it can; ``recv`` returns the results.

        Args:
            actions: one per env of ``env_ids``, in that order.
            env_ids: which envs; None is all.

        Raises:
            AlreadyPendingCallError: one of them is outstanding, or another call is pending.
            ResetNeeded: one of them needs a reset.
            TypeError, ValueError: the actions do not fit, or there are no such envs. In all these
                cases no action was sent.
        """
        self._send_step(actions, checked_ids(env_ids, self.num_envs), "send")

    def send_reset(
        self,
        env_ids: EnvIds | None = None,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | Sequence[dict[str, Any] | None] | None = None,
    ) -> None:
        """Have envs reset, each as soon as it can; ``recv`` returns them with reward 0.

        Args:
            env_ids: which envs; None is all.
            seed: env ``i`` gets ``seed + i``, or its entry in a list with one seed per given env.
            options: a dict for all of them, or a list with one dict per given env.

        Raises:
            AlreadyPendingCallError: one of them is outstanding, or another call is pending.
            TypeError, ValueError: the seeds or options do not fit, or there are no such envs.
        """
        self._send_reset(checked_ids(env_ids, self.num_envs), seed, options, "send_reset")

    def _send_step(self, actions: Any, ids: Ids, method: str) -> None:
        self._assert_is_running()
        call, structure, views = self._call, self._action_structure, self._results.views
        call.refuse_another(method, env_ids=ids)
        if not len(ids):
            return
        columns = action_columns(structure, actions, len(ids))
        if call.interrupted and (waiting := call.interrupted.intersection(ids.tolist())):
            refuse_interrupted(waiting)
        check_steppable(
            self._autoreset_mode, views.terminated, views.truncated, views.failed, env_ids=ids
        )
        loose: list[list[Any]] = []
        places = iter(views.actions)
        for leaf, column in zip(structure.leaves, columns, strict=True):
            if leaf.fixed:
                next(places)[ids] = column
            else:
                loose.append(column)
        if call.abandoned:
            call.abandoned.difference_update(ids.tolist())
        self._latest = ids
        call.flow.send(ids, loose)
        self._counted().sent(ids)

    def _send_reset(self, ids: Ids, seed: Any, options: Any, method: str) -> None:
        self._assert_is_running()
        call = self._call
        call.refuse_another(method, env_ids=ids)
        plan = plan_subset(seed, options, ids.tolist())
        if not len(ids):
            return
        self._has_been_reset = True
        if call.mender is not None:
            call.mender.history.note_seeds(plan)
        call.abandoned.difference_update(ids.tolist())
        self._latest = ids
        call.flow.send(ids, plan=plan)
        call.interrupted.difference_update(ids.tolist())
        self._counted().sent(ids)

    # Receiving

    def recv(
        self,
        min_envs: int | None = None,
        max_envs: int | None = None,
        timeout: float | None = None,
        *,
        env_ids: EnvIds | None = None,
    ) -> Batch:
        """Receive the envs that are ready, sorted by number; or wait for given ones.

        Envs in the calling process (the serial engine, ``caller_steps``) step during this call,
        while too few are ready.

        Args:
            min_envs: wait for this many; None is all that are outstanding, 0 does not wait.
            max_envs: return at most this many; those that have been ready longest come first.
            timeout: seconds to wait for ``min_envs``, or for ``env_ids``.
            env_ids: wait for these and no others, and return them in this order; all of them must
                be outstanding.

        Raises:
            NoAsyncCallError: nothing is outstanding.
            ValueError: fewer than ``min_envs`` are outstanding, ``max_envs`` is lower, ``env_ids``
                names one that is not outstanding, or is given with ``min_envs`` or ``max_envs``.
            WaitTimeout: fewer than ``min_envs`` are ready; these stay ready.
            ResetNeeded: an interrupt broke off the step of an env in this process.
            Exception: what an env raised; the results of the others are not lost.
        """
        if self.closed:
            self._assert_is_open()
        try:
            if env_ids is not None:
                return self._recv_envs(env_ids, min_envs, max_envs, timeout)
            return self._recv(min_envs, max_envs, timeout)
        except Exception as error:  # noqa: BLE001 - raised again
            self._raise_unless_closed(error)

    def _recv(self, min_envs: Any, max_envs: Any, timeout: float | None) -> Batch:
        self._call.check()
        flow = self._call.flow
        if flow.undelivered is not None:
            flow.deliver()
        if flow.is_turning:
            self._refuse_torn()
        outstanding = flow.count()
        if not outstanding:
            raise NoAsyncCallError("Calling `recv` with no env outstanding: `send` first.", "recv")
        least, most = batch_bounds(min_envs, max_envs, outstanding)
        if flow.is_mixed:
            flow.give_turn()
        ready = self._await(least, _NEVER if timeout is None else Deadline(timeout))
        if len(ready) < least:
            late = np.setdiff1d(flow.outstanding(), ready)
            raise WaitTimeout(
                f"`recv` has timed out after {timeout} second(s): {len(ready)} of at least {least} "
                f"envs are ready. Late envs: {name_envs(late.tolist())}. All of them stay "
                "outstanding: recv again."
            )
        if len(ready) > most:
            longest = np.argsort(flow.stamps[ready], kind="stable")[:most]
            ready = np.sort(ready[longest])
        return self._receive(ready, outstanding)

    def _recv_envs(self, env_ids: EnvIds, least: Any, most: Any, timeout: float | None) -> Batch:
        ids = checked_ids(env_ids, self.num_envs)
        self._call.check()
        flow = self._call.flow
        flow.deliver()
        if least is not None or most is not None:
            raise ValueError("env_ids says which envs to wait for: leave out min_envs and max_envs")
        self._refuse_torn()
        busy = flow.busy(ids)
        if len(busy) < len(ids):
            others = np.setdiff1d(ids, busy)
            raise ValueError(
                f"`recv` waits for what was sent, and env {name_envs(others.tolist())} "
                f"{'was' if len(others) == 1 else 'were'} not: `send` first."
            )
        outstanding = flow.count()
        ready = self._await(len(ids), _NEVER if timeout is None else Deadline(timeout), among=ids)
        if len(ready) < len(ids):
            late = np.setdiff1d(ids, ready)
            raise WaitTimeout(
                f"`recv` has timed out after {timeout} second(s): {len(ready)} of {len(ids)} envs "
                f"are ready. Late envs: {name_envs(late.tolist())}. All of them stay outstanding: "
                "recv again."
            )
        return self._receive(ids, outstanding)

    def _await(
        self,
        wanted: int,
        deadline: Deadline,
        among: Ids | None = None,
        *,
        all_or_none: bool = False,
    ) -> Ids:
        """Wait for envs, replacing what fails where that is wanted, and raise what they raised.

        Whoever raised is not outstanding any more then; ``all_or_none``, nobody ``among`` is.
        """
        call, flow = self._call, self._call.flow
        while True:
            try:
                ready = flow.wait(wanted, deadline, among)
            except WorkerDied as death:
                self._replace(death)
                continue
            if not flow.arrivals.failures:
                return ready
            failures = flow.failures()
            if among is not None:
                failures = {env: each for env, each in failures.items() if env in among}
            if not failures:
                return ready
            for env, (failure, _) in failures.items():
                if call.mender is None or failure.phase not in MENDED:
                    whole = among if all_or_none else None
                    self._give_up(np.array(list(failures)) if whole is None else whole)
                    raise_first(list(failures.values()))
                self._mend(env, failure, flow)

    def _replace(self, death: WorkerDied) -> None:
        """Replace a worker that died, where that is wanted, or raise its death."""
        self._pool.check_open()
        if self._call.mender is None:
            raise death
        self._call.mender.replace_in_flow(death, self._call.flow)

    def _mend(self, env: int, failure: Any, flow: Flow) -> None:
        """Replace an env that raised, or its worker where it died of that."""
        mender = self._call.mender
        if mender is None:
            raise AssertionError
        try:
            mender.mend_in_flow(failure, flow)
        except WorkerDied as death:
            if self._pool.is_broken:
                mender.replace_in_flow(death, flow)
        except Exception:
            self._drop(np.array([env]))  # it stays as it is, and waits for a reset
            raise

    def _raise_failures(self, ids: Ids) -> None:
        """Raise what of these envs cannot be read here; they are not outstanding any more."""
        failures = {env: f for env, f in self._call.flow.failures().items() if env in ids}
        if failures:
            self._drop(np.array(list(failures)))
            raise_first(list(failures.values()))

    def _give_up(self, ids: Ids) -> None:
        """Envs whose call has failed are not outstanding any more; what they showed is kept."""
        flow = self._call.flow
        self._results.of_envs(ids, flow.arrivals.told)
        self._drop(ids)

    def _drop(self, ids: Ids) -> None:
        """These envs are not outstanding any more, and were not received."""
        self._call.flow.drop(ids)
        self._counted().forget(ids)

    def _receive(self, ids: Ids, outstanding: int) -> Batch:
        """Hand the rows of envs that are ready over."""
        flow = self._call.flow
        # Of these rows alone, which are copies: the others' envs may write theirs meanwhile.
        if flow.arrivals.has_notes and len(flow.arrivals.views.note_sizes[ids].nonzero()[0]):
            flow.arrivals.read_notes(ids)
        if flow.arrivals.failures:
            self._raise_failures(ids)
        batch = Batch(ids, *self._results.of_envs(ids, flow.arrivals.told))
        if self._call.mender is not None:
            self._call.mender.history.remember_envs(ids.tolist())
        self._counted().received(ids, flow.stamps, outstanding)
        numbers = flow.asked[ids]
        # The last thing that is done. No signal handler can run between here and the caller's next
        # call of anything: the batch is received there, or is still to be received.
        flow.received[ids] = numbers
        return batch

    def _refuse_torn(self, but: Collection[int] = ()) -> None:
        """Say once which envs, but for these, an interrupt has left somewhere between two steps."""
        torn = self._call.flow.torn()
        if torn:
            self._call.interrupted.update(torn)
            self._counted().forget(np.array(torn))
            if told := [env for env in torn if env not in but]:
                refuse_interrupted(told, "The others flow on.")

    def _is_flowing(self) -> bool:
        """Whether an env is outstanding. If none is, the fleet is about to move as one."""
        flow = self._call.flow
        flow.deliver()
        flow.is_active = flow.count() > 0
        if not flow.is_active:
            self._counted().forget()
        return flow.is_active

    def _counted(self) -> Traffic:
        if self._traffic is None:
            self._traffic = Traffic(self.num_envs)
        return self._traffic

    # In one call

    def _step_some(self, actions: Any, env_ids: EnvIds) -> Any:
        ids = checked_ids(env_ids, self.num_envs)
        if self._call.flow.is_turning:
            self._assert_is_running()
            self._refuse_torn()
        try:
            self._send_step(actions, ids, "step")
            return self._answers(ids)[1:]
        except BaseException:
            self._abandon(ids)
            raise

    def _reset_some(self, env_ids: EnvIds, seed: Any, options: Any) -> tuple[ObsType, Any]:
        ids = checked_ids(env_ids, self.num_envs)
        self._take_over(ids)
        try:
            self._send_reset(ids, seed, options, "reset")
            batch = self._answers(ids)
        except BaseException:
            self._abandon(ids)
            raise
        return cast("ObsType", batch.observations), batch.infos

    def _answers(self, ids: Ids) -> Batch:
        """What these envs answer, in their order, as soon as all of them have."""
        self._await(len(ids), _NEVER, among=ids, all_or_none=True)
        return self._receive(ids, self._call.flow.count())

    def _abandon(self, ids: Ids) -> None:
        """Nobody waits for these envs any more, if it was this call that asked them."""
        if self._latest is ids:
            self._call.abandoned.update(ids.tolist())

    def _take_over(self, ids: Ids | None = None) -> None:
        """Give envs up, before a reset of these or of all, that interrupted calls have left.

        Waits until they have answered. Does nothing if ``send`` has asked one of those to reset.
        """
        self._assert_is_running()
        call, flow = self._call, self._call.flow
        if flow.is_turning:
            self._refuse_torn(but=range(self.num_envs) if ids is None else {*call.abandoned, *ids})
        if not call.abandoned:
            return
        flow.deliver()
        late = flow.busy(ids)
        if not len(late) or not call.abandoned.issuperset(late.tolist()):
            return
        while len(flow.ready(late)) < len(late):
            try:
                flow.wait(len(late), _NEVER, late)
            except WorkerDied as death:
                self._replace(death)
        self._give_up(late)
