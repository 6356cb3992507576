"""Which envs a call is about, and how many a wait is for: checked before anything moves."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray


def checked_ids(env_ids: Any, num_envs: int) -> NDArray[np.intp]:
    """The envs that ``env_ids`` names, in its order and a new array; None is all of them.

    Raises:
        TypeError: it is no sequence of integers.
        ValueError: an env is named twice, or there is no such env.
    """
    if env_ids is None:
        return np.arange(num_envs)
    is_own = not isinstance(env_ids, np.ndarray)
    if is_own:
        env_ids = np.array([operator.index(env) for env in env_ids], dtype=np.intp)
    if env_ids.ndim != 1 or env_ids.dtype.kind not in "iu":
        raise TypeError(
            "env_ids must be a list of env numbers, got an array of shape "
            f"{env_ids.shape} and dtype {env_ids.dtype}"
        )
    listed = env_ids.tolist()
    ordered = sorted(listed)  # quicker than min() and max()
    if ordered and (ordered[0] < 0 or ordered[-1] >= num_envs):
        wrong = [env for env in listed if not 0 <= env < num_envs]
        raise ValueError(f"env_ids {wrong} are not among the envs 0 to {num_envs - 1}")
    if len(named := set(listed)) != len(listed):
        twice = sorted(env for env in named if listed.count(env) > 1)
        raise ValueError(f"env_ids name envs {twice} more than once")
    ids: NDArray[np.intp] = env_ids if is_own else env_ids.astype(np.intp)
    return ids


def batch_bounds(min_envs: Any, max_envs: Any, outstanding: int) -> tuple[int, int]:
    """How many envs a batch has at least and at most, of so many that are outstanding.

    Raises:
        TypeError: they are no integers.
        ValueError: fewer than nothing, less at most than at least, or more than are outstanding.
    """
    least = None if min_envs is None else operator.index(min_envs)
    most = outstanding if max_envs is None else operator.index(max_envs)
    if least is not None and least < 0:
        raise ValueError(f"min_envs must be 0 or more, got {least}")
    if most < 1:
        raise ValueError(f"max_envs must be 1 or more, got {most}")
    if least is None:
        least = min(most, outstanding)
    if max_envs is not None and most < least:
        raise ValueError(f"max_envs={most} is less than min_envs={least}")
    if least > outstanding:
        raise ValueError(
            f"min_envs={least} is more than the {outstanding} envs that are outstanding: send() to "
            "more envs first, or ask for fewer."
        )
    return least, most
