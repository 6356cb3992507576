"""History: what envs were told and what they showed last, for those that take their place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from envfleet.engine.arena.views import Views
from envfleet.engine.messages import KeepFinalFrames, Layer, Reset, SetAttr, Told
from envfleet.engine.rules.seeding import ResetPlan, derived_seed
from envfleet.engine.rules.spaces import Array

NOTHING: Mapping[int, Told] = {}


class History:
    """What a new worker or env must hear again, by env.

    Args:
        num_envs: how many envs the fleet has.
        piped: whether observations travel by wire, so that a new worker lacks them.
    """

    def __init__(self, num_envs: int, *, piped: bool) -> None:
        self._piped = piped
        self._settings: dict[tuple[str, Layer], dict[int, object]] = {}
        self._recorded: frozenset[int] = frozenset()
        self._seeds: list[int | None] = [None] * num_envs
        self._resets: Mapping[int, Reset] = {}

    def follow(self, views: Views, loose: list[list[Any]]) -> None:
        """Watch these rows, the caller's, and these values of loose leaves by env."""
        self._views = views
        self._loose = loose
        self._given = [column.copy() for column in views.observations]
        self.remember()

    def detach(self) -> None:
        """Let go of the arena."""
        self._views = self._views.detached()

    # What is noted

    def remember(self) -> None:
        """Keep the observations that the caller gets: a dying worker may overwrite its rows."""
        for given, column in zip(self._given, self._views.observations, strict=True):
            given[...] = column
        self._given_loose = list(self._loose)

    def remember_envs(self, envs: Sequence[int], told: Mapping[int, Told] = NOTHING) -> None:
        """The same where the caller gets, or will get, some envs only, and what they have told."""
        rows = list(envs)
        for given, column in zip(self._given, self._views.observations, strict=True):
            given[rows] = column[rows]
        for env in rows:
            loose = told[env].loose if env in told else None
            self._given_loose[env] = self._loose[env] if loose is None else loose

    def note_resets(self, commands: Mapping[int, Reset]) -> None:
        """Remember what a reset asks of each shard, and the seeds that its envs were given."""
        self._resets = commands
        for command in commands.values():
            self.note_seeds(command.plan)

    def note_seeds(self, plan: ResetPlan) -> None:
        """Remember the seeds that envs were given."""
        for env, seed in zip(plan.env_ids, plan.seeds, strict=True):
            if seed is not None:
                self._seeds[env] = seed

    def note_setting(self, name: str, on: Layer, values: Mapping[int, object]) -> None:
        """Remember what ``set_attr`` has set, by env."""
        self._settings.setdefault((name, on), {}).update(values)

    def note_recorded(self, envs: Iterable[int]) -> None:
        """Remember whose final frames are kept."""
        self._recorded = frozenset(envs)

    # What is asked

    def reset_of(self, shard: int) -> ResetPlan | None:
        """What the pending reset asks of a shard."""
        return self._resets[shard].plan if shard in self._resets else None

    def fresh_seed(self, env: int, generation: int) -> int | None:
        """A seed derived from the env's last one, if it ever had one."""
        seed = self._seeds[env]
        return None if seed is None else derived_seed(seed, generation)

    def settings(self, envs: Sequence[int]) -> list[SetAttr]:
        """The commands that set again what was set in some envs."""
        commands = []
        for (name, on), values in self._settings.items():
            ours = [env for env in envs if env in values]
            if ours:
                commands.append(SetAttr(ours, name, [values[env] for env in ours], on))
        return commands

    def recorded(self, envs: Sequence[int]) -> KeepFinalFrames:
        """The command that has a new shard of these envs keep the final frames it has to."""
        return KeepFinalFrames([env for env in envs if env in self._recorded])

    def restore_rows(self, envs: Sequence[int]) -> tuple[list[Array], list[list[Any]]]:
        """Put back what the caller was given of some envs last; returns what has to travel."""
        rows = list(envs)
        for column, given in zip(self._views.observations, self._given, strict=True):
            column[rows] = given[rows]
        blocks = [given[rows] for given in self._given] if self._piped else []
        return blocks, [self._given_loose[env] for env in rows]
