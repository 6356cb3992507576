"""How long to look for a signal before sleeping: as long as that usually pays, and no longer."""

from __future__ import annotations

LONGEST = 1e-3
"""Seconds; what takes longer is not worth a core. An idle fleet looks this long once."""
CROWDED = 2e-4
"""The same for workers where there are more processes than cores, each turn ending with a yield.

Measured on 2 cores with 2 workers and 64 CartPoles, us per step: sleeping at once 449-515, looking
for 0.06 ms 478-495, for 1 ms 1356, for 0.2 ms with yields 413-427. The caller then sleeps at once:
whoever waits for all the others would only keep them from working.
"""
SHARE = 1 / 8
"""Weight of the last wait in the average."""


class Patience:
    """A bound for looking, from how long the last waits took.

    While waits are usually shorter than ``longest`` the bound is ``longest``; when they are not,
    looking would be in vain and the bound is 0. One long pause does not change a habit.
    """

    def __init__(self, longest: float = LONGEST) -> None:
        self._longest = longest
        self._usual = 0.0

    @property
    def bound(self) -> float:
        """Seconds to look."""
        return self._longest if self._usual < self._longest else 0.0

    def note(self, waited: float) -> None:
        """A wait has ended after so many seconds."""
        self._usual += SHARE * (min(waited, 4 * self._longest) - self._usual)
