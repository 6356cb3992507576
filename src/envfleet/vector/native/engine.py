"""NativeVectorEnv: the env's own batched implementation, held to the rules of our fleets."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NoReturn, Self, SupportsIndex

import numpy as np
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from envfleet.engine.rules.actions import action_columns, refuse_unknown
from envfleet.engine.rules.choice import Plan
from envfleet.engine.rules.spaces import Structure
from envfleet.errors import EnvfleetError
from envfleet.vector.fleet import Fleet
from envfleet.vector.native.infos import with_masks

Flags = NDArray[np.bool_]
StepResult = tuple[Any, NDArray[np.float64], Flags, Flags, dict[str, Any]]


class NativeVectorEnv(VectorEnv[Any, Any, NDArray[Any]]):
    """A vector env that steps all its envs itself, such as Gymnasium's CartPole in NumPy.

    What it returns is the caller's own. Rewards are float64, infos have Gymnasium's masks, and
    ``final_obs`` is there only for envs that ended. Actions are checked before they are handed
    over. Whatever the implementation cannot do is refused, never ignored; ``docs/native.md`` lists
    it. It runs in the calling process: nothing here survives a crash or a hang of an env.

    ``make(..., backend="native")`` builds it.

    Args:
        build: builds the implementation.
        autoreset_mode: the mode asked for.
        name: what the implementation is, as ``module:class``.

    Raises:
        ValueError: the implementation resets its envs in another mode.
    """

    threads = 1
    """How many threads step the envs; 1 is the calling one."""
    closed = True
    """Until there is something to close."""

    def __init__(
        self,
        build: Callable[[], VectorEnv[Any, Any, Any]],
        autoreset_mode: AutoresetMode,
        name: str,
    ) -> None:
        super().__init__()
        self._build = build
        self._envs = envs = build()
        self._name = name
        self._process = os.getpid()
        self.reason = "built directly"
        """Why this fleet is as it is; ``plan`` tells."""
        said = envs.metadata.get("autoreset_mode")
        if said is None or AutoresetMode(said) != autoreset_mode:
            envs.close()
            knows = "no mode" if said is None else f"mode {AutoresetMode(said).value!r}"
            raise ValueError(
                f"{name} knows {knows} of autoreset and cannot do {autoreset_mode.value!r}: "
                f"{'' if said is None else 'ask for its own mode, or '}take backend='process'."
            )
        self.autoreset_mode = autoreset_mode
        self.metadata = {**envs.metadata, "autoreset_mode": autoreset_mode}
        self.render_mode = envs.render_mode
        self.num_envs = envs.num_envs
        self.single_action_space, self.action_space = envs.single_action_space, envs.action_space
        self.single_observation_space = envs.single_observation_space
        self.observation_space = envs.observation_space
        self._actions = Structure(self.single_action_space)
        self._waits_for_reset = "have not been reset"
        """Why envs cannot be stepped now; empty if they can."""
        self.closed = False

    @property
    def plan(self) -> Plan:
        """How this fleet runs, and why."""
        return Plan("native", self.threads, False, self.reason, native=self._name)

    @property  # type: ignore[misc] # read-only, as in our fleets
    def np_random(self) -> np.random.Generator:
        """The random number generator of all envs."""
        return self._envs.np_random

    @property
    def np_random_seed(self) -> int | None:
        """The seed of that generator."""
        return self._envs.np_random_seed

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all envs.

        Args:
            seed: an integer for the one random generator of all envs.
            options: the implementation's own.

        Raises:
            ValueError: one seed or one dict per env, or a ``reset_mask``: there is no such thing.
            TypeError: ``seed`` is no integer, or ``options`` no dict.
        """
        self._check_is_mine()
        if isinstance(seed, (list, tuple, np.ndarray)):
            self._refuse("one seed per env: it has one random generator for all of them")
        if seed is not None and not isinstance(seed, (int, np.integer)):
            raise TypeError(f"`seed` must be an integer or None, got {type(seed)}")
        if isinstance(options, (list, tuple)):
            self._refuse("one dict of options per env")
        if options is not None and "reset_mask" in options:
            self._refuse("options['reset_mask']: it resets all envs or none")
        self._waits_for_reset = "were interrupted in a reset"
        observations, infos = self._envs.reset(
            seed=None if seed is None else int(seed),
            options=None if options is None else {**options},
        )
        self._waits_for_reset = ""
        everyone = np.ones(self.num_envs, dtype=np.bool_)
        return self._convert(observations), with_masks(infos, everyone)

    def step(self, actions: Any) -> StepResult:
        """Step every env once, or reset it where next-step autoreset is due.

        Raises:
            ResetNeeded: before the first reset, or after a call that was broken off.
            TypeError, ValueError: the actions do not fit the action space; no env was stepped.
        """
        self._check_is_mine()
        columns = action_columns(self._actions, actions, self.num_envs)
        refuse_unknown(self._actions, columns)
        if self._waits_for_reset:
            raise ResetNeeded(f"the envs {self._waits_for_reset}: call reset() first.")
        self._waits_for_reset = "were interrupted in a step"
        observations, rewards, terminated, truncated, infos = self._envs.step(
            self._actions.join(columns)
        )
        self._waits_for_reset = ""
        if infos:
            ended = np.logical_or(terminated, truncated)
            if "final_obs" in infos:
                infos = {**infos, "final_obs": self._convert(infos["final_obs"])}
            infos = with_masks(infos, np.ones(self.num_envs, dtype=np.bool_), ended)
        rewards = np.asarray(rewards, dtype=np.float64)
        return self._convert(observations), rewards, terminated, truncated, infos

    def render(self) -> Any:
        """What ``render`` of the implementation returns.

        Raises:
            NotImplementedError: it has none.
        """
        self._check_is_mine()
        return self._envs.render()

    def close_extras(self, **kwargs: Any) -> None:
        """Close the implementation; in a forked child, where its threads are not, nothing."""
        if os.getpid() == self._process:
            self._envs.close(**kwargs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> NoReturn:
        if not name.startswith("_") and hasattr(Fleet, name):
            raise AttributeError(
                f"a native engine has no `{name}`: its envs are no objects of their own. Take "
                "backend='process' or 'serial'."
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled or deep-copied: it owns running envs. "
            "Pickle a function that builds it, and call it where it is needed."
        )

    def _convert(self, observations: Any) -> Any:
        """Observations as ``observation_space`` says."""
        return observations

    def _refuse(self, what: str) -> NoReturn:
        raise ValueError(f"{self._name} cannot do {what}. Take backend='process'.")

    def _check_is_mine(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError(
                f"Trying to operate on `{type(self).__name__}`, after a call to `close()`."
            )
        if os.getpid() != self._process:
            raise EnvfleetError(
                f"this native fleet was built in process {self._process}, and its threads have not "
                "come along into the forked one: build a fleet here."
            )
