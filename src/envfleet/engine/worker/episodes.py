"""Episodes: resets and steps the envs of one shard and writes what they return into their rows."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from struct import Struct
from sys import modules
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from envfleet.engine.arena.arena import Terms
from envfleet.engine.arena.views import EVERYBODY, ObservationWriter, Rows, Views
from envfleet.engine.infos.keeping import at_end, checked, final_info
from envfleet.engine.interrupts import raise_interrupt
from envfleet.engine.messages import Outcome, Renew
from envfleet.engine.rules.answers import (
    flag,
    is_unpacking_a_step,
    number,
    reset_parts,
    step_problem,
    unpacking_note,
)
from envfleet.engine.rules.seeding import ResetPlan
from envfleet.engine.worker.host import Host

_NOTHING = object()
"""In place of the observation of an env that raised, or was cut off: its row stays as it is."""


_PLAIN_REWARDS = frozenset({float, int, np.float64, np.float32})


class Episodes:
    """The course of a shard's episodes: starts, steps, ends, and what autoreset makes of ends.

    What an env raises is a failure in the outcome; the env then waits for ``reset``.
    """

    def __init__(self, host: Host) -> None:
        """Begin with ``attach``."""
        self._host = host
        self._first = host.first
        self._caught = host.caught
        self._spare: Outcome | None = None  # most steps tell nothing, and making one takes time

    def attach(self, views: Views, terms: Terms) -> None:
        """Write into these rows, the shard's own, from now on; no episode has begun."""
        self._next_step = terms.autoreset_mode == AutoresetMode.NEXT_STEP
        self._same_step = terms.autoreset_mode == AutoresetMode.SAME_STEP
        self._which_infos = terms.infos
        self._all_infos = terms.infos == "all"
        self._actions = terms.actions
        self._structure = terms.observations
        self._observations = views.observations
        self._final_observations = views.final_observations
        self._rewards = views.rewards
        self._terminated = views.terminated
        self._truncated = views.truncated
        self._failed = views.failed
        self._has_flags = True  # those of a worker that died, perhaps
        count = len(views.rewards)
        self._everyone = range(count)
        self._due = [False] * count  # something else takes the place of the next step:
        self._cut_off: set[int] = set()  # the report of a lost episode, or else an autoreset
        self._fresh_seeds: dict[int, int] = {}  # for the first reset after a restart
        self._rewards_format = Struct(f"{count}d")
        self._nan_bytes = bytearray(count)
        self._is_nan = np.frombuffer(self._nan_bytes, dtype=np.bool_)
        first, structure = self._first, terms.observations
        self._writer = ObservationWriter(structure, views.observations, first, count)
        if terms.keeps_final:
            self._final_writer = ObservationWriter(
                structure, views.final_observations, first, count
            )

    def reset(self, plan: ResetPlan) -> Outcome:
        """Reset the envs of a plan; the others keep their state and observation."""
        outcome = Outcome()
        for env, seed, options in zip(plan.env_ids, plan.seeds, plan.options, strict=True):
            i = env - self._first
            try:
                fresh = self._fresh_seeds.pop(i, None)
                seed = fresh if seed is None else seed  # noqa: PLW2901
                answer = self._host.hooks.reset_env(i, seed=seed, options=options)
                self._host.check_process()
                observation, info = reset_parts(answer, env)
                self._writer.write(i, observation)
                if info:
                    outcome.infos.append((env, checked(info)))
                self._due[i] = False
                self._cut_off.discard(i)
                self._terminated[i] = self._truncated[i] = self._failed[i] = False
                self._rewards[i] = 0.0
            except self._caught as error:
                self._fail(i, "reset", error, outcome)
        return self._with_loose(outcome)

    def step(  # noqa: PLR0912, PLR0915 - the hot path: a function call per env would cost more
        self, columns: Sequence[Any], picked: Rows = EVERYBODY
    ) -> Outcome:
        """Step some envs once; the action columns belong to the envs from here on.

        ``picked`` are their rows; the columns have a row per env that is stepped, in that order.
        """
        outcome, self._spare = self._spare or Outcome(), None
        next_step, all_infos = self._next_step, self._all_infos
        observations: list[Any] = []
        rewards: list[Any] = []
        answer: Any = _NOTHING
        actions = self._actions.rows(columns)
        envs, due = self._host.hooks.envs, self._due
        rows: Sequence[int] = self._everyone
        if picked is EVERYBODY:
            if self._has_flags:
                self._has_flags = False
                self._terminated.fill(False)
                self._truncated.fill(False)
        else:
            self._terminated[picked] = self._truncated[picked] = False
            if isinstance(picked, slice):
                rows, envs, due = rows[picked], envs[picked], due[picked]
            else:
                rows = picked.tolist()
                envs, due = [envs[i] for i in rows], [due[i] for i in rows]
        # This loop is the hot path: what is rare looks its env's row up.
        for env, action, is_due in zip(envs, actions, due, strict=True):
            try:
                if is_due:
                    observation, info = self._catch_up(rows[len(rewards)], outcome)
                    reward: Any = 0.0
                else:
                    answer = env.step(action)
                    observation, reward, terminated, truncated, info = answer
                    if terminated or truncated:
                        i = rows[len(rewards)]
                        self._end(i, terminated, truncated, outcome)
                        if next_step:
                            self._due[i] = True
                        elif self._same_step:
                            observation, info = self._turn_over(i, observation, info, outcome)
                        if not all_infos and (told := at_end(info, self._which_infos)):
                            outcome.infos.append((self._first + i, told))
                if info and all_infos:
                    i = rows[len(rewards)]
                    outcome.infos.append((self._first + i, checked(info)))
            except self._caught as error:
                self._fail_step(rows[len(rewards)], answer, error, outcome)
                observation, reward, answer = _NOTHING, 0.0, _NOTHING
            observations.append(observation)
            rewards.append(reward)
        self._host.check_process()
        if picked is EVERYBODY:
            self._record_all(observations, rewards, outcome)
        else:
            self._record_some(picked, rows, observations, rewards, outcome)
        result = self._with_loose(outcome).shared()
        if result is not outcome:
            outcome.ended = False  # nothing else is in it
            self._spare = outcome
        return result

    @property
    def due(self) -> Sequence[bool]:
        """Per env of the shard whether it will be reset, or report a cut, instead of stepping."""
        return self._due

    def renew(self, command: Renew) -> Outcome:
        """Some envs' episodes were lost with their process; report the cut in their next step.

        Reported is a truncation with the observation that the caller was given last, reward 0 and
        ``info["worker_restarted"]``; autoreset follows as after any end.
        """
        outcome = Outcome()
        rows = [env - self._first for env in command.env_ids]
        for column, block in zip(self._observations, command.observations, strict=False):
            column[rows] = block
        for i, values in zip(rows, command.loose, strict=False):
            self._writer.loose[i] = values
        for i, seed in zip(rows, command.seeds, strict=True):
            self._failed[i] = False
            self._due[i] = True
            self._cut_off.add(i)
            if seed is not None:
                self._fresh_seeds[i] = seed
        for env, i in zip(command.env_ids, rows, strict=True):
            if not command.now:
                break
            try:
                self._terminated[i] = False
                self._rewards[i] = 0.0
                observation, info = self._catch_up(i, outcome)
                if observation is not _NOTHING:
                    self._writer.write(i, observation)
                if self._all_infos:
                    outcome.infos.append((env, info))
            except self._caught as error:
                self._fail(i, "restart", error, outcome)
        return self._with_loose(outcome)

    # What the envs returned

    def _record_all(self, observations: list[Any], rewards: list[Any], outcome: Outcome) -> None:
        """Write what all envs returned; in bulk if all is well, else one by one to find who not."""
        try:
            # Unlike NumPy, struct takes neither None (as NaN) nor strings for numbers.
            self._rewards_format.pack_into(self._rewards, 0, *rewards)  # type: ignore[arg-type]
            is_plain = "numpy.ma" not in modules or not self._has_nan()
        except Exception as error:  # noqa: BLE001 - found out below, env by env
            raise_interrupt(error)
            is_plain = False
        if not is_plain:
            self._record_rewards(self._everyone, observations, rewards, outcome)
        if not self._writer.write_all(observations):
            self._record_observations(self._everyone, observations, outcome)

    def _record_some(
        self,
        picked: Rows,
        rows: Sequence[int],
        observations: list[Any],
        rewards: list[Any],
        outcome: Outcome,
    ) -> None:
        """Write what some envs returned, likewise."""
        try:
            is_plain = _PLAIN_REWARDS.issuperset(map(type, rewards))
            if is_plain:
                self._rewards[picked] = rewards
        except OverflowError:
            is_plain = False
        if not is_plain:
            self._record_rewards(rows, observations, rewards, outcome)
        if not self._writer.write_all(observations, picked):
            self._record_observations(rows, observations, outcome)

    def _record_rewards(
        self, rows: Sequence[int], observations: list[Any], rewards: list[Any], outcome: Outcome
    ) -> None:
        for k, i in enumerate(rows):
            try:
                self._rewards[i] = number(rewards[k], self._first + i)
            except self._caught as error:
                self._fail(i, "step", error, outcome)
                self._rewards[i], observations[k] = 0.0, _NOTHING

    def _record_observations(
        self, rows: Sequence[int], observations: list[Any], outcome: Outcome
    ) -> None:
        for i, observation in zip(rows, observations, strict=True):
            try:
                if observation is not _NOTHING:
                    self._writer.write(i, observation)
            except self._caught as error:
                self._fail(i, "step", error, outcome)

    def _has_nan(self) -> bool:
        """Whether a reward is NaN, as a masked one is by now. To look at bytes is the quickest."""
        np.isnan(self._rewards, self._is_nan)
        return True in self._nan_bytes

    def _with_loose(self, outcome: Outcome) -> Outcome:
        if self._structure.loose:
            outcome.loose = list(self._writer.loose)
        return outcome

    # Failures

    def _fail(self, i: int, phase: str, error: BaseException, outcome: Outcome) -> None:
        self._host.check_process()
        outcome.failures.append(self._host.failure(self._first + i, phase, error))
        self._failed[i] = True

    def _fail_step(self, i: int, answer: Any, error: BaseException, outcome: Outcome) -> None:
        """Record a failed step; ``answer`` is what the env returned, if it came to that."""
        env = self._first + i
        trace = error.__traceback__
        # Raised where answers are taken apart?
        is_ours = trace is not None and trace.tb_next is None
        if is_ours and answer is not _NOTHING:
            error = step_problem(answer, env) or error
        elif is_unpacking_a_step(error):
            error.add_note(unpacking_note(env))
        self._fail(i, "step", error, outcome)

    # Ends

    def _end(self, i: int, terminated: Any, truncated: Any, outcome: Outcome) -> None:
        """Note that an episode has ended."""
        self._host.check_process()
        env = self._first + i
        flags = flag(terminated, "terminated", env), flag(truncated, "truncated", env)
        self._has_flags = True
        self._terminated[i], self._truncated[i] = flags
        outcome.ended = True

    def _turn_over(
        self, i: int, observation: Any, info: dict[str, Any], outcome: Outcome
    ) -> tuple[Any, dict[str, Any]]:
        """Same-step autoreset: keep the final observation and info, then reset."""
        self._final_writer.write(i, observation)
        if self._structure.objects:
            values = self._structure.split(observation)
            self._keep_final(i, [values[k] for k in self._structure.objects], outcome)
        final = final_info(info)
        if self._first + i in self._host.recorded:
            final |= self._final_frame(i)
        observation, reset_info = self._autoreset(i)
        return observation, {**final, **checked(reset_info)}

    def _catch_up(self, i: int, outcome: Outcome) -> tuple[Any, dict[str, Any]]:
        """What takes the place of a step: the report of a lost episode, or a reset that is due."""
        self._due[i] = False
        if i not in self._cut_off:
            return self._autoreset(i)
        self._cut_off.discard(i)
        self._has_flags = self._truncated[i] = outcome.ended = True
        restarted = {"worker_restarted": True}
        if not self._all_infos:
            outcome.infos.append((self._first + i, restarted))
        if not self._same_step:
            self._due[i] = self._next_step
            return _NOTHING, restarted
        for final, column in zip(self._final_observations, self._observations, strict=True):
            final[i] = column[i]
        if self._structure.objects:
            self._keep_final(i, self._given_objects(i), outcome)
        observation, info = self._autoreset(i)
        return observation, {"final_info": {}, **checked(info), **restarted}

    def _given_objects(self, i: int) -> list[Any]:
        """The parts of the observation that the caller was given last that are no arrays."""
        fixed, loose = iter(self._observations), iter(self._writer.loose[i])
        values = [next(fixed)[i] if leaf.fixed else next(loose) for leaf in self._structure.leaves]
        return [values[k] for k in self._structure.objects]

    def _keep_final(self, i: int, objects: list[Any], outcome: Outcome) -> None:
        # The env may go on using the very objects it returned.
        outcome.final_objects = [*outcome.final_objects, (self._first + i, deepcopy(objects))]

    def _autoreset(self, i: int) -> tuple[Any, dict[str, Any]]:
        seed = self._fresh_seeds.pop(i, None)
        reset = self._host.hooks.reset_env
        return reset_parts(reset(i) if seed is None else reset(i, seed=seed), self._first + i)

    def _final_frame(self, i: int) -> dict[str, Any]:
        """What the env shows, or why not: an image is not worth a step."""
        try:
            return {"final_frame": deepcopy(self._host.envs[i].render())}  # reset may draw over it
        except self._caught as error:
            failure = self._host.failure(self._first + i, "render", error)
            return {"final_frame_error": f"{failure.type_name}: {failure.text}"}
