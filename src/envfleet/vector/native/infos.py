"""Infos of native engines with Gymnasium's masks, which the engines leave out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.bool_]


def with_masks(infos: dict[str, Any], told: Flags, ended: Flags | None = None) -> dict[str, Any]:
    """Infos in which every key has a ``_key`` mask, the engine's own or ``told``.

    ``final_obs`` becomes an array of objects as in Gymnasium: the observation where an episode
    ``ended``, None elsewhere; where none ended it is left out. The dict is the caller's own.
    """
    masked: dict[str, Any] = {}
    for key, value in infos.items():
        if key.startswith("_"):
            masked[key] = value
        elif key == "final_obs":
            if ended is not None and ended.any():
                masked[key], masked["_final_obs"] = _final_observations(value, ended), ended
        else:
            masked[key] = with_masks(value, told) if isinstance(value, dict) else value
            masked.setdefault(f"_{key}", infos.get(f"_{key}", told.copy()))
    return masked


def _final_observations(rows: Any, ended: Flags) -> NDArray[Any]:
    final = np.full(len(ended), None, dtype=object)
    for env in np.flatnonzero(ended):
        final[env] = _row(rows, env)
    return final


def _row(rows: Any, env: Any) -> Any:
    if isinstance(rows, dict):
        return {key: _row(part, env) for key, part in rows.items()}
    if isinstance(rows, tuple):
        return tuple(_row(part, env) for part in rows)
    return rows[env]
