from __future__ import annotations

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode
from hypothesis import given
from hypothesis import strategies as st
from nested import PROPERTY

from envfleet.engine.rules.autoreset import check_steppable
from envfleet.errors import name_envs

pytestmark = pytest.mark.pure

NEXT, SAME, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
FLAGS = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=6)


def flags(*envs):
    return np.isin(np.arange(4), envs)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_fleet_whose_episodes_go_on_may_step(mode):
    check_steppable(mode, flags(), flags(), flags())


@pytest.mark.parametrize("mode", [NEXT, SAME])
def test_with_autoreset_ended_envs_may_step(mode):
    check_steppable(mode, flags(0, 3), flags(1, 3), flags())


@PROPERTY
@given(FLAGS)
def test_with_autoreset_disabled_just_the_ended_envs_must_be_reset_first(ends):
    terminated, truncated = np.array(ends).T
    failed = np.zeros(len(ends), dtype=bool)
    ended = [env for env, either in enumerate(ends) if any(either)]
    if ended:
        words = f"^envs {name_envs(ended)} ended their episode and autoreset_mode is DISABLED"
        with pytest.raises(ResetNeeded, match=words):
            check_steppable(DISABLED, terminated, truncated, failed)
    else:
        check_steppable(DISABLED, terminated, truncated, failed)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_envs_that_raised_must_be_reset_in_every_mode(mode):
    with pytest.raises(ResetNeeded, match=r"^envs 0, 2-3 raised an error"):
        check_steppable(mode, flags(), flags(), flags(0, 2, 3))
    with pytest.raises(ResetNeeded, match=r"^envs .*1.* raised an error"):
        check_steppable(mode, flags(2), flags(3), flags(1))


def test_the_refusal_tells_the_way_out():
    with pytest.raises(ResetNeeded, match=r"reset_mask.*No env was stepped"):
        check_steppable(DISABLED, flags(1), flags(), flags())


@pytest.mark.parametrize("step", [2, -1])
def test_flags_need_not_be_contiguous(step):
    ended = np.repeat(flags(1), 2)[::step]
    with pytest.raises(ResetNeeded):
        check_steppable(DISABLED, ended, np.zeros_like(ended), np.zeros_like(ended))
