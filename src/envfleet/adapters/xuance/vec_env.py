"""VecEnv: XuanCe's interface of vector envs, on a fleet of ours."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from gymnasium.error import ClosedEnvironmentError
from numpy.typing import DTypeLike, NDArray

from envfleet.adapters.xuance.hosts import episode_limit, render_env
from envfleet.adapters.xuance.observations import check_space, exchange, own_copy, shapes, zeros
from envfleet.errors import EnvfleetError
from envfleet.vector.process import ProcessVectorEnv
from envfleet.vector.serial import SerialVectorEnv

Fleet = SerialVectorEnv[Any, Any] | ProcessVectorEnv[Any, Any]
StepResult = tuple[
    Any, NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], list[dict[str, Any]]
]

_PATIENCE = 30.0
"""Seconds that a step which nobody waits for has before the fleet is closed without it."""


class AlreadySteppingError(EnvfleetError):
    """``step_async`` was called while a step is pending."""

    def __init__(self, text: str = "already running an async step: call step_wait() first") -> None:
        super().__init__(text)


class NotSteppingError(EnvfleetError):
    """``step_wait`` was called while no step is pending."""

    def __init__(self, text: str = "not running an async step: call step_async() first") -> None:
        super().__init__(text)


class _Alias:
    """Another name of an attribute."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, owner: Any, _: type) -> Any:
        return self if owner is None else getattr(owner, self._name)

    def __set__(self, owner: Any, value: Any) -> None:
        setattr(owner, self._name, value)


class VecEnv:
    """Steps the envs of a fleet together, and returns what XuanCe's agents expect.

    At the end of an episode the env is reset at once: the observation returned is the one that the
    episode ended with, the first one of the next is in ``info["reset_obs"]``, and the rest of the
    info is that of the last step. Observations are float32, in the Atari classes uint8, and those
    of a Dict as their spaces say; rewards are float32.

    What ``reset`` and ``step`` return is the caller's. ``buf_obs`` and the other buffers hold the
    same numbers in arrays of their own, new ones at each call, which may be written to.

    ``fleet`` is the fleet itself, a ``gymnasium.vector.VectorEnv``; do not step it beside this.
    """

    _dtype: DTypeLike = np.float32

    buf_rewards = _Alias("buf_rews")
    buf_terminated = _Alias("buf_dones")
    buf_truncated = _Alias("buf_trunctions")
    buf_info = _Alias("buf_infos")

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.waiting = False
        self.closed = False
        self.actions: Any = None
        self.num_envs = fleet.num_envs
        self.observation_space = fleet.single_observation_space
        self.action_space = fleet.single_action_space
        try:
            check_space(self.observation_space)
            (self.max_episode_steps,) = fleet.call_on([0], episode_limit)
        except BaseException:
            fleet.close()
            raise
        self.obs_shape = shapes(self.observation_space)
        self.buf_obs = zeros(self.observation_space, self.num_envs, self._dtype)
        self._blank()
        self.buf_infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]

    def reset(self) -> tuple[Any, list[dict[str, Any]]]:
        """Reset all envs; a step that is pending is waited for and dropped."""
        self._assert_not_closed()
        if self.waiting:
            self._drop_step()
        observations, infos = self.fleet.reset()
        self._blank()
        return self._keep(own_copy(observations, self._dtype), infos)

    def step(self, actions: Any) -> StepResult:
        """Step all envs: ``step_async`` and ``step_wait``."""
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Start a step; ``step_wait`` returns its result.

        Args:
            actions: one per env; of a single env also the action by itself.

        Raises:
            AlreadySteppingError: another step is pending.
            ClosedEnvironmentError: ``close`` was called.
            TypeError, ValueError: the actions do not fit the action space; no env was stepped.
        """
        self._assert_not_closed()
        if self.waiting:
            raise AlreadySteppingError
        if self.num_envs == 1 and _shape(actions) == self.action_space.shape:
            actions = [actions]
        self.fleet.step_async(actions)
        self.actions = actions
        self.waiting = True

    def step_wait(self) -> StepResult:
        """Wait for the step that ``step_async`` started.

        Raises:
            NotSteppingError: there is none.
            ClosedEnvironmentError: ``close`` was called.
        """
        self._assert_not_closed()
        if not self.waiting:
            raise NotSteppingError
        try:
            result = self.fleet.step_wait()
        except Exception:
            self.waiting = False
            raise
        self.waiting = False
        infos: Any
        shared, rewards, terminated, truncated, infos = result
        observations = own_copy(shared, self._dtype)
        for i in np.flatnonzero(terminated | truncated).tolist():
            final, ended = infos[i]["final_obs"], infos[i]["final_info"]
            infos[i] = {**ended, "reset_obs": exchange(observations, i, final)}
        self.buf_rews = rewards.astype(np.float32)
        self.buf_dones, self.buf_trunctions = terminated.copy(), truncated.copy()
        observations, infos = self._keep(observations, infos)
        return observations, self.buf_rews.copy(), terminated, truncated, infos

    def render(self, mode: str | None = None) -> list[Any]:
        """What the envs render, one entry per env; ``mode`` is for envs that take one."""
        self._assert_not_closed()
        return list(self.fleet.call(render_env, mode))

    def close(self) -> None:
        """Close the envs and end their processes; once is enough."""
        if not self.closed:
            self.close_extras()

    def close_extras(self) -> None:
        """What ``close`` does; a step that is pending is waited for, up to 30 seconds."""
        self.closed = True
        if self.waiting:
            self._drop_step()
        self.fleet.close()

    # What every call needs

    def _assert_not_closed(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError(
                f"Trying to operate on `{type(self).__name__}`, after a call to `close()`."
            )

    def _drop_step(self) -> None:
        """End a pending step; what an env has raised in it does not matter any more."""
        with contextlib.suppress(Exception):
            self.fleet.step_wait(_PATIENCE)
        self.waiting = False

    def _blank(self) -> None:
        self.buf_rews = np.zeros(self.num_envs, np.float32)
        self.buf_dones = np.zeros(self.num_envs, np.bool_)
        self.buf_trunctions = np.zeros(self.num_envs, np.bool_)

    def _keep(self, observations: Any, infos: Any) -> tuple[Any, list[dict[str, Any]]]:
        """Keep observations and infos in the buffers, and return the caller's own."""
        self.buf_obs = own_copy(observations, self._dtype)
        self.buf_infos = infos
        return observations, list(infos)


def _shape(actions: Any) -> Any:
    try:
        return np.shape(actions)
    except ValueError:  # a ragged list is no single action
        return None
