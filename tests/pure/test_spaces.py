from __future__ import annotations

import pickle
from types import MappingProxyType

import numpy as np
import pytest
from gymnasium import Space, spaces
from gymnasium.vector.utils import concatenate, create_empty_array
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from nested import FIXED, LOOSE, PROPERTY, nested_spaces, same

from envfleet.engine.rules.spaces import Structure, StructureError, fit

pytestmark = pytest.mark.pure

INTEGERS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
CAMERA = spaces.Dict({"camera": spaces.Tuple((spaces.Box(0, 1, (2,)), spaces.Text(3)))})


class Odd(Space):
    pass


def samples(space, seed, count):
    space.seed(seed)
    return [space.sample() for _ in range(count)]


@PROPERTY
@given(nested_spaces(), st.integers(0, 99))
def test_join_undoes_split(space, seed):
    structure = Structure(space)
    (value,) = samples(space, seed, 1)
    leaves = structure.split(value)
    assert len(leaves) == len(structure.leaves)
    assert same(structure.join(leaves), value)


@PROPERTY
@given(nested_spaces(), st.integers(0, 99), st.integers(1, 4))
def test_rows_undo_columns(space, seed, count):
    structure = Structure(space)
    values = samples(space, seed, count)
    columns = structure.columns(values)
    assert [len(column) for column in columns] == [count] * len(structure.leaves)
    assert same(list(structure.rows(columns)), values)


@PROPERTY
@given(nested_spaces(), st.integers(0, 99))
def test_fixed_leaves_say_the_shape_and_dtype_of_their_values(space, seed):
    structure = Structure(space)
    (value,) = samples(space, seed, 1)
    for leaf, part in zip(structure.leaves, structure.split(value), strict=True):
        assert leaf.fixed == isinstance(leaf.space, tuple(map(type, FIXED)))
        if leaf.fixed:
            assert (np.shape(part), np.asarray(part).dtype) == (leaf.shape, leaf.dtype)
    assert structure.fixed + structure.loose == tuple(
        sorted(structure.leaves, key=lambda leaf: not leaf.fixed)
    )


def test_leaf_paths_read_like_indexing():
    assert [leaf.path for leaf in Structure(CAMERA).leaves] == ["['camera'][0]", "['camera'][1]"]
    assert Structure(spaces.Discrete(2)).leaves[0].path == ""


def test_only_a_single_fixed_leaf_is_flat():
    for space in FIXED:
        assert Structure(space).flat
        assert not Structure(spaces.Tuple((space,))).flat
    assert not any(Structure(space).flat for space in (*LOOSE, Odd(), CAMERA))


def test_only_spaces_that_gymnasium_does_not_know_are_custom():
    (odd,) = Structure(Odd()).leaves
    assert odd.custom
    assert not odd.fixed
    for space in (*FIXED, *LOOSE, CAMERA):
        assert not any(leaf.custom for leaf in Structure(space).leaves)


def test_blank_loose_values_are_those_of_gymnasiums_empty_batch():
    for space in (*LOOSE, spaces.Text(5, min_length=2), spaces.Sequence(FIXED[0], stack=True)):
        both = spaces.Tuple((FIXED[0], space))
        assert same(Structure(both).blank_loose(), [create_empty_array(space, n=3)[0]])


def test_numbers_and_loose_values_are_objects_and_arrays_are_not():
    mixed = spaces.Tuple((*FIXED, *LOOSE))
    structure = Structure(mixed)
    kinds = [type(leaf.space) for leaf in structure.leaves]
    expected = [k for k, kind in enumerate(kinds) if kind in (spaces.Discrete, *map(type, LOOSE))]
    assert list(structure.objects) == expected


def test_a_batch_of_loose_values_is_what_gymnasium_concatenates():
    for space in (*LOOSE, Odd()):
        (leaf,) = Structure(space).leaves
        values = tuple(object() for _ in range(3)) if leaf.custom else tuple(samples(space, 1, 3))
        assert same(leaf.batch(values), concatenate(space, values, create_empty_array(space, n=3)))


def test_a_custom_space_is_blank_as_none():
    assert Structure(Odd()).blank_loose() == [None]


def test_split_takes_any_mapping_for_dict_and_any_row_of_parts_for_tuple():
    space = spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Tuple([spaces.Discrete(9)] * 2)})
    structure = Structure(space)
    expected = structure.split({"a": (3, 4), "b": 1})
    assert sorted(expected) == [1, 3, 4]
    assert structure.split(MappingProxyType({"b": 1, "a": [3, 4]})) == expected
    assert structure.split({"a": np.array([3, 4]), "b": 1}) == expected


