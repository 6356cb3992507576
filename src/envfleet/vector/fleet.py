"""Fleet: resets and steps the envs of its shards; engines say which shards there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, cast

import numpy as np
from gymnasium.core import ActType, ObsType
from gymnasium.vector.async_vector_env import AsyncState
from numpy.typing import NDArray

from envfleet.engine.messages import Reset, Step
from envfleet.engine.rules.actions import action_columns
from envfleet.engine.rules.autoreset import check_steppable, refuse_interrupted
from envfleet.engine.rules.seeding import env_seeds, plan_reset
from envfleet.engine.rules.spaces import Structure
from envfleet.vector.partial import EnvIds, PartialBatches

_IDLE = AsyncState.DEFAULT
StepResult = tuple[
    ObsType, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]
]


class Fleet(PartialBatches[ObsType, ActType], Generic[ObsType, ActType]):
    """What every engine can do: reset, step and call the envs of its shards, and close them.

    Rewards, flags and infos are always the caller's own. Observations are too with ``copy=True``;
    with ``copy=False`` they are the fleet's own arrays, overwritten by the next ``step`` or
    ``reset``, and readable as long as the caller holds them, also after ``close``.

    With ``info_format="list"`` infos are a list with one dict per env, the env's own values in it;
    otherwise one dict of arrays, as in Gymnasium.
    """

    @property
    def observations(self) -> ObsType:
        """The current observations, in the fleet's own arrays."""
        return cast("ObsType", self._results.observations(copy=False))

    # Reset

    def reset(
        self,
        *,
        seed: int | list[int | None] | None = None,
        options: dict[str, Any] | Sequence[dict[str, Any] | None] | None = None,
        env_ids: EnvIds | None = None,
    ) -> tuple[ObsType, dict[str, Any]]:
        """Reset all envs, or those of ``options["reset_mask"]``, or those of ``env_ids``.

        After a time-out, or an interrupt of ``step`` or ``reset``, it waits for the late envs first
        and drops what they answer.

        Args:
            seed: env ``i`` gets ``seed + i``, or its entry of a list with one per env.
            options: for every env, or a list with one dict per env.
            env_ids: the envs to reset; lists have an entry for each of these, in their order.

        Returns:
            The observations of all envs, and the infos of those that were reset; with ``env_ids``
            a row for each of these, in their order.
        """
        try:
            if env_ids is not None:
                return self._reset_some(env_ids, seed, options)
            if self._call.abandoned:
                self._take_over()
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
        is_flowing = self._call.flow.is_active and self._is_flowing()
        if is_flowing or not self._call.is_late:
            # Gymnasium's text has no full stop here, and has one everywhere else.
            self._call.refuse_another("reset_async", end="")
        plan = plan_reset(seeds, options, self.num_envs)
        self._has_been_reset = True
        self._call.begin(moves_envs=True)
        # After a time-out: what came in time is kept, and the late shards are waited for.
        self._results.absorb(self._call.answers())
        commands: dict[int, Reset] = {}
        for shard in self._pool.shards:
            part = plan.shard(shard.env_ids)
            if isinstance(shard.queued, Reset):
                part = part.after(shard.queued.plan)
            if part.env_ids or shard.owes_answer:
                commands[shard.index] = Reset(part)
        self._post(commands)
        if self._call.mender is not None:
            self._call.mender.history.note_resets(commands)
        self._call.interrupted.difference_update(plan.env_ids)
        self._call.posted(AsyncState.WAITING_RESET)

    def reset_wait(self, timeout: float | None = None) -> tuple[ObsType, dict[str, Any]]:
        """Wait for the reset that ``reset_async`` started.

        Raises:
            NoAsyncCallError: there is none.
            WaitTimeout: it took longer than ``timeout`` seconds; it stays pending.
        """
        self._assert_is_open()
        result = self._results.of_reset(self._call.wait(AsyncState.WAITING_RESET, timeout))
        self._finish()
        return cast("tuple[ObsType, dict[str, Any]]", result)

    # Step

    def step(self, actions: ActType, *, env_ids: EnvIds | None = None) -> StepResult[ObsType]:
        """Step every env once, or those of ``env_ids``; or reset it where autoreset is due.

        With ``env_ids`` there is an action, and a row of what is returned, for each of these envs,
        in their order.

        Raises:
            ResetNeeded: an env waits for ``reset``; no env was stepped.
            TypeError, ValueError: the actions do not fit the action space, or there are no such
                envs; no env was stepped.
        """
        try:
            if env_ids is not None:
                return cast("StepResult[ObsType]", self._step_some(actions, env_ids))
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
        if self.closed:
            self._assert_is_open()
        call, structure, views = self._call, self._action_structure, self._results.views
        call.check()
        if call.kind is not _IDLE or (call.flow.is_active and self._is_flowing()):
            call.refuse_another("step_async")
        columns = action_columns(structure, actions, self.num_envs)
        if call.interrupted:
            refuse_interrupted(call.interrupted)
        check_steppable(self._autoreset_mode, views.terminated, views.truncated, views.failed)
        call.begin(moves_envs=True)
        if structure.flat:
            views.actions[0][...] = columns[0]
        else:
            fixed = [c for leaf, c in zip(structure.leaves, columns, strict=True) if leaf.fixed]
            for place, column in zip(views.actions, fixed, strict=True):
                place[...] = column
        if structure.loose or not self._pool.post_step():
            self._post_step(structure, columns)
        call.posted(AsyncState.WAITING_STEP)

    def _post_step(self, structure: Structure, columns: list[Any]) -> None:
        """Send a step with its loose actions."""
        loose = [c for leaf, c in zip(structure.leaves, columns, strict=True) if not leaf.fixed]
        self._post(
            {
                shard.index: Step([c[shard.env_ids.start : shard.env_ids.stop] for c in loose])
                for shard in self._pool.shards
            }
        )

    def step_wait(self, timeout: float | None = None) -> StepResult[ObsType]:
        """Wait for the step that ``step_async`` started.

        Raises:
            NoAsyncCallError: there is none.
            WaitTimeout: it took longer than ``timeout`` seconds; it stays pending.
        """
        if self.closed:
            self._assert_is_open()
        answers = self._call.wait(AsyncState.WAITING_STEP, timeout)
        result = self._results.of_step(answers)
        self._finish()
        if answers and any(outcome.waits for _, outcome in answers):
            self._warn_waiting()
        return result

    def _warn_waiting(self) -> None:
        """Say, once, that envs wait for each other without need."""
