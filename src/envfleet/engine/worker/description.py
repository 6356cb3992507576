"""What a shard tells about its envs once they are built."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gymnasium import Space

from envfleet.engine.rules.spaces import same_space


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
    """The envs' spaces; metadata and render mode are the first env's."""

    observation_spaces: ShardSpaces
    action_spaces: ShardSpaces
    metadata: dict[str, Any]
    render_mode: str | None
