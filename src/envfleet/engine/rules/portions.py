"""Portion: how many quick envs take their turn before any of them is told of."""

from __future__ import annotations

BUDGET = 1e-3
"""Seconds that a portion should take: an env that is done waits no longer for its neighbours.

To tell of one env costs about as much as a step of CartPole; in portions of this length it is a few
percent of it.
"""
SLOW = 2 * BUDGET
"""Seconds after which one of a portion was not quick at all."""
PENANCE = 16
"""Envs that take their turn one by one after that."""


class Portion:
    """A number of envs, from how long the last portions took.

    Args:
        envs: how many there are.
    """

    def __init__(self, envs: int) -> None:
        self.size = 1
        """How many envs the next portion should have."""
        self._most = envs
        self._penance = 0

    @property
    def is_quick(self) -> bool:
        """Whether it is nothing to wait for one of them."""
        return self.size >= min(2, self._most)

    def note(self, count: int, seconds: float) -> None:
        """A portion of ``count`` envs took so long."""
        if seconds > SLOW:
            self.size = 1
            self._penance = PENANCE
        elif self._penance > 0:
            self._penance -= count
        else:
            fitting = int(count * BUDGET / seconds) if seconds > 0 else self._most
            self.size = max(1, min(fitting, 2 * self.size, self._most))