@pytest.mark.parametrize(
    ("value", "path", "words"),
    [
        ([1, 2], "", ["list", "Dict"]),
        ({}, "", ["camera"]),
        ({"camera": ([0, 0], ""), "lidar": 1}, "", ["lidar"]),
        ({"camera": {}}, "['camera']", ["dict", "Tuple"]),
        ({"camera": "ab"}, "['camera']", ["str", "Tuple"]),
        ({"camera": ([0, 0],)}, "['camera']", ["1", "2"]),
        ({"camera": ([0, 0], "", "")}, "['camera']", ["3", "2"]),
        ({"camera": np.array(3)}, "['camera']", ["Tuple"]),
    ],
)
def test_other_branches_than_the_spaces_are_refused_where_they_are(value, path, words):
    structure = Structure(CAMERA)
    with pytest.raises(StructureError) as caught:
        structure.split(value)
    assert caught.value.path == path
    assert all(word in str(caught.value) for word in words)
    with pytest.raises(StructureError):
        structure.columns([{"camera": ([0, 0], "")}, value])


def test_a_structure_crosses_a_process_line():
    structure = Structure(CAMERA)
    copy = pickle.loads(pickle.dumps(structure))
    assert (copy.leaves, copy.tree, copy.flat) == (structure.leaves, structure.tree, False)
    assert copy.split({"camera": (1, 2)}) == [1, 2]


@PROPERTY
@given(
    hnp.arrays(st.sampled_from([*INTEGERS, "?"]), hnp.array_shapes(min_dims=0, min_side=0)),
    st.sampled_from(INTEGERS),
)
def test_integers_fit_exactly_if_the_dtype_can_hold_them(array, name):
    dtype = np.dtype(name)
    limits = np.iinfo(dtype)
    if all(limits.min <= int(value) <= limits.max for value in array.flat):
        fitted = fit(array, array.shape, dtype)
        assert (fitted.dtype, fitted.shape) == (dtype, array.shape)
        assert [int(v) for v in fitted.flat] == [int(v) for v in array.flat]
    else:
        with pytest.raises(ValueError, match="do not fit"):
            fit(array, array.shape, dtype)


@pytest.mark.parametrize("edge", [-(2**31) - 1, 2**31, 2**63, 2**70])
def test_a_python_integer_that_the_dtype_cannot_hold_is_a_value_error(edge):
    with pytest.raises(ValueError):
        fit(edge, (), np.dtype("i4"))


def test_large_python_integers_fit_the_unsigned_dtype_that_can_hold_them():
    largest = 2**64 - 1
    assert same(fit(largest, (), np.dtype("u8")), np.array(largest, "u8"))
    assert same(fit([0, largest], (2,), np.dtype("u8")), np.array([0, largest], "u8"))


def test_only_zero_and_one_fit_booleans():
    assert same(fit([0, 1], (2,), np.dtype("?")), np.array([False, True]))
    for value in (2, -1):
        with pytest.raises(ValueError, match="do not fit"):
            fit([value], (1,), np.dtype("?"))


def test_numbers_fit_any_float_dtype():
    for target in ("f2", "f4", "f8", ">f4"):
        for source in ("?", "u1", "i8", "f2", "f4", "f8", ">f8"):
            value = np.array([0, 1], dtype=source)
            assert same(fit(value, (2,), np.dtype(target)), np.array([0, 1], dtype=target))


@PROPERTY
@given(
    hnp.array_shapes(min_dims=0, min_side=0, max_dims=3, max_side=3),
    hnp.array_shapes(min_dims=0, min_side=0, max_dims=3, max_side=3),
    st.sampled_from(["f4", "i8"]),
)
def test_another_shape_never_fits(given_shape, shape, dtype):
    assume(given_shape != shape)
    with pytest.raises(ValueError, match="shape"):
        fit(np.zeros(given_shape, dtype), shape, np.dtype(dtype))


@pytest.mark.parametrize("dtype", ["i8", "?", "f8"])
def test_another_kind_never_fits(dtype):
    for value in (1j, "1", b"1", None, object(), *([] if dtype == "f8" else [1.0, np.float32(1)])):
        with pytest.raises(TypeError, match="dtype"):
            fit(value, (), np.dtype(dtype))


def test_ragged_values_do_not_fit():
    with pytest.raises(ValueError):
        fit([[1, 2], [3]], (2, 2), np.dtype("i8"))
