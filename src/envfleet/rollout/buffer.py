"""Rollout: what a fleet and an agent did for T steps, as (T, N, ...) tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from envfleet.rollout.advantages import estimate_advantages
from envfleet.rollout.nested import Tree, tree_leaves, tree_map
from envfleet.rollout.statistics import EpisodeSummary


@dataclass(frozen=True, slots=True)
class Batch:
    """Transitions without order in time, one per row."""

    observations: Tree
    actions: torch.Tensor
    rewards: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    values: torch.Tensor
    log_probs: torch.Tensor
    advantages: torch.Tensor | None = None
    returns: torch.Tensor | None = None
    action_masks: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.rewards)

    def select(self, index: torch.Tensor) -> Batch:
        """Some of the rows; copies."""

        def take(part: Any) -> Any:
            if isinstance(part, torch.Tensor):  # a third of the time of leaf[index]
                return part.index_select(0, index)
            return _on_leaves(take, part)

        return Batch(*(take(getattr(self, name)) for name in _BATCH_PARTS))


@dataclass(frozen=True, slots=True)
class Rollout:
    """What happened, row ``t`` of env ``n`` at ``[t, n]``.

    Row ``t`` is the observation that the agent saw, what it answered, and what the env made of it.
    See docs/rollouts.md for what the rows mean where an episode ends.
    """

    observations: Tree
    """In the dtypes of the space (float64: torch's default); Dicts and Tuples are nested."""
    actions: torch.Tensor
    """As the agent chose them; what was sent to the envs is clipped to the Box."""
    rewards: torch.Tensor
    terminated: torch.Tensor
    """Ends that are part of the task: nothing is worth anything after them."""
    truncated: torch.Tensor
    """Ends from outside, such as a time limit. The horizon is none: no flag says it."""
    valid: torch.Tensor
    """Which rows are transitions. Those are not that reset an env under next-step autoreset, nor
    those of a worker that was replaced."""
    values: torch.Tensor
    log_probs: torch.Tensor
    final_observations: Tree
    """The observations that episodes ended with, one row per end."""
    final_positions: torch.Tensor
    """Of each its ``(t, env)``, ordered by time and then env."""
    final_values: torch.Tensor
    """Of each its value; 0 where the episode was terminated."""
    last_observations: Tree
    """What the agent will see next."""
    last_values: torch.Tensor
    episode_counts: torch.Tensor
    """How many episodes of each env ended here."""
    total_return: float
    """The sum of all rewards, in double precision."""
    episodes: EpisodeSummary
    """The episodes that ended here."""
    env_ids: torch.Tensor
    """Which env each column is: all of them, but for those that a ``RayCollector`` has dropped."""
    action_masks: torch.Tensor | None = None
    """(T, N, width): what the env allowed, True, when the agent chose; None without masks."""

    @property
    def steps(self) -> int:
        """How many transitions there are."""
        return int(self.valid.sum())

    @property
    def next_values(self) -> torch.Tensor:
        """The value of what came after each row: the next row's, a final or the last one's."""
        following = torch.cat([self.values[1:], self.last_values[None]])
        if len(self.final_positions):
            t, env = self.final_positions.unbind(1)
            following[t, env] = self.final_values
        return following

    def advantages(
        self, gamma: float = 0.99, gae_lambda: float = 0.95
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Advantages and returns (advantages plus values); 0 and the value in invalid rows."""
        advantages = estimate_advantages(
            self.rewards,
            self.values,
            self.next_values,
            terminated=self.terminated,
            done=self.terminated | self.truncated,
            valid=self.valid,
            gamma=gamma,
            gae_lambda=gae_lambda,
        )
        return advantages, advantages + self.values

    def flatten(
        self, advantages: torch.Tensor | None = None, returns: torch.Tensor | None = None
    ) -> Batch:
        """The valid rows, ordered by time and then env; copies."""
        return self._rows(advantages, returns).select(self._valid_rows())

    def minibatches(
        self,
        size: int,
        generator: torch.Generator | np.random.Generator | None = None,
        *,
        epochs: int = 1,
        advantages: torch.Tensor | None = None,
        returns: torch.Tensor | None = None,
    ) -> Iterator[Batch]:
        """The valid rows, shuffled anew per epoch, in batches of ``size``; the last may be smaller.

        Raises:
            ValueError: ``size`` is below 1.
        """
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        rows, valid = self._rows(advantages, returns), self._valid_rows()
        # Each batch is taken from the rollout itself: gradients of observations are its own.
        return (
            rows.select(order[start : start + size])
            for order in (valid[_shuffled(len(valid), generator)] for _ in range(epochs))
            for start in range(0, len(order), size)
        )

    def _rows(self, advantages: torch.Tensor | None, returns: torch.Tensor | None) -> Batch:
        """All rows, valid or not, without copying them."""
        rows = (
            self.observations,
            self.actions,
            self.rewards,
            self.terminated,
            self.truncated,
            self.values,
            self.log_probs,
            advantages,
            returns,
            self.action_masks,
        )
        return Batch(*(_on_leaves(lambda leaf: leaf.flatten(0, 1), part) for part in rows))

    def _valid_rows(self) -> torch.Tensor:
        return torch.nonzero(self.valid.flatten()).flatten()

    def to(self, device: torch.device | str) -> Rollout:
        """The same on another device; itself if it is there already."""
        device = torch.device(device)
        if all(leaf.device == device for part in _parts(self) for leaf in _tensors(part)):
            return self
        moved = [_on_leaves(lambda leaf: leaf.to(device), part) for part in _parts(self)]
        names = [field.name for field in fields(self)]
        return replace(self, **dict(zip(names, moved, strict=True)))


_BATCH_PARTS = [field.name for field in fields(Batch)]


def _shuffled(count: int, generator: torch.Generator | np.random.Generator | None) -> torch.Tensor:
    if isinstance(generator, np.random.Generator):
        return torch.from_numpy(generator.permutation(count))
    return torch.randperm(count, generator=generator)


def _parts(whole: Rollout) -> list[Any]:
    return [getattr(whole, field.name) for field in fields(whole)]


def _tensors(part: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(part) if isinstance(leaf, torch.Tensor)]


def _on_leaves(function: Any, part: Any) -> Any:
    """Apply a function to the tensors of a part; anything else stays what it is."""
    return tree_map(lambda leaf: function(leaf) if isinstance(leaf, torch.Tensor) else leaf, part)
