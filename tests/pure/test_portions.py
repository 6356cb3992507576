"""Arithmetic of partial batches: portions of quick envs, ids, bounds, traffic."""

from __future__ import annotations

import numpy as np
import pytest

from envfleet.engine.rules.ids import batch_bounds, checked_ids
from envfleet.engine.rules.portions import BUDGET, PENANCE, SLOW, Portion
from envfleet.engine.rules.seeding import ResetPlan, plan_subset
from envfleet.vector.traffic import Traffic

pytestmark = pytest.mark.pure


def settled(step, most=64):
    portion = Portion(most)
    for _ in range(50):
        portion.note(portion.size, portion.size * step)
    return portion


@pytest.mark.parametrize(
    ("step", "size"), [(BUDGET / 100, 64), (BUDGET / 10, 10), (BUDGET, 1), (20 * BUDGET, 1)]
)
def test_a_portion_is_as_many_as_fit_into_the_budget(step, size):
    assert settled(step).size == pytest.approx(size, abs=1)


def test_a_portion_grows_by_twice_at_most():
    portion = Portion(64)
    sizes = []
    for _ in range(4):
        sizes.append(portion.size)
        portion.note(portion.size, 1e-9)
    assert sizes == [1, 2, 4, 8]


def test_one_slow_env_has_the_next_ones_move_alone_for_a_while():
    portion = settled(BUDGET / 64)
    assert portion.is_quick
    portion.note(64, 2 * SLOW)
    for _ in range(PENANCE):
        assert portion.size == 1
        assert not portion.is_quick
        portion.note(1, BUDGET / 64)
    portion.note(1, BUDGET / 64)
    assert portion.size == 2


def test_none_is_all_envs():
    assert checked_ids(None, 3).tolist() == [0, 1, 2]
    assert checked_ids((2, np.int8(0)), 3).tolist() == [2, 0]
    assert checked_ids(np.array([1], dtype=np.uint8), 3).dtype == np.intp


@pytest.mark.parametrize(
    ("least", "most", "outstanding", "bounds"),
    [
        (None, None, 5, (5, 5)),
        (None, 3, 5, (3, 3)),
        (None, 9, 5, (5, 9)),
        (0, None, 5, (0, 5)),
        (2, 2, 5, (2, 2)),
    ],
)
def test_bounds_of_a_batch(least, most, outstanding, bounds):
    assert batch_bounds(least, most, outstanding) == bounds


def test_a_plan_for_some_envs_keeps_their_order():
    plan = plan_subset(10, {"a": 1}, [3, 0])
    assert plan == ResetPlan([3, 0], [13, 10], [{"a": 1}, {"a": 1}])
    assert plan.options[0] is not plan.options[1]
    assert plan.pick([0]) == ResetPlan([0], [10], [{"a": 1}])
    assert ResetPlan.joined(plan.singly()) == plan


def test_traffic_counts_only_envs_that_were_received_before():
    traffic = Traffic(3)
    everyone = np.arange(3)
    traffic.sent(everyone)
    traffic.received(everyone[:2], np.zeros(3), outstanding=3)
    traffic.sent(everyone)
    counts = traffic.take()
    assert counts.partial == 1
    assert 0 <= counts.received_to_sent < 60
    assert counts.env_steps.tolist() == [1, 1, 0]
