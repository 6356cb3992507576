"""Parts: one actor's rollout as arrays that travel well, and several of them as one rollout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from envfleet.rollout.buffer import Rollout
from envfleet.rollout.nested import Tree, tree_map
from envfleet.rollout.statistics import Episode, EpisodeSummary

_BY_ENV = ("last_observations", "last_values", "episode_counts")
_BY_END = ("final_observations", "final_values")
_APART = (*_BY_ENV, *_BY_END, "final_positions", "total_return", "episodes", "env_ids")
_BY_ROW = tuple(field.name for field in fields(Rollout) if field.name not in _APART)


class Part(NamedTuple):
    """What one actor has collected: the fields of its rollout as arrays, its envs counted from 0.

    NumPy arrays go through Ray's object store without being pickled.
    """

    arrays: dict[str, Any]
    total_return: float
    finished: list[tuple[int, Episode]]
    """The episodes that ended, each with its row."""


def part_of(rollout: Rollout, finished: list[tuple[int, Episode]]) -> Part:
    """A rollout on the CPU as a part."""
    names = (*_BY_ROW, *_BY_ENV, *_BY_END, "final_positions")
    arrays = {
        name: tree_map(lambda leaf: leaf.detach().numpy(), whole)
        for name in names
        if (whole := getattr(rollout, name)) is not None  # there may be no masks
    }
    return Part(arrays, rollout.total_return, finished)


def joined(parts: Sequence[tuple[range, Part]]) -> tuple[Rollout, list[Episode]]:
    """One rollout of several parts, each with its envs, which become the columns in this order.

    Returns:
        The rollout, in memory of its own, and the episodes that ended, in the order of their ends;
        envs are counted as the parts' ranges say.
    """
    there = [name for name in _BY_ROW if name in parts[0][1].arrays]
    rows = {name: _cat([part.arrays[name] for _, part in parts], axis=1) for name in there}
    ends = {name: _cat([part.arrays[name] for _, part in parts], axis=0) for name in _BY_ENV}
    positions, first = [], 0
    for envs, part in parts:
        positions.append(part.arrays["final_positions"] + np.array([0, first]))
        first += len(envs)
    where = np.concatenate(positions)
    order = np.lexsort((where[:, 1], where[:, 0]))
    finals = {
        name: tree_map(
            lambda leaf: leaf[torch.from_numpy(order)],
            _cat([part.arrays[name] for _, part in parts], axis=0),
        )
        for name in _BY_END
    }
    finished = [
        (t, Episode(envs.start + episode.env, *episode[1:]))
        for envs, part in parts
        for t, episode in part.finished
    ]
    episodes = [episode for _, episode in sorted(finished, key=lambda item: (item[0], item[1].env))]
    rollout = Rollout(
        **rows,
        **ends,
        **finals,
        final_positions=torch.from_numpy(where[order]),
        total_return=float(sum(part.total_return for _, part in parts)),
        episodes=EpisodeSummary.of(episodes),
        env_ids=torch.tensor([env for envs, _ in parts for env in envs]),
    )
    return rollout, episodes


def _cat(trees: Sequence[Tree], axis: int) -> Tree:
    def cat(*leaves: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(leaves, axis=axis))

    return tree_map(cat, *trees)
