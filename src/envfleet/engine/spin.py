"""How long to look for a signal before sleeping: as long as that usually pays, and no longer."""

from __future__ import annotations

from collections.abc import Callable

LONGEST = 1e-3
"""Seconds; what takes longer is not worth a core. An idle fleet looks this long once.

Where there are more processes than cores, all of them yield after each look. Measured so on 2 cores
with 2 workers, against a caller that sleeps at once and is woken by the last worker: 1.57 times the
steps per second with 8 CartPoles, 1.18 with 64, 1.14 with 64 LunarLanders (medians of 6 interleaved
runs). Without the yields looking for 1 ms takes three times as long as sleeping at once.
"""
SHARE = 1 / 8
"""Weight of the last wait in the average."""
EVERY = 64
"""Waits between two questions whether others have the cores."""


class Patience:
    """A bound for looking, from how long the last waits took.

    While waits are usually shorter than ``longest`` the bound is ``longest``; when they are not,
    looking would be in vain and the bound is 0. One long pause does not change a habit. It is 0
    also while ``held_up``, which is asked now and then, says that others have the cores.
    """

    def __init__(
        self, longest: float = LONGEST, held_up: Callable[[], bool] = lambda: False
    ) -> None:
        self._longest = self._limit = longest
        self._usual = 0.0
        self._held_up = held_up
        self._until_asked = EVERY

    @property
    def bound(self) -> float:
        """Seconds to look."""
        return self._longest if self._usual < self._limit else 0.0

    def note(self, waited: float) -> None:
        """A wait has ended after so many seconds."""
        self._usual += SHARE * (min(waited, 4 * self._longest) - self._usual)
        self._until_asked -= 1
        if not self._until_asked:
            self._until_asked = EVERY
            self._limit = 0.0 if self._held_up() else self._longest
