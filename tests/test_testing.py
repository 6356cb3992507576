"""The public testing kit: it finds what it is there to find, and passes what is right."""

from __future__ import annotations

import _thread
import os
import signal
import socket
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import envfleet
from envfleet.testing import FAULTS, Fault, FaultEnv, assert_no_leaks, check_vector_env
from envfleet.testing.fixtures import no_leaks  # noqa: F401 - used by name


def test_our_engines_conform():
    check_vector_env(lambda fns, mode: envfleet.SerialVectorEnv(fns, autoreset_mode=mode))
    check_vector_env(
        lambda fns, mode: envfleet.ProcessVectorEnv(
            fns, autoreset_mode=mode, context="fork", workers=2, on_failure="restart"
        ),
        steps=20,
    )


class OffByOne(SyncVectorEnv):
    """Rewards arrive a step late."""

    late = np.zeros(3)

    def step(self, actions):
        observations, rewards, *rest = super().step(actions)
        rewards, self.late = self.late, rewards
        return observations, rewards, *rest


def test_an_engine_that_is_wrong_is_found_and_the_place_is_named():
    with pytest.raises(AssertionError, match=r"step 0\[1\]") as caught:
        check_vector_env(lambda fns, mode: OffByOne(fns, autoreset_mode=mode))
    assert "NEXT_STEP" in caught.value.__notes__[0]


def test_an_engine_with_another_autoreset_mode_is_found():
    with pytest.raises(AssertionError, match="autoreset_mode"):
        check_vector_env(lambda fns, mode: SyncVectorEnv(fns, autoreset_mode="Disabled"))


def test_a_descriptor_that_stays_open_is_found():
    kept = []
    with pytest.raises(AssertionError, match="descriptor"), assert_no_leaks(patience=0.1):
        kept.append(socket.socket())
    kept.pop().close()


def test_a_process_that_stays_is_found():
    kept = []
    with pytest.raises(AssertionError, match="process"), assert_no_leaks(patience=0.1):
        kept.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
    kept[0].communicate()


def test_a_thread_that_stays_is_found_and_a_librarys_own_is_not():
    over, seen = threading.Event(), threading.Event()

    def work():
        threading.current_thread()  # from here on Python knows of it
        seen.set()
        over.wait()

    try:
        with assert_no_leaks(patience=0.1):
            _thread.start_new_thread(work, ())  # as C code does that calls Python
            seen.wait()
        thread = threading.Thread(target=over.wait)
        with pytest.raises(AssertionError, match="1 threads"), assert_no_leaks(patience=0.1):
            thread.start()
    finally:
        over.set()
    thread.join()


def test_shared_memory_that_nobody_uses_is_found_and_that_of_others_is_theirs():
    entry = Path("/dev/shm") / f"envfleet-test-{os.getpid()}"
    # The shell is gone when this returns, so its child does not descend from us.
    hold = f"exec 3<>{entry}; sleep 3600 >/dev/null 2>&1 & echo $!"
    try:
        with assert_no_leaks(patience=0.1):
            done = subprocess.run(["sh", "-c", hold], capture_output=True, text=True, check=True)
    finally:
        os.kill(int(done.stdout), signal.SIGKILL)
        entry.unlink()
    with pytest.raises(AssertionError, match=entry.name), assert_no_leaks(patience=0.1):
        entry.touch()
    entry.unlink()


def test_a_fleet_in_use_is_a_leak_and_a_closed_one_is_not(no_leaks):  # noqa: F811
    with assert_no_leaks():
        fleet = envfleet.ProcessVectorEnv([FaultEnv] * 2)
        fleet.close()


def test_a_fault_env_counts_and_fails_as_planned(tmp_path):
    env = FaultEnv({"step": Fault("raise", at=3)}, length=2)
    assert env.reset(seed=1)[0].tolist() == [1, 0, 0]
    assert env.step(1)[0].tolist() == [1, 1, 1]
    assert env.step(1)[2]
    with pytest.raises(ValueError, match="planned"):
        env.step(1)
    once = partial(FaultEnv, {"reset": Fault("raise", once=str(tmp_path / "fired"))})
    with pytest.raises(ValueError, match="planned"):
        once().reset()
    assert once().reset()[0].tolist() == [1, 0, 0]


def test_bad_plans_are_refused():
    with pytest.raises(ValueError, match="unknown fault 'meteor'"):
        Fault("meteor")
    with pytest.raises(ValueError, match="unknown phases"):
        FaultEnv({"stepp": Fault("raise")})
    assert "sigkill" in FAULTS


def test_autoreset_modes_may_be_chosen():
    def only_next(fns, mode):
        assert mode is AutoresetMode.NEXT_STEP
        return SyncVectorEnv(fns)

    check_vector_env(only_next, autoreset_modes=[AutoresetMode.NEXT_STEP], steps=20)
