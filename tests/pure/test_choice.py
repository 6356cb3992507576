from __future__ import annotations

import numpy as np
import pytest

from envfleet.engine.arena.signals import WORDS, Signals, Sleep
from envfleet.engine.rules.choice import Measurement, choose
from envfleet.engine.spin import LONGEST, Patience

pytestmark = pytest.mark.pure


def computing(step, size=16):
    return Measurement(0.01, step, step, 0.0, size)


def waiting(step):
    return Measurement(0.01, step, 0.05 * step, 1.0, 16)


def chosen(measured, num_envs, cores=2, *, serial=True, caller=True):
    plan = choose(measured, num_envs, cores, serial=serial, caller=caller)
    return plan.backend, plan.workers, plan.caller_steps


@pytest.mark.parametrize(
    ("measured", "num_envs", "plan"),
    [
        (computing(1e-6), 2, ("serial", 1, False)),
        (computing(7e-6), 64, ("process", 2, True)),
        (computing(300e-6), 8, ("process", 2, True)),
        (computing(1e-6, size=100_000), 16, ("process", 2, True)),
        (waiting(5e-3), 16, ("process", 16, False)),
        (waiting(2e-6), 2, ("serial", 1, False)),
        (None, 16, ("process", 16, False)),
    ],
    ids=["tiny", "cartpole", "heavy", "frames", "waits", "waits-shortly", "too-slow-to-tell"],
)
def test_the_fastest_plan_is_taken(measured, num_envs, plan):
    assert chosen(measured, num_envs) == plan


def test_one_core_is_serial_if_that_is_allowed():
    assert chosen(computing(1e-3), 8, cores=1) == ("serial", 1, False)
    assert chosen(computing(1e-3), 8, cores=1, serial=False) == ("process", 1, False)


def test_isolation_leaves_processes_only():
    for step in (1e-6, 1e-3):
        backend, workers, own = chosen(computing(step), 8, serial=False, caller=False)
        assert (backend, workers, own) == ("process", 2, False)


def test_a_plan_reads_well():
    plan = choose(computing(7e-6), 64, 2, serial=True, caller=True)
    assert str(plan) == (
        "process, 2 shards, one of them the caller's: a step takes 7 us, 64 envs on 2 cores"
    )


# Signals


def test_a_command_and_its_answer_are_seen_by_the_other_side():
    words = np.zeros((3, WORDS), dtype=np.uint64)
    caller, worker = Signals(words, 1), Signals(words, 1)
    assert not caller.post(5, on_wire=True)
    assert worker.posted() == 5 << 1 | 1
    assert not worker.answer(5, on_wire=False)
    assert caller.answered() == 5 << 1
    assert not words[1].any()


def test_a_sleeper_is_to_be_woken():
    words = np.zeros((2, WORDS), dtype=np.uint64)
    signals = Signals(words, 0)
    signals.worker_sleeps(True)
    assert signals.post(1, on_wire=False)
    signals.worker_sleeps(False)
    assert not signals.post(2, on_wire=False)
    signals.caller_sleeps(Sleep.FOR_ANY)
    assert signals.answer(2, on_wire=False)
    signals.caller_sleeps(Sleep.NOT)
    assert not signals.answer(3, on_wire=False)


def test_who_waits_for_all_is_woken_by_the_last():
    words = np.zeros((4, WORDS), dtype=np.uint64)
    workers = [Signals(words, i) for i in range(3)]
    for worker in workers:
        worker.post(1, on_wire=False)
    workers[0].caller_sleeps(Sleep.FOR_ALL)
    assert [worker.answer(1, on_wire=False) for worker in workers] == [False, False, True]


def test_looking_stops_where_it_is_usually_in_vain_and_a_pause_does_not_matter():
    patience = Patience(LONGEST)
    assert patience.bound == LONGEST
    for _ in range(20):
        patience.note(LONGEST / 10)
    patience.note(3600.0)
    assert patience.bound == LONGEST
    for _ in range(30):
        patience.note(3600.0)
    assert patience.bound == 0.0
    for _ in range(30):
        patience.note(LONGEST / 10)
    assert patience.bound == LONGEST
