"""Batches of observations as XuanCe keeps them: an array, or a dict of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import DTypeLike

_ARRAYS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def check_space(space: Space[Any], path: str = "") -> None:
    """Refuse observations that are neither an array nor a Dict of them.

    Raises:
        TypeError: it names the part that is none.
    """
    if isinstance(space, spaces.Dict):
        for key, part in space.items():
            check_space(part, f"{path}[{key!r}]")
    elif not isinstance(space, _ARRAYS):
        raise TypeError(
            f"observation{path} has the space {space}; XuanCe's vector envs hold Box, Discrete, "
            "MultiDiscrete and MultiBinary observations and Dicts of these. Take "
            "envfleet.ProcessVectorEnv for others."
        )


def shapes(space: Any) -> Any:
    """The shape of an observation, or a dict of shapes."""
    if isinstance(space, spaces.Dict):
        return {key: shapes(part) for key, part in space.items()}
    return space.shape


def zeros(space: Any, num_envs: int, dtype: DTypeLike | None) -> Any:
    """A batch of nothing; parts of a Dict have their own dtypes, else it is ``dtype``."""
    if isinstance(space, spaces.Dict):
        return {key: zeros(part, num_envs, None) for key, part in space.items()}
    return np.zeros((num_envs, *space.shape), space.dtype if dtype is None else dtype)


def own_copy(batch: Any, dtype: DTypeLike | None) -> Any:
    """New arrays with the same numbers; parts of a Dict keep their dtypes, else it is ``dtype``."""
    if isinstance(batch, dict):
        return {key: own_copy(part, None) for key, part in batch.items()}
    return np.array(batch, dtype)


def exchange(batch: Any, i: int, observation: Any) -> Any:
    """Put an observation into row ``i``, and return what was there."""
    if isinstance(batch, dict):
        return {key: exchange(part, i, observation[key]) for key, part in batch.items()}
    previous = batch[i].copy()
    batch[i] = observation
    return previous
