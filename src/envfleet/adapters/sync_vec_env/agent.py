"""AskedAgent: an agent that has ``get_actions_and_values`` as a collector asks it, and no more."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributions import Distribution

from envfleet.rollout.agent import Answer


class AskedAgent:
    """Asks the one method that such agents have, also where one has an ``act`` of its own.

    No values are asked for besides those of the rows: that would draw random numbers, and a program
    would not get the actions that it has always had.
    """

    def __init__(self, agent: Any, device: torch.device) -> None:
        self.agent = agent
        self.device = device
        self._is_first = False

    def act(self, states: torch.Tensor) -> Answer:
        """Actions, log-probabilities and values; entropy is dropped."""
        actions, log_probs, values, _ = self.agent.get_actions_and_values(states, actions=None)
        if self._is_first:
            self._is_first = False
            Distribution.set_default_validate_args(False)
        return actions, log_probs, values

    def get_values(self, states: torch.Tensor) -> torch.Tensor:
        """Zeros: whoever bootstraps does so from ``end_states``."""
        return torch.zeros(len(states), device=self.device)

    @contextlib.contextmanager
    def checked_once(self) -> Iterator[None]:
        """Let torch's distributions check their arguments at the next step only, not at each.

        The checks are a third of a small agent's time, and its weights stay the same meanwhile.
        """
        before = Distribution._validate_args  # noqa: SLF001 - there is no other way to read it
        self._is_first = True
        try:
            yield
        finally:
            self._is_first = False
            Distribution.set_default_validate_args(before)


def check_agent(agent: Any, *names: str) -> None:
    """Refuse an agent that lacks its method, or one of the other attributes that are needed.

    Raises:
        TypeError: it does.
    """
    if not callable(getattr(agent, "get_actions_and_values", None)):
        raise TypeError(
            f"{type(agent).__name__} is not an agent: it has no get_actions_and_values(states, "
            "actions=None)."
        )
    missing = [name for name in names if not hasattr(agent, name)]
    if missing:
        raise TypeError(
            f"with render_every and render_fps, a SyncVecEnv takes agents that have state_space, "
            f"action_space and device: {type(agent).__name__} lacks {', '.join(missing)}."
        )
