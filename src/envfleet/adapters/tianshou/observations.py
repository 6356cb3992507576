"""A fleet's batch of observations as Tianshou stacks those of its envs."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray


def stacked(space: Space[Any], batch: Any, count: int) -> NDArray[Any]:
    """``count`` observations of one space as an array; dicts become an array of dicts, one per env.

    Where the batch is an array it is returned as it is, and dicts hold views of it.
    """
    if isinstance(batch, np.ndarray):
        return batch
    rows = [_row(space, batch, i) for i in range(count)]
    try:
        return np.stack(rows)
    except ValueError:  # sequences and graphs differ in size
        array = np.empty(count, dtype=object)
        array[:] = rows
        return array


def _row(space: Space[Any], batch: Any, i: int) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _row(part, batch[key], i) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_row(part, batch[k], i) for k, part in enumerate(space.spaces))
    return batch[i]
