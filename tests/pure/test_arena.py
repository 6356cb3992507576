from __future__ import annotations

import gc
import os
import resource
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from nested import FIXED, PROPERTY, nested_spaces, same

from envfleet.engine.arena.layout import ALIGNMENT, plan_layout
from envfleet.engine.arena.memory import allocate, map_shared
from envfleet.engine.arena.views import ObservationWriter, private_views, shared_views
from envfleet.engine.rules.spaces import Structure
from envfleet.errors import ObservationMismatch

SHARED = Path("/dev/shm")
DESCRIPTORS = Path("/proc/self/fd")
DTYPES = st.sampled_from(["f4", "f8", "u1", "i2", "i8"])
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
ROBOT = spaces.Dict(
    {
        "camera": spaces.Tuple((spaces.Box(0, 255, (2, 3), np.uint8), spaces.Discrete(3))),
        "speed": spaces.Box(-1, 1, (4,)),
    }
)
GOOD = {"camera": (np.zeros((2, 3), np.uint8), 1), "speed": np.zeros(4, np.float32)}


def box(shape, dtype="f4"):
    return spaces.Box(0, 1, shape, np.dtype(dtype))


def boxes():
    return st.lists(st.builds(box, SHAPES, DTYPES), max_size=4)


def all_columns(layout_or_views):
    it = layout_or_views
    return [
        *(it.rewards, it.terminated, it.truncated, it.failed),
        *(*it.actions, *it.observations, *it.final_observations),
    ]


def layout_of(num_envs, observations, actions, final):
    return plan_layout(
        num_envs,
        Structure(spaces.Tuple(observations)).leaves,
        Structure(spaces.Tuple(actions)).leaves,
        final=final,
    )


def mapped(layout):
    fd = allocate(layout.size)
    try:
        return shared_views(layout, map_shared(fd, layout.size))
    finally:
        os.close(fd)


def writer_on(space, count=3, first=0):
    structure = Structure(space)
    columns = private_views(count, structure.fixed, final=False).observations
    return ObservationWriter(structure, columns, first, count), columns


# Layout


