from __future__ import annotations

import re

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode
from hypothesis import given
from hypothesis import strategies as st
from nested import PROPERTY

from envfleet.engine.rules.autoreset import ResetDuty

FLAGS = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=6)
NEVER = np.zeros(4, dtype=bool)


def flags(*envs):
    return np.isin(np.arange(4), envs)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_fleet_whose_episodes_go_on_may_step(mode):
    duty = ResetDuty(mode)
    duty.check()
    duty.has_stepped(NEVER, NEVER)
    duty.check()


@PROPERTY
@given(FLAGS)
def test_with_autoreset_disabled_ended_envs_must_be_reset_first(ends):
    duty = ResetDuty(AutoresetMode.DISABLED)
    terminated, truncated = np.array(ends).T
    duty.has_stepped(terminated, truncated)
    for env in np.flatnonzero(terminated | truncated):
        with pytest.raises(ResetNeeded, match=rf"envs .*\b{env}\b|envs .*-.* DISABLED"):
            duty.check()
        duty.was_reset([int(env)])
    duty.check()


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_with_autoreset_ended_envs_may_step(mode):
    duty = ResetDuty(mode)
    duty.has_stepped(flags(0, 3), flags(1))
    duty.check()


@pytest.mark.parametrize("mode", AutoresetMode)
def test_envs_that_raised_must_be_reset_in_every_mode(mode):
    duty = ResetDuty(mode)
    duty.has_failed(env for env in (2, 0, 1))
    duty.has_failed([2])
    with pytest.raises(ResetNeeded, match=r"envs 0-2 raised an error.*No env was stepped"):
        duty.check()
    duty.was_reset([0, 2])
    with pytest.raises(ResetNeeded, match=r"envs 1 raised"):
        duty.check()
    duty.was_reset([1, 3])
    duty.check()


def test_ended_envs_are_named_with_the_reason_and_the_way_out():
    duty = ResetDuty(AutoresetMode.DISABLED)
    duty.has_stepped(flags(0, 3), flags(3))
    words = "envs 0, 3 ended their episode and autoreset_mode is DISABLED"
    with pytest.raises(ResetNeeded, match=re.escape(words) + ".*reset_mask"):
        duty.check()
    with pytest.raises(ResetNeeded):
        duty.check()


def test_a_reset_of_the_envs_that_raised_does_not_excuse_those_that_ended():
    duty = ResetDuty(AutoresetMode.DISABLED)
    duty.has_stepped(flags(1), NEVER)
    duty.has_failed([3])
    with pytest.raises(ResetNeeded, match="3"):
        duty.check()
    duty.was_reset([3])
    with pytest.raises(ResetNeeded, match="envs 1 ended"):
        duty.check()


def test_an_env_that_ended_and_raised_needs_one_reset_only():
    duty = ResetDuty(AutoresetMode.DISABLED)
    duty.has_stepped(flags(1), NEVER)
    duty.has_failed([1])
    duty.was_reset([1])
    duty.check()


@pytest.mark.parametrize("wrap", [list, iter])
def test_any_iterable_of_envs_counts_as_reset(wrap):
    duty = ResetDuty(AutoresetMode.DISABLED)
    duty.has_stepped(flags(0), NEVER)
    duty.has_failed([1])
    duty.was_reset(wrap([0, 1]))
    duty.check()
