"""Results: from shards' outcomes and the arena's rows to what ``reset`` and ``step`` return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from envfleet.engine.arena.views import Views
from envfleet.engine.infos.listing import list_infos
from envfleet.engine.infos.packing import Block, Entry, InfoBlock, join_infos, pack_infos
from envfleet.engine.messages import Outcome, Told
from envfleet.engine.rules.spaces import Array, Structure

Answers = Sequence[tuple[range, Outcome]]
"""What shards answered, each with its envs, in the envs' order."""
Infos = dict[str, Any] | list[dict[str, Any]]
StepArrays = tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Any]


class Results:
    """Reads the rows of a whole fleet.

    Args:
        views: the rows.
        structure: the leaves of an observation.
        copy: whether observations are the caller's own.
        info_format: "columns" or "list".
        same_step: whether envs that ended have a final observation beside the next one.
    """

    def __init__(
        self,
        views: Views,
        structure: Structure,
        *,
        copy: bool,
        info_format: str,
        same_step: bool,
    ) -> None:
        self.views = views
        self.loose: list[list[Any]] = [structure.blank_loose()] * len(views.rewards)
        """Per env the values of its loose observation leaves."""
        self._structure = structure
        self._copy = copy
        self.same_step = same_step
        self._num_envs = len(views.rewards)
        self.lists_infos = info_format == "list"

    def absorb(self, answers: Answers) -> None:
        """Take over what answers carry of the envs' state, also when others have failed."""
        for envs, outcome in answers:
            if outcome.loose:
                self.loose[envs.start : envs.stop] = outcome.loose
            if outcome.observations:
                shard = self.views.shard(envs)
                _copy_columns(outcome.observations, shard.observations)
                _copy_columns(outcome.final_observations, shard.final_observations)

    def of_reset(self, answers: Answers) -> tuple[Any, Any]:
        """What ``reset`` returns."""
        return self.observations(copy=self._copy), self._infos(answers, [])

    def of_step(self, answers: Answers) -> StepArrays:
        """What ``step`` returns; no answers at all mean that nobody told anything."""
        views = self.views
        terminated, truncated = views.terminated.copy(), views.truncated.copy()
        infos: Any = {}
        if answers or self.lists_infos:
            final: list[Block] = []
            if self.same_step and any(outcome.ended for _, outcome in answers):
                final = self._final_observations(np.flatnonzero(terminated | truncated), answers)
            infos = self._infos(answers, final)
        observations = self.observations(copy=self._copy)
        return observations, views.rewards.copy(), terminated, truncated, infos

    def of_envs(self, env_ids: Array, told: Mapping[int, Told]) -> StepArrays:
        """What these envs have answered, a row each; infos are over these rows."""
        views = self.views
        terminated, truncated = views.terminated[env_ids], views.truncated[env_ids]
        entries: list[Entry] = []
        if told:
            for k, env in enumerate(env_ids.tolist()):
                if (one := told.get(env)) is not None:
                    if one.loose is not None:
                        self.loose[env] = one.loose
                    if one.info:
                        entries.append((k, one.info))
        final: list[Block] = []
        if self.same_step and len(ended := np.flatnonzero(terminated | truncated)):
            column = []
            for env in env_ids[ended].tolist():
                objects = told[env].final_objects if env in told else None
                column.append(self._final_observation(env, objects or ()))
            final = [InfoBlock(ended.tolist(), {"final_obs": column}, frozenset())]
        count, infos = len(env_ids), cast("Any", {})
        if self.lists_infos:
            infos = list_infos(entries, final, count)
        elif entries or final:
            infos = join_infos([*pack_infos(entries), *final], count)
        observations = self.observations(copy=self._copy, env_ids=env_ids)
        return observations, views.rewards[env_ids], terminated, truncated, infos

    def observations(self, *, copy: bool, env_ids: Array | None = None) -> Any:
        """The current observations of the whole fleet, or of some envs; those are always copies."""
        structure = self._structure

        def pick(column: Array) -> Array:
            if env_ids is not None:
                return column[env_ids]
            return column.copy() if copy else column

        if structure.flat:
            return pick(self.views.observations[0])
        columns, loose = iter(self.views.observations), iter(range(len(structure.loose)))
        rows = self.loose if env_ids is None else [self.loose[env] for env in env_ids.tolist()]
        values: list[Any] = []
        for leaf in structure.leaves:
            if leaf.fixed:
                values.append(pick(next(columns)))
            else:
                position = next(loose)
                each = tuple(row[position] for row in rows)
                values.append(leaf.batch(deepcopy(each) if copy else each))
        return structure.join(values)

    def detach(self) -> None:
        """Let go of the arena: a closed fleet that somebody keeps holds no shared memory."""
        self.views = self.views.detached()

    def _infos(self, answers: Answers, final: list[Block]) -> Infos:
        if self.lists_infos:
            entries = [entry for _, outcome in answers for entry in outcome.infos]
            packed = [block for _, outcome in answers for block in outcome.packed]
            return list_infos(entries, [*packed, *final], self._num_envs)
        blocks = [block for _, outcome in answers for block in outcome.info_blocks()]
        return join_infos([*blocks, *final], self._num_envs) if blocks or final else {}

    def _final_observations(self, ended: Array, answers: Answers) -> list[Block]:
        """The info ``final_obs`` of the envs that ended, each with a copy of its own."""
        if not len(ended):
            return []
        objects = dict(entry for _, outcome in answers for entry in outcome.final_objects)
        envs = ended.tolist()
        column = [self._final_observation(env, objects.get(env, ())) for env in envs]
        return [InfoBlock(envs, {"final_obs": column}, frozenset())]

    def _final_observation(self, env: int, objects: Sequence[Any]) -> Any:
        columns, others = iter(self.views.final_observations), iter(objects)
        values = []
        for leaf in self._structure.leaves:
            row = next(columns)[env, ...] if leaf.fixed else None
            values.append(next(others) if row is None or leaf.scalar else row.copy())
        return self._structure.join(values)


def _copy_columns(blocks: Sequence[Array], columns: Sequence[Array]) -> None:
    """Copy blocks where there are any: final observations come only when an episode ended."""
    for block, column in zip(blocks, columns, strict=False):
        column[...] = block
