"""ProcessVectorEnv: the envs of a fleet in worker processes, several envs per worker."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.util import Finalize
from typing import Any, NoReturn, SupportsIndex

from gymnasium import Env, logger
from gymnasium.core import ActType, ObsType
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.async_vector_env import AsyncState
from numpy.typing import NDArray

from envfleet.engine.arena.layout import plan_layout
from envfleet.engine.arena.memory import allocate, map_shared
from envfleet.engine.arena.signals import CAN_SPIN
from envfleet.engine.arena.views import shared_views
from envfleet.engine.interrupts import is_interrupt
from envfleet.engine.messages import Attach, Call, Command, Reset, SeedGlobals, SetAttr, Step
from envfleet.engine.pool.cores import usable_cores
from envfleet.engine.pool.doorbell import PULSE, Deadline
from envfleet.engine.pool.recovery import Recovery
from envfleet.engine.pool.starting import Starter
from envfleet.engine.pool.supervisor import STUCK_PATIENCE, Pool
from envfleet.engine.rules.actions import action_columns
from envfleet.engine.rules.restarts import RestartBudget
from envfleet.engine.rules.seeding import derived_seed, env_seeds, plan_reset
from envfleet.engine.rules.spaces import Structure
from envfleet.engine.worker.host import EnvHost
from envfleet.errors import WaitTimeout, WorkerDied, name_envs
from envfleet.vector.fleet import Answers, Fleet, ObservationMode, StepResult, warn_of_close
from envfleet.vector.mending import Mender
from envfleet.vector.options import (
    check_failure_options,
    check_host_class,
    check_shared_memory,
    check_threads,
    number_of_workers,
    refuse_custom_spaces,
)

_NEVER = Deadline(None)


# VectorEnv once more: skrl and others look for it among a class's direct bases only.
class ProcessVectorEnv(Fleet[ObsType, ActType], VectorEnv[ObsType, ActType, NDArray[Any]]):
    """``gymnasium.vector.AsyncVectorEnv``, argument by argument, with several envs per worker.

    Observations, actions, rewards and flags cross the process line in shared memory; a step costs
    one message per worker. An env that raises costs nothing but itself: its exception is raised
    here with the worker's traceback as ``__cause__``, the other envs have done their step, and
    ``reset`` brings it back. ``docs/differences.md`` lists what is not as in Gymnasium.

    Args:
        env_fns: functions that build the envs, each in its worker.
        shared_memory: whether observations travel in shared memory; otherwise all by pipe. Custom
            spaces (a subclass of ``Space`` that Gymnasium does not know) have no place there: True
            refuses them, "auto" sends them by pipe and the rest in shared memory.
        copy: whether ``reset`` and ``step`` return copies of the observations.
        context: the start method ("fork", "forkserver", "spawn"); None is the platform's default.
        daemon: whether workers are daemonic, which forbids envs to start multiprocessing children.
        worker: a subclass of ``envfleet.EnvHost`` that handles the envs of a worker its own way.
        observation_mode: "same" if all envs have equal observation spaces, "different" if they
            only share shape and dtype, or a pair of spaces: the batched one and the single one.
        autoreset_mode: what happens when an episode ends.
        max_concurrency: an upper bound on the number of workers.
        workers: how many processes share the envs; by default the cores this process may use, and
            never more than envs. ``workers=num_envs`` gives every env a process of its own.
        on_failure: "raise" what went wrong, or "restart" the worker that died or the env that
            raised; the interrupted transition is reported as truncated, with
            ``info["worker_restarted"]``.
        restarts: how many restarts are allowed within how many seconds.
        step_timeout: seconds after which a worker that has not finished its step counts as dead.
        caller_steps: whether the calling process steps one of the ``workers`` shards itself instead
            of waiting for the others. Faster where cores are few; its envs have the serial engine's
            guarantees, so that restarts and step time-outs are refused.
        infos: which infos of a step travel: "all", "final" (those of steps that end an episode), or
            "none" (``final_obs`` and ``worker_restarted`` are there in any case).
        worker_threads: how many threads BLAS, OpenMP, torch and OpenCV may use in each worker; None
            leaves them alone, and then every worker may use as many as there are cores.
    """

    _text_not_same = (
        "AsyncVectorEnv(..., observation_mode='same') however some of the sub-environments "
        "observation spaces are not equivalent. If this is intentional, use "
        "`observation_mode='different'` instead."
    )
    _text_not_alike = (
        "AsyncVectorEnv(..., observation_mode='different' or custom space) however the "
        "sub-environment's observation spaces do not share a common shape and dtype."
    )
    _text_other_action = (
        "Some environments have an action space different from `{single}`. In order to batch "
        "actions, the action spaces from all environments must be equal."
    )

    def __init__(
        self,
        env_fns: Iterable[Callable[[], Env[Any, Any]]],
        shared_memory: bool | str = True,
        copy: bool = True,
        context: str | None = None,
        daemon: bool = True,
        worker: type[EnvHost] | None = None,
        observation_mode: ObservationMode = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        max_concurrency: int | None = None,
        *,
        workers: int | None = None,
        on_failure: str = "raise",
        restarts: tuple[int, float] = (5, 60.0),
        step_timeout: float | None = None,
        caller_steps: bool = False,
        infos: str = "all",
        worker_threads: int | None = 1,
    ) -> None:
        super().__init__(env_fns, copy, observation_mode, autoreset_mode, infos)
        self.shared_memory = bool(check_shared_memory(shared_memory))
        self._refuses_custom_spaces = self.shared_memory and shared_memory != "auto"
        self.context = context
        self.daemon = daemon
        self.worker = worker
        self.max_concurrency = max_concurrency
        self.workers = number_of_workers(workers, max_concurrency, self.num_envs)
        check_host_class(worker)
        check_failure_options(on_failure, step_timeout, caller_steps=caller_steps)
        check_threads(worker_threads)
        self.worker_threads = worker_threads
        self.caller_steps = caller_steps
        self.on_failure = on_failure
        self.restarts = restarts
        self.step_timeout = step_timeout
        budget = RestartBudget(*restarts)
        self._mender: Mender | None = None
        self._hang = _NEVER
        self._is_unwatched = False
        self._called: list[int] = []
        self._setting: tuple[str, Sequence[Any]] | None = None
        self._call_death: WorkerDied | None = None
        self._pending = AsyncState.DEFAULT
        self._timed_out = False
        self._rows_in_doubt = False
        self._has_let_go = False
        self._warned = False
        self._pool = Pool(
            Starter(
                self.env_fns,
                self.workers,
                context=context,
                daemon=daemon,
                host_class=worker or EnvHost,
                autoreset_mode=self.autoreset_mode,
                name=f"Worker<{type(self).__name__}>",
                threads=worker_threads,
            ),
            caller_steps=caller_steps,
        )
        # Runs when the fleet is collected or the program ends, before multiprocessing joins its
        # children; not in forked children.
        self._finalizer = Finalize(
            self, self._pool.stop, kwargs={"terminate": True}, exitpriority=10
        )
        try:
            self._start(budget)
        except BaseException:
            self.closed = True
            self._pool.stop(STUCK_PATIENCE)
            self._finalizer.cancel()
            raise

    def _start(self, budget: RestartBudget) -> None:
        """Learn the spaces from the workers, make the arena, and give it to them."""
        begun = time.monotonic()
        self._pool.gather(Deadline(None))
        self._pool.raise_failures()
        self._adopt([outcome.results[0] for _, outcome in self._pool.outcomes()])
        observations, actions = self._observation_structure, self._action_structure
        if self._refuses_custom_spaces:
            refuse_custom_spaces(observations)
        final = self.autoreset_mode == AutoresetMode.SAME_STEP
        shared = observations.fixed if self.shared_memory else ()
        layout = plan_layout(
            self.num_envs, shared, actions.fixed, final=final, workers=len(self._pool.handles)
        )
        crowded = len(self._pool.handles) + 1 > usable_cores()
        attach = Attach(
            observations,
            actions,
            layout,
            self.shared_memory,
            signals=CAN_SPIN,
            crowded=crowded,
            infos=self.infos,
        )
        descriptor = allocate(layout.size)
        try:
            views = shared_views(layout, map_shared(descriptor, layout.size))
            self._pool.attach(descriptor, attach)
            if not self.shared_memory:
                views = views.with_own_observations(observations.fixed, final=final)
            self._use(views)
            if self.on_failure == "restart":
                recovery = Recovery(
                    self._pool,
                    budget,
                    attach,
                    descriptor,
                    self.num_envs,
                    patience=self.step_timeout,
                    # A start that takes so much longer than the first one hangs.
                    start_patience=60.0 + 10 * (time.monotonic() - begun),
                )
                self._mender = Mender(
                    self._pool, recovery, views, self._loose, piped=not self.shared_memory
                )
            self._pool.in_doubt = False
        finally:
            os.close(descriptor)

    @property
    def processes(self) -> list[Any]:
        """The worker processes; none after ``close``."""
        return [handle.process for handle in self._pool.handles if not self.closed]

    @property
    def restart_count(self) -> int:
        """How many workers and envs have been replaced so far."""
        return 0 if self._mender is None else self._mender.recovery.budget.spent

    def reset(
        self,
        *,
        seed: int | list[int | None] | None = None,
        options: dict[str, Any] | Sequence[dict[str, Any] | None] | None = None,
    ) -> tuple[ObsType, dict[str, Any]]:
        """Reset all envs, or those of ``options["reset_mask"]``.

        After a time-out it waits for the late envs first and drops what they answer.

        Args:
            seed: env ``i`` gets ``seed + i``, or entry ``i`` of a list.
            options: for every env, or a list with one dict per env.

        Returns:
            The observations of all envs, and the infos of those that were reset.
        """
        try:
            self.reset_async(seed=seed, options=options)
            return self.reset_wait()
        except Exception as error:  # noqa: BLE001 - raised again
            self._raise_unless_closed(error)

    def reset_async(
        self,
        seed: int | list[int | None] | None = None,
        options: dict[str, Any] | Sequence[dict[str, Any] | None] | None = None,
    ) -> None:
        """Start a reset; ``reset_wait`` returns its result.

        Raises:
            ClosedEnvironmentError: ``close`` was called.
            AlreadyPendingCallError: another call is pending and has not timed out.
        """
        self._assert_is_running()
        seeds = env_seeds(seed, self.num_envs)
        if not self._timed_out:
            # Gymnasium's text has no full stop here, and has one everywhere else.
            self._assert_not_pending("reset_async", end="")
        plan = plan_reset(seeds, options, self.num_envs)
        self._pool.in_doubt = self._rows_in_doubt = True
        self._call_death = None
        # After a time-out: what came in time is kept, and the late workers are waited for.
        self._absorb(self._answers())
        commands: dict[int, Reset] = {}
        for member in self._pool.members:
            part = plan.shard(member.env_ids)
            if member.queued is not None and isinstance(member.queued[1], Reset):
                part = part.after(member.queued[1].plan)
            if part.env_ids or member.owes_reply:
                commands[member.index] = Reset(part)
        try:
            self._pool.post(commands)
        except Exception as error:  # noqa: BLE001 - raised again
            self._raise_refusal(error)
        if self._mender is not None:
            self._mender.note_resets(commands)
        self._interrupted.difference_update(plan.env_ids)
        self._expect(AsyncState.WAITING_RESET)
        self._pool.in_doubt = False

    def reset_wait(self, timeout: float | None = None) -> tuple[ObsType, dict[str, Any]]:
        """Wait for the reset that ``reset_async`` started.

        Raises:
            NoAsyncCallError: there is none.
            WaitTimeout: it took longer than ``timeout`` seconds; it stays pending.
        """
        result = self._answer_reset(self._wait(AsyncState.WAITING_RESET, timeout))
        if self._mender is not None:
            self._mender.remember()
        self._pool.in_doubt = False
        return result

    def step(self, actions: ActType) -> StepResult[ObsType]:
        """Step every env once, or reset it where next-step autoreset is due.

        Raises:
            ResetNeeded: an env waits for ``reset``; no env was stepped.
            TypeError, ValueError: the actions do not fit the action space; no env was stepped.
            WorkerDied: a worker process is gone; only ``close`` is left.
        """
        try:
            self.step_async(actions)
            return self.step_wait()
        except Exception as error:  # noqa: BLE001 - raised again
            self._raise_unless_closed(error)

    def step_async(self, actions: ActType) -> None:
        """Start a step; ``step_wait`` returns its result.

        Raises:
            ClosedEnvironmentError: ``close`` was called.
            AlreadyPendingCallError: another call is pending.
            ResetNeeded: an env waits for ``reset``; no env was stepped.
            TypeError, ValueError: the actions do not fit the action space; no env was stepped.
        """
        self._assert_is_running()
        self._assert_not_pending("step_async")
        structure = self._action_structure
        columns = action_columns(structure, actions, self.num_envs)
        self._check_steppable()
        self._pool.in_doubt = self._rows_in_doubt = True
        if structure.flat:
            self._views.actions[0][...] = columns[0]
        else:
            fixed = [c for leaf, c in zip(structure.leaves, columns, strict=True) if leaf.fixed]
            for place, column in zip(self._views.actions, fixed, strict=True):
                place[...] = column
        if structure.loose or not self._pool.post_step():
            self._post_step(structure, columns)
        if self.step_timeout is not None:
            self._hang = Deadline(self.step_timeout)
            self._is_unwatched = True
        self._expect(AsyncState.WAITING_STEP)
        self._pool.in_doubt = False

    def _post_step(self, structure: Structure, columns: list[Any]) -> None:
        """Send a step with its loose actions."""
        loose = [c for leaf, c in zip(structure.leaves, columns, strict=True) if not leaf.fixed]
        commands = {
            member.index: Step([c[member.env_ids.start : member.env_ids.stop] for c in loose])
            for member in self._pool.members
        }
        try:
            self._pool.post(commands)
        except Exception as error:  # noqa: BLE001 - raised again
            self._raise_refusal(error)

    def step_wait(self, timeout: float | None = None) -> StepResult[ObsType]:
        """Wait for the step that ``step_async`` started.

        Raises:
            NoAsyncCallError: there is none.
            WaitTimeout: it took longer than ``timeout`` seconds; it stays pending.
        """
        answers = self._wait(AsyncState.WAITING_STEP, timeout)
        result = self._answer_step(answers)
        if self._mender is not None:
            self._mender.remember()
        self._pool.in_doubt = False
        if answers and any(outcome.waits for _, outcome in answers):
            self._warn_waiting()
        return result

    def call_on(
        self, env_ids: Iterable[SupportsIndex], name: str, /, *args: Any, **kwargs: Any
    ) -> tuple[Any, ...]:
        """Call a method of some envs, or read an attribute; results in the order of ``env_ids``."""
        try:
            self._call_async(env_ids, name, args, kwargs)
            return self.call_wait()
        except Exception as error:  # noqa: BLE001 - raised again
            self._raise_unless_closed(error)

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Start a call of every env; ``call_wait`` returns its results.

        Raises:
            ClosedEnvironmentError: ``close`` was called.
            AlreadyPendingCallError: another call is pending.
        """
        self._call_async(range(self.num_envs), name, args, kwargs)

    def _call_async(
        self,
        env_ids: Iterable[SupportsIndex],
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._assert_is_running()
        self._assert_not_pending("call_async")
        self._check_call(name)
        ids = self._check_env_ids(env_ids)
        commands = {
            member.index: Call(part, name, args, kwargs)
            for member in self._pool.members
            if (part := [env for env in ids if env in member.env_ids])
        }
        self._post_call(commands, ids, None)

    def _post_call(
        self,
        commands: Mapping[int, Command],
        called: list[int],
        setting: tuple[str, Sequence[Any]] | None,
    ) -> None:
        self._rows_in_doubt = False
        self._pool.post(commands)
        self._called, self._setting = called, setting
        self._expect(AsyncState.WAITING_CALL)
        self._pool.in_doubt = False

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Wait for the call that ``call_async`` started; one result per env.

        Raises:
            NoAsyncCallError: there is none.
            WaitTimeout: it took longer than ``timeout`` seconds; it stays pending.
        """
        answers = self._wait(AsyncState.WAITING_CALL, timeout)
        self._pool.in_doubt = False
        if self._setting is not None:
            return ()
        results: dict[int, Any] = {}
        for envs, outcome in answers:
            asked = [env for env in self._called if env in envs]
            results.update(zip(asked, outcome.results, strict=True))
        return tuple(results[env] for env in self._called)

    def set_attr(self, name: str, values: list[Any] | tuple[Any, ...] | object) -> None:
        """Set an attribute of every env; a list or tuple holds one value per env."""
        self._assert_is_running()
        each = self._one_value_per_env(values)
        self._assert_not_pending("set_attr")
        commands = {
            member.index: SetAttr(
                list(member.env_ids), name, list(each[member.env_ids.start : member.env_ids.stop])
            )
            for member in self._pool.members
        }
        self._post_call(commands, [], (name, each))
        self.call_wait()

    def seed_globals(self, seed: int) -> None:
        """Seed ``random`` and ``np.random`` of every worker, and of this process for its share."""
        self._assert_is_running()
        self._assert_not_pending("seed_globals")
        members = self._pool.members
        commands = {m.index: SeedGlobals(derived_seed(seed, m.index)) for m in members}
        try:
            self._post_call(commands, [], None)
            self.call_wait()
        except WorkerDied:
            if self._pool.is_broken:
                raise
            self.seed_globals(seed)  # the worker that has taken its place is to be seeded as well

    def close(self, **kwargs: Any) -> None:
        """Close the fleet; where an interrupt came in between, the next call ends what is left."""
        if not self.closed:
            super().close(**kwargs)
        elif not self._has_let_go:
            self.close_extras(terminate=True)

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Stop the workers: each is asked to close its envs, then SIGTERM, then SIGKILL.

        Args:
            timeout: seconds for a pending call and ``env.close()`` together; None means 30.
            terminate: do not ask, and do not close the envs.
        """
        pending, self._pending = self._pending, AsyncState.DEFAULT
        if pending != AsyncState.DEFAULT and not self._pool.is_broken:
            logger.warn(
                f"Calling `close` while waiting for a pending call to `{pending.value}` to "
                "complete."
            )
        self.closed = True
        failures = self._pool.stop(timeout, terminate=terminate)
        self._finalizer.cancel()
        # A closed fleet that somebody keeps holds no shared memory and no descriptor.
        self._views = self._views.detached()
        self._has_let_go = True
        warn_of_close(failures)

    def _wait(self, expected: AsyncState, timeout: float | None) -> Answers:
        """The answers to the pending call, which must be the expected one.

        The pool counts as in doubt until whoever called this has used them.
        """
        if self._pool.in_doubt:
            self._assert_is_running()
        if self.closed or self._pending is not expected:
            self._assert_is_running()
            name = expected.value
            raise NoAsyncCallError(
                f"Calling `{name}_wait` without any prior call to `{name}_async`.", name
            )
        # Left by an interrupt, it is as good as timed out: reset() may take over.
        self._timed_out = True
        if not self._gather(_NEVER if timeout is None else Deadline(timeout)):
            name = expected.value
            raise WaitTimeout(
                f"The call to `{name}_wait` has timed out after {timeout} second(s). "
                f"Late envs: {name_envs(self._pool.late_envs())}. The call stays pending: wait "
                "again, or reset()."
            )
        self._pool.in_doubt = True
        self._expect(AsyncState.DEFAULT)
        if self._pool.is_silent():
            return ()
        try:
            if self._mender is not None:
                self._mend(expected, self._mender)
            answers = self._answers()
            self._absorb(answers)
            self._pool.raise_failures()
        except Exception as error:  # noqa: BLE001 - raised again
            if not is_interrupt(error):
                self._absorb(self._answers())
            self._raise_refusal(error)
        return answers

    def _gather(self, deadline: Deadline) -> bool:
        """Wait for all answers, replacing workers that die or hang where that is wanted."""
        while True:
            hang = _NEVER
            # A late step counts as hung also when a reset is waiting for it.
            if self.step_timeout is not None and any(h.is_stepping for h in self._pool.handles):
                hang = self._hang
            try:
                if self._gather_until(deadline, hang):
                    return True
                if not hang.has_passed():
                    return False
                death = self._pool.kill_late(f"no answer within {self.step_timeout} s")
            except WorkerDied as error:
                death = error
            super()._assert_is_running()  # another thread may have closed the fleet
            if self._mender is None:
                raise death
            if self._pending == AsyncState.WAITING_STEP:
                self._mender.replace_in_step(death)
            elif self._pending == AsyncState.WAITING_RESET:
                self._mender.replace_in_reset(death)
            else:
                self._mender.replace_in_call(death)
                self._call_death = death

    def _gather_until(self, deadline: Deadline, hang: Deadline) -> bool:
        """Wait for all answers; False when either deadline came first.

        ``hang`` is postponed by as long as this process was itself stopped (SIGSTOP, a suspended
        machine): then the workers may have been stopped as well.
        """
        if hang is _NEVER:
            return self._pool.gather(deadline)
        if self._is_unwatched and self.step_timeout is not None:
            # It may have been stopped between step_async and now, and nobody would know.
            hang.leave_at_least(min(self.step_timeout, 2 * PULSE))
            self._is_unwatched = False
        while True:
            begun = time.monotonic()
            until = deadline.or_earlier(hang).or_earlier(Deadline(PULSE))
            if self._pool.gather(until):
                return True
            hang.postpone(time.monotonic() - begun - 2 * PULSE)
            if deadline.has_passed() or hang.has_passed():
                return False

    def _mend(self, expected: AsyncState, mender: Mender) -> None:
        """Mend what failed in the call that has just been answered."""
        for worker in range(len(self._pool.handles)):
            if expected == AsyncState.WAITING_STEP:
                mender.mend_step(worker)
            elif expected == AsyncState.WAITING_RESET:
                mender.mend_reset(worker)
        if expected == AsyncState.WAITING_CALL and self._setting is not None:
            self._note_setting(mender, *self._setting)
        if self._call_death is not None:
            death, self._call_death = self._call_death, None
            raise death

    def _note_setting(self, mender: Mender, name: str, values: Sequence[Any]) -> None:
        """Have what was set, in the envs that have taken it, set again after a restart."""
        taken = {env for envs, _ in self._answers() for env in envs}
        taken -= {f.env for _, outcome in self._pool.outcomes() for f in outcome.failures}
        mender.recovery.note_setting(name, {env: values[env] for env in taken})

    def _raise_refusal(self, error: Exception) -> NoReturn:
        """Raise what ends a call in good order: unlike an interrupt it leaves nothing in doubt."""
        if not is_interrupt(error):
            self._pool.in_doubt = False
        raise error

    def _raise_unless_closed(self, error: Exception) -> NoReturn:
        """Raise it, or say that a signal handler has closed the fleet during this call."""
        if not isinstance(error, ClosedEnvironmentError) and not is_interrupt(error):
            super()._assert_is_running()
        raise error

    def _settle(self) -> None:
        """Find a state to go on from after an interrupt in the middle of a call.

        A call that was merely waiting stays pending, and never comes here.
        """
        if self._rows_in_doubt:
            self._interrupted.update(range(self.num_envs))
        self._expect(AsyncState.DEFAULT)
        self._pool.settle()

    def _answers(self) -> Answers:
        """What has come in answer to the current call."""
        return [(member.env_ids, outcome) for member, outcome in self._pool.outcomes()]

    def _assert_is_running(self) -> None:
        if self.closed:
            super()._assert_is_running()
        self._pool.check()
        if self._pool.in_doubt:
            self._settle()
            self._pool.check()

    def _expect(self, state: AsyncState) -> None:
        self._pending = state
        self._timed_out = False

    def _assert_not_pending(self, method: str, end: str = ".") -> None:
        if self._pending is not AsyncState.DEFAULT:
            pending = self._pending.value
            raise AlreadyPendingCallError(
                f"Calling `{method}` while waiting for a pending call to `{pending}` to "
                f"complete{end}",
                str(pending),
            )

    def _warn_waiting(self) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"the envs spend most of a step waiting, not computing, and {self.num_envs} envs "
                f"share {self.workers} workers: each waits for its neighbours too. With "
                f"workers=num_envs (workers={self.num_envs}) they wait at the same time.",
                stacklevel=4,
            )
