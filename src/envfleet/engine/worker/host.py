"""EnvHost owns a shard of envs and knows everything one can do with them; every engine uses it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from struct import Struct
from sys import modules
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space
from gymnasium.vector import AutoresetMode

from envfleet.engine.arena.views import ObservationWriter, Views
from envfleet.engine.failures import Failure
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
from envfleet.engine.rules.envs import check_env, envs_that_are_one, text_about_sharers
from envfleet.engine.rules.seeding import ResetPlan
from envfleet.engine.rules.spaces import Structure, same_space
from envfleet.engine.worker.guard import end_if_stray

EnvFactory = Callable[[], gymnasium.Env[Any, Any]]

KEEPS_FINAL_FRAME = "keeps_final_frame"
"""An attribute of envs: where ``set_attr`` has set it and same-step autoreset hides the frame that
an episode ends with, ``info["final_frame"]`` has it, or ``info["final_frame_error"]`` the reason
why ``render`` gave none."""
FRAME_INFOS = ("final_frame", "final_frame_error")
"""They travel whichever infos are wanted."""

_NOTHING = object()
"""In place of the observation of an env that raised, or was cut off: its row stays as it is."""


@dataclass(frozen=True, slots=True)
class ShardSpaces:
    """The spaces of a shard's envs without repetition: many envs, usually one space."""

    distinct: list[Space[Any]]
    which: list[int]
    """Per env the position of its space in ``distinct``."""

    @classmethod
    def of(cls, spaces: Iterable[Space[Any]]) -> ShardSpaces:
        """Compare each space with the first one only: that settles the usual case."""
        found = cls([], [])
        for space in spaces:
            if not found.distinct or not same_space(space, found.distinct[0]):
                found.which.append(len(found.distinct))
                found.distinct.append(space)
            else:
                found.which.append(0)
        return found

    def each(self) -> list[Space[Any]]:
        """One space per env."""
        return [self.distinct[k] for k in self.which]


@dataclass(frozen=True, slots=True)
class Description:
    """What a shard tells about its envs; metadata and render mode are the first env's."""

    observation_spaces: ShardSpaces
    action_spaces: ShardSpaces
    metadata: dict[str, Any]
    render_mode: str | None


