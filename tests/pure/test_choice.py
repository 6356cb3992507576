from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from envfleet.engine.arena.signals import WORDS, Signals, Sleep
from envfleet.engine.pool.contention import Books, Contention
from envfleet.engine.rules.choice import Measurement, advise, choose
from envfleet.engine.rules.neighbours import neighbours
from envfleet.engine.scheduler import Turns
from envfleet.engine.spin import EVERY, LONGEST, Patience

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


# Busy machines


def disturbed(step, others, *, busy=0.5):
    """An env that takes ``step`` by itself, beside so many processes of others."""
    return Measurement(0.01, step / (1 - busy), step, 0.0, 16, busy=busy, neighbours=others)


@pytest.mark.parametrize("others", [1, 2, 6])
@pytest.mark.parametrize(("step", "num_envs"), [(7e-6, 8), (7e-6, 64), (35e-6, 16)])
def test_beside_busy_neighbours_quick_steps_stay_in_the_calling_process(step, num_envs, others):
    assert chosen(computing(step), num_envs) == ("process", 2, True)
    assert chosen(disturbed(step, others), num_envs) == ("serial", 1, False)


def test_long_steps_are_worth_the_wait_for_a_core():
    assert chosen(disturbed(1e-3, 6), 64) == ("process", 2, True)


def test_neighbours_that_leave_cores_free_change_only_the_number_of_workers():
    assert chosen(computing(20e-6), 48, cores=16) == ("process", 16, True)
    assert chosen(disturbed(20e-6, 4, busy=0.0), 48, cores=16) == ("process", 12, True)


def test_time_without_a_core_is_not_waiting():
    switching = Measurement(0.01, 4e-3, 0.8e-3, 1.0, 16)
    assert chosen(switching, 8) == ("process", 8, False)
    assert chosen(replace(switching, busy=0.75, neighbours=6), 8)[1] <= 2


def test_envs_that_wait_get_a_worker_each_on_a_busy_machine_too():
    waits = replace(waiting(5e-3), busy=0.3, neighbours=6)
    assert chosen(waits, 16) == ("process", 16, False)


def test_a_plan_names_the_neighbours():
    plan = choose(disturbed(7e-6, 2.2), 64, 2, serial=True, caller=True)
    assert plan.reason == (
        "a step takes 7 us, 64 envs on 2 cores that are busy with about 2 other processes"
    )


@pytest.mark.parametrize(
    ("cpu", "waited", "idle", "others"),
    [
        (1.0, 0.0, 1.0, 0),
        (1.0, 0.0, 0.6, 0),
        (1.0, 0.0, 0.0, 1),
        (2 / 3, 1 / 3, 0.0, 2),
        (2 / 7, 5 / 7, 0.0, 6),
        (0.6, 0.4, 1.0, 0),
        (0.01, 0.05, 1.99, 0),
        (1.0, None, None, 0),
        (2 / 3, 1 / 3, None, 2),
    ],
    ids=[
        "alone",
        "a-little-beside",
        "one-beside",
        "two-loops",
        "six-loops",
        "there-was-a-core",
        "sleeps",
        "not-known",
        "idle-not-known",
    ],
)
def test_neighbours_are_counted_by_what_they_leave(cpu, waited, idle, others):
    assert neighbours(2, 1.0, cpu, waited, idle) == pytest.approx(others, abs=0.01)


def test_advice_to_a_fleet_beside_others_depends_on_what_a_step_computes():
    short, long = (advise(2.0, work, 2, 2) for work in (300e-6, 20e-3))
    assert short.startswith("other processes keep about 2.0 of 2 cores busy")
    assert "300 us of computing: beside others backend='serial' is faster" in short
    assert "serial" not in long
    assert "taskset" in long


def test_a_plan_tells_what_the_fleet_has_found_since():
    plan = replace(choose(computing(7e-6), 64, 2, serial=True, caller=True), notice="it is busy")
    assert str(plan).endswith("64 envs on 2 cores; it is busy")


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


# Contention


