"""What envs do to the process they live in: descriptors, forks, sessions, threads."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial

import pytest

import envfleet
from envfleet.testing import FaultEnv
from waiting import gone, wait_until

METHODS = ["fork", "forkserver", "spawn"]


class Closing(FaultEnv):
    """Closes its standard streams when it is built, and writes to them all the same."""

    def __init__(self):
        super().__init__()
        os.closerange(0, 3)

    def step(self, action):
        for stream in (0, 1, 2):
            with contextlib.suppress(OSError):
                os.write(stream, b"\xff" * 4096)
        return super().step(action)


@pytest.mark.parametrize("context", METHODS)
def test_what_an_env_writes_to_closed_streams_reaches_nothing_of_ours(context):
    with envfleet.ProcessVectorEnv([Closing] * 4, context=context, workers=2) as fleet:
        fleet.reset()
        for count in range(1, 20):
            fleet.step_async([1] * 4)
            assert fleet.step_wait(timeout=20)[0][:, 1].tolist() == [count] * 4


def test_the_same_where_the_program_itself_has_closed_them(tmp_path):
    program = """
    import os, sys
    os.closerange(0, 3)
    import envfleet
    from envfleet.testing import FaultEnv

    class Writing(FaultEnv):
        def step(self, action):
            for stream in (0, 1, 2):
                try:
                    os.write(stream, b"\\xff" * 4096)
                except OSError:
                    pass
            return super().step(action)

    with envfleet.ProcessVectorEnv([Writing] * 4, context="fork", workers=2) as fleet:
        fleet.reset()
        for _ in range(20):
            fleet.step_async([1] * 4)
            observations = fleet.step_wait(timeout=20)[0]
    with open(sys.argv[1], "w") as file:
        file.write(str(observations[:, 1].tolist()))
    """
    result = tmp_path / "result"
    command = [sys.executable, "-c", textwrap.dedent(program), str(result)]
    subprocess.run(command, timeout=60, check=True)
    assert result.read_text() == "[20, 20, 20, 20]"


class Forking(FaultEnv):
    """Forks in some phase, and lets the child return or raise."""

    def __init__(self, phase, raises):
        self.phase, self.raises = phase, raises
        super().__init__()

    def _maybe(self, phase):
        super()._maybe(phase)
        if phase == self.phase and os.fork() == 0:
            self.episode_steps = 1000  # the child's rows would be seen
            if self.raises:
                raise ValueError("the child's")


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("phase", ["construct", "reset", "step", "call", "close"])
def test_a_forked_child_that_comes_back_answers_nothing(phase, raises, capfd):
    build = partial(Forking, phase, raises)
    with envfleet.ProcessVectorEnv([build] * 4, context="fork", workers=2) as fleet:
        for _ in range(3):
            assert fleet.reset()[0][:, 1].tolist() == [0] * 4
            for count in range(1, 6):
                assert fleet.step([1] * 4)[0][:, 1].tolist() == [count] * 4
            pids = [process.pid for process in fleet.processes]
            assert list(fleet.call("ping")) == [pids[0], pids[0], pids[1], pids[1]]
    if phase != "close":  # then it may be killed with its worker before it can say anything
        assert "os._exit" in capfd.readouterr().err


class Starting(FaultEnv):
    """Starts a process in a session of its own."""

    def __init__(self):
        super().__init__()
        command = [sys.executable, "-c", "import time; time.sleep(3600)"]
        self.child = subprocess.Popen(command, start_new_session=True)

    def step(self, action):
        time.sleep(3600)

    def child_pid(self):
        return self.child.pid


@pytest.mark.parametrize("end", ["close", "stuck", "terminate", "drop"])
def test_what_an_env_has_started_in_a_session_of_its_own_ends_with_its_fleet(end):
    fleet = envfleet.ProcessVectorEnv([Starting] * 4, context="fork", workers=2)
    fleet.reset()
    children = fleet.call("child_pid")
    bystander = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    assert not any(gone([child]) for child in children)
    if end == "stuck":
        fleet.step_async([1] * 4)
        with pytest.warns(UserWarning, match="pending"):
            fleet.close(timeout=1)
    elif end == "terminate":
        fleet.close(terminate=True)
    elif end == "close":
        fleet.close()
    del fleet
    wait_until(lambda: gone(children))
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


class Threading(FaultEnv):
    """Leaves a thread behind that never ends."""

    def close(self):
        threading.Thread(target=time.sleep, args=(3600,)).start()


@pytest.mark.parametrize("context", METHODS)
def test_a_thread_that_an_env_leaves_behind_does_not_hold_close(context):
    fleet = envfleet.ProcessVectorEnv([Threading] * 2, context=context, workers=2)
    fleet.reset()
    pids = [process.pid for process in fleet.processes]
    start = time.monotonic()
    fleet.close()
    assert time.monotonic() - start < 15  # and not 29
    assert gone(pids)
