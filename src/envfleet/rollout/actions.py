"""Actions between an agent and a fleet: what is stored, and what is sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from numpy.typing import NDArray


class ActionPort:
    """The actions of one space.

    Stored is what the agent chose. Sent is that clipped to a Box's bounds, or counted from the
    ``start`` of a Discrete or MultiDiscrete space: agents count from 0.
    """

    def __init__(self, space: Space[Any]) -> None:
        known = (spaces.Discrete, spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)
        if not isinstance(space, known):
            raise TypeError(
                f"actions of type {type(space).__name__} are not supported: the collector takes "
                "Discrete, Box, MultiDiscrete and MultiBinary spaces. Wrap the envs."
            )
        self.shape = tuple(space.shape or ())
        self._kind = np.dtype(space.dtype)
        self.dtype = torch.from_numpy(np.zeros(0, dtype=self._kind)).dtype
        self.continuous = isinstance(space, spaces.Box) and self._kind.kind == "f"
        self._bounds = None
        if isinstance(space, spaces.Box) and (
            np.isfinite(space.low).any() or np.isfinite(space.high).any()
        ):
            self._bounds = space.low, space.high
        self._start: Any = None
        self.range: Any = None
        """The lowest and the highest that an agent may choose; None where that is clipped."""
        if isinstance(space, spaces.Discrete):
            self._start, self.range = int(space.start), (0, int(space.n) - 1)
        elif isinstance(space, spaces.MultiDiscrete):
            self._start, self.range = space.start, (0, space.nvec - 1)
        elif isinstance(space, spaces.MultiBinary):
            self.range = 0, 1
        elif isinstance(space, spaces.Box) and not self.continuous:
            self.range, self._bounds = self._bounds, None
        if self._start is not None and not np.any(self._start):
            self._start = None

    def to_env(self, batch: NDArray[Any]) -> NDArray[Any]:
        """A batch of the agent's actions as the fleet takes them; may share their memory."""
        if self._start is not None:
            batch = batch + self._start
        if self._bounds is not None:
            low, high = self._bounds
            batch = np.minimum(np.maximum(batch, low), high)
        return batch.astype(self._kind, copy=False)
