"""A fleet beside neighbours that use its cores."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LINUX = pytest.mark.skipif(
    not Path("/proc/thread-self/schedstat").exists(), reason="the system does not tell"
)
PROGRAM = """
import logging, os, subprocess, sys, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stdout)
import envfleet

loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(LOOPS)]
try:
    with envfleet.make("CartPole-v1", 8, backend="process", workers=2) as envs:
        envs.reset(seed=1)
        actions, end = envs.action_space.sample(), time.monotonic() + SECONDS
        while not envs.plan.notice and time.monotonic() < end:
            for _ in range(20):
                envs.step(actions)
        for _ in range(20):
            envs.step(actions)
        print("PLAN", envs.plan)
finally:
    for loop in loops:
        loop.kill()
        loop.wait()
"""


def output(loops, seconds):
    program = PROGRAM.replace("LOOPS", str(loops)).replace("SECONDS", str(seconds))
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.splitlines()


@LINUX
def test_a_fleet_says_once_that_others_have_its_cores_and_what_would_be_better():
    *said, plan = output(loops=3, seconds=60)
    (warning,) = [line for line in said if line.startswith("WARNING")]
    assert "of 1 core busy" in warning
    assert "backend='serial' is faster" in warning
    assert plan.startswith("PLAN process, 2 shards")
    assert plan.endswith(warning.removeprefix("WARNING "))
