"""A batch of actions, checked as a whole before any env moves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete, MultiBinary, MultiDiscrete

from envfleet.engine.interrupts import raise_interrupt
from envfleet.engine.rules.spaces import Array, Leaf, Structure, Tree, fit


def action_columns(structure: Structure, actions: Any, num_envs: int) -> list[Any]:
    """The columns of a batch of actions, one per leaf, in the leaves' order.

    A fixed leaf's column is an array of ``num_envs`` rows in the leaf's dtype (it may share memory
    with ``actions``), a loose leaf's a list of ``num_envs`` values.

    Raises:
        ValueError: wrong number of actions, wrong shape, or values that the dtype cannot hold.
        TypeError: a scalar, or values of another kind (floats for Discrete, objects for Box).
        KeyError: a Dict action without one of its keys.
    """
    if structure.flat and actions.__class__ is np.ndarray:
        leaf = structure.leaves[0]
        if actions.dtype == leaf.dtype and actions.shape == (num_envs, *leaf.shape):
            return [actions]
    columns: list[Any] = []
    _collect(structure, structure.tree, actions, num_envs, columns)
    return columns


def refuse_unknown(structure: Structure, columns: list[Any]) -> None:
    """Refuse numbers that are no action of a Discrete, MultiDiscrete or MultiBinary space.

    For engines that take numbers at their word; a single env of ours checks its own. ``columns``
    are those of ``action_columns``.

    Raises:
        ValueError: it names the env.
    """
    for leaf, column in zip(structure.leaves, columns, strict=True):
        space = leaf.space
        if isinstance(space, Discrete):
            # A fifth of the time of comparing each: an engine in C++ is as quick as this check.
            first, last = space.start, space.start + space.n - 1
            if column.min() >= first and column.max() <= last:
                continue
            wrong = (column < first) | (column > last)
        elif isinstance(space, MultiDiscrete):
            wrong = (column < space.start) | (column >= space.start + space.nvec)
        elif isinstance(space, MultiBinary):
            wrong = (column != 0) & (column != 1)
        else:
            continue
        envs = np.flatnonzero(wrong.reshape(len(column), -1).any(axis=1))
        if len(envs):
            raise ValueError(
                f"actions{leaf.path}: env {envs[0]} got {column[envs[0]]}, its space says {space}; "
                "no env was stepped."
            )


def _collect(
    structure: Structure, tree: Tree, items: Any, num_envs: int, columns: list[Any]
) -> None:
    if isinstance(tree, int):
        leaf = structure.leaves[tree]
        column = _fixed_column if leaf.fixed else _loose_column
        columns.append(column(leaf, items, num_envs))
    elif isinstance(tree, dict):
        if not isinstance(items, Mapping):
            raise TypeError(f"a Dict action is a dict of batches, got {type(items).__name__}")
        for key, branch in tree.items():
            if key not in items:
                raise KeyError(f"the actions have no key {key!r}, which the action space has")
            _collect(structure, branch, items[key], num_envs, columns)
    else:
        if not isinstance(items, (tuple, list)):
            raise TypeError(f"a Tuple action is a tuple of batches, got {type(items).__name__}")
        _refuse_one_tuple_per_env(tree, items, num_envs)
        if len(items) != len(tree):
            raise ValueError(f"a Tuple action of {len(tree)} batches is expected, got {len(items)}")
        for branch, item in zip(tree, items, strict=True):
            _collect(structure, branch, item, num_envs, columns)


def _refuse_one_tuple_per_env(tree: tuple[Tree, ...], items: Any, num_envs: int) -> None:
    """Refuse ``[(a, b), (a, b), ...]``, whose parts would go to the wrong envs.

    Raises:
        ValueError: a list of tuples that has one tuple per env; a tuple of tuples is taken at its
            word, as batches.
    """
    if (
        isinstance(items, list)
        and len(items) == num_envs
        and any(isinstance(branch, int) for branch in tree)
        and all(isinstance(item, tuple) and len(item) == len(tree) for item in items)
    ):
        raise ValueError(
            f"the actions are a list of {num_envs} tuples, one per env; a Tuple action space takes "
            f"a tuple of {len(tree)} batches, one per part, each with {num_envs} values: pass "
            "tuple(zip(*actions)); no env was stepped."
        )


def _fixed_column(leaf: Leaf, items: Any, num_envs: int) -> Array:
    if isinstance(items, Iterator):
        items = list(items)
    batch = np.asarray(items)
    if batch.ndim == 0:
        # Gymnasium's words: people match on them.
        raise TypeError(f"Unable to iterate over the following elements: {items}")
    _check_number(leaf, len(batch), num_envs)
    try:
        return fit(items, (num_envs, *leaf.shape), leaf.dtype)
    except (TypeError, ValueError) as problem:
        raise_interrupt(problem)
        raise type(problem)(f"actions{leaf.path}: the batch {problem}") from None


def _loose_column(leaf: Leaf, items: Any, num_envs: int) -> list[Any]:
    try:
        batch = list(items)
    except TypeError:
        raise TypeError(f"Unable to iterate over the following elements: {items}") from None
    _check_number(leaf, len(batch), num_envs)
    return batch


def _check_number(leaf: Leaf, got: int, num_envs: int) -> None:
    if got != num_envs:
        raise ValueError(
            f"actions{leaf.path}: expected one action per env, {num_envs} in all, got {got}; "
            "no env was stepped."
        )
