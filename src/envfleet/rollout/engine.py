"""What any vector engine says about its envs' ends: the autoreset mode, and replaced workers."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray


def autoreset_mode_of(
    envs: VectorEnv[Any, Any, Any], told: AutoresetMode | str | None
) -> AutoresetMode:
    """What happens when an episode of this fleet ends.

    Raises:
        ValueError: neither the fleet nor the caller says it, or they say different things.
    """
    declared = envs.metadata.get("autoreset_mode")
    if declared is None and told is None:
        raise ValueError(
            f"{type(envs).__name__} does not say in metadata['autoreset_mode'] what happens when "
            "an episode ends: pass autoreset_mode='NextStep', 'SameStep' or 'Disabled'."
        )
    mode = AutoresetMode(told if declared is None else declared)
    if told is not None and AutoresetMode(told) != mode:
        raise ValueError(f"autoreset_mode={told!r} was passed, but the fleet says {mode.value!r}.")
    return mode


def restarted(infos: dict[str, Any], done: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whose worker was replaced in a step."""
    if "worker_restarted" not in infos:
        return np.zeros_like(done)
    return np.asarray(infos["worker_restarted"], dtype=np.bool_)
