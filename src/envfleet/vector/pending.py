"""PendingCall: the one call that a fleet may be waiting for, from posting it to its answers.

    idle ──► reset, step or call pending ──► idle
                 │           ▲
                 └► late ────┘     a wait timed out, or an interrupt ended it: wait again, or reset

Nothing else knows whether a fleet is busy. An exception from a signal handler may come at any
moment: whatever changes more than one thing sets ``pool.in_doubt`` before and clears it after, and
``check`` finds it set.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NoReturn

from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.vector.async_vector_env import AsyncState

from envfleet.engine.interrupts import is_interrupt
from envfleet.engine.messages import ENDED, Layer
from envfleet.engine.pool.deadline import Deadline
from envfleet.engine.pool.doorbell import PULSE
from envfleet.engine.pool.flow import Flow, Ids
from envfleet.engine.pool.pool import Pool
from envfleet.engine.restart.mending import Mender
from envfleet.errors import WaitTimeout, WorkerDied, name_envs
from envfleet.vector.results import Answers, Results

_IDLE, _STEP = AsyncState.DEFAULT, AsyncState.WAITING_STEP
_NEVER = Deadline(None)
_ENDS: Answers = ((range(0), ENDED),)
"""Answers that tell of ends and nothing else, which are in the arena."""


class PendingCall:
    """What is pending, whether it is late, and which envs an interrupt may have left apart.

    Args:
        pool: the shards.
        step_timeout: seconds after which a shard that has not finished its step is killed.
    """

    def __init__(self, pool: Pool, step_timeout: float | None) -> None:
        self.pool = pool
        self.flow = Flow(pool, step_timeout)
        """The envs that are asked one by one."""
        self.kind = _IDLE
        self.is_late = False
        self.interrupted: set[int] = set()
        """Envs that an interrupt may have left a step ahead of others; they wait for a reset."""
        self.abandoned: set[int] = set()
        """Envs whose ``step`` or ``reset`` of some envs an interrupt has ended. Those of them that
        are outstanding may be received, and are given up by ``reset``."""
        self.mender: Mender | None = None
        self.results: Results
        self._moves_envs = False
        self._step_timeout = step_timeout
        self._hang = _NEVER
        self._is_unwatched = False
        self._death_in_call: WorkerDied | None = None
        self.setting: tuple[str, Layer, dict[int, object]] | None = None
        """What the pending call sets and where, by env: repeated in envs that take their place."""

    def check(self) -> None:
        """Make sure that shards can be asked, after an interrupt too.

        Raises:
            FleetBroken: they cannot.
        """
        pool = self.pool
        pool.check()
        if pool.in_doubt:
            # A call that was merely waiting stays pending, and never comes here.
            if self._moves_envs:
                self.interrupted.update(env for shard in pool.shards for env in shard.env_ids)
            self.kind = _IDLE
            self.is_late = False
            pool.settle()
            pool.check()

    def refuse_another(
        self, method: str, end: str = ".", env_ids: Sequence[int] | Ids | None = None
    ) -> None:
        """Raise ``AlreadyPendingCallError`` while a call is pending, or an env is outstanding.

        ``env_ids`` are the envs that it is about, None being all.
        """
        if self.flow.is_active:
            if self.flow.undelivered is not None:
                self.flow.deliver()
            busy = self.flow.busy(env_ids)
            if len(busy):
                reason = (
                    "an exception from a signal handler has ended the call that asked them. Reset "
                    "them, or `recv` what they answer"
                    if self.abandoned.issuperset(busy.tolist())
                    else "`send` has asked them and `recv` has not received them yet. Receive them "
                    "first"
                )
                raise AlreadyPendingCallError(
                    f"Calling `{method}` while envs {name_envs(busy.tolist())} are outstanding: "
                    f"{reason}; envs that are not outstanding may be asked by their `env_ids`.",
                    "recv",
                )
        if self.kind is not _IDLE:
            pending = self.kind.value
            raise AlreadyPendingCallError(
                f"Calling `{method}` while waiting for a pending call to `{pending}` to "
                f"complete{end}",
                str(pending),
            )

    def begin(self, *, moves_envs: bool) -> None:
        """A call is about to be posted; until ``posted`` an interrupt leaves everything in doubt.

        Args:
            moves_envs: whether envs may be left apart from each other by it.
        """
        self._death_in_call = self.setting = None
        self._moves_envs = moves_envs
        self.pool.in_doubt = True

    def posted(self, kind: AsyncState) -> None:
        """The call has been posted and is pending."""
        if self._step_timeout is not None and kind is _STEP:
            self._hang = Deadline(self._step_timeout)
            self._is_unwatched = True
        self.kind = kind
        self.is_late = False
        self.pool.in_doubt = False

    def wait(self, kind: AsyncState, timeout: float | None) -> Answers:
        """The answers to the pending call, which must be of this kind; none if all are silent.

        The pool counts as in doubt until whoever called this has used them.

        Raises:
            NoAsyncCallError: no such call is pending.
            WaitTimeout: it took longer than ``timeout`` seconds; it stays pending.
            Exception: what envs have raised.
        """
        if self.pool.in_doubt:
            self.check()
        if self.kind is not kind:
            self.check()
            name = kind.value
            raise NoAsyncCallError(
                f"Calling `{name}_wait` without any prior call to `{name}_async`.", name
            )
        # Left by an interrupt, it is as good as timed out: reset() may take over.
        self.is_late = True
        if not self._gather(_NEVER if timeout is None else Deadline(timeout)):
            raise WaitTimeout(
                f"The call to `{kind.value}_wait` has timed out after {timeout} second(s). "
                f"Late envs: {name_envs(self.pool.late_envs())}. The call stays pending: wait "
                "again, or reset()."
            )
        self.pool.in_doubt = True
        self.kind = _IDLE
        self.is_late = False
        shared = self.pool.shared_outcome()
        if shared is not None:
            return _ENDS if shared is ENDED and self.results.same_step else ()
        try:
            if self.mender is not None:
                self.mender.mend(kind)
                self._note_setting(self.mender)
            answers = self.answers()
            self.results.absorb(answers)
            if self._death_in_call is not None:
                raise self._death_in_call  # noqa: TRY301 - the call is lost, all else is in order
            self.pool.raise_failures()
        except Exception as error:  # noqa: BLE001 - raised again
            if not is_interrupt(error):
                self.results.absorb(self.answers())
            self.refuse(error)
        return answers

    def answers(self) -> Answers:
        """What has come in answer to the current call."""
        return [(shard.env_ids, outcome) for shard, outcome in self.pool.outcomes()]

    def refuse(self, error: Exception) -> NoReturn:
        """Raise what ends a call in good order: unlike an interrupt it leaves nothing in doubt."""
        if not is_interrupt(error):
            self.pool.in_doubt = False
        raise error

    def _note_setting(self, mender: Mender) -> None:
        """Note what was set, for the envs that have taken it."""
        if self.setting is not None:
            name, on, values = self.setting
            taken = {env for envs, _ in self.answers() for env in envs}
            taken -= {f.env for _, outcome in self.pool.outcomes() for f in outcome.failures}
            kept = {env: value for env, value in values.items() if env in taken}
            mender.history.note_setting(name, on, kept)

    def _gather(self, deadline: Deadline) -> bool:
        """Wait for all answers, replacing workers that die or hang where that is wanted."""
        pool = self.pool
        while True:
            hang = _NEVER
            # A late step counts as hung also when a reset is waiting for it.
            if self._step_timeout is not None and any(s.is_stepping for s in pool.shards):
                hang = self._hang
            try:
                never = hang is _NEVER
                if pool.gather(deadline) if never else self._gather_until(deadline, hang):
                    return True
                if not hang.has_passed():
                    return False
                death = pool.kill_late(f"no answer within {self._step_timeout} s")
            except WorkerDied as error:
                death = error
            pool.check_open()
            if self.mender is None:
                raise death
            if self.flow.is_active:
                self.mender.replace_in_flow(death, self.flow)
            else:
                self.mender.replace(death, self.kind)
            if self.kind is AsyncState.WAITING_CALL:
                self._death_in_call = death

    def _gather_until(self, deadline: Deadline, hang: Deadline) -> bool:
        """Wait for all answers; False when either deadline came first.

        ``hang`` is postponed by as long as this process was itself stopped (SIGSTOP, a suspended
        machine): then the workers may have been stopped as well.
        """
        if self._is_unwatched and self._step_timeout is not None:
            # It may have been stopped between step_async and now, and nobody would know.
            hang.leave_at_least(min(self._step_timeout, 2 * PULSE))
            self._is_unwatched = False
        while True:
            begun = time.monotonic()
            until = deadline.or_earlier(hang).or_earlier(Deadline(PULSE))
            if self.pool.gather(until):
                return True
            hang.postpone(time.monotonic() - begun - 2 * PULSE)
            if deadline.has_passed() or hang.has_passed():
                return False
