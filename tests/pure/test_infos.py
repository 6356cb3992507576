from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from gymnasium.vector import VectorEnv
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from nested import PROPERTY, same

from envfleet.engine.infos.board import ROOM, Board
from envfleet.engine.infos.merging import merge_infos
from envfleet.engine.infos.packing import join_infos, pack_infos, unpack_infos

pytestmark = pytest.mark.pure

KEYS = st.sampled_from(["reward", "episode", "final_info", "final_obs", "x"])
NUMBERS = ["i1", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]


def scalars(dtype):
    return hnp.arrays(dtype, (1,)).map(lambda array: array[0])


def arrays_alike():
    return st.tuples(
        st.sampled_from([*NUMBERS, "?", ">f8", "U3", "S2", "M8[s]"]),
        hnp.array_shapes(min_dims=0, min_side=0, max_side=3),
    ).map(lambda alike: hnp.arrays(*alike))


def objects():
    return st.text(max_size=3) | st.none() | st.lists(st.integers()) | st.tuples(st.integers())


# A schema is a dict of schemas, or a strategy whose values are all of one kind.
KINDS = st.one_of(
    st.just(st.integers(-(2**63), 2**63 - 1)),
    st.just(st.floats()),
    st.just(st.booleans()),
    st.sampled_from(NUMBERS).map(scalars),
    st.just(st.booleans().map(np.bool_)),
    st.just(objects()),
    arrays_alike(),
    st.just(hnp.arrays(object, 2, elements=objects(), fill=st.nothing())),
)
SCHEMAS = st.dictionaries(
    KEYS, st.recursive(KINDS, lambda sub: st.dictionaries(KEYS, sub, max_size=3)), max_size=3
)


@st.composite
def infos(draw, schema):
    return {
        key: draw(infos(kind)) if isinstance(kind, dict) else draw(kind)
        for key, kind in schema.items()
        if draw(st.booleans())
    }


@st.composite
def fleets(draw):
    schema = draw(SCHEMAS)
    num_envs = draw(st.integers(1, 4))
    envs = sorted(draw(st.sets(st.integers(0, num_envs - 1))))
    return [(env, draw(infos(schema))) for env in envs], num_envs


def as_gymnasium(entries, num_envs):
    fleet = VectorEnv()
    fleet.num_envs = num_envs
    merged = {}
    for env, info in entries:
        merged = fleet._add_info(merged, info, env)
    return merged


def column(*values):
    """The column of a key of which every env has a value."""
    merged = merge_infos([(env, {"x": value}) for env, value in enumerate(values)], len(values))
    assert list(merged) == ["x", "_x"]
    assert same(merged["_x"], np.ones(len(values), dtype=bool))
    return merged["x"]


def objects_of(*values):
    array = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        array[i] = value
    return array


@PROPERTY
@given(fleets())
def test_values_of_one_kind_per_key_look_just_as_in_gymnasium(fleet):
    assert same(merge_infos(*fleet), as_gymnasium(*fleet))


@pytest.mark.parametrize(
    "entries",
    [
        [(1, {"x": 1}), (0, {"x": 0}), (2, {"x": 2})],
        [(2, {"x": 1.5}), (0, {"x": 0.5})],
        [(2, {"x": {"y": "b"}}), (1, {"x": {"y": "a"}}), (0, {"x": {"y": "c"}})],
        [(1, {"x": np.ones(2)}), (0, {"x": np.zeros(2)}), (2, {"x": np.ones(2)})],
    ],
)
def test_each_value_goes_to_its_own_env_in_whatever_order_the_infos_come(entries):
    assert same(merge_infos(entries, 3), as_gymnasium(entries, 3))


def test_no_infos_are_an_empty_dict():
    assert merge_infos([], 3) == {}
    assert merge_infos([(1, {})], 3) == {}


def test_final_obs_is_one_object_per_env_even_where_it_would_stack():
    first, last = np.zeros(2), np.ones(2)
    merged = merge_infos([(0, {"final_obs": first}), (2, {"final_obs": last})], 3)
    assert merged["final_obs"].dtype == object
    assert merged["final_obs"][0] is first
    assert merged["final_obs"][1] is None
    assert merged["final_obs"][2] is last
    assert merged["_final_obs"].tolist() == [True, False, True]


