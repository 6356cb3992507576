"""SB3VecEnv: a fleet as a ``VecEnv`` of Stable-Baselines3."""

from __future__ import annotations

import contextlib
import operator
import warnings
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from envfleet.adapters.actions import as_batch
from envfleet.adapters.fleets import build_or_adopt
from envfleet.adapters.sb3 import envs as on_env
from envfleet.adapters.sb3.masks import key_of_masks, with_masks
from envfleet.vector.fleet import Fleet

Indices = int | Iterable[int] | None
Info = dict[str, Any]

_SAME_STEP = AutoresetMode.SAME_STEP
_PATIENCE = 30.0
"""Seconds that a step which nobody waits for has before the fleet is reset or closed without it."""
_TIMED_OUT = "TimeLimit.truncated"
_OURS = ("worker_restarted", "final_frame", "final_frame_error")
"""What a fleet tells of an end beside what the env does."""
_PLAIN = frozenset({bool, int, float, str, type(None)})
"""Types whose values need no copy."""


class SB3VecEnv(VecEnv):
    """A fleet as Stable-Baselines3's algorithms and wrappers want it, in place of SubprocVecEnv.

    ``make_vec_env(..., vec_env_cls=SB3VecEnv)`` builds one. Numbers and infos are those of
    ``DummyVecEnv``; all that is returned is the caller's. ``docs/clients.md`` says what differs.

    Args:
        envs: a fleet, which belongs to this object from now on; or functions that build envs, for
            a fleet that ``envfleet.make`` builds.
        start_method: of the fleet's processes ("fork", "forkserver", "spawn"); None is the
            platform's default. Given, the envs are in processes.
        masks: the envs' method that returns their action masks, for sb3-contrib's MaskablePPO: they
            come along with each step, so that asking for them takes no message. Envs of a fleet
            must be built with ``SendMasks``.
        **options: of ``envfleet.make``, as ``workers=4``, ``on_failure="restart"`` or
            ``backend="serial"``; for functions only.

    Raises:
        TypeError: neither a fleet nor functions, or an option that there is not.
        ValueError: functions that return the same env twice, no such start method, options that
            contradict each other, or a fleet whose envs do not send their masks.
        RuntimeError: a fleet that has been reset in another autoreset mode than same-step.
    """

    def __init__(
        self,
        envs: Fleet[Any, Any] | Sequence[Callable[[], Any]],
        start_method: str | None = None,
        *,
        masks: str | None = None,
        **options: Any,
    ) -> None:
        self.waiting = False
        self.closed = False
        if start_method is not None:
            if "context" in options:
                raise TypeError("start_method and context are two names of one option: give one")
            options["context"] = start_method
        is_ours = not isinstance(envs, Fleet)
        self._masks_key: str | None = None
        if masks is not None:
            if isinstance(envs, Fleet):
                self._masks_key = key_of_masks(envs, masks)
            elif isinstance(envs, Sequence) and not isinstance(envs, str):
                envs = with_masks(envs, masks)
        self.fleet = build_or_adopt("SB3VecEnv", envs, _SAME_STEP, on_env.SB3Host, options)
        try:
            if masks is not None and is_ours:
                self._masks_key = key_of_masks(self.fleet, masks)
            space, action_space = (
                self.fleet.single_observation_space,
                self.fleet.single_action_space,
            )
            super().__init__(self.fleet.num_envs, space, action_space)
        except BaseException:
            if is_ours:
                self.fleet.close()
            raise
        self.metadata = {
            key: value for key, value in self.fleet.metadata.items() if key != "autoreset_mode"
        }
        self._local = self.fleet.local_env_ids
        self._masks_method = masks
        self._masks: list[Any] | None = None

    # Reset and step

    def reset(self) -> Any:
        """Reset all envs with the seeds and options set for it; a pending step is dropped."""
        self._assert_is_open()
        if self.waiting:
            self._drop_step()
        options = [each or None for each in self._options]
        infos: Any
        observations, infos = self.fleet.reset(seed=self._seeds, options=options)
        self._masks = self._taken_masks(infos)
        self.reset_infos = self._own(infos)
        self._reset_seeds()
        self._reset_options()
        return self._own_observations(observations)

    def step_async(self, actions: Any) -> None:
        """Start a step; ``step_wait`` returns its result.

        Args:
            actions: one per env, in an array or a list.

        Raises:
            AlreadyPendingCallError: another step is pending.
            TypeError, ValueError: the actions do not fit the action space; no env was stepped.
        """
        self.fleet.step_async(as_batch(self.action_space, actions))
        self.waiting = True

    def step_wait(
        self,
    ) -> tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[Info]]:
        """Wait for the step; where an episode ended, the observation is the next one's first."""
        try:
            infos: Any
            observations, rewards, terminated, truncated, infos = self.fleet.step_wait()
        finally:
            self.waiting = False
        self._masks = self._taken_masks(infos)
        self._own(infos)
        for info in infos:
            info[_TIMED_OUT] = False
        dones = terminated | truncated
        for i in np.flatnonzero(dones).tolist():
            infos[i] = self._turn_over(i, infos[i], timed_out=not terminated[i])
        return self._own_observations(observations), rewards.astype(np.float32), dones, infos

    def _turn_over(self, i: int, info: Info, *, timed_out: bool) -> Info:
        """The info of an episode's last step; what else is there is that of the reset."""
        del info[_TIMED_OUT]
        ended: Info = info.pop("final_info", {})
        if self._masks_key is not None:
            ended.pop(self._masks_key, None)
        ended.update((key, info.pop(key)) for key in _OURS if key in info)
        ended[_TIMED_OUT] = timed_out
        ended["terminal_observation"] = info.pop("final_obs")
        self.reset_infos[i] = info
        return ended

    def close(self) -> None:
        """Close the envs and end their processes; once is enough."""
        if self.closed:
            return
        self.closed = True
        if self.waiting:
            self._drop_step()
        self.fleet.close()

    # What envs are asked

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """An attribute of some envs, looked for through their wrappers; it is not called."""
        return self._ask(indices, on_env.get_attribute, attr_name)

    def has_attr(self, attr_name: str) -> bool:
        """Whether all envs have an attribute, also one that cannot travel."""
        if attr_name == self._masks_method:
            return True
        return all(self._ask(None, on_env.has_attribute, attr_name))

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set an attribute of some envs, on the outermost wrapper; in restarted envs once more."""
        self._masks = None
        env_ids = list(dict.fromkeys(self._env_ids(indices)))
        self.fleet.set_attr(attr_name, [value] * len(env_ids), env_ids=env_ids, on="outermost")

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """What a method of some envs returns; it is looked for through their wrappers."""
        if method_name == self._masks_method and not method_args and not method_kwargs:
            if self._masks is not None:
                return [self._masks[i] for i in self._env_ids(indices)]
        else:
            self._masks = None  # it may change them
        return self._ask(indices, on_env.call_method, method_name, method_args, method_kwargs)

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Indices = None) -> list[bool]:
        """Whether some envs have a wrapper of this class."""
        return self._ask(indices, on_env.is_wrapped, wrapper_class)

    def get_images(self) -> Sequence[Any]:
        """What the envs show, one image each; None if their render mode is not "rgb_array"."""
        if self.render_mode != "rgb_array":
            warnings.warn(
                f"the render mode is {self.render_mode}, and images need render_mode='rgb_array'",
                stacklevel=2,
            )
            return [None] * self.num_envs
        return list(self.fleet.render())

    def _ask(self, indices: Indices, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Call a function on some envs, in turn; on an env that is named twice, twice."""
        results: list[Any] = []
        batch: list[int] = []
        for env in self._env_ids(indices):
            if env in batch:
                results += self.fleet.call_on(batch, function, *args)
                batch = []
            batch.append(env)
        return [*results, *self.fleet.call_on(batch, function, *args)] if batch else results

    def _env_ids(self, indices: Indices) -> list[int]:
        everyone = range(self.num_envs)
        if indices is None:
            return list(everyone)
        if isinstance(indices, Iterable):
            return [everyone[operator.index(i)] for i in indices]
        return [everyone[operator.index(indices)]]

    # What every call needs

    def _assert_is_open(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError(
                "Trying to operate on `SB3VecEnv`, after a call to `close()`."
            )

    def _drop_step(self) -> None:
        """End a pending step; what an env has raised in it does not matter any more."""
        with contextlib.suppress(Exception):
            self.fleet.step_wait(_PATIENCE)
        self.waiting = False

    def _taken_masks(self, infos: list[Info]) -> list[Any] | None:
        """The masks that have come along, taken out of the infos."""
        return None if self._masks_key is None else [info.pop(self._masks_key) for info in infos]

    def _own(self, infos: list[Info]) -> list[Info]:
        """The same list; envs in this process keep nothing of what is in it."""
        for i in self._local:
            info = infos[i]
            for key, value in info.items():
                if type(value) not in _PLAIN:
                    info[key] = deepcopy(value)
        return infos

    def _own_observations(self, observations: Any) -> Any:
        return observations if self.fleet.copy else deepcopy(observations)