class EnvHost:
    """Builds, resets, steps, calls and closes the envs of one shard, in the shard's process.

    Subclass it to change how envs are handled, and pass the class as ``worker=``. The methods
    meant for that are ``make_env`` (wrap the env here to change its steps), ``reset_env`` and
    ``close_env``; each gets the env's place in this shard, ``self.envs[i]``, whose index in the
    fleet is ``self.first + i``.

    An env that raises does not stop the others: its exception is a ``Failure`` in the outcome.
    """

    def __init__(self, first: int, autoreset_mode: AutoresetMode) -> None:
        self.first = first
        """The fleet's index of this shard's first env."""
        self.autoreset_mode = autoreset_mode
        self._same_step = autoreset_mode == AutoresetMode.SAME_STEP
        self._next_step = autoreset_mode == AutoresetMode.NEXT_STEP
        self.caught: tuple[type[BaseException], ...] = (Exception, SystemExit)
        """What counts as a failure of an env. In the caller's own process KeyboardInterrupt, and
        whatever else a signal handler has raised, does not: it is the user's."""
        self.is_workers = False
        """Whether the envs live in a worker, where nobody else may answer for them."""
        self.envs: list[gymnasium.Env[Any, Any]] = []
        self._due: list[bool] = []  # something else takes the place of the next step:
        self._cut_off: set[int] = set()  # the report of a lost episode, or else an autoreset
        self._fresh_seeds: dict[int, int] = {}  # for the first reset after a restart

    # What a subclass may change

    def make_env(self, i: int, env_fn: EnvFactory) -> gymnasium.Env[Any, Any]:  # noqa: ARG002
        """Build env ``i`` of the shard."""
        return env_fn()

    def reset_env(self, i: int, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Reset env ``i``; without ``options`` its episode ended, or was cut off (autoreset)."""
        return self.envs[i].reset(**kwargs)

    def close_env(self, i: int) -> None:
        """Close env ``i``."""
        self.envs[i].close()

    # What an engine asks

    def build(self, env_fns: Sequence[EnvFactory]) -> Outcome:
        """Build the envs; at the first failure the ones already built are closed again."""
        outcome = Outcome()
        self._env_fns = env_fns
        for i in range(len(env_fns)):
            try:
                self.envs.append(self._make(i))
            except self.caught as error:
                outcome.failures.append(self._failure(self.first + i, "construct", error))
                break
        else:
            if sharers := envs_that_are_one(self.envs, self.first):
                refusal = TypeError(text_about_sharers(sharers))
                outcome.failures.append(Failure.capture(sharers[0], "construct", refusal))
        if outcome.failures:
            self.close()
            self.envs.clear()
        self._due = [False] * len(self.envs)
        return outcome

    def _make(self, i: int) -> gymnasium.Env[Any, Any]:
        env = self.make_env(i, self._env_fns[i])
        try:
            check_env(env, self.first + i)
        except TypeError:
            with contextlib.suppress(Exception):
                env.close()
            raise
        return env

    def rebuild(self, env_ids: Sequence[int]) -> Outcome:
        """Close some envs and build them anew; they wait for ``renew`` or ``reset``."""

        def one(i: int) -> None:
            with contextlib.suppress(*self.caught):
                self.close_env(i)
            self.envs[i] = self._make(i)

        return self._each(env_ids, "restart", one)

    def renew(self, command: Renew) -> Outcome:
        """Some envs' episodes were lost with their process; report the cut in their next step.

        Reported is a truncation with the observation that the caller was given last, reward 0 and
        ``info["worker_restarted"]``; autoreset follows as after any end.
        """
        outcome = Outcome()
        rows = [env - self.first for env in command.env_ids]
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
            except self.caught as error:
                self._fail(i, "restart", error, outcome)
        return self._with_loose(outcome)

    def describe(self) -> Description:
        """The envs' spaces, and the first env's metadata and render mode."""
        return Description(
            ShardSpaces.of(env.observation_space for env in self.envs),
            ShardSpaces.of(env.action_space for env in self.envs),
            dict(self.envs[0].metadata),
            self.envs[0].render_mode,
        )

    def attach(
        self, views: Views, observations: Structure, actions: Structure, infos: str = "all"
    ) -> None:
        """Write into these rows from now on (the shard's own part of them).

        Args:
            views: the rows.
            observations: the leaves of an observation.
            actions: the leaves of an action.
            infos: which infos ``step`` tells of: "all", "final" (those of steps that end an
                episode) or "none". What the engine itself has to say is always told.
        """
        self._all_infos = infos == "all"
        self._final_infos = infos != "none"
        self._actions = actions
        self._observations = views.observations
        self._final_observations = views.final_observations
        self._rewards = views.rewards
        self._terminated = views.terminated
        self._truncated = views.truncated
        self._failed = views.failed
        self._has_loose = bool(observations.loose)
        count = len(self.envs)
        self._rewards_format = Struct(f"{count}d")
        self._nan_bytes = bytearray(count)
        self._is_nan = np.frombuffer(self._nan_bytes, dtype=np.bool_)
        self._writer = ObservationWriter(observations, views.observations, self.first, count)
        if self._same_step:
            self._final_writer = ObservationWriter(
                observations, views.final_observations, self.first, count
            )

    def reset(self, plan: ResetPlan) -> Outcome:
        """Reset the envs of a plan; the others keep their state and observation."""
        outcome = Outcome()
        for env, seed, options in zip(plan.env_ids, plan.seeds, plan.options, strict=True):
            i = env - self.first
            try:
                fresh = self._fresh_seeds.pop(i, None)
                seed = fresh if seed is None else seed  # noqa: PLW2901
                answer = self.reset_env(i, seed=seed, options=options)
                self._check_process()
                observation, info = reset_parts(answer, env)
                self._writer.write(i, observation)
                if info:
                    outcome.infos.append((env, _checked_info(info)))
                self._due[i] = False
                self._cut_off.discard(i)
                self._terminated[i] = self._truncated[i] = self._failed[i] = False
            except self.caught as error:
                self._fail(i, "reset", error, outcome)
        return self._with_loose(outcome)

    def step(self, columns: Sequence[Any]) -> Outcome:
        """Step every env once; the action columns belong to the envs from here on."""
        outcome = Outcome()
        same_step, next_step, all_infos = self._same_step, self._next_step, self._all_infos
        self._terminated.fill(False)
        self._truncated.fill(False)
        observations: list[Any] = []
        rewards: list[Any] = []
        answer: Any = _NOTHING
        actions = self._actions.rows(columns)
        # This loop is the hot path: what is rare works out its env's index from len(rewards).
        for env, action, is_due in zip(self.envs, actions, self._due, strict=True):
            try:
                if is_due:
                    observation, info = self._catch_up(len(rewards), outcome)
                    reward: Any = 0.0
                else:
                    answer = env.step(action)
                    observation, reward, terminated, truncated, info = answer
                    if terminated or truncated:
                        i = len(rewards)
                        self._check_process()
                        terminated = flag(terminated, "terminated", self.first + i)
                        truncated = flag(truncated, "truncated", self.first + i)
                        self._terminated[i], self._truncated[i] = terminated, truncated
                        if same_step:
                            observation, info = self._turn_over(i, observation, info, outcome)
                        else:
                            self._due[i] = next_step
                        if not all_infos:
                            frame = {k: info[k] for k in FRAME_INFOS if k in info}
                            kept = _checked_info(info) if self._final_infos else frame
                            outcome.infos.append((self.first + i, kept))
                if info and all_infos:
                    outcome.infos.append((self.first + len(rewards), _checked_info(info)))
            except self.caught as error:
                self._fail_step(len(rewards), answer, error, outcome)
                observation, reward, answer = _NOTHING, 0.0, _NOTHING
            observations.append(observation)
            rewards.append(reward)
        self._record(observations, rewards, outcome)
        return self._with_loose(outcome)

    def _record(self, observations: list[Any], rewards: list[Any], outcome: Outcome) -> None:
        """Write what the envs returned; in bulk if all is well, else env by env to find who not."""
        self._check_process()
        try:
            # Unlike NumPy, struct takes neither None (as NaN) nor strings for numbers.
            self._rewards_format.pack_into(self._rewards, 0, *rewards)  # type: ignore[arg-type]
            is_plain = "numpy.ma" not in modules or not self._has_nan()
        except Exception as error:  # noqa: BLE001 - found out below, env by env
            raise_interrupt(error)
            is_plain = False
        if not is_plain:
            for i, reward in enumerate(rewards):
                try:
                    self._rewards[i] = number(reward, self.first + i)
                except self.caught as error:
                    self._fail(i, "step", error, outcome)
                    self._rewards[i], observations[i] = 0.0, _NOTHING
        if self._writer.write_all(observations):
            return
        for i, observation in enumerate(observations):
            try:
                if observation is not _NOTHING:
                    self._writer.write(i, observation)
            except self.caught as error:
                self._fail(i, "step", error, outcome)

    def _has_nan(self) -> bool:
        """Whether a reward is NaN, as a masked one is by now. To look at bytes is the quickest."""
        np.isnan(self._rewards, self._is_nan)
        return True in self._nan_bytes

    def _fail_step(self, i: int, answer: Any, error: BaseException, outcome: Outcome) -> None:
        """Record a failed step; ``answer`` is what the env returned, if it came to that."""
        env = self.first + i
        trace = error.__traceback__
        is_ours = (
            trace is not None and trace.tb_next is None
        )  # raised where answers are taken apart
        if is_ours and answer is not _NOTHING:
            error = step_problem(answer, env) or error
        elif is_unpacking_a_step(error):
            error.add_note(unpacking_note(env))
        self._fail(i, "step", error, outcome)

    def _check_process(self) -> None:
        """Write no rows, and answer nothing, in a process that an env has forked."""
        if self.is_workers:
            end_if_stray()

    def _fail(self, i: int, phase: str, error: BaseException, outcome: Outcome) -> None:
        self._check_process()
        outcome.failures.append(self._failure(self.first + i, phase, error))
        self._failed[i] = True

    def _failure(self, env: int, phase: str, error: BaseException) -> Failure:
        """The failure of an env; in the caller's process, what a signal handler raised is none."""
        if BaseException not in self.caught:
            raise_interrupt(error)
        return Failure.capture(env, phase, error)

    def call(
        self, env_ids: Sequence[int], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Outcome:
        """Call ``name`` on some envs, or read it where it is not callable; one result per env."""

        def one(i: int) -> Any:
            attribute = self.envs[i].get_wrapper_attr(name)
            return attribute(*args, **kwargs) if callable(attribute) else attribute

        return self._each(env_ids, f"call of {name!r}", one)

    def set_attr(self, env_ids: Sequence[int], name: str, values: Sequence[Any]) -> Outcome:
        """Set ``name`` on some envs, each to its own value."""
        value_of = dict(zip(env_ids, values, strict=True))

        def one(i: int) -> None:
            self.envs[i].set_wrapper_attr(name, value_of[self.first + i])

        return self._each(env_ids, f"set_attr of {name!r}", one)

    def close(self) -> Outcome:
        """Close every env, also when some raise."""
        everyone = range(self.first, self.first + len(self.envs))
        return self._each(everyone, "close", self.close_env)

    def _each(self, env_ids: Sequence[int], phase: str, one: Callable[[int], Any]) -> Outcome:
        results: list[Any] = []
        outcome = Outcome(results=results)
        for env in env_ids:
            result = None
            try:
                result = one(env - self.first)
            except self.caught as error:
                outcome.failures.append(self._failure(env, phase, error))
            results.append(result)
        return outcome

    def _catch_up(self, i: int, outcome: Outcome) -> tuple[Any, dict[str, Any]]:
        """What takes the place of a step: the report of a lost episode, or a reset that is due."""
        self._due[i] = False
        if i not in self._cut_off:
            return self._autoreset(i)
        self._cut_off.discard(i)
        self._truncated[i] = True
        restarted = {"worker_restarted": True}
        if not self._all_infos:
            outcome.infos.append((self.first + i, restarted))
        if not self._same_step:
            self._due[i] = self._next_step
            return _NOTHING, restarted
        for final, column in zip(self._final_observations, self._observations, strict=True):
            final[i] = column[i]
        if self._has_loose:
            self._keep_final(i, self._writer.loose[i], outcome)
        observation, info = self._autoreset(i)
        return observation, {"final_info": {}, **_checked_info(info), **restarted}

    def _autoreset(self, i: int) -> tuple[Any, dict[str, Any]]:
        seed = self._fresh_seeds.pop(i, None)
        answer = self.reset_env(i) if seed is None else self.reset_env(i, seed=seed)
        return reset_parts(answer, self.first + i)

    def _keep_final(self, i: int, loose: list[Any], outcome: Outcome) -> None:
        # The env may go on using the very objects it returned.
        outcome.final_loose = [*outcome.final_loose, (self.first + i, deepcopy(loose))]

    def _turn_over(
        self, i: int, observation: Any, info: dict[str, Any], outcome: Outcome
    ) -> tuple[Any, dict[str, Any]]:
        """Same-step autoreset: keep the final observation and info, then reset."""
        self._final_writer.write(i, observation)
        if self._has_loose:
            self._keep_final(i, self._final_writer.loose[i], outcome)
        final: dict[str, Any] = {"final_info": _own_copy(_checked_info(info))}
        if getattr(self.envs[i], KEEPS_FINAL_FRAME, False):
            final |= self._final_frame(i)
        observation, reset_info = self._autoreset(i)
        return observation, {**final, **_checked_info(reset_info)}

    def _final_frame(self, i: int) -> dict[str, Any]:
        """What the env shows, or why not: a picture is not worth a step."""
        try:
            return {"final_frame": deepcopy(self.envs[i].render())}  # reset may draw over it
        except self.caught as error:
            failure = Failure.capture(self.first + i, "render", error)
            return {"final_frame_error": f"{failure.type_name}: {failure.text}"}

    def _with_loose(self, outcome: Outcome) -> Outcome:
        if self._has_loose:
            outcome.loose = list(self._writer.loose)
        return outcome


def _own_copy(info: dict[str, Any]) -> dict[str, Any]:
    """A copy that the env's reset cannot change; shallow where something in it resists copying."""
    try:
        return deepcopy(info)
    except Exception as error:  # noqa: BLE001 - an env's objects may raise anything
        raise_interrupt(error)
        return dict(info)


def _checked_info(info: Any) -> dict[str, Any]:
    if isinstance(info, dict):
        return info
    raise TypeError(f"info must be a dict, got {type(info).__name__}")