def test_the_envs_infos_are_left_as_they_were():
    info = {"x": {"y": np.ones(2)}, "z": [1]}
    merged = merge_infos([(0, info)], 2)
    merged["x"]["y"][:] = 9
    assert same(info, {"x": {"y": np.ones(2)}, "z": [1]})


def test_numbers_of_several_kinds_get_their_common_dtype_in_any_order():
    for values, expected in [
        ((1, 1.5), np.array([1.0, 1.5])),
        ((True, 2), np.array([1, 2])),
        ((1, np.uint8(2)), np.array([1, 2])),
        ((np.float32(0.1), 0.1), np.array([np.float32(0.1), 0.1])),
        ((np.int8(-1), np.uint8(255)), np.array([-1, 255], dtype=np.int16)),
        ((np.uint64(3), -1), np.array([3.0, -1.0])),
        ((1.5, np.complex64(1j)), np.array([1.5, 1j])),
        ((2**53, 0.5), np.array([2.0**53, 0.5])),
        ((float("inf"), float("nan"), 1), np.array([np.inf, np.nan, 1.0])),
    ]:
        assert same(column(*values), expected)
        assert same(column(*values[::-1]), expected[::-1].copy())


@pytest.mark.parametrize(
    "rows",
    [
        [(2**53 + 1, 0.5), (np.int64(2**53 + 1), 0.5), (10**400, 0.5)],
        [(np.uint64(2**64 - 1), -1), (np.uint64(2**63), 0.5, np.int64(-(2**63) + 1))],
        [(2**63, 1), (-(2**63) - 1, 2**70), (2**64 - 1, -1)],
        [(1, "a"), (None, 0.5), ([1, 2], [3, 4]), (1, np.zeros(2)), ("a", np.zeros(2))],
        [({"y": 1}, 1), ({"y": 1}, None), (np.zeros(2), {"y": 1})],
        [(np.datetime64("2020-01-01"), np.datetime64("2020-01-02"))],
    ],
    ids=["rounded", "unsigned", "huge", "others", "dicts", "dates"],
)
def test_values_that_fit_no_dtype_unchanged_become_objects_in_any_order(rows):
    for values in rows:
        assert same(column(*values), objects_of(*values))
        assert same(column(*values[::-1]), objects_of(*values[::-1]))


@pytest.mark.parametrize("value", [2**63, "text"], ids=repr)
def test_an_object_column_has_none_for_the_envs_without_the_key(value):
    merged = merge_infos([(1, {"x": value})], 3)
    assert same(merged["x"], objects_of(None, value, None))
    assert merged["_x"].tolist() == [False, True, False]


@pytest.mark.parametrize(
    "others",
    [
        (np.timedelta64(1, "D"), np.timedelta64(3, "m")),
        (np.timedelta64(7, "M"),),
        (3,),
        (0.5,),
    ],
    ids=["unit", "months", "int", "float"],
)
def test_durations_are_never_changed(others):
    values = (np.timedelta64(5, "s"), *others)
    for ordered in (values, values[::-1]):
        found = column(*ordered)
        assert found.dtype == object or found.dtype.kind == "m"
        assert all(type(a) is type(b) for a, b in zip(found, ordered, strict=True))
        assert all(a == b for a, b in zip(found, ordered, strict=True))


@pytest.mark.parametrize(
    "values",
    [
        (True, np.False_, False),
        (np.False_, True, False),
        (2, np.True_),
        (1, np.array(5)),
        (0.5, np.array(5), np.float64(1)),
        (np.array(5), 1),
    ],
)
def test_scalars_that_fit_the_column_gymnasium_opens_look_as_in_gymnasium(values):
    entries = [(env, {"x": value}) for env, value in enumerate(values)]
    assert same(merge_infos(entries, len(values)), as_gymnasium(entries, len(values)))


