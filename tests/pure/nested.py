"""What the pure tests share: strict equality, and nested spaces to draw from."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from hypothesis import settings
from hypothesis import strategies as st

PROPERTY = settings(max_examples=50, deadline=None, derandomize=True, database=None)

FIXED = (
    spaces.Box(-1, 1, (2, 3), np.float32),
    spaces.Box(0, 255, (4,), np.uint8),
    spaces.Box(-9, 9, (), np.float64),
    spaces.Discrete(5, start=-2),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiBinary((2, 2)),
)
LOOSE = (
    spaces.Text(5),
    spaces.Sequence(spaces.Discrete(3)),
    spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(3)),
    spaces.OneOf((spaces.Discrete(3), spaces.Box(0, 1, (2,)))),
)


def nested_spaces(leaves: tuple[spaces.Space[Any], ...] = FIXED + LOOSE) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.sampled_from(leaves),
        lambda sub: (
            st.dictionaries(st.sampled_from("abc"), sub, min_size=1, max_size=3).map(spaces.Dict)
            | st.lists(sub, min_size=1, max_size=3).map(spaces.Tuple)
        ),
        max_leaves=6,
    )


def same(a: Any, b: Any) -> bool:
    """Equal in type, dtype, shape, key order and every bit of every value."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (np.ndarray, np.generic)):
        alike = bool(a.dtype == b.dtype and a.shape == b.shape)
        if a.dtype == object:
            return alike and all(map(same, a.flat, b.flat))
        return alike and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a is b or repr(a) == repr(b)
