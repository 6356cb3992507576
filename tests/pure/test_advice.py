from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from envfleet.bench.advice import Advice, Figures, Setup, Split, advise, best, verdict
from envfleet.bench.limit import LARGE, Shape, shape_of
from envfleet.bench.timing import size_of
from envfleet.bench.words import duration
from envfleet.cli.bench import fleet_options
from envfleet.engine.rules.choice import Measurement

pytestmark = pytest.mark.pure

US = 1e-6
# All is well: the envs take nearly all of the time, and the caller carries its share.
WELL = Figures(
    Setup(64, 2, "process", 2, caller_steps=True),
    Split(env=300 * US, waiting=5 * US, infos=0.0, transport=20 * US),
    waits=False,
    fillers=0.0,
    resets=0.02,
    copying=1 * US,
    busy=0.0,
)


def setup(**changes):
    return replace(WELL, setup=replace(WELL.setup, **changes))


def split(**changes):
    return replace(WELL, split=replace(WELL.split, **changes))


def first(figures):
    return advise(figures)[0]


def test_where_envs_take_the_time_there_is_no_advice_and_that_is_said():
    assert advise(WELL) == []
    assert "the envs themselves take 92% of the time" in verdict(WELL)


def test_envs_that_wait_are_given_a_worker_each():
    sleepers = replace(
        WELL,
        setup=Setup(16, 2, "process", 2),
        split=Split(8 * 5e-3, 50 * US, 0.0, 200 * US),
        waits=True,
    )
    advice = first(sleepers)
    assert advice.change == "workers=16"
    assert advice.options == {"backend": "process", "workers": 16, "caller_steps": False}
    assert 7 < advice.gain < 8
    alone = replace(sleepers, setup=Setup(16, 2, "process", 16), split=Split(5e-3, 0, 0, 2e-4))
    assert advise(alone) == []


@pytest.mark.parametrize(
    ("changes", "change"),
    [
        ({"backend": "serial", "shards": 1}, 'backend="process", caller_steps=True'),
        ({"cores": 8}, "workers=8"),
        ({"shards": 1, "caller_steps": False}, "workers=2"),
    ],
    ids=["serial", "idle-cores", "one-worker"],
)
def test_cores_that_idle_are_used(changes, change):
    assert first(setup(**changes)).change == change


def test_processes_that_take_turns_are_too_many():
    crowded = replace(setup(shards=64, caller_steps=False), split=Split(5e-5, 1e-5, 0.0, 2e-3))
    assert "workers=2" in [one.change for one in advise(crowded)]


def test_a_caller_that_waits_may_carry_a_share_unless_isolation_was_asked_for():
    idle = replace(setup(caller_steps=False), split=Split(300 * US, 5 * US, 0.0, 120 * US))
    assert first(idle).change == "caller_steps=True"
    isolated = replace(idle, setup=replace(idle.setup, may_run_here=False, native="some:Engine"))
    assert all("caller_steps" not in one.change for one in advise(isolated))
    assert all("native" not in one.change for one in advise(isolated))


def test_one_core_has_no_use_for_processes():
    assert advise(setup(cores=1, backend="serial", shards=1, caller_steps=False)) == []


def test_large_observations_need_not_be_copied():
    frames = replace(split(transport=200 * US), copying=150 * US)
    assert first(frames).change == "copy=False"
    kept = replace(frames, setup=replace(frames.setup, copy=False), copying=0.0)
    assert all(one.change != "copy=False" for one in advise(kept))


def test_infos_that_cost_much_are_left_out_or_numbers():
    told = split(infos=100 * US)
    assert first(told).change == 'infos="final" or infos="none"'
    assert first(told).is_measured
    assert "'map'" in first(replace(told, pickled=("map", "text"))).change
    assert "..." in first(replace(told, pickled=("a", "b", "c", "d"))).change


def test_rows_without_a_step_are_saved_by_same_step_autoreset():
    short = replace(split(transport=300 * US), fillers=0.25)
    assert 'autoreset_mode="SameStep"' in [one.change for one in advise(short)]
    same = replace(short, setup=replace(short.setup, same_step=True))
    assert 'autoreset_mode="SameStep"' not in [one.change for one in advise(same)]


def test_waiting_for_slow_resets_is_cured_by_partial_batches_where_there_are_any():
    uneven = replace(split(waiting=300 * US), resets=0.6)
    changes = [one.change for one in advise(uneven)]
    assert changes == ["num_envs=256", "cheaper resets"]
    able = replace(uneven, setup=replace(uneven.setup, has_recv=True))
    assert "recv(min_envs=...)" in first(able).change