@PROPERTY
@given(st.integers(1, 9), boxes(), boxes(), st.booleans())
def test_columns_lie_in_cache_lines_of_their_own_inside_the_arena(n, observations, actions, final):
    layout = layout_of(n, observations, actions, final)
    taken = set()
    for column in all_columns(layout):
        size = int(np.prod(column.shape)) * column.dtype.itemsize
        lines = set(range(column.offset // ALIGNMENT, -(-(column.offset + size) // ALIGNMENT)))
        assert column.offset % ALIGNMENT == 0
        assert column.offset + size <= layout.size
        if size:
            assert not taken & lines
            taken |= lines


@PROPERTY
@given(st.integers(1, 9), boxes(), boxes(), st.booleans())
def test_columns_have_a_row_per_env_in_the_leafs_shape_and_dtype(n, observations, actions, final):
    layout = layout_of(n, observations, actions, final)

    def found(columns):
        return [(column.shape, column.dtype) for column in columns]

    def expected(leaves):
        return [((n, *leaf.shape), leaf.dtype) for leaf in leaves]

    assert found(layout.observations) == expected(observations)
    assert found(layout.actions) == expected(actions)
    assert found(layout.final_observations) == (expected(observations) if final else [])
    flags = ((n,), np.dtype(bool))
    rest = found([layout.rewards, layout.terminated, layout.truncated, layout.failed])
    assert rest == [((n,), np.dtype("f8")), flags, flags, flags]


def test_an_arena_is_never_empty():
    assert plan_layout(0, (), (), final=False).size > 0


# Memory


@pytest.mark.parametrize("size", [1, 4097])
def test_memory_is_zeroed_shared_and_private_to_those_given_the_descriptor(size):
    names = set(SHARED.iterdir())
    fd = allocate(size)
    try:
        assert not os.get_inheritable(fd)
        assert os.fstat(fd).st_size == size
        one, other = map_shared(fd, size), map_shared(fd, size)
    finally:
        os.close(fd)
    assert one[:] == bytes(size)
    one[size - 1] = 7
    assert other[size - 1] == 7
    assert set(SHARED.iterdir()) == names


def test_memory_is_reserved_at_once():
    fd = allocate(1 << 20)
    try:
        assert os.fstat(fd).st_blocks * 512 >= 1 << 20
    finally:
        os.close(fd)


def test_too_little_memory_is_told_at_once_and_leaves_no_descriptor():
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = len(list(DESCRIPTORS.iterdir()))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(MemoryError, match=r"2,097,152 bytes.*fewer envs"):
            allocate(1 << 21)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(list(DESCRIPTORS.iterdir())) == before


# Views


@PROPERTY
@given(st.integers(1, 5), boxes(), boxes(), st.booleans())
def test_shared_columns_are_zeroed_and_never_touch_each_other(n, observations, actions, final):
    columns = all_columns(mapped(layout_of(n, observations, actions, final)))
    for column in columns:
        assert not column.any()
        column[...] = 1
        assert [other.all() and other.size > 0 for other in columns] == [
            other is column and column.size > 0 for other in columns
        ]
        column[...] = 0


def test_two_mappings_of_one_arena_see_the_same_values():
    layout = layout_of(4, [box((2,))], [box(())], final=True)
    fd = allocate(layout.size)
    try:
        caller, worker = (shared_views(layout, map_shared(fd, layout.size)) for _ in range(2))
    finally:
        os.close(fd)
    for i, (mine, theirs) in enumerate(zip(all_columns(caller), all_columns(worker), strict=True)):
        theirs[-1] = i % 2
        assert same(mine, theirs)


def test_views_keep_the_memory_alive():
    rewards = mapped(layout_of(4, [], [], final=False)).rewards
    gc.collect()
    rewards[:] = 3
    assert rewards.tolist() == [3, 3, 3, 3]


@pytest.mark.parametrize("final", [True, False])
def test_a_shard_is_its_rows_on_the_same_memory(final):
    views = mapped(layout_of(5, [box((2,)), box((), "i8")], [box((3,), "u1")], final))
    shard = views.shard(range(1, 3))
    assert len(shard.final_observations) == 2 * final
    for whole, part in zip(all_columns(views), all_columns(shard), strict=True):
        part[...] = 1
        assert [bool(np.all(row)) for row in whole] == [False, True, True, False, False]


@pytest.mark.parametrize("final", [True, False])
def test_private_views_have_the_observations_columns_and_none_for_actions(final):
    views = private_views(3, Structure(ROBOT).leaves, final=final)
    expected = layout_of(3, [leaf.space for leaf in Structure(ROBOT).leaves], [], final)
    for found, planned in zip(all_columns(views), all_columns(expected), strict=True):
        assert (found.shape, found.dtype, found.any()) == (planned.shape, planned.dtype, False)


@pytest.mark.parametrize("final", [True, False])
def test_views_with_own_observations_share_all_but_those(final):
    shared = mapped(layout_of(3, [box((2,))], [box((), "i8")], final=True))
    own = shared.with_own_observations(Structure(box((2,))).leaves, final=final)
    assert len(own.final_observations) == final
    for column in all_columns(own):
        column[...] = 1
    assert all(column.all() for column in all_columns(own))
    for column in (*shared.observations, *shared.final_observations):
        assert not column.any()
    rest = (shared.rewards, shared.terminated, shared.truncated, shared.failed, *shared.actions)
    assert all(column.all() for column in rest)


def test_detached_views_keep_what_was_there():
    views = mapped(layout_of(3, [box((2,)), box(())], [], final=False))
    for column in all_columns(views):
        column[1] = 1
    kept = views.detached()
    expected = [column.copy() for column in all_columns(views)]
    for column in all_columns(views):
        column[...] = 0
    assert same(all_columns(kept), expected)


# The writer, env by env


@PROPERTY
@given(nested_spaces(), st.integers(0, 99), st.integers(1, 4))
def test_written_observations_are_those_that_gymnasium_would_batch(space, seed, count):
    space.seed(seed)
    observations = [space.sample() for _ in range(count)]
    structure = Structure(space)
    writer, columns = writer_on(space, count)
    for i, observation in enumerate(observations):
        writer.write(i, observation)
    fixed = iter(columns)
    loose = iter(zip(*writer.loose, strict=True))
    batch = structure.join([next(fixed if leaf.fixed else loose) for leaf in structure.leaves])
    expected = concatenate(space, observations, create_empty_array(space, count))
    assert same(batch, expected)


@pytest.mark.parametrize(
    ("space", "values"),
    [
        (spaces.Discrete(300), [299, True, np.uint16(299), np.array(7, np.int8)]),
        (spaces.Discrete(3, dtype=np.int8), [1, np.int64(2), np.uint64(127)]),
        (spaces.MultiBinary(2), [[True, False], np.array([0, 1], bool), (1, np.uint8(0))]),
        (spaces.MultiDiscrete([3, 3]), [(1, np.int8(2)), np.array([2, 1], "u1")]),
        (box((2,), "u1"), [np.array([0, 255]), np.array([255, 0], ">i2")]),
        (box((2,), "f4"), [np.array([1, -2]), np.array([0.5, 0.25]), [True, 0.5]]),
        (box((2,), "f8"), [np.array([0.5, 0.25], "f4"), [1, 2]]),
        (box((), "f4"), [3, 0.5, np.float64(0.5), np.array(2)]),
        (box((0,), "f4"), [[], np.zeros(0, int)]),
    ],
)
def test_numbers_of_a_kindred_dtype_are_written_exactly(space, values):
    for value in values:
        writer, (column,) = writer_on(space)
        writer.write(1, value)
        assert same(column[1, ...], np.array(value, dtype=space.dtype))
        assert not column[0].any()
        assert not column[2].any()


def floats(*shape):
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("space", "values"),
    [
        (box((4,)), [floats(4, 1), floats(1, 4), floats(2, 2), floats(1), floats(5), floats(0)]),
        (box((4,)), [np.float32(0), 0.0, 0]),
        (box((2, 3)), [floats(3, 2), floats(6), floats(3), floats(2, 1), [[0, 0, 0], [0, 0]]]),
        (box(()), [floats(1), floats(1, 1), floats(0), [0.0]]),
        (box((0, 3)), [floats(0), floats(0, 2), floats(3, 0), floats(0, 3, 1)]),
        (box((2,)), [[None, None], ["0", "1"], "ab", {"a": 0, "b": 1}, np.array([0, 1j]), None]),
        (box((2,), "u1"), [np.array([0.0, 1.0]), [0, 256], np.array([0, -1]), [0, 2**70]]),
        (spaces.Discrete(3), [1.0, np.float32(1), np.array([1]), "1", 2**70, np.uint64(2**63)]),
        (spaces.Discrete(3, dtype=np.int8), [128, -129, np.int64(128)]),
        (spaces.Discrete(3, dtype=np.uint8), [-1, 256, np.int8(-1)]),
        (spaces.MultiBinary(2), [[0, 200], [0.0, 1.0], 1]),
    ],
)
def test_an_observation_that_does_not_fit_is_refused_in_the_name_of_its_env(space, values):
    nested = spaces.Dict({"a": spaces.Tuple((space,))})
    for value in values:
        for whole, observation, leaf in ((space, value, ""), (nested, {"a": (value,)}, "['a'][0]")):
            writer, _ = writer_on(whole, count=2, first=5)
            assert not writer.write_all([observation, observation])
            with pytest.raises(ObservationMismatch, match=r"^env 6: observation") as caught:
                writer.write(1, observation)
            assert (caught.value.env, caught.value.leaf) == (6, leaf)


@pytest.mark.parametrize(
    ("observation", "leaf", "words"),
    [
        (np.zeros(4, "f4"), "", "ndarray"),
        ({"camera": GOOD["camera"]}, "", "speed"),
        ({**GOOD, "lidar": 1}, "", "lidar"),
        ({**GOOD, "camera": GOOD["camera"][:1]}, "['camera']", "1"),
        ({**GOOD, "camera": (*GOOD["camera"], 0)}, "['camera']", "3"),
        ({**GOOD, "camera": {0: 1, 1: 2}}, "['camera']", "dict"),
        ({**GOOD, "camera": np.array(0)}, "['camera']", "Tuple"),
        ({**GOOD, "camera": (np.zeros((3, 2), np.uint8), 1)}, "['camera'][0]", "(3, 2)"),
        ({**GOOD, "camera": (np.zeros((2, 3)), 1)}, "['camera'][0]", "float64"),
        ({**GOOD, "camera": (GOOD["camera"][0], 0.5)}, "['camera'][1]", "float64"),
        ({**GOOD, "speed": np.zeros((4, 1), "f4")}, "['speed']", "(4, 1)"),
    ],
)
def test_a_faulty_nested_observation_is_refused_where_it_is_faulty(observation, leaf, words):
    writer, _ = writer_on(ROBOT, count=2, first=5)
    assert not writer.write_all([GOOD, observation])
    with pytest.raises(ObservationMismatch) as caught:
        writer.write(1, observation)
    assert (caught.value.env, caught.value.leaf) == (6, leaf)
    assert words in caught.value.problem


def test_loose_values_stay_as_they_are_next_to_fixed_ones():
    space = spaces.Dict({"a": spaces.Discrete(3), "t": spaces.Text(9), "u": spaces.Text(9)})
    writer, (column,) = writer_on(space)
    blank = Structure(space).blank_loose()
    text = ["not", "even", "text"]
    writer.write(1, {"a": 2, "t": text, "u": "up"})
    assert column.tolist() == [0, 2, 0]
    assert writer.loose[1][0] is text
    assert writer.loose == [blank, [text, "up"], blank]
    assert not writer.write_all([{"a": 2, "t": "t", "u": "u"}] * 3)


# The writer, all envs at once


def contiguous(array):
    return array


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def strided(array):
    return np.repeat(array[..., None], 2, axis=-1)[..., 0]


def backwards(array):
    return array[::-1] if array.ndim else array


def column_major(array):
    return array.copy(order="F")


EXACT = (contiguous, read_only, strided, backwards, column_major)
OTHER = (
    np.ndarray.tolist,
    lambda array: array.astype("f8"),
    lambda array: array.astype(">i2"),
    lambda array: array.T,
    lambda array: array[..., None],
    lambda array: array[None],
    np.ravel,
    lambda array: array[:1] if array.ndim else array,
    lambda array: np.concatenate([array, array]) if array.ndim else array,
    np.sum,
)


@st.composite
def batches(draw, changes):
    shape, dtype, count = draw(SHAPES), draw(DTYPES), draw(st.integers(1, 4))
    small = st.integers(0, 9)
    arrays = [draw(hnp.arrays(dtype, shape, elements=small)) for _ in range(count)]
    return box(shape, dtype), [draw(st.sampled_from(changes))(array) for array in arrays]


@PROPERTY
@given(batches(EXACT), st.booleans())
def test_exact_arrays_are_written_at_once_just_as_one_by_one(batch, nested):
    space, observations = batch
    if nested:
        space = spaces.Dict({"a": spaces.Tuple((space, space))})
        observations = [{"a": (value, value)} for value in observations]
    one_by_one, expected = writer_on(space, len(observations))
    at_once, found = writer_on(space, len(observations))
    for i, observation in enumerate(observations):
        one_by_one.write(i, observation)
    written = at_once.write_all(observations)
    scalar = Structure(space).leaves[0].shape == ()
    assert written or scalar
    assert not written or same(found, expected)


@PROPERTY
@given(batches(EXACT + OTHER))
def test_what_is_written_at_once_could_be_written_one_by_one_with_the_same_result(batch):
    space, observations = batch
    at_once, found = writer_on(space, len(observations))
    written = at_once.write_all(observations)
    if written:
        one_by_one, expected = writer_on(space, len(observations))
        for i, observation in enumerate(observations):
            one_by_one.write(i, observation)
        assert same(found, expected)
    assert not written or all(np.shape(value) == space.shape for value in observations)


@pytest.mark.parametrize(
    ("shape", "batches"),
    [
        ((4,), [[(4, 1), (4, 1)], [(4,), (4, 1)], [(1, 4), (1, 4)], [(), ()], [(2, 2), (2, 2)]]),
        ((4,), [[(3,), (5,)], [(5,), (3,)], [(8,), (0,)], [(0,), (8,)]]),
        ((4,), [[], [(4,)], [(8,)], [(4,), (4,), (4,)], [(4,), (2,), (2,)]]),
        ((2, 3), [[(3, 2), (3, 2)], [(2, 3), (2, 1)], [(1, 3), (3, 3)], [(2, 1), (2, 1)]]),
        ((1,), [[(), ()], [(0,), (2,)], [(1, 1), (1, 1)]]),
        ((), [[(1,), (1,)], [(2,), (0,)]]),
        ((0,), [[(0, 3), (0, 3)], [(0, 0), (0, 0)]]),
        ((0, 3), [[(0,), (0,)], [(0, 2), (0, 2)], [(0, 3), (0, 2)], [(0, 3, 1), (0, 3, 1)]]),
        ((3, 0), [[(0,), (0,)], [(3, 1), (3, 1)], [(3, 0), (3, 1)], [(3,), (3,)]]),
    ],
)
def test_arrays_of_other_shapes_or_numbers_are_never_written_at_once(shape, batches):
    nested = spaces.Tuple((box(shape), box((1,))))
    for shapes in batches:
        arrays = [floats(*each) for each in shapes]
        assert not writer_on(box(shape), 2)[0].write_all(arrays)
        pairs = [(array, floats(1)) for array in arrays]
        assert not writer_on(nested, 2)[0].write_all(pairs)


@pytest.mark.parametrize("dtype", ["f2", "f8", "i4", "u8", "?", ">f4"])
def test_numbers_of_other_dtypes_are_written_at_once_into_a_float_leaf(dtype):
    writer, (column,) = writer_on(box((4,)), 2)
    assert writer.write_all([floats(4), np.array([0, 1, 1, 0], dtype)])
    assert column.tolist() == [[0, 0, 0, 0], [0, 1, 1, 0]]


@pytest.mark.parametrize(
    ("leaf", "dtype"),
    [
        ("f4", "c8"),
        ("f4", "O"),
        ("f4", "U3"),
        ("i4", "i8"),
        ("i4", "?"),
        ("u1", "i1"),
        ("i2", "f4"),
    ],
)
def test_what_needs_a_closer_look_is_never_written_at_once(leaf, dtype):
    writer, _ = writer_on(spaces.Box(0, 1, (4,), np.dtype(leaf)), 2)
    assert not writer.write_all([np.ones(4, leaf), np.ones(4, dtype)])
    assert not writer.write_all([np.ones(4, dtype)] * 2)


@PROPERTY
@given(nested_spaces(FIXED), st.integers(0, 99))
def test_a_writer_touches_only_the_rows_of_its_shard(space, seed):
    space.seed(seed)
    structure = Structure(space)
    views = mapped(plan_layout(5, structure.fixed, (), final=False))
    shard = views.shard(range(1, 3))
    writer = ObservationWriter(structure, shard.observations, 1, 2)
    observations = [space.sample(), space.sample()]
    if not writer.write_all(observations):
        for i, observation in enumerate(observations):
            writer.write(i, observation)
    for whole, *values in zip(views.observations, *map(structure.split, observations), strict=True):
        assert same(whole[1:3], np.array(values))
        assert not whole[0].any()
        assert not whole[3:].any()


@pytest.mark.parametrize("at_once", [True, False])
def test_written_observations_are_copies(at_once):
    writer, (column,) = writer_on(box((2,)), 1)
    observation = np.ones(2, "f4")
    if at_once:
        assert writer.write_all([observation])
    else:
        writer.write(0, observation)
    observation[:] = 5
    assert column.tolist() == [[1, 1]]
