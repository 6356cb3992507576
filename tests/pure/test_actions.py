from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate
from hypothesis import given
from hypothesis import strategies as st
from nested import PROPERTY, nested_spaces, same

from envfleet.engine.rules.actions import action_columns
from envfleet.engine.rules.spaces import Structure

pytestmark = pytest.mark.pure

ARM = spaces.Dict(
    {
        "arm": spaces.Tuple((spaces.Box(0, 9, (2,), np.uint8), spaces.Text(3))),
        "go": spaces.Discrete(2),
    }
)


def columns(space, actions, num_envs=3):
    return action_columns(Structure(space), actions, num_envs)


@PROPERTY
@given(nested_spaces(), st.integers(0, 99), st.integers(1, 4))
def test_each_env_gets_the_action_that_gymnasium_would_give_it(space, seed, num_envs):
    batched = batch_space(space, num_envs)
    batched.seed(seed)
    actions = batched.sample()
    structure = Structure(space)
    found = action_columns(structure, actions, num_envs)
    assert same(list(structure.rows(found)), list(iterate(batched, actions)))
    for leaf, column in zip(structure.leaves, found, strict=True):
        if leaf.fixed:
            assert (column.shape, column.dtype) == ((num_envs, *leaf.shape), leaf.dtype)
        else:
            assert (type(column), len(column)) == (list, num_envs)


def test_actions_of_a_kindred_dtype_arrive_in_the_spaces_dtype():
    for space, actions, expected in [
        (spaces.Discrete(3), [0, 1, 2], np.array([0, 1, 2])),
        (spaces.Discrete(3), (np.int8(0), 1, True), np.array([0, 1, 1])),
        (spaces.Discrete(3), iter([2, 1, 0]), np.array([2, 1, 0])),
        (spaces.Discrete(3, dtype=np.int32), np.arange(3, dtype="u1"), np.arange(3, dtype="i4")),
        (spaces.Box(0, 1, (1,)), [[0], [1], [0.5]], np.array([[0], [1], [0.5]], np.float32)),
        (spaces.Box(0, 1, ()), np.ones(3), np.ones(3, np.float32)),
        (spaces.MultiBinary(2), np.eye(3, 2, dtype=bool), np.eye(3, 2, dtype=np.int8)),
    ]:
        assert same(columns(space, actions), [expected])


@pytest.mark.parametrize("space", [spaces.Discrete(2), spaces.Text(3)])
def test_another_number_of_actions_than_envs_is_refused(space):
    for number in (0, 2, 4):
        actions = [space.sample() for _ in range(number)]
        with pytest.raises(ValueError, match=rf"3 in all, got {number}; no env was stepped"):
            columns(space, actions)


@pytest.mark.parametrize("space", [spaces.Discrete(2), spaces.OneOf((spaces.Discrete(2),))])
def test_a_scalar_is_refused_in_gymnasiums_words(space):
    for scalar in (1, 1.5, None, np.array(1)):
        with pytest.raises(TypeError, match="Unable to iterate over the following elements"):
            columns(space, scalar)


@pytest.mark.parametrize(
    ("space", "shapes"),
    [
        (spaces.Discrete(2), [(3, 1), (3, 3)]),
        (spaces.Box(0, 1, (2,)), [(3,), (3, 1), (3, 2, 1), (3, 3)]),
        (spaces.Box(0, 1, (3, 2)), [(3, 2, 3), (3, 6), (3, 2)]),
    ],
)
def test_actions_are_never_broadcast_flattened_or_transposed(space, shapes):
    for shape in shapes:
        with pytest.raises(ValueError, match="shape"):
            columns(space, np.zeros(shape, space.dtype))


def test_actions_of_another_kind_are_a_type_error():
    for space, actions in [
        (spaces.Discrete(2), [0.0, 1.0, 0.0]),
        (spaces.Discrete(2), ["0", "1", "0"]),
        (spaces.Box(0, 1, ()), [None, None, None]),
        (spaces.Box(0, 1, ()), [1j, 1j, 1j]),
    ]:
        with pytest.raises(TypeError, match="actions"):
            columns(space, actions)


@pytest.mark.parametrize("value", [-1, 256, 2**70])
def test_values_that_the_dtype_cannot_hold_are_a_value_error(value):
    with pytest.raises(ValueError, match="actions"):
        columns(spaces.Box(0, 255, (), np.uint8), [0, 255, value])


@pytest.mark.parametrize(
    ("actions", "error", "words"),
    [
        ([0, 1, 0], TypeError, "Dict action .* list"),
        ({"arm": (np.zeros((3, 2), "u1"), "abc")}, KeyError, "'go'"),
        ({"go": [0, 1, 0]}, KeyError, "'arm'"),
        ({"arm": np.zeros((2, 3)), "go": [0, 1, 0]}, TypeError, "Tuple action .* ndarray"),
        ({"arm": ([[0, 0]] * 3,), "go": [0, 1, 0]}, ValueError, "2 batches .* got 1"),
        ({"arm": ([0] * 3, "abc"), "go": [0, 1, 0]}, ValueError, r"actions\['arm'\]\[0\]: .*shape"),
        ({"arm": ([[0, 0.5]] * 3, "abc"), "go": [0, 1, 0]}, TypeError, r"\['arm'\]\[0\]: .*dtype"),
        ({"arm": ([[0, 0]] * 3, ["a"]), "go": [0, 1, 0]}, ValueError, r"\['arm'\]\[1\]: .*got 1"),
    ],
)
def test_a_faulty_nested_batch_is_refused_where_it_is_faulty(actions, error, words):
    with pytest.raises(error, match=words):
        columns(ARM, actions)
