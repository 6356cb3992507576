from __future__ import annotations

import random
from collections import UserDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nested import PROPERTY

from envfleet.engine.rules.seeding import ResetPlan, env_seeds, plan_reset, worker_seeds

pytestmark = pytest.mark.pure

SEEDS = [10, None, 30]


def generator_states():
    return random.getstate(), np.random.get_state()


@PROPERTY
@given(st.integers(0, 2**64), st.integers(1, 8))
def test_an_integer_seeds_consecutively(seed, num_envs):
    assert env_seeds(seed, num_envs) == list(range(seed, seed + num_envs))


@pytest.mark.parametrize(
    ("seed", "expected"),
    [
        (None, [None, None, None]),
        (np.uint8(254), [254, 255, 256]),
        ([7, None, 7], [7, None, 7]),
        ((1, 2, 3), [1, 2, 3]),
        (range(3), [0, 1, 2]),
        (np.array([4, 5, 6], dtype=np.uint32), [4, 5, 6]),
    ],
)
def test_seeds_per_env_are_plain_integers_or_none(seed, expected):
    found = env_seeds(seed, 3)
    assert found == expected
    assert {type(entry) for entry in found} <= {int, type(None)}


def test_a_list_of_another_length_is_refused():
    for seed in ([], [1, 2], (1, 2, 3, 4), np.arange(2)):
        with pytest.raises(ValueError, match=rf"num_envs=3 but got length={len(seed)}"):
            env_seeds(seed, 3)


def test_what_is_no_integer_and_no_list_is_refused():
    for seed in (1.5, "123", {1, 2, 3}, {0: 1, 1: 2, 2: 3}, object(), iter([1, 2, 3])):
        with pytest.raises(TypeError, match="`seed` must be"):
            env_seeds(seed, 3)


def test_a_list_of_anything_but_integers_is_refused_not_rounded():
    for seed in ([1.5, 2, 3], np.array([1.5, 2, 3]), ["1", "2", "3"]):
        with pytest.raises((TypeError, ValueError)):
            env_seeds(seed, 3)


def test_without_options_every_env_is_reset():
    assert plan_reset(SEEDS, None, 3) == ResetPlan([0, 1, 2], SEEDS, [None, None, None])


@pytest.mark.parametrize("wrap", [dict, UserDict])
def test_one_options_dict_reaches_every_env_as_its_own(wrap):
    options = wrap({"level": 3})
    plan = plan_reset(SEEDS, options, 3)
    assert plan == ResetPlan([0, 1, 2], SEEDS, [{"level": 3}] * 3)
    plan.options[0]["level"] = 4
    assert (plan.options[1:], options) == ([{"level": 3}] * 2, {"level": 3})


@PROPERTY
@given(st.lists(st.booleans(), min_size=1, max_size=6).filter(any))
def test_a_mask_resets_the_masked_envs_with_their_seeds_and_the_other_options(chosen):
    mask = np.array(chosen)
    options = {"reset_mask": mask, "level": 3}
    picked = [i for i, yes in enumerate(chosen) if yes]
    plan = plan_reset(list(range(100, 100 + len(chosen))), options, len(chosen))
    assert plan == ResetPlan(picked, [100 + i for i in picked], [{"level": 3}] * len(picked))
    assert len({id(own) for own in plan.options}) == len(picked)
    assert options == {"reset_mask": mask, "level": 3}


@pytest.mark.parametrize(
    ("mask", "error", "words"),
    [
        ([True, False, True], TypeError, "must be a numpy array"),
        (None, TypeError, "must be a numpy array"),
        (np.array([1, 0, 1]), TypeError, "dtype=np.bool_"),
        (np.array([True, False]), ValueError, r"shape `\(3,\)`, got \(2,\)"),
        (np.ones((3, 1), dtype=bool), ValueError, "shape"),
        (np.zeros(3, dtype=bool), ValueError, "at least one True"),
    ],
)
def test_a_bad_mask_is_refused(mask, error, words):
    with pytest.raises(error, match=words):
        plan_reset(SEEDS, {"reset_mask": mask}, 3)


def test_a_list_of_options_reaches_each_env_as_a_copy():
    options = [{"level": 1}, None, UserDict(level=3)]
    plan = plan_reset(SEEDS, options, 3)
    assert plan == ResetPlan([0, 1, 2], SEEDS, [{"level": 1}, None, {"level": 3}])
    plan.options[0]["level"] = 9
    assert options[0] == {"level": 1}
    assert plan_reset(SEEDS, tuple(options), 3).env_ids == [0, 1, 2]


def test_options_of_no_known_form_are_refused():
    for options, error in (
        ([{}, {}], ValueError),
        ((), ValueError),
        (3, TypeError),
        ("abc", TypeError),
    ):
        with pytest.raises(error, match="options"):
            plan_reset(SEEDS, options, 3)


@PROPERTY
@given(st.sets(st.integers(0, 9)), st.lists(st.integers(0, 10), min_size=2, max_size=4).map(sorted))
def test_shards_take_just_their_own_part_of_a_plan(envs, cuts):
    ids = sorted(envs)
    plan = ResetPlan(ids, [100 + i for i in ids], [{"env": i} for i in ids])
    for start, stop in zip([0, *cuts], [*cuts, 10], strict=True):
        mine = [i for i in ids if start <= i < stop]
        expected = ResetPlan(mine, [100 + i for i in mine], [{"env": i} for i in mine])
        assert plan.shard(range(start, stop)) == expected


PLANS = st.dictionaries(st.integers(0, 5), st.integers(0, 9)).map(
    lambda wanted: ResetPlan(
        sorted(wanted),
        [wanted[i] for i in sorted(wanted)],
        [{"n": wanted[i]} for i in sorted(wanted)],
    )
)


@PROPERTY
@given(PLANS, PLANS)
def test_a_plan_after_an_unsent_one_overrides_it_env_by_env(plan, unsent):
    def by_env(plan):
        return dict(zip(plan.env_ids, zip(plan.seeds, plan.options, strict=True), strict=True))

    both = plan.after(unsent)
    assert by_env(both) == {**by_env(unsent), **by_env(plan)}
    assert both.env_ids == sorted({*plan.env_ids, *unsent.env_ids})


@PROPERTY
@given(st.integers(0, 2**32 - 1), st.integers(0, 50), st.integers(1, 100))
def test_worker_seeds_repeat_and_differ_between_workers(seed, fleet, workers):
    found = []
    for _ in range(2):
        random.seed(seed)
        np.random.seed(seed)
        found.append(worker_seeds(generator_states(), fleet, workers))
    assert found[0] == found[1]
    assert len(set(found[0])) == workers
    assert all(type(word) is int and 0 <= word < 2**32 for word in found[0])


def test_worker_seeds_depend_on_the_fleet_and_on_both_generators():
    random.seed(1)
    np.random.seed(1)
    state = generator_states()
    np.random.seed(2)
    other_numpy = generator_states()
    np.random.seed(1)
    random.seed(2)
    other_python = generator_states()
    found = [worker_seeds(s, 0, 4) for s in (state, other_numpy, other_python)]
    found.append(worker_seeds(state, 1, 4))
    assert len({word for words in found for word in words}) == 16


def test_worker_seeds_draw_nothing_from_the_callers_generators():
    random.seed(5)
    np.random.seed(5)
    expected = random.random(), np.random.random()
    random.seed(5)
    np.random.seed(5)
    worker_seeds(generator_states(), 0, 4)
    assert (random.random(), np.random.random()) == expected
