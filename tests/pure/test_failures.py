from __future__ import annotations

import pickle
import threading
from dataclasses import dataclass, fields

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from hypothesis import given
from hypothesis import strategies as st
from nested import PROPERTY, same

from envfleet.engine.arena.arena import Terms
from envfleet.engine.arena.layout import plan_layout
from envfleet.engine.failures import LARGEST_EXCEPTION, LONGEST_TEXT, Failure, raise_first
from envfleet.engine.messages import (
    Attach,
    Call,
    Close,
    Outcome,
    Reset,
    SetAttr,
    Step,
    decode_command,
    decode_outcome,
    encode_command,
    encode_number,
    encode_outcome,
    number_of,
)
from envfleet.engine.rules.seeding import ResetPlan
from envfleet.engine.rules.spaces import Structure
from envfleet.errors import EnvError, ObservationMismatch

pytestmark = pytest.mark.pure

PLACE = " (worker 1)"


class Rich(Exception):  # noqa: N818
    def __init__(self, text, code=0):
        super().__init__(text)
        self.code = code


class TwoArguments(Exception):  # noqa: N818
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


class Reworded(Exception):  # noqa: N818
    def __init__(self, code):
        super().__init__(f"code {code}")


class Irreducible(Exception):  # noqa: N818
    def __reduce__(self):
        raise RuntimeError("no")


class OtherWhenLoaded(Exception):  # noqa: N818
    def __reduce__(self):
        return ValueError, self.args


class Speechless(Exception):  # noqa: N818
    def __str__(self):
        raise RuntimeError("no words")


@dataclass(frozen=True)
class Frozen(Exception):  # noqa: N818
    code: int


def unpicklable():
    error = ValueError("holds a lock")
    error.lock = threading.Lock()
    return error


def rich():
    error = Rich("some text", code=7)
    error.add_note("the env's own note")
    return error


def captured(error, env=3, phase="step"):
    try:
        raise_in_env(error)
    except BaseException as caught:  # noqa: BLE001
        return Failure.capture(env, phase, caught)


def raise_in_env(error):
    raise error


def test_a_failure_tells_what_was_raised_where():
    error = KeyError("speed")
    failure = captured(error)
    assert (failure.env, failure.phase, failure.type_name) == (3, "step", "KeyError")
    assert (failure.text, failure.error, failure.pickled) == ("'speed'", error, None)
    assert "raise_in_env" in failure.traceback
    assert "KeyError: 'speed'" in failure.traceback


def test_a_packed_failure_pickles_and_no_longer_holds_the_exception_itself():
    failure = captured(rich()).packed()
    assert failure.error is None
    assert pickle.loads(pickle.dumps(failure)) == failure


def test_an_exception_that_travelled_keeps_type_and_content_and_has_its_traceback_as_cause():
    error = captured(rich()).packed().exception(PLACE)
    assert type(error) is Rich
    assert (error.args, error.code) == (("some text",), 7)
    assert error.__notes__ == ["the env's own note", "raised by env 3 in step (worker 1)"]
    cause = error.__cause__
    assert type(cause) is EnvError
    assert (cause.env, cause.phase, cause.type_name) == (3, "step", "Rich")
    assert "raise_in_env" in str(cause)


@pytest.mark.parametrize(
    "error",
    [ValueError(), OSError(2, "gone"), UnicodeDecodeError("utf8", b"x", 0, 1, "bad"),
     ObservationMismatch(3, "", "is odd"), ExceptionGroup("both", [ValueError(1), KeyError(2)])],
    ids=repr,
)  # fmt: skip
def test_exceptions_travel_with_their_text(error):
    found = captured(error).packed().exception(PLACE)
    assert (type(found), str(found)) == (type(error), str(error))


def test_an_exception_of_a_local_class_travels():
    class Local(Exception):  # noqa: N818
        pass

    found = captured(Local("text")).packed().exception(PLACE)
    assert (type(found).__name__, str(found)) == ("Local", "text")
    assert isinstance(found.__cause__, EnvError)


@pytest.mark.parametrize("make", [rich, unpicklable, lambda: TwoArguments(1, 2)])
def test_in_its_own_process_the_very_exception_is_raised_with_a_note(make):
    error = make()
    failure = captured(error)
    assert failure.exception("") is error
    assert error.__notes__[-1] == "raised by env 3 in step"