class Machine:
    """A clock, a thread that waits for its core for a share of the time, and who uses 2 cores."""

    def __init__(self, waits=0.0, others=0.0, delay=1e-3, relatives=0.0):
        self.waits, self.others, self.delay = waits, others, delay
        self.relatives = relatives  # of the others, those of the same program
        self.now = self.waited = self.idle = self.ours = self.family = 0.0
        self.contention = Contention(
            [None, None], clock=lambda: self.now, turns=self.turns, books=self.books
        )

    def turns(self):
        return Turns(self.now - self.waited, self.waited, round(self.waited / self.delay))

    def books(self, _, *, family):
        whole = self.family if family else 0.0
        return Books(self.now, self.idle, self.ours, round(self.now / 1e-3), whole)

    def run(self, seconds):
        for _ in range(round(seconds / 0.005)):
            self.now += 0.005
            self.waited += 0.005 * self.waits
            self.ours += 0.005 * 0.2
            self.family += 0.005 * (0.2 + self.relatives)
            self.idle += 0.005 * (1.8 - self.others)
            held_up = self.contention.check()
        return held_up


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr("envfleet.engine.pool.contention.usable_cores", lambda: 2)


def test_a_fleet_is_held_up_while_it_waits_for_cores_that_others_use():
    machine = Machine()
    assert not machine.run(1.0)
    machine.waits, machine.others = 0.5, 1.5
    assert machine.run(1.0)
    machine.waits = 0.0  # now that it sleeps at once it waits no more
    assert machine.run(3.0)
    machine.others = 0.0
    assert not machine.run(2.5)


def test_processes_of_ones_own_that_wait_for_each_other_are_no_reason():
    assert not Machine(waits=0.5, others=0.1).run(5.0)


def test_others_that_leave_a_core_when_it_is_wanted_are_no_reason():
    assert not Machine(waits=0.05, others=1.0).run(5.0)
    assert not Machine(waits=0.4, others=1.0, delay=50e-6).run(5.0)


def test_what_others_do_while_nobody_steps_is_no_reason():
    machine = Machine(waits=0.5, others=1.5)
    for _ in range(20):
        machine.run(0.09)
        machine.now += 5.0
        machine.waited += 2.5
    assert not machine.contention.check()


def test_a_word_is_said_once_where_it_lasts(caplog):
    machine = Machine(waits=0.5, others=1.5)
    machine.run(1.0)
    assert not machine.contention.notice
    machine.run(5.0)
    assert [record.getMessage() for record in caplog.records] == [machine.contention.notice]
    assert "about 1.5 of 2 cores" in machine.contention.notice


def test_other_processes_of_the_same_program_hold_it_up_without_a_word(caplog):
    machine = Machine(waits=0.5, others=1.5, relatives=1.2)
    assert machine.run(6.0)
    assert not machine.contention.notice
    assert not caplog.records
    machine.relatives = 0.7
    machine.run(6.0)
    assert "about 0.8 of 2 cores" in machine.contention.notice


def test_without_the_systems_word_there_is_no_verdict():
    machine = Machine(waits=0.5, others=1.5)
    machine.contention = Contention([], clock=lambda: machine.now, turns=lambda: None)
    assert not machine.run(5.0)


def test_patience_asks_now_and_then_and_stops_looking():
    asked = []
    patience = Patience(LONGEST, lambda: bool(asked.append(True)) or len(asked) < 3)
    bounds = []
    for _ in range(3):
        for _ in range(EVERY):
            patience.note(LONGEST / 10)
        bounds.append(patience.bound)
    assert bounds == [0.0, 0.0, LONGEST]
    assert len(asked) == 3


def test_workers_learn_from_the_caller_that_others_have_the_cores():
    words = np.zeros((3, WORDS), dtype=np.uint64)
    caller, worker = Signals(words, 0), Signals(words, 1)
    assert not worker.is_held_up()
    caller.tell_held_up(True)
    caller.caller_sleeps_until(7)  # what else the caller says is kept apart from it
    caller.caller_sleeps(Sleep.NOT)
    assert worker.is_held_up()
    caller.caller_sleeps_until(7)
    caller.tell_held_up(False)
    assert not worker.report(6, 0)
    assert worker.report(1, 0)
    assert not worker.is_held_up()
