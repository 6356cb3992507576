"""SerialVectorEnv: the envs of a fleet one after the other, in the calling process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any, SupportsIndex

import numpy as np
from gymnasium import Env
from gymnasium.core import ActType, ObsType
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from envfleet.engine.arena.views import private_views
from envfleet.engine.failures import raise_first
from envfleet.engine.messages import Outcome
from envfleet.engine.rules.actions import action_columns
from envfleet.engine.rules.seeding import derived_seed, env_seeds, plan_reset
from envfleet.engine.worker.guard import seed_globals
from envfleet.engine.worker.host import EnvHost
from envfleet.vector.fleet import Answers, Fleet, ObservationMode, StepResult, warn_of_close


# VectorEnv once more: skrl and others look for it among a class's direct bases only.
class SerialVectorEnv(Fleet[ObsType, ActType], VectorEnv[ObsType, ActType, NDArray[Any]]):
    """``gymnasium.vector.SyncVectorEnv``, argument by argument, on envfleet's host.

    An env that raises does not keep the others from their step; afterwards its own exception is
    raised, with a note that names it, and it waits for ``reset``. ``docs/differences.md`` lists
    what else is not as in Gymnasium.

    Args:
        env_fns: functions that build the envs.
        copy: whether ``reset`` and ``step`` return copies of the observations.
        observation_mode: "same" if all envs have equal observation spaces, "different" if they
            only share shape and dtype, or a pair of spaces: the batched one and the single one.
        autoreset_mode: what happens when an episode ends.
        infos: which infos of a step are returned: "all", "final" (those of steps that end an
            episode), or "none" (``final_obs`` is there in any case).
    """

    _text_not_same = (
        "SyncVectorEnv(..., observation_mode='same') however the sub-environments observation "
        "spaces are not equivalent. single_observation_space={single}, sub-environment "
        "observation_space={space}. If this is intentional, use `observation_mode='different'` "
        "instead."
    )
    _text_not_alike = (
        "SyncVectorEnv(..., observation_mode='different' or custom space) however the "
        "sub-environments observation spaces do not share a common shape and dtype, "
        "single_observation_space={single}, sub-environment observation space={space}"
    )
    _text_other_action = (
        "Sub-environment action space doesn't make the `single_action_space`, "
        "action_space={space}, single_action_space={single}"
    )

    def __init__(
        self,
        env_fns: Iterable[Callable[[], Env[Any, Any]]],
        copy: bool = True,
        observation_mode: ObservationMode = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        *,
        infos: str = "all",
    ) -> None:
        super().__init__(env_fns, copy, observation_mode, autoreset_mode, infos)
        self._in_doubt = False  # set while envs move: found set later, an interrupt came in between
        self._host = EnvHost(0, self.autoreset_mode)
        self._raise(self._host.build(self.env_fns))
        try:
            self._adopt([self._host.describe()])
        except BaseException:
            self._host.close()
            raise
        final = self.autoreset_mode == AutoresetMode.SAME_STEP
        self._use(private_views(self.num_envs, self._observation_structure.fixed, final=final))
        self._host.attach(self._views, self._observation_structure, self._action_structure, infos)

    @property
    def envs(self) -> list[Env[Any, Any]]:
        """The envs themselves."""
        return self._host.envs

    def reset(
        self,
        *,
        seed: int | list[int | None] | None = None,
        options: dict[str, Any] | Sequence[dict[str, Any] | None] | None = None,
    ) -> tuple[ObsType, dict[str, Any]]:
        """Reset all envs, or those of ``options["reset_mask"]``.

        Args:
            seed: env ``i`` gets ``seed + i``, or entry ``i`` of a list.
            options: for every env, or a list with one dict per env.

        Returns:
            The observations of all envs, and the infos of those that were reset.
        """
        self._assert_is_running()
        plan = plan_reset(env_seeds(seed, self.num_envs), options, self.num_envs)
        self._in_doubt = True
        self._interrupted.difference_update(plan.env_ids)
        result = self._answer_reset(self._raise(self._host.reset(plan)))
        self._in_doubt = False
        return result

    def step(self, actions: ActType) -> StepResult[ObsType]:
        """Step every env once, or reset it where next-step autoreset is due.

        Raises:
            ResetNeeded: an env waits for ``reset``; no env was stepped.
            TypeError, ValueError: the actions do not fit the action space; no env was stepped.
        """
        self._assert_is_running()
        columns = action_columns(self._action_structure, actions, self.num_envs)
        self._check_steppable()
        self._in_doubt = True
        result = self._answer_step(self._raise(self._host.step([_owned(c) for c in columns])))
        self._in_doubt = False
        return result

    def call_on(
        self, env_ids: Iterable[SupportsIndex], name: str, /, *args: Any, **kwargs: Any
    ) -> tuple[Any, ...]:
        """Call a method of some envs, or read an attribute; results in the order of ``env_ids``."""
        self._assert_is_running()
        self._check_call(name)
        ids = self._check_env_ids(env_ids)
        ((_, outcome),) = self._raise(self._host.call(ids, name, args, kwargs))
        return tuple(outcome.results)

    def set_attr(self, name: str, values: list[Any] | tuple[Any, ...] | object) -> None:
        """Set an attribute of every env; a list or tuple holds one value per env."""
        self._assert_is_running()
        ids = range(self.num_envs)
        self._raise(self._host.set_attr(ids, name, self._one_value_per_env(values)))

    def seed_globals(self, seed: int) -> None:
        """Seed ``random`` and ``np.random`` of this process, for envs that use them."""
        self._assert_is_running()
        seed_globals(derived_seed(seed, 0), torch_too=False)

    def close_extras(self, **_: Any) -> None:
        """Close every env; an error in one is a warning that names it."""
        self.closed = True
        warn_of_close(self._host.close().failures)

    def _assert_is_running(self) -> None:
        super()._assert_is_running()
        if self._in_doubt:
            self._interrupted.update(range(self.num_envs))
            self._in_doubt = False

    def _raise(self, outcome: Outcome) -> Answers:
        """Raise the lowest env's failure; without one, the outcome with its envs."""
        answers = [(range(self.num_envs), outcome)]
        if hasattr(self, "_views"):
            self._absorb(answers)
        if outcome.failures:
            self._in_doubt = False
            raise_first([(failure, "") for failure in outcome.failures])
        return answers


def _owned(column: Any) -> Any:
    """Actions that the caller does not hold: an env may keep its own and change it."""
    if not isinstance(column, np.ndarray):
        return deepcopy(column)
    return column.copy() if column.ndim > 1 else column  # rows of the latter are scalars anyway
