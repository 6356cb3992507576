"""What happens to an env whose episode has ended, in each of Gymnasium's three autoreset modes.

NEXT_STEP   the next ``step`` resets it instead of stepping; reward 0, the action is ignored
SAME_STEP   it is reset at once; the last observation and info go to ``final_obs``, ``final_info``
DISABLED    it waits for ``reset``; stepping it is refused before any env moves

An env that raised, or that an interrupt may have left a step ahead of others, waits for ``reset``
too, in every mode.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet.errors import name_envs

Flags = NDArray[np.bool_]

_DISABLED = AutoresetMode.DISABLED


def check_steppable(
    mode: AutoresetMode,
    terminated: Flags,
    truncated: Flags,
    failed: Flags,
    env_ids: NDArray[np.intp] | None = None,
) -> None:
    """Refuse to step while an env waits for ``reset``; the flags are those since its last reset.

    ``env_ids`` are the envs that shall step, None being all.

    Raises:
        ResetNeeded: naming the envs.
    """
    if _any(failed):
        _refuse(failed, "raised an error", env_ids)
    if mode is _DISABLED and (_any(terminated) or _any(truncated)):
        waiting = terminated | truncated
        _refuse(waiting, "ended their episode and autoreset_mode is DISABLED", env_ids)


def refuse_interrupted(envs: Collection[int], others: str = "No env was stepped.") -> None:
    """Refuse to step envs that an interrupt may have left a step ahead of, or behind, the others.

    Raises:
        ResetNeeded: naming the envs.
    """
    raise ResetNeeded(
        f"envs {name_envs(sorted(envs))} were interrupted by an exception from a signal handler "
        f"(Ctrl-C, for example): reset them first. {others}"
    )


def _any(flags: Flags) -> bool:
    return b"\1" in flags.tobytes()  # a fifth of the time of flags.any()


def _refuse(waiting: Flags, why: str, env_ids: NDArray[np.intp] | None) -> None:
    envs = (np.flatnonzero(waiting) if env_ids is None else env_ids[waiting[env_ids]]).tolist()
    if not envs:
        return
    raise ResetNeeded(
        f"envs {name_envs(envs)} {why}: reset them first, with reset(env_ids=[...]) or "
        "reset(options={'reset_mask': mask}). No env was stepped."
    )