def test_a_scalar_array_that_gymnasium_would_round_gets_the_common_dtype():
    assert same(column(1, np.array(0.5)), np.array([1.0, 0.5]))
    assert same(column(2**53 + 1, np.array(0.5)), objects_of(2**53 + 1, np.array(0.5)))
    for other in (np.array("a"), np.array(None)):
        assert same(column(1, other), objects_of(1, other))


def test_arrays_of_several_dtypes_get_their_common_dtype():
    for dtypes, expected in [
        (("i4", "f4"), "f8"),
        (("f4", "f8"), "f8"),
        (("i1", "u1"), "i2"),
        (("?", "i8"), "i8"),
        (("u8", "i8"), "f8"),
        (("U1", "U4"), "U4"),
        (("S4", "S1"), "S4"),
    ]:
        values = [np.array([[0, 1]]).astype(dtype) for dtype in dtypes]
        assert same(column(*values), np.array([[[0, 1]]] * 2).astype(expected))


@pytest.mark.parametrize(
    "pairs",
    [
        [(np.zeros(2), np.zeros(3)), (np.zeros(2), np.zeros((2, 1))), (np.zeros(0), np.zeros(1))],
        [(np.zeros((2, 3)), np.zeros((3, 2))), (np.zeros(1), np.array(0.0))],
        [(np.array([2**64 - 1], "u8"), np.array([-1])), (np.array([2**53 + 1]), np.array([0.5]))],
        [(np.array(["a"]), np.array([1])), (np.array(["a"]), np.array([b"a"]))],
        [(np.array([1]), np.array([None])), (np.array([1], "m8[s]"), np.array([1]))],
        [(np.zeros(1, [("a", "i4")]), np.zeros(1, [("b", "i4")]))],
    ],
    ids=["length", "shape", "rounded", "text", "kind", "fields"],
)
def test_arrays_that_do_not_stack_unchanged_become_objects_in_any_order(pairs):
    for one, other in pairs:
        for values in ((one, other), (other, one)):
            found = column(*values)
            assert (found.dtype, found.shape) == (object, (2,))
            assert all(a is b for a, b in zip(found, values, strict=True))


def test_the_rules_hold_inside_nested_dicts():
    entries = [
        (0, {"episode": {"r": 1, "tag": {"n": 2**70}}}),
        (2, {"episode": {"r": 0.5, "tag": {"n": 1}}}),
        (3, {"episode": {}}),
    ]
    mask = np.array([True, False, True, False])
    expected = {
        "episode": {
            "r": np.array([1.0, 0, 0.5, 0]),
            "_r": mask,
            "tag": {"n": objects_of(2**70, None, 1, None), "_n": mask},
            "_tag": mask,
        },
        "_episode": np.array([True, False, True, True]),
    }
    assert same(merge_infos(entries, 4), expected)


# Packed for the way to the caller

ANYTHING = st.dictionaries(KEYS, KINDS.flatmap(lambda kind: kind), max_size=3)


@st.composite
def mixed_fleets(draw):
    num_envs = draw(st.integers(1, 4))
    envs = sorted(draw(st.sets(st.integers(0, num_envs - 1))))
    return [(env, draw(ANYTHING)) for env in envs], num_envs


@PROPERTY
@given(fleets() | mixed_fleets(), st.integers(0, 4))
def test_packed_infos_merge_as_plain_ones_do_wherever_the_shards_begin(fleet, cut):
    entries, num_envs = fleet
    shards = [e for e in entries if e[0] < cut], [e for e in entries if e[0] >= cut]
    blocks = [block for shard in shards for block in pack_infos(shard)]
    assert same(join_infos(blocks, num_envs), merge_infos(entries, num_envs))


@PROPERTY
@given(fleets() | mixed_fleets())
def test_unpacking_gives_the_same_values_of_the_same_types(fleet):
    entries, _ = fleet
    again = unpack_infos(pack_infos(entries))
    assert same(again, entries)
    for (_, info), (_, before) in zip(again, entries, strict=True):
        assert {k: type(v) for k, v in info.items()} == {k: type(v) for k, v in before.items()}


