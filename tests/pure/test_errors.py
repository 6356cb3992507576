from __future__ import annotations

import multiprocessing
import pickle
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nested import PROPERTY

import envfleet.errors
from envfleet.errors import (
    EnvError,
    EnvfleetError,
    FleetBroken,
    NoRoom,
    ObservationMismatch,
    WaitTimeout,
    WorkerDied,
    name_envs,
    name_exit,
)

pytestmark = pytest.mark.pure

ERRORS = [
    EnvfleetError("text"),
    EnvError(3, "step", "KeyError", "'a'", "Traceback: ..."),
    WorkerDied(1, 4711, range(4, 8), -9, "step"),
    WorkerDied(1, None, [4], None, "idle"),
    FleetBroken("lost a worker"),
    NoRoom("no room for 2 actors"),
    ObservationMismatch(3, "['a']", "has shape (4, 1)"),
    WaitTimeout("2 envs are late"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_every_error_pickles_with_its_type_arguments_attributes_and_text(error):
    error.add_note("a note")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (copy.args, str(copy), vars(copy)) == (error.args, str(error), vars(error))
    assert isinstance(copy, EnvfleetError)


def test_every_public_error_is_in_the_pickle_test():
    assert {type(error).__name__ for error in ERRORS} == set(envfleet.errors.__all__)


@pytest.mark.parametrize(
    ("error", "bases"),
    [
        (WaitTimeout, (multiprocessing.TimeoutError, TimeoutError)),
        (NoRoom, (RuntimeError,)),
        (ObservationMismatch, (ValueError,)),
    ],
)
def test_errors_are_caught_by_their_standard_names_too(error, bases):
    assert all(issubclass(error, base) for base in bases)


def test_an_env_error_tells_env_phase_type_text_and_traceback():
    error = EnvError(3, "reset", "KeyError", "'speed'", "Traceback of the worker")
    told = "env 3 raised KeyError in reset: 'speed'"
    assert str(error) == f"{told}\n\nTraceback of the worker"
    assert str(EnvError(3, "reset", "KeyError", "'speed'", "")) == told
    assert (error.env, error.phase, error.type_name, error.text, error.traceback) == error.args


@pytest.mark.parametrize(
    ("command", "exitcode", "words"),
    [
        ("step", -9, "was killed by SIGKILL (often the out-of-memory killer) during step."),
        ("idle", 3, "exited with code 3 while it was idle."),
    ],
)
def test_a_dead_worker_is_told_with_its_envs_its_end_and_what_to_do(command, exitcode, words):
    error = WorkerDied(1, 4711, range(4, 8), exitcode, command)
    assert str(error).startswith(f"worker 1 (pid 4711, envs 4-7) {words}")
    assert "close()" in str(error)
    told = error.worker, error.pid, error.envs, error.exitcode, error.command, error.node
    assert told == error.args


def test_a_dead_worker_of_a_cluster_is_told_with_its_node():
    error = WorkerDied(1, 4711, range(4, 8), -9, "step", "a1b2 (10.0.0.7)")
    assert "(pid 4711 on node a1b2 (10.0.0.7), envs 4-7)" in str(error)


@pytest.mark.parametrize("leaf", ["", "['camera'][0]"])
def test_an_observation_mismatch_tells_env_leaf_and_problem(leaf):
    error = ObservationMismatch(3, leaf, "has shape (2,)")
    assert str(error) == f"env 3: observation{leaf} has shape (2,)"
    assert (error.env, error.leaf, error.problem) == (3, leaf, "has shape (2,)")


def test_env_indices_are_named_as_people_write_them():
    assert name_envs([]) == ""
    assert name_envs([3]) == "3"
    assert name_envs(range(4, 8)) == "4-7"
    assert name_envs([0, 2, 5, 6]) == "0, 2, 5-6"
    assert name_envs((6, 5, 0, 2)) == "0, 2, 5-6"


@PROPERTY
@given(st.sets(st.integers(0, 30)))
def test_named_envs_are_just_those_given_in_as_few_parts_as_possible(envs):
    text = name_envs(list(envs))
    parts = [[int(end) for end in part.split("-")] for part in text.split(", ") if part]
    named = [env for part in parts for env in range(part[0], part[-1] + 1)]
    assert named == sorted(envs)
    assert all(a[-1] + 1 < b[0] for a, b in pairwise(parts))


def test_an_exit_is_named_in_words():
    assert {exitcode: name_exit(exitcode) for exitcode in (None, 0, 1, -11, -15, -9, -99)} == {
        None: "stopped answering",
        0: "exited with code 0",
        1: "exited with code 1",
        -11: "was killed by SIGSEGV",
        -15: "was killed by SIGTERM",
        -9: "was killed by SIGKILL (often the out-of-memory killer)",
        -99: "was killed by signal 99",
    }
