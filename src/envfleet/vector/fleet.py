"""Fleet: what every engine shares, from adopting the envs' spaces to batching their answers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any, Generic, NoReturn, Self, SupportsIndex, cast

import numpy as np
from gymnasium import Env, Space, logger
from gymnasium.core import ActType, ObsType, RenderFrame
from gymnasium.error import ClosedEnvironmentError
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_differing_spaces, batch_space
from numpy.typing import NDArray

from envfleet.engine.arena.views import Views
from envfleet.engine.failures import Failure
from envfleet.engine.messages import Outcome
from envfleet.engine.rules.autoreset import check_steppable, refuse_interrupted
from envfleet.engine.rules.choice import Plan
from envfleet.engine.rules.packing import Block, InfoBlock, join_infos
from envfleet.engine.rules.spaces import Array, Structure, same_space
from envfleet.engine.worker.host import KEEPS_FINAL_FRAME, Description, ShardSpaces

ObservationMode = str | tuple[Space[Any], Space[Any]]
StepResult = tuple[
    ObsType, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]
]

Answers = Sequence[tuple[range, Outcome]]
"""What shards answered, each with its envs, in the envs' order."""

_OWN_METHODS = ("reset", "step", "close")


class Fleet(VectorEnv[ObsType, ActType, NDArray[Any]], Generic[ObsType, ActType]):
    """A ``VectorEnv`` over envs that hosts own; engines say where the hosts run.

    Rewards, flags and infos are always the caller's own. Observations are too with ``copy=True``;
    with ``copy=False`` they are the fleet's own arrays, overwritten by the next ``step`` or
    ``reset``, and readable as long as the caller holds them, also after ``close``.
    """

    # Gymnasium's words for spaces that do not go together, its class names included: people match
    # on them. Filled with ``single`` (the fleet's space) and ``space`` (the env's).
    plan: Plan | None = None
    """How ``make`` decided to run this fleet, and why; None if it was built without it."""

    _text_not_same: str
    _text_not_alike: str
    _text_other_action: str

    def __init__(
        self,
        env_fns: Iterable[Callable[[], Env[Any, Any]]],
        copy: bool,
        observation_mode: ObservationMode,
        autoreset_mode: str | AutoresetMode,
        infos: str,
    ) -> None:
        super().__init__()
        if infos not in ("all", "final", "none"):
            raise ValueError(f"`infos` must be 'all', 'final' or 'none', got {infos!r}")
        self.infos = infos
        self.env_fns = env_fns if isinstance(env_fns, Sequence) else tuple(env_fns)
        if not self.env_fns:
            raise ValueError("a fleet needs at least one env: env_fns is empty")
        for i, env_fn in enumerate(self.env_fns):
            if not callable(env_fn):
                raise TypeError(
                    f"env_fns[{i}] must be a function that builds an env, as "
                    f'lambda: gymnasium.make("CartPole-v1"), got {type(env_fn).__name__}'
                )
        self.num_envs = len(self.env_fns)
        self.copy = copy
        self._interrupted: set[int] = set()
        """Envs that an interrupt may have left a step ahead of others; they wait for a reset."""
        self.observation_mode = observation_mode
        self.autoreset_mode = AutoresetMode(autoreset_mode)

    # What Gymnasium's engines share

    @property
    def observations(self) -> ObsType:
        """The current observations, in the fleet's own arrays."""
        return self._batch(copy=False)

    @property  # type: ignore[misc] # read-only, as in Gymnasium's engines
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The envs' random number generators (copies, where the envs live in other processes)."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[int | None, ...]:  # type: ignore[override]
        """The seeds of the envs' random number generators."""
        return self.get_attr("np_random_seed")

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every env, or read an attribute; one result per env.

        Raises:
            ValueError: ``reset``, ``step`` and ``close`` must not go past the fleet.
        """
        return self.call_on(range(self.num_envs), name, *args, **kwargs)

    def call_on(
        self, env_ids: Iterable[SupportsIndex], name: str, /, *args: Any, **kwargs: Any
    ) -> tuple[Any, ...]:
        """Call a method of some envs, or read an attribute; results in the order of ``env_ids``."""
        raise NotImplementedError

    def set_attr(self, name: str, values: list[Any] | tuple[Any, ...] | object) -> None:
        """Set an attribute of every env; a list or tuple holds one value per env."""
        raise NotImplementedError

    def seed_globals(self, seed: int) -> None:
        """Seed ``random`` and ``np.random`` wherever envs run, for envs that use them.

        Every process gets a seed of its own; torch's generator is seeded too in workers that have
        loaded it. Where envs run in the calling process, its generators are changed; ``reset``
        never does that.
        """
        raise NotImplementedError

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of every env; as in Gymnasium, one that is callable is called."""
        return self.call(name)

    def render(self) -> tuple[RenderFrame, ...]:
        """What ``render`` returns, of every env."""
        return self.call("render")

    def render_on(self, env_ids: Iterable[SupportsIndex]) -> tuple[RenderFrame, ...]:
        """What ``render`` returns, of some envs only, in the order of ``env_ids``."""
        return self.call_on(env_ids, "render")

    def keep_final_frames(self, env_ids: Iterable[SupportsIndex]) -> None:
        """Have ``info["final_frame"]`` show what episodes end with that same-step autoreset hides.

        From now on for these envs and no others; the render mode must be "rgb_array". Where
        ``render`` raises, ``info["final_frame_error"]`` has the reason, and the step its answer.
        """
        kept = self._check_env_ids(env_ids)
        self.set_attr(KEEPS_FINAL_FRAME, [env in kept for env in range(self.num_envs)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled or deep-copied: it owns running envs. "
            "Pickle the factory, a function that builds the fleet, and call it where it is needed."
        )

    # What the engines use

    def _adopt(self, descriptions: Sequence[Description]) -> None:
        """Take spaces, metadata and render mode from the shards' descriptions, and check them.

        Raises:
            RuntimeError, TypeError, ValueError: spaces that cannot be batched, as Gymnasium says.
        """
        first = descriptions[0]
        # A copy: metadata usually is a class attribute of the env.
        self.metadata = {**first.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = first.render_mode
        self.single_action_space = first.action_spaces.distinct[0]
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._batch_observation_spaces([d.observation_spaces for d in descriptions])
        for description in descriptions:
            self._check_observation_spaces(description.observation_spaces)
        for description in descriptions:
            self._check_action_spaces(description.action_spaces)
        self._observation_structure = Structure(self.single_observation_space)
        self._action_structure = Structure(self.single_action_space)

    def _batch_observation_spaces(self, shards: Sequence[ShardSpaces]) -> None:
        first = shards[0].distinct[0]
        mode = self.observation_mode
        if isinstance(mode, tuple) and len(mode) == 2:
            if not isinstance(mode[0], Space) or not isinstance(mode[1], Space):
                raise TypeError(
                    "Expected both elements of observation_mode to be Spaces, "
                    f"got {type(mode[0])} and {type(mode[1])}"
                )
            self.observation_space, self.single_observation_space = mode
        elif mode == "same":
            self.single_observation_space = first
            self.observation_space = batch_space(first, self.num_envs)
        elif mode == "different":
            self.single_observation_space = first
            self.observation_space = batch_differing_spaces(
                [space for spaces in shards for space in spaces.each()]
            )
        else:
            raise ValueError(
                "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single "
                f"and batch observation space, actual got {mode}"
            )

    def _check_observation_spaces(self, spaces: ShardSpaces) -> None:
        single = self.single_observation_space
        same = self.observation_mode == "same"
        for space in spaces.distinct:
            if same:
                if not same_space(space, single):
                    raise RuntimeError(self._text_not_same.format(single=single, space=space))
            elif not is_space_dtype_shape_equiv(space, single):
                raise RuntimeError(self._text_not_alike.format(single=single, space=space))

    def _check_action_spaces(self, spaces: ShardSpaces) -> None:
        single = self.single_action_space
        for space in spaces.distinct:
            if not same_space(space, single):
                raise RuntimeError(self._text_other_action.format(single=single, space=space))

    def _use(self, views: Views) -> None:
        """Read the envs' answers from these views, which cover the whole fleet."""
        self._views = views
        blank = self._observation_structure.blank_loose()
        self._loose: list[list[Any]] = [blank] * self.num_envs

    def _batch(self, *, copy: bool) -> ObsType:
        """The current observations of the whole fleet."""
        structure = self._observation_structure
        if structure.flat:
            column = self._views.observations[0]
            return cast("ObsType", column.copy() if copy else column)
        columns, loose = iter(self._views.observations), iter(range(len(structure.loose)))
        values: list[Any] = []
        for leaf in structure.leaves:
            if leaf.fixed:
                column = next(columns)
                values.append(column.copy() if copy else column)
            else:
                position = next(loose)
                each = tuple(row[position] for row in self._loose)
                values.append(leaf.batch(deepcopy(each) if copy else each))
        return cast("ObsType", structure.join(values))

    def _check_steppable(self) -> None:
        if self._interrupted:
            refuse_interrupted(self._interrupted)
        views = self._views
        check_steppable(self.autoreset_mode, views.terminated, views.truncated, views.failed)

    def _absorb(self, answers: Answers) -> None:
        """Take over what answers carry of the envs' state, also when others have failed."""
        for envs, outcome in answers:
            if outcome.loose:
                self._loose[envs.start : envs.stop] = outcome.loose
            if outcome.observations:
                shard = self._views.shard(envs)
                _copy_columns(outcome.observations, shard.observations)
                _copy_columns(outcome.final_observations, shard.final_observations)

    def _answer_reset(self, answers: Answers) -> tuple[ObsType, dict[str, Any]]:
        return self._batch(copy=self.copy), join_infos(_info_blocks(answers), self.num_envs)

    def _answer_step(self, answers: Answers) -> StepResult[ObsType]:
        infos = _info_blocks(answers)
        views = self._views
        terminated, truncated = views.terminated.copy(), views.truncated.copy()
        if infos and self.autoreset_mode == AutoresetMode.SAME_STEP:
            infos += self._final_observations(np.flatnonzero(terminated | truncated), answers)
        return (
            self._batch(copy=self.copy),
            views.rewards.copy(),
            terminated,
            truncated,
            join_infos(infos, self.num_envs) if infos else {},
        )

    def _final_observations(self, ended: Array, answers: Answers) -> list[Block]:
        """The info ``final_obs`` of the envs that ended, each with a copy of its own."""
        if not len(ended):
            return []
        loose = dict(entry for _, outcome in answers for entry in outcome.final_loose)
        envs = ended.tolist()
        column = [self._final_observation(env, loose) for env in envs]
        return [InfoBlock(envs, {"final_obs": column}, frozenset())]

    def _final_observation(self, env: int, loose: dict[int, list[Any]]) -> Any:
        columns, others = iter(self._views.final_observations), iter(loose.get(env, ()))
        return self._observation_structure.join(
            [
                leaf.single(next(columns)[env, ...]) if leaf.fixed else next(others)
                for leaf in self._observation_structure.leaves
            ]
        )

    def _check_env_ids(self, env_ids: Iterable[SupportsIndex]) -> list[int]:
        ids = [operator.index(env) for env in env_ids]
        wrong = [env for env in ids if not 0 <= env < self.num_envs]
        if wrong:
            raise IndexError(f"env_ids {wrong} are not among the envs 0 to {self.num_envs - 1}")
        if len(set(ids)) != len(ids):
            raise ValueError(f"env_ids name an env twice: {ids}")
        return ids

    def _check_call(self, name: str) -> None:
        if name in _OWN_METHODS:
            raise ValueError(
                f"Trying to call function `{name}` with `call`, use `{name}` directly instead."
            )

    def _one_value_per_env(self, values: Any) -> Sequence[Any]:
        if not isinstance(values, (list, tuple)):
            return [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(
                "Values must be a list or tuple with length equal to the number of environments. "
                f"Got `{len(values)}` values for {self.num_envs} environments."
            )
        return values

    def _assert_is_running(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError(
                f"Trying to operate on `{type(self).__name__}`, after a call to `close()`."
            )


def _info_blocks(answers: Answers) -> list[Block]:
    return [block for _, outcome in answers for block in outcome.info_blocks()]


def _copy_columns(blocks: Sequence[Array], columns: Sequence[Array]) -> None:
    """Copy blocks where there are any: final observations come only when an episode ended."""
    for block, column in zip(blocks, columns, strict=False):
        column[...] = block


def warn_of_close(failures: Sequence[Failure]) -> None:
    """Say which envs raised in ``close``; they are closed as far as they can be."""
    if failures:
        texts = "; ".join(f"env {f.env}: {f.type_name}: {f.text}" for f in failures)
        logger.warn("`close` raised in some envs: %s", texts)