def test_a_busy_machine_is_named_and_serial_envs_wait_for_nobody():
    crowded = replace(split(transport=2e-3), busy=0.5)
    changes = [one.change for one in advise(crowded)]
    assert changes[0] == 'backend="serial"'
    assert any("quieter machine" in change for change in changes)
    unknown = [one.change for one in advise(replace(crowded, busy=None))]
    assert not any("quieter" in change for change in unknown)


def test_few_fast_envs_share_the_cost_of_a_step_with_more():
    few = replace(setup(num_envs=8), split=Split(30 * US, 2 * US, 0.0, 30 * US))
    assert first(few).change == "num_envs=32"


def test_loose_leaves_and_native_engines_are_named():
    text = advise(setup(by_pipe=("['word'] (Text)",)))
    assert text == []  # where transport costs nothing they cost nothing
    slow = replace(setup(by_pipe=("['word'] (Text)",)), split=Split(1e-4, 0.0, 0.0, 1e-4))
    assert any("observation['word'] (Text)" in one.change for one in advise(slow))
    assert first(setup(native="some:Engine")).options == {"backend": "native"}


def test_what_was_tried_counts_and_what_gains_little_is_left_out():
    a, b, c = (Advice(name, "because", 2.0) for name in "abc")
    assert [one.change for one in best([a.tried(1.04), b.tried(1.5), c])] == ["c", "b"]
    assert str(b.tried(1.5)) == "b (1.50x, measured): because"
    assert len(best([a, b, c])) == 2


# The step in parts


def test_a_step_is_split_without_rest():
    shards = np.array([[1.0, 3.0], [3.0, 1.0]])
    parts = Split.of(5.0, shards, 0.5)
    assert (parts.env, parts.waiting, parts.infos, parts.transport) == (2.0, 1.0, 0.5, 1.5)
    assert parts.whole == 5.0


def test_parts_that_were_measured_longer_than_the_step_are_shortened():
    parts = Split.of(1.5, np.array([[1.0, 3.0]]), -0.1)
    assert (parts.env, parts.waiting, parts.infos, parts.transport) == (1.0, 0.5, 0.0, 0.0)


@pytest.mark.parametrize(
    ("info", "size", "pickled"),
    [
        ({}, 0, ()),
        ({"x": 1.0, "y": 2.0}, 16, ()),
        ({"x": 1.0, "word": "hello"}, None, ("word",)),
        ({"count": 3}, None, ()),
    ],
    ids=["none", "floats", "text", "number"],
)
def test_infos_that_are_no_numbers_are_pickled(info, size, pickled):
    told = size_of(info)
    assert told.pickled == pickled
    assert told.size == size if size is not None else told.size > 0


def test_an_info_that_cannot_be_pickled_has_no_size():
    assert size_of({"x": lambda: None}) == (None, ("x",))


# The limit


def measured(step=1e-5, cpu=1e-5, switches=0.0, size=16):
    return Measurement(0.0, step, cpu, switches, size)


@pytest.mark.parametrize(
    ("env", "shape"),
    [
        (measured(), Shape(2, copies=False)),
        (measured(size=LARGE), Shape(2, copies=True)),
        (measured(5e-3, 1e-5, 1.0), Shape(16, copies=False)),
        (None, Shape(16, copies=False)),
    ],
    ids=["computes", "frames", "sleeps", "slow"],
)
def test_the_limit_suits_the_work(env, shape):
    assert shape_of(env, 16, 2) == shape


def test_the_limit_has_no_more_processes_than_envs():
    assert str(shape_of(measured(size=LARGE), 1, 8)) == "1 process, each observation copied once"


# Words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.5e-6, "1.50 us"),
        (123.4e-6, "123 us"),
        (0.0123, "12.3 ms"),
        (2.0, "2.00 s"),
        (0, "0.00 us"),
    ],
)
def test_durations_have_a_unit_that_suits(seconds, text):
    assert duration(seconds) == text


def test_options_of_the_fleet_are_read_as_python_writes_them():
    assert fleet_options(("workers=4", "copy=False", "infos=final", "g=1.5")) == {
        "workers": 4,
        "copy": False,
        "infos": "final",
        "g": 1.5,
    }
    for word, text in (("workers", "name=value"), ("num_envs=4", "--num-envs 4")):
        with pytest.raises(ValueError, match=text):
            fleet_options((word,))
