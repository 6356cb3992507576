"""A fleet beside neighbours that use its cores."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envfleet.bench.neighbours import busy_loops
from envfleet.engine.scheduler import family_time

LINUX = pytest.mark.skipif(
    not Path("/proc/thread-self/schedstat").exists(), reason="the system does not tell"
)
PROGRAM = """
import logging, sys, time
logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stdout)
import envfleet

with envfleet.make("CartPole-v1", 8, backend="process", workers=2) as envs:
    envs.reset(seed=1)
    actions, end = envs.action_space.sample(), time.monotonic() + 60
    while not envs.plan.notice and time.monotonic() < end:
        for _ in range(20):
            envs.step(actions)
    for _ in range(20):
        envs.step(actions)
    print("PLAN", envs.plan)
"""


@contextlib.contextmanager
def one_core():
    """Whatever is started inside has one core, the same for all."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def output():
    """What a program with a fleet prints."""
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.splitlines()


@LINUX
def test_a_fleet_says_once_that_others_have_its_cores_and_what_would_be_better():
    with one_core(), busy_loops(3):
        *said, plan = output()
    (warning,) = [line for line in said if line.startswith("WARNING")]
    assert "of 1 core busy" in warning
    assert "backend='serial' is faster" in warning
    assert plan.startswith("PLAN process, 2 shards")
    assert plan.endswith(warning.removeprefix("WARNING "))


BURNS = "import time\nwhile time.process_time() < 0.5: pass\nprint('done', flush=True); input()"


@LINUX
@pytest.mark.parametrize(
    "program",
    [BURNS, f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURNS!r}])"],
    ids=["child", "grandchild"],
)
def test_a_family_has_the_time_of_all_that_descend_from_a_program(program):
    before = family_time()
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout.readline() == b"done\n"
        alive = family_time()
        assert alive - before >= 0.45  # counted in hundredths
        child.communicate(b"\n")
    assert family_time() >= alive - 0.05
