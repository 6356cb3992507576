"""Learner: what PPO asks of whoever owns the parameters; the seam between torch and ``fast``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from envfleet.rollout.agent import Answer
from envfleet.rollout.buffer import Rollout
from envfleet.rollout.nested import Tree
from envfleet.training.own_policy import OwnPolicy
from envfleet.training.policy import Policy

AnyBatch = TypeVar("AnyBatch")
"""Rows as a learner keeps them."""


class StepMetrics(NamedTuple):
    """What happened in one step of the optimiser; numbers, or tensors with one."""

    policy_loss: Tensor | float
    value_loss: Tensor | float
    entropy: Tensor | float
    kl: Tensor | float
    """How far the policy has moved since the rollout (Schulman's estimate)."""
    clipped: Tensor | float
    """The part of the rows whose ratio is out of the clip range."""
    grad_norm: Tensor | float
    """Before it was clipped."""


class Learner(Protocol[AnyBatch]):
    """Acts with a policy and improves it, a minibatch at a time; an agent for ``Collector``.

    ``TorchLearner`` works for every policy; ``fast.FastLearner`` is the same by hand for small
    networks.
    """

    learning_rate: float
    """May be set between steps."""

    @property
    def policy(self) -> Policy | OwnPolicy:
        """What it improves."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        ...

    @property
    def act(self) -> Callable[..., Answer]:
        """Actions, their log-probabilities, and values; as the policy's ``act``."""
        ...

    def evaluate_actions(
        self, observations: Tree, actions: Tensor, action_masks: Tensor | None = None
    ) -> Answer:
        """The log-probabilities of actions, values, and entropies."""
        ...

    def minibatches(
        self,
        rollout: Rollout,
        advantages: Tensor,
        returns: Tensor,
        generator: np.random.Generator,
    ) -> Iterator[AnyBatch]:
        """The valid rows of a rollout, once per epoch, shuffled; as ``Rollout.minibatches``."""
        ...

    def step(self, batch: AnyBatch, clip_range: float, *, report: bool) -> StepMetrics | None:
        """One step of the optimiser on a minibatch; metrics if asked to report."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The optimiser's state, for a checkpoint; the parameters are the policy's."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with a state from ``state_dict``.

        Raises:
            ValueError: it belongs to another number or shape of parameters.
        """
        ...
