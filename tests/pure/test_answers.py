"""What is said about what an env returned."""

from __future__ import annotations

import numpy as np
import pytest

from envfleet.engine.rules.answers import flag, number, reset_parts, step_problem


class Tensor:
    """As torch's and jax's: it has a shape and ``item``, and is no NumPy array."""

    def __init__(self, *values: float):
        self.values, self.shape = values, (len(values),)

    def item(self):
        (value,) = self.values
        return value

    def __bool__(self):
        return bool(self.item())


@pytest.mark.parametrize("value", [2, 2.0, np.int8(2), np.array(2), np.array([[2.0]]), Tensor(2.0)])
def test_one_number_of_any_library_is_a_reward(value):
    assert number(value, 0) == 2.0


def test_several_numbers_are_none():
    with pytest.raises(
        ValueError, match=r"^env 7 in step returned a Tensor of shape \(2,\) as `reward`"
    ):
        number(Tensor(1, 2), 7)


def test_a_long_string_is_cut():
    with pytest.raises(ValueError, match=r"the str 'x+\.\.\. as `reward`") as caught:
        number("x" * 1000, 0)
    assert len(str(caught.value)) < 150


@pytest.mark.parametrize(
    "value", [False, np.False_, 0, 0.0, None, "", {}, np.array([0]), Tensor(0)]
)
def test_what_is_false_is_false(value):
    assert flag(value, "terminated", 0) is False


@pytest.mark.parametrize("value", [True, np.True_, 1, 1.0, np.array([[1]]), Tensor(1)])
def test_what_is_one_is_true(value):
    assert flag(value, "terminated", 0) is True


@pytest.mark.parametrize(
    "value", ["no", 2, -1, np.nan, [False], {"a": 1}, np.zeros(2), Tensor(0, 0)]
)
def test_what_is_neither_is_refused(value):
    with pytest.raises(ValueError, match=r"^env 3 in step returned .* as `truncated`; expected"):
        flag(value, "truncated", 3)


def test_a_reset_returns_a_pair_whose_info_may_be_none():
    assert reset_parts((5, {"a": 1}), 0) == (5, {"a": 1})
    assert reset_parts([5, None], 0) == (5, None)


def test_five_values_are_a_step_whatever_their_sequence():
    assert step_problem([0, 1.0, False, None, {}], 0) is None
    assert "4 values (int, float, bool, dict)" in str(step_problem((0, 1.0, False, {}), 0))
