"""Host: builds, calls and closes the envs of one shard, and says whose failure an exception is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

from envfleet.engine.failures import Failure
from envfleet.engine.interrupts import raise_interrupt
from envfleet.engine.messages import Call, Outcome, SetAttr
from envfleet.engine.rules.envs import check_env, envs_that_are_one, text_about_sharers
from envfleet.engine.worker.description import Description, ShardSpaces
from envfleet.engine.worker.guard import end_if_stray
from envfleet.engine.worker.hooks import EnvFactory, EnvHost


class Host:
    """Handles a shard's envs through the user's hooks.

    An env that raises does not stop the others: its exception is a ``Failure`` in the outcome.

    Args:
        hooks: holds the envs; none yet.
        is_worker: whether this is a worker process, where nobody else may answer for the envs and
            whatever they raise is theirs. In the caller's process KeyboardInterrupt, and whatever
            else a signal handler has raised, is the user's.
    """

    def __init__(self, hooks: EnvHost, *, is_worker: bool) -> None:
        self.hooks = hooks
        self.first = hooks.first
        self.is_worker = is_worker
        self.caught: tuple[type[BaseException], ...] = (
            (BaseException,) if is_worker else (Exception, SystemExit)
        )
        """What counts as a failure of an env."""
        self.recorded: frozenset[int] = frozenset()
        """The envs whose last frame same-step autoreset must not hide."""

    @property
    def envs(self) -> list[gymnasium.Env[Any, Any]]:
        """The envs, each outermost wrapper first."""
        return self.hooks.envs

    def build(self, env_fns: Sequence[EnvFactory]) -> Outcome:
        """Build the envs; at the first failure the ones already built are closed again.

        The outcome's result is the ``Description``.
        """
        outcome = Outcome()
        self._env_fns = env_fns
        for i in range(len(env_fns)):
            try:
                self.envs.append(self._make(i))
            except self.caught as error:
                outcome.failures.append(self.failure(self.first + i, "construct", error))
                break
        else:
            if sharers := envs_that_are_one(self.envs, self.first):
                refusal = TypeError(text_about_sharers(sharers))
                outcome.failures.append(Failure.capture(sharers[0], "construct", refusal))
        if outcome.failures:
            self.close()
            self.envs.clear()
        else:
            outcome.results = [self._describe()]
        return outcome

    def _make(self, i: int) -> gymnasium.Env[Any, Any]:
        env = self.hooks.make_env(i, self._env_fns[i])
        try:
            check_env(env, self.first + i)
        except TypeError:
            with contextlib.suppress(Exception):
                env.close()
            raise
        return env

    def _describe(self) -> Description:
        return Description(
            ShardSpaces.of(env.observation_space for env in self.envs),
            ShardSpaces.of(env.action_space for env in self.envs),
            dict(self.envs[0].metadata),
            self.envs[0].render_mode,
        )

    def rebuild(self, env_ids: Sequence[int]) -> Outcome:
        """Close some envs and build them anew; they wait for ``renew`` or ``reset``."""

        def one(i: int) -> None:
            with contextlib.suppress(*self.caught):
                self.hooks.close_env(i)
            self.envs[i] = self._make(i)

        return self._each(env_ids, "restart", one)

    def call(self, command: Call) -> Outcome:
        """Call a method or a function on some envs, or read an attribute; one result per env."""
        what, args, kwargs = command.what, command.args, command.kwargs

        def one(i: int) -> Any:
            env = self.envs[i]
            if not isinstance(what, str):
                return what(env, *args, **kwargs)
            attribute = env.get_wrapper_attr(what)
            return attribute(*args, **kwargs) if callable(attribute) else attribute

        return self._each(command.env_ids, command.title, one)

    def set_attr(self, command: SetAttr) -> Outcome:
        """Set an attribute of some envs, each to its own value."""
        value_of = dict(zip(command.env_ids, command.values, strict=True))

        def one(i: int) -> None:
            env, value = self.envs[i], value_of[self.first + i]
            match command.on:
                case "owner":
                    env.set_wrapper_attr(command.name, value)
                case "outermost":
                    setattr(env, command.name, value)
                case "unwrapped":
                    setattr(env.unwrapped, command.name, value)

        return self._each(command.env_ids, command.title, one)

    def close(self) -> Outcome:
        """Close every env, also when some raise."""
        everyone = range(self.first, self.first + len(self.envs))
        return self._each(everyone, "close", self.hooks.close_env)

    def _each(self, env_ids: Sequence[int], phase: str, one: Callable[[int], Any]) -> Outcome:
        results: list[Any] = []
        outcome = Outcome(results=results)
        for env in env_ids:
            result = None
            try:
                result = one(env - self.first)
            except self.caught as error:
                outcome.failures.append(self.failure(env, phase, error))
            results.append(result)
        return outcome

    def failure(self, env: int, phase: str, error: BaseException) -> Failure:
        """The failure of an env, as it is being handled."""
        if not self.is_worker:
            raise_interrupt(error)
        return Failure.capture(env, phase, error)

    def check_process(self) -> None:
        """Write no rows, and answer nothing, in a process that an env has forked."""
        if self.is_worker:
            end_if_stray()
