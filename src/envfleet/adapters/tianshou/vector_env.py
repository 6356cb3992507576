"""TianshouVectorEnv: a fleet as a vector env of Tianshou."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import NoAsyncCallError
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from tianshou.env import BaseVectorEnv

from envfleet.adapters.actions import as_batch
from envfleet.adapters.fleets import build_or_adopt
from envfleet.adapters.tianshou.envs import TianshouHost, seed_by_method
from envfleet.adapters.tianshou.observations import stacked
from envfleet.errors import WaitTimeout
from envfleet.vector.fleet import Fleet

EnvIds = int | Iterable[int] | None
StepResult = tuple[
    NDArray[Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], NDArray[Any]
]


class TianshouVectorEnv(BaseVectorEnv):  # type: ignore[misc, unused-ignore]
    """A fleet as Tianshou's collectors want it, in place of DummyVectorEnv or SubprocVectorEnv.

    Nothing is reset by itself: whoever steps resets envs whose episode has ended, as Tianshou's
    collectors do. All that is returned is the caller's. ``docs/clients.md`` says what differs.

    Args:
        envs: functions that build envs, for a fleet that ``envfleet.make`` builds; or a fleet,
            which belongs to this object from now on.
        wait_num: a step returns as soon as so many envs are done, and the others go on; None waits
            for all of them. For ``AsyncCollector``.
        timeout: seconds after which a step returns with fewer envs than ``wait_num``, though with
            one at least.
        **options: of ``envfleet.make``, as ``workers=4``, ``on_failure="restart"`` or
            ``context="spawn"``; for functions only.

    Raises:
        TypeError: neither functions nor a fleet, an option that there is not, or tuples as
            observations, which Tianshou cannot hold.
        ValueError: no functions, two that return the same env, options that contradict each other,
            or a ``wait_num`` or ``timeout`` that cannot be.
        RuntimeError: a fleet that has been reset in another autoreset mode than disabled.
    """

    def __init__(
        self,
        envs: Sequence[Callable[[], Any]] | Fleet[Any, Any],
        wait_num: int | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> None:
        # Not super().__init__: it would start a worker of Tianshou's for each env.
        self.is_closed = False
        is_ours = not isinstance(envs, Fleet)
        mode = AutoresetMode.DISABLED
        self.fleet = build_or_adopt("TianshouVectorEnv", envs, mode, TianshouHost, options)
        try:
            self._space = _supported(self.fleet.single_observation_space)
            self.env_num = self.fleet.num_envs
            self.wait_num = _checked_wait_num(wait_num, self.env_num)
            self.timeout = _checked_timeout(timeout)
            self._action_spaces = self._read_action_spaces()
        except BaseException:
            if is_ours:
                self.fleet.close()
            raise
        self.is_async = self.wait_num != self.env_num or timeout is not None

    def __len__(self) -> int:
        return self.env_num

    @property
    def waiting_id(self) -> list[int]:
        """The envs that are stepping; none unless ``is_async``."""
        waiting: list[int] = self.fleet.outstanding.tolist()
        return waiting

    @property
    def ready_id(self) -> list[int]:
        """The envs that are not stepping."""
        waiting = set(self.waiting_id)
        return [env for env in range(self.env_num) if env not in waiting]

    # Reset and step

    def reset(self, env_id: EnvIds = None, **kwargs: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """Reset all envs, or some; the observations and infos of these, in their order.

        Args:
            env_id: which envs.
            **kwargs: ``seed`` and ``options`` of the envs' own ``reset``: the same for each env,
                the seed too. ``seed()`` gives each its own.

        Raises:
            AlreadyPendingCallError: one of them is stepping.
        """
        ids = self._ids(env_id)
        seed, options = kwargs.pop("seed", None), kwargs.pop("options", None)
        if kwargs:
            raise TypeError(f"envs are reset with seed and options, not with {sorted(kwargs)}")
        seeds = None if seed is None else [seed] * len(ids)
        which = {} if env_id is None else {"env_ids": ids}
        observations, infos = self.fleet.reset(seed=seeds, options=options, **which)
        return self._stacked(observations, len(ids)), np.array(infos)

    def step(self, action: Any, id: EnvIds = None) -> StepResult:  # noqa: A002
        """Step all envs, or some; a row for each env, in the order of ``id``.

        If ``is_async``, return those envs that are ready, in ascending order, as soon as they are
        ``wait_num``, and let the others go on. ``info["env_id"]`` says which.

        Args:
            action: one per env; None, if ``is_async``, to fetch envs that are stepping: those of
                ``id`` as soon as all of them are ready, or ``wait_num`` of them.
            id: which envs.

        Raises:
            AlreadyPendingCallError: one of them is stepping.
            ResetNeeded: the episode of one of them has ended; no env was stepped.
            NoAsyncCallError: there is no action, and no env is stepping.
            TypeError, ValueError: the actions do not fit the action space; no env was stepped.
        """
        if self.is_async:
            return self._step_async(action, id)
        if action is None:
            raise ValueError("a step needs actions, unless wait_num or timeout was given")
        ids = self._ids(id)
        actions = as_batch(self.fleet.single_action_space, action)
        which = {} if ids == list(range(self.env_num)) else {"env_ids": ids}
        return self._rows(ids, *self.fleet.step(actions, **which))

    def _step_async(self, action: Any, env_ids: EnvIds) -> StepResult:
        if action is not None:
            actions = as_batch(self.fleet.single_action_space, action)
            self.fleet.send(actions, self._ids(env_ids))
        elif env_ids is not None:
            batch = self.fleet.recv(env_ids=self._ids(env_ids))
            return self._rows(batch.env_ids.tolist(), *batch[1:])
        stepping = len(self.fleet.outstanding)
        if not stepping:
            raise NoAsyncCallError("step(None) fetches what is stepping, and no env is.", "step")
        least = min(self.wait_num, stepping)
        while True:
            try:
                batch = self.fleet.recv(least, timeout=self.timeout)
            except WaitTimeout:
                batch = self.fleet.recv(0)
            if len(batch.env_ids):
                return self._rows(batch.env_ids.tolist(), *batch[1:])

    def _rows(
        self, ids: list[int], observations: Any, rewards: Any, ends: Any, cuts: Any, infos: Any
    ) -> StepResult:
        for env, info in zip(ids, infos, strict=True):
            info["env_id"] = env
        return self._stacked(observations, len(ids)), rewards, ends, cuts, np.array(infos)

    def _stacked(self, observations: Any, count: int) -> NDArray[Any]:
        own = observations if self.fleet.copy else deepcopy(observations)
        return stacked(self._space, own, count)

    # What envs are asked

    def seed(self, seed: int | Iterable[int | None] | None = None) -> list[Any]:
        """Seed envs and action spaces, env ``i`` with ``seed + i`` or its entry of a list.

        The envs are reset, unless they have a method ``seed``.

        Returns:
            What those methods have returned, or the seed in a list.
        """
        if seed is None:
            seeds: list[int | None] = [None] * self.env_num
        elif isinstance(seed, Iterable):
            seeds = [None if each is None else operator.index(each) for each in seed]
        else:
            seeds = [operator.index(seed) + i for i in range(self.env_num)]
        if len(seeds) != self.env_num:
            raise ValueError(f"{len(seeds)} seeds for {self.env_num} envs")
        answers: list[Any] = []
        for env, each in enumerate(seeds):
            self._action_spaces[env].seed(each)
            answers += self.fleet.call_on([env], seed_by_method, each)
        left = [env for env, answer in enumerate(answers) if not answer]
        self.fleet.reset(seed=[seeds[env] for env in left], env_ids=left)
        return [answer[0] if answer else [seeds[env]] for env, answer in enumerate(answers)]

    def get_env_attr(self, key: str, id: EnvIds = None) -> list[Any]:  # noqa: A002
        """An attribute of all envs, or of some, looked for through their wrappers."""
        ids = self._ids(id)
        if key == "action_space":
            return [self._action_spaces[env] for env in ids]
        distinct = list(dict.fromkeys(ids))
        found = dict(
            zip(distinct, self.fleet.call_on(distinct, "get_wrapper_attr", key), strict=True)
        )
        return [found[env] for env in ids]

    def set_env_attr(self, key: str, value: Any, id: EnvIds = None) -> None:  # noqa: A002
        """Set an attribute of all envs, or of some, inside all wrappers; restarted envs too."""
        ids = list(dict.fromkeys(self._ids(id)))
        self.fleet.set_attr(key, [value] * len(ids), env_ids=ids, on="unwrapped")
        if key == "action_space":
            self._action_spaces = self._read_action_spaces()

    def render(self, **kwargs: Any) -> list[Any]:
        """What the envs' ``render`` returns, of all envs."""
        return list(self.fleet.call("render", **kwargs))

    def close(self) -> None:
        """Close the envs and end their processes; once is enough."""
        self.is_closed = True
        self.fleet.close()

    def _read_action_spaces(self) -> list[gymnasium.Space[Any]]:
        """A copy of each env's action space: a collector samples from it for that env."""
        return [deepcopy(space) for space in self.fleet.call("get_wrapper_attr", "action_space")]

    def _ids(self, env_ids: EnvIds) -> list[int]:
        everyone = range(self.env_num)
        if env_ids is None:
            return list(everyone)
        if isinstance(env_ids, Iterable):
            return [everyone[operator.index(env)] for env in env_ids]
        return [everyone[operator.index(env_ids)]]


def _supported(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    if isinstance(space, spaces.Tuple):
        raise TypeError(
            "Tianshou takes arrays and dicts as observations, and these are tuples: wrap the envs."
        )
    return space


def _checked_wait_num(wait_num: int | None, env_num: int) -> int:
    if wait_num is None:
        return env_num
    if not 1 <= operator.index(wait_num) <= env_num:
        raise ValueError(
            f"wait_num must be from 1 to {env_num}, the number of envs; got {wait_num}"
        )
    return wait_num


def _checked_timeout(timeout: float | None) -> float | None:
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout must be more than 0 seconds, got {timeout}")
    return timeout
