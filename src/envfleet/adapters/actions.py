"""Actions as other libraries give them, one per env, as the batches that a fleet takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces


def as_batch(space: Space[Any], actions: Any) -> Any:
    """Actions of one space, one per env, as a batch: dicts and tuples of arrays where they nest.

    Floats become integers where the space has integers: those of a Box are cut off, as an env
    would do it, and for all other spaces they must be whole numbers. Nothing else is changed, and
    what does not fit is the fleet's to refuse.
    """
    if isinstance(space, spaces.Dict):
        if isinstance(actions, Mapping):
            return actions
        return {
            key: as_batch(part, [action[key] for action in actions])
            for key, part in space.spaces.items()
        }
    if isinstance(space, spaces.Tuple):
        return tuple(
            as_batch(part, [action[i] for action in actions]) for i, part in enumerate(space.spaces)
        )
    if space.dtype is None or space.dtype.kind not in "iub":
        return actions
    batch = np.asarray(actions)
    if batch.dtype.kind != "f" or not np.isfinite(batch).all():
        return actions
    whole = batch.astype(space.dtype)
    if isinstance(space, spaces.Box) or np.array_equal(whole, batch):
        return whole
    return actions