def test_numbers_of_one_type_are_packed_as_arrays():
    (block,) = pack_infos(
        [(2, {"a": 1.5, "b": np.float32(2), "c": "x"}), (3, {"a": 2.5, "b": np.float32(3), "c": 1})]
    )
    assert list(block.env_ids) == [2, 3]
    assert same(block.columns["a"], np.array([1.5, 2.5]))
    assert same(block.columns["b"], np.array([2, 3], dtype=np.float32))
    assert block.columns["c"] == ["x", 1]


@pytest.mark.parametrize("kind", [float, np.float64, np.float32, int, bool])
def test_numbers_everywhere_are_one_matrix_that_survives_the_way(kind):
    entries = [(env, {"a": kind(env), "b": kind(-env)}) for env in range(4)]
    blocks = [
        pickle.loads(pickle.dumps(b))
        for part in (entries[:2], entries[2:])
        for b in pack_infos(part)
    ]
    assert [block.matrix.shape for block in blocks] == [(2, 2), (2, 2)]
    assert same(join_infos(blocks, 4), merge_infos(entries, 4))
    assert same(unpack_infos(blocks), entries)
    assert {type(v) for _, info in unpack_infos(blocks) for v in info.values()} == {kind}


def test_numbers_of_several_types_keep_theirs():
    entries = [
        (env, {"a": float(env), "b": np.float32(env / 3), "c": 2**53 - 1 - env, "d": env == 1})
        for env in range(3)
    ]
    blocks = pack_infos(entries)
    assert blocks[0].matrix.shape == (3, 4)
    assert same(join_infos(blocks, 3), merge_infos(entries, 3))
    assert same(join_infos(blocks, 4), merge_infos(entries, 4))
    kinds = [type(v) for v in unpack_infos(blocks)[0][1].values()]
    assert kinds == [float, np.float32, int, bool]


@pytest.mark.parametrize("large", [2**53, 2**53 + 1, -(2**53) - 1, 2**63, 10**400])
def test_ints_that_a_float_would_round_arrive_as_they_are(large):
    entries = [(env, {"a": float(env), "b": large + env}) for env in range(2)]
    blocks = [pickle.loads(pickle.dumps(block)) for block in pack_infos(entries)]
    assert unpack_infos(blocks) == entries
    assert same(join_infos(blocks, 2), merge_infos(entries, 2))


# On the board


def floats(env_ids, keys="ab", kind=float):
    return pack_infos([(env, {key: kind(env) for key in keys}) for env in env_ids])


@pytest.fixture
def boards():
    """The worker's and the caller's, for envs 4 and 5 of a fleet."""
    rows = np.full((2, ROOM), np.nan)
    return Board(rows, range(4, 6)), Board(rows, range(4, 6))


def test_numbers_are_left_on_the_board_once_both_sides_know_the_keys(boards):
    worker, caller = boards
    blocks = floats([4, 5])
    assert not worker.write(blocks)
    for board in boards:
        board.learn(blocks)
    later = pack_infos([(4, {"a": 7.0, "b": 8.0}), (5, {"a": 9.0, "b": math.nan})])
    assert worker.write(later)
    assert same(join_infos(caller.read(), 6), join_infos(later, 6))


@pytest.mark.parametrize(
    "blocks",
    [
        floats([4]),
        floats([4, 5], keys="ba"),
        floats([4, 5], keys="abc"),
        floats([4, 5], kind=np.float32),
        floats([4, 5], kind=int),
        pack_infos([(4, {"a": 1.0, "b": 1.0}), (5, {"a": 1.0})]),
    ],
)
def test_what_is_not_known_goes_by_wire(boards, blocks):
    worker, _ = boards
    worker.learn(floats([4, 5]))
    assert not worker.write(blocks)
    assert worker.write(floats([4, 5]))


def test_the_board_has_room_for_some_keys_only(boards):
    worker, _ = boards
    many = floats([4, 5], keys=[f"k{i}" for i in range(ROOM + 1)])
    worker.learn(many)
    assert not worker.write(many)


def test_merged_infos_are_the_callers_own_to_change():
    merged = join_infos(pack_infos([(env, {"a": 1.0, "b": 2.0}) for env in range(3)]), 3)
    merged["a"][:] = 7.0
    merged["_a"][:] = False
    assert merged["b"].tolist() == [2.0] * 3
    assert merged["_b"].all()
