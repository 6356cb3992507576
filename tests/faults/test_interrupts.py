"""Ctrl-C, forks and other threads at any moment: a clear state afterwards, and no mixed rows."""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from functools import partial

import pytest
from gymnasium.error import ClosedEnvironmentError, NoAsyncCallError, ResetNeeded

import envfleet
from envfleet.testing import Fault, FaultEnv

Fleet = partial(envfleet.ProcessVectorEnv, context="fork", workers=2)


@contextlib.contextmanager
def alarms_as_ctrl_c():
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def step_until_interrupted(fleet, rng):
    """Step until an alarm, which comes soon."""
    try:
        signal.setitimer(signal.ITIMER_REAL, rng.expovariate(1 / 0.002) + 1e-6)
        while True:
            fleet.step([1] * 6)
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.mark.untraced  # as test_alarms.py
@pytest.mark.parametrize("options", [{}, {"caller_steps": True}, {"shared_memory": False}])
def test_ctrl_c_at_any_moment_never_leaves_some_envs_a_step_ahead(options):
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    outcomes = {"pending": 0, "reset": 0, "broken": 0, "idle": 0}
    fleet = Fleet([FaultEnv] * 6, workers=3, **options)
    fleet.reset()
    with alarms_as_ctrl_c():
        for _ in range(150):
            step_until_interrupted(fleet, rng)
            try:
                observations = fleet.step_wait()[0]
                outcomes["pending"] += 1
            except NoAsyncCallError:
                try:
                    observations = fleet.step([1] * 6)[0]
                    outcomes["idle"] += 1
                except ResetNeeded:
                    observations = fleet.reset()[0]
                    outcomes["reset"] += 1
            except envfleet.FleetBroken:
                outcomes["broken"] += 1
                fleet.close()
                fleet = Fleet([FaultEnv] * 6, workers=3, **options)
                observations = fleet.reset()[0]
            assert len(set(observations[:, 1].tolist())) == 1
    fleet.close()
    assert outcomes["pending"] > 0
    assert outcomes["reset"] > 0


def test_ctrl_c_twice_during_close_still_leaves_nothing():
    fleet = Fleet([partial(FaultEnv, {"step": Fault("hang-stubbornly")})] * 2)
    pids = [process.pid for process in fleet.processes]
    fleet.reset()
    fleet.step_async([1, 1])
    close = type(fleet).close.__code__

    def interrupt(number, frame):
        """Ctrl-C while the fleet is being closed; later it would end the whole test run."""
        while frame is not None and frame.f_code is not close:
            frame = frame.f_back
        if frame is not None:
            raise KeyboardInterrupt

    with alarms_as_ctrl_c(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.2, 0.01)
        with pytest.raises(KeyboardInterrupt):
            fleet.close()
        signal.setitimer(signal.ITIMER_REAL, 0)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_forked_child_that_exits_does_not_harm_the_workers():
    program = """
    import os, sys, envfleet
    from envfleet.testing import FaultEnv
    fleet = envfleet.ProcessVectorEnv([FaultEnv] * 2, context="fork", workers=2)
    fleet.reset()
    if os.fork() == 0:
        if len(sys.argv) > 1:
            fleet.close()
        sys.exit(0)
    os.wait()
    print(fleet.step([1, 1])[0].tolist())
    """
    for arguments in ([], ["close"]):
        output = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program), *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert output.stdout == "[[1, 1, 1], [1, 1, 1]]\n"
        assert output.stderr == ""


@pytest.mark.parametrize("on_failure", ["raise", "restart"])
def test_a_thread_that_steps_learns_of_close_and_close_of_nothing(on_failure):
    for attempt in range(25):
        fleet = Fleet([FaultEnv] * 4, on_failure=on_failure, restarts=(1000, 60.0))
        fleet.reset()
        seen = []

        def step_on(fleet=fleet, seen=seen):
            try:
                while True:
                    fleet.step([1] * 4)
            except Exception as problem:  # noqa: BLE001
                seen.append(problem)

        thread = threading.Thread(target=step_on)
        thread.start()
        if on_failure == "restart":
            os.kill(fleet.processes[attempt % 2].pid, signal.SIGKILL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a call is pending
            fleet.close(timeout=2)
        thread.join(10)
        assert not thread.is_alive()
        assert [type(error) for error in seen] == [ClosedEnvironmentError]


def test_close_takes_any_time_out():
    for timeout in (math.inf, 1e9, 0):
        fleet = Fleet([FaultEnv] * 2)
        fleet.close(timeout=timeout)


def test_an_idle_worker_that_is_stopped_does_not_hold_close():
    fleet = Fleet([FaultEnv] * 2)
    os.kill(fleet.processes[1].pid, signal.SIGSTOP)
    start = time.monotonic()
    fleet.close()
    assert time.monotonic() - start < 10  # and not 30


def test_a_fleet_starts_also_where_many_descriptors_are_open():
    program = """
    import os, resource, envfleet
    from envfleet.testing import FaultEnv
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    kept = [os.dup(0) for _ in range(1500)]
    for context in ("fork", "spawn"):
        with envfleet.ProcessVectorEnv([FaultEnv] * 2, context=context, workers=2) as fleet:
            print(fleet.reset()[0].tolist())
    """
    output = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert output.stdout == "[[1, 0, 0], [1, 0, 0]]\n" * 2
    assert output.stderr == ""