def test_an_exception_that_refuses_a_note_does_not_get_lost():
    error = Frozen(4)
    found = captured(error).exception("")
    assert found is error or (type(found), found.type_name) == (EnvError, "Frozen")


def test_in_its_own_process_an_exception_keeps_its_own_cause():
    error, cause = KeyError("speed"), ValueError("cause")
    error.__cause__ = cause
    assert captured(error).exception("").__cause__ is cause


@pytest.mark.parametrize(
    "error",
    [unpicklable(), TwoArguments("a", "b"), Irreducible("x"), OtherWhenLoaded("x"), Frozen(4)],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_that_cannot_travel_is_told_as_text(error):
    failure = captured(error).packed()
    found = failure.exception(PLACE)
    assert (type(found), failure.pickled) == (EnvError, None)
    assert (found.env, found.phase, found.type_name) == (3, "step", type(error).__name__)
    assert found.text == str(error)
    assert "raise_in_env" in found.traceback
    assert found.__notes__ == ["raised by env 3 in step (worker 1)"]


def test_an_exception_whose_constructor_rewords_its_text_does_not_arrive_with_another_text():
    found = captured(Reworded(5)).packed().exception(PLACE)
    assert getattr(found, "text", str(found)) == "code 5"


@pytest.mark.parametrize(
    "kind", [SystemExit, StopIteration, StopAsyncIteration, KeyboardInterrupt, GeneratorExit]
)
def test_control_flow_is_told_as_text_everywhere(kind):
    here = captured(kind("stop"))
    for failure in (here, here.packed()):
        found = failure.exception("")
        assert type(found) is EnvError
        assert (found.type_name, found.text) == (kind.__name__, "stop")


def test_a_huge_exception_is_told_with_shortened_text():
    failure = captured(ValueError("start " + "x" * 50_000_000 + " end")).packed()
    found = failure.exception(PLACE)
    assert type(found) is EnvError
    assert len(pickle.dumps(failure)) < 100_000
    for text in (found.text, found.traceback):
        assert len(text) < LONGEST_TEXT + 100
        assert "characters left out" in text
        assert text.rstrip().endswith(" end")
    assert found.text.startswith("start ")


def test_a_large_exception_within_the_limit_travels_whole():
    text = "x" * (LARGEST_EXCEPTION // 2)
    found = captured(ValueError(text)).packed().exception(PLACE)
    assert (type(found), str(found) == text) == (ValueError, True)
    assert len(str(found.__cause__)) < 3 * LONGEST_TEXT


def test_an_exception_without_words_is_still_told():
    failure = captured(Speechless())
    assert "RuntimeError" in failure.text
    assert "Speechless" in failure.traceback
    assert failure.type_name == "Speechless"


def test_bytes_that_are_no_exception_are_told_as_text():
    for pickled in (b"junk", b"", pickle.dumps("no exception")):
        found = Failure(3, "step", "Gone", "text", "trace", pickled=pickled).exception(PLACE)
        assert type(found) is EnvError
        assert found.args == (3, "step", "Gone", "text", "trace")


def test_nothing_is_raised_without_failures():
    raise_first([])


def test_the_lowest_envs_exception_is_raised_and_the_others_are_noted():
    failures = [
        (captured(KeyError("late"), env=9, phase="reset").packed(), " (worker 2)"),
        (captured(ValueError("first"), env=1).packed(), " (worker 0)"),
        (captured(OSError("two\nlines" + "x" * 999), env=4).packed(), PLACE),
        (captured(ValueError(), env=11).packed(), ""),
    ]
    with pytest.raises(ValueError, match="first") as caught:
        raise_first(failures)
    assert caught.value.__notes__ == [
        "raised by env 1 in step (worker 0)",
        "env 4 also raised OSError in step (worker 1): two",
        "env 9 also raised KeyError in reset (worker 2): 'late'",
        "env 11 also raised ValueError in step: ",
    ]


def test_the_notes_of_other_failures_are_short():
    failures = [(captured(ValueError("x" * 9999), env=env), "") for env in (0, 1)]
    with pytest.raises(ValueError) as caught:
        raise_first(failures)
    assert len(caught.value.__notes__[1]) < 300


# Messages


PLAN = ResetPlan([1, 2], [10, None], [{"level": 1}, None])
COMMANDS = [
    Reset(PLAN),
    Step(),
    Step([["a", "b"]]),
    Step(env_ids=[2, 0]),
    Call([1], "render", (1, "a"), {"mode": None}),
    SetAttr([0, 1], "gravity", [9.8, 1.6]),
    Close(),
]
NUMBERS = st.integers(0, 2**64 - 1)


def as_dict(message):
    return {field.name: getattr(message, field.name) for field in fields(message)}


@pytest.mark.parametrize("by_reference", [True, False])
def test_commands_arrive_as_they_were_sent(by_reference):
    for command in COMMANDS:
        data = encode_number(7) + encode_command(command, by_reference=by_reference)
        assert (number_of(data), decode_command(data)) == (7, command)


@pytest.mark.parametrize("by_reference", [True, False])
def test_attach_arrives_with_its_spaces_and_layout(by_reference):
    structure = Structure(spaces.Dict({"a": spaces.Box(0, 1, (2,)), "t": spaces.Text(3)}))
    layout = plan_layout(4, structure.fixed, structure.fixed, final=True)
    terms = Terms(structure, structure, AutoresetMode.SAME_STEP, "all", shared_memory=True)
    sent = encode_command(Attach(terms, layout), by_reference=by_reference)
    found = decode_command(encode_number(1) + sent)
    assert (type(found), found.layout, found.terms.shared_memory) == (Attach, layout, True)
    assert found.terms.autoreset_mode is AutoresetMode.SAME_STEP
    for copy in (found.terms.observations, found.terms.actions):
        assert (copy.leaves, copy.tree) == (structure.leaves, structure.tree)


@PROPERTY
@given(NUMBERS)
def test_a_plain_step_and_a_silent_outcome_are_just_a_number(number):
    step = encode_number(number) + encode_command(Step(), by_reference=True)
    silence = encode_outcome(number, Outcome())
    assert len(step) == len(silence) == 8
    assert number_of(step) == number_of(silence) == number
    assert decode_command(step) == Step()
    assert decode_outcome(silence) == Outcome()


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(infos=[(0, {"x": 1})]),
        Outcome(failures=[captured(ValueError("text")).packed()]),
        Outcome(ended=True),
        Outcome(results=[None]),
        Outcome(loose=[["text"], ["other"]]),
        Outcome(final_objects=[(1, ["text"])]),
        Outcome(observations=[np.arange(6.0).reshape(2, 3)]),
        Outcome(final_observations=[np.arange(2)]),
        Outcome(waits=True),
        Outcome(
            infos=[(4, {})], results=(1, "a"), loose=[[1]], final_objects=[(4, [2])], waits=True
        ),
    ],
    ids=lambda outcome: ",".join(key for key, value in as_dict(outcome).items() if value),
)
def test_whatever_an_outcome_tells_arrives(outcome):
    told = as_dict(outcome)  # encoding packs the infos
    data = encode_outcome(5, outcome)
    assert number_of(data) == 5
    found = decode_outcome(data)
    found.unpack()
    assert same(as_dict(found), told)


