"""Element-by-element equality of what fleets return: types, dtypes, shapes and values."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import GraphInstance


def assert_same(got: Any, want: Any, path: str = "answer") -> None:
    if isinstance(want, GraphInstance):
        assert isinstance(got, GraphInstance), path
        for name in ("nodes", "edges", "edge_links"):
            assert_same(getattr(got, name), getattr(want, name), f"{path}.{name}")
    elif isinstance(want, dict):
        assert isinstance(got, dict), f"{path}: {type(got)}"
        assert got.keys() == want.keys(), path
        for key in want:
            assert_same(got[key], want[key], f"{path}[{key!r}]")
    elif isinstance(want, (tuple, list)):
        assert type(got) is type(want), f"{path}: {type(got)} is not {type(want)}"
        assert len(got) == len(want), path
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            assert_same(a, b, f"{path}[{i}]")
    elif isinstance(want, np.ndarray):
        assert isinstance(got, np.ndarray), f"{path}: {type(got)}"
        assert got.dtype == want.dtype, f"{path}: {got.dtype} is not {want.dtype}"
        assert got.shape == want.shape, f"{path}: {got.shape} is not {want.shape}"
        if want.dtype == object:
            for i in np.ndindex(want.shape):
                assert_same(got[i], want[i], f"{path}{list(i)}")
        else:
            np.testing.assert_array_equal(got, want, err_msg=path)
    elif isinstance(want, (int, float, np.number)):
        assert np.asarray(got).dtype == np.asarray(want).dtype, f"{path}: {got!r}, {want!r}"
        assert got == want, path
    else:
        assert type(got) is type(want), f"{path}: {type(got)} is not {type(want)}"
        assert got == want, path
