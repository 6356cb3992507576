"""What happens to an env whose episode has ended, in each of Gymnasium's three autoreset modes.

NEXT_STEP   the next ``step`` resets it instead of stepping; reward 0, the action is ignored
SAME_STEP   it is reset at once; the last observation and info go to ``final_obs``, ``final_info``
DISABLED    it waits for ``reset``; stepping it is refused before any env moves

An env that raised waits for ``reset`` too, in every mode.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet.errors import name_envs


class ResetDuty:
    """Which envs of a fleet must be reset by the caller before the next ``step``."""

    def __init__(self, mode: AutoresetMode) -> None:
        self._manual = mode == AutoresetMode.DISABLED
        self._ended: set[int] = set()
        self._failed: set[int] = set()

    def was_reset(self, envs: Iterable[int]) -> None:
        """These envs were reset (or are about to be)."""
        self._ended.difference_update(envs)
        self._failed.difference_update(envs)

    def has_failed(self, envs: Iterable[int]) -> None:
        """These envs raised and are in an unknown state."""
        self._failed.update(envs)

    def has_stepped(self, terminated: NDArray[np.bool_], truncated: NDArray[np.bool_]) -> None:
        """The whole fleet has stepped, with these flags."""
        if self._manual:
            self._ended.update(int(i) for i in np.flatnonzero(terminated | truncated))

    def check(self) -> None:
        """Refuse to step while an env waits for ``reset``.

        Raises:
            ResetNeeded: naming the envs.
        """
        if not self._ended and not self._failed:
            return
        if self._failed:
            why = "raised an error"
        else:
            why = "ended their episode and autoreset_mode is DISABLED"
        waiting = self._failed or self._ended
        raise ResetNeeded(
            f"envs {name_envs(sorted(waiting))} {why}: reset them first, for example with "
            "reset(options={'reset_mask': mask}). No env was stepped."
        )