@pytest.mark.parametrize("body", [b"junk", b"\x80"])
def test_a_message_whose_body_is_spoilt_still_has_its_number(body):
    data = encode_number(2**40) + body
    assert number_of(data) == 2**40
    with pytest.raises(Exception, match=r"."):
        decode_command(data)
    with pytest.raises(Exception, match=r"."):
        decode_outcome(data)


def test_commands_have_the_titles_that_messages_use():
    titles = ["reset", "step", "step", "step", "call of 'render'", "set_attr of 'gravity'", "close"]
    assert [command.title for command in COMMANDS] == titles
    assert Attach.title == "start"


def test_lambdas_and_local_classes_can_be_sent():
    class Local:
        value = 5

    for by_reference in (True, False):
        command = Call([0], "apply", (lambda x: x + 1, Local), {})
        found = decode_command(
            encode_number(1) + encode_command(command, by_reference=by_reference)
        )
        assert (found.args[0](1), found.args[1].value) == (2, 5)


@pytest.mark.parametrize("by_reference", [True, False])
def test_what_cannot_be_pickled_is_refused_before_anything_is_sent(by_reference):
    with pytest.raises(TypeError, match="pickle"):
        encode_command(Call([0], "use", (threading.Lock(),), {}), by_reference=by_reference)
