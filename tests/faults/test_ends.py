"""How things end: the caller's death, Ctrl-C, what envs have started, and what limits forbid."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial

import numpy as np
import psutil
import pytest
from gymnasium.error import ClosedEnvironmentError

import envfleet
from envfleet.engine.process.watch import Watch
from envfleet.testing import Fault, FaultEnv
from waiting import gone, wait_until

Fleet = partial(envfleet.ProcessVectorEnv, context="fork", workers=2)
METHODS = ["fork", "forkserver", "spawn"]
HEADER = """
import ctypes, os, signal, subprocess, sys, time
import envfleet
from envfleet.testing import Fault, FaultEnv

class Starter(FaultEnv):
    '''Starts a process of its own when it is built.'''
    def __init__(self, plan=None):
        super().__init__(plan)
        self.child = subprocess.Popen(["sleep", "3600"])
    def child_pid(self):
        return self.child.pid

class Sleeper(Starter):
    def step(self, action):
        time.sleep(3600)

class GilHolder(Starter):
    def step(self, action):
        ctypes.PyDLL(None).pause()
"""


def start(tmp_path, body):
    """Start a program in a session of its own; its first line of output is a list of pids."""
    path = tmp_path / "program.py"
    path.write_text(HEADER + textwrap.dedent(body))
    return subprocess.Popen(
        [sys.executable, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


STUCK = """
if __name__ == "__main__":
    fns = [Starter, {stuck}, Starter, Starter]
    fleet = envfleet.ProcessVectorEnv(fns, context="{context}", workers=2, daemon={daemon})
    bystander = subprocess.Popen(["sleep", "3600"])
    fleet.reset()
    pids = [p.pid for p in fleet.processes] + list(fleet.call("child_pid"))
    fleet.step_async([1] * 4)
    print(bystander.pid, *pids, flush=True)
    {end}
"""
ENDS = {
    "sigkill": "os.kill(os.getpid(), signal.SIGKILL)",
    "exit": "os._exit(0)",
    "sigterm": "os.kill(os.getpid(), signal.SIGTERM)",
}


@pytest.mark.parametrize("context", METHODS)
@pytest.mark.parametrize("end", ENDS)
def test_the_callers_death_ends_workers_and_what_their_envs_started(tmp_path, end, context):
    # A thread in the worker that would have to run for it to leave could not.
    stuck = "GilHolder" if end == "sigkill" else "Sleeper"
    body = STUCK.format(context=context, daemon=end != "exit", end=ENDS[end], stuck=stuck)
    program = start(tmp_path, body)
    bystander, *pids = (int(pid) for pid in program.stdout.readline().split())
    assert len(pids) == 6
    program.stdout.close()
    wait_until(lambda: gone(pids))
    assert psutil.pid_exists(bystander)
    os.kill(bystander, signal.SIGKILL)
    assert program.stderr.read() == ""
    program.stderr.close()
    program.wait()


class Starter(FaultEnv):
    """Starts a process of its own when it is built."""

    def __init__(self, plan=None):
        super().__init__(plan)
        self.child = subprocess.Popen(["sleep", "3600"])

    def child_pid(self):
        return self.child.pid


@pytest.mark.parametrize("end", ["close", "terminate", "kill", "drop"])
def test_what_an_env_started_ends_with_its_worker(end):
    bystander = subprocess.Popen(["sleep", "3600"])
    fleet = Fleet([Starter] * 3)
    pids = [process.pid for process in fleet.processes] + list(fleet.call("child_pid"))
    if end == "kill":
        os.kill(fleet.processes[0].pid, signal.SIGKILL)
        with pytest.raises(envfleet.WorkerDied):
            fleet.call("child_pid")
        fleet.close()
    elif end == "drop":
        del fleet
    else:
        fleet.close(terminate=end == "terminate")
    wait_until(lambda: gone(pids))
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


def test_envs_may_start_multiprocessing_children_without_daemon():
    class Parent(FaultEnv):
        def __init__(self):
            super().__init__()
            import multiprocessing  # noqa: PLC0415

            self.child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(99,))
            self.child.start()

        def child_pid(self):
            return self.child.pid

    with pytest.raises(AssertionError, match="daemonic processes"):
        Fleet([Parent])
    fleet = Fleet([Parent] * 2, daemon=False)
    pids = list(fleet.call("child_pid"))
    os.kill(fleet.processes[1].pid, signal.SIGKILL)
    # The child has inherited the dead worker's end of the pipe: only the process itself tells.
    with pytest.raises(envfleet.WorkerDied, match="SIGKILL"):
        fleet.call("child_pid")
    fleet.close()
    wait_until(lambda: gone(pids))


INTERRUPTED = """
if __name__ == "__main__":
    plan = {{"{phase}": Fault("hang")}} if "{phase}" != "idle" else {{}}
    print("ready", flush=True)
    fleet = None
    try:
        fleet = envfleet.ProcessVectorEnv([lambda: FaultEnv(plan)] * 3, context="{context}")
        fleet.reset()
        fleet.step([1] * 3)
        print("idle", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    if fleet is not None:
        fleet.close(timeout=0.5)
    print("closed", flush=True)
"""


@pytest.mark.parametrize("context", METHODS)
@pytest.mark.parametrize("phase", ["construct", "reset", "step", "idle"])
def test_ctrl_c_is_one_keyboard_interrupt_and_nothing_else(tmp_path, phase, context):
    program = start(tmp_path, INTERRUPTED.format(phase=phase, context=context))
    assert program.stdout.readline() == "ready\n"
    if phase == "idle":
        assert program.stdout.readline() == "idle\n"
    else:
        # Two workers (or as many as there are cores), each stuck in the phase.
        workers = min(3, len(os.sched_getaffinity(0)))
        wait_until(lambda: count_stuck(program.pid) >= workers)
    os.killpg(program.pid, signal.SIGINT)
    output, errors = program.communicate(timeout=30)
    assert output == "interrupted\nclosed\n"
    noise = [line for line in errors.splitlines() if "Calling `close` while" not in line]
    assert [line for line in noise if "logger.warn" not in line] == []
    assert program.returncode == 0


def count_stuck(pid):
    """How many workers of a program lead a group of their own and sleep."""
    try:
        children = psutil.Process(pid).children(recursive=True)
        return sum(os.getpgid(child.pid) == child.pid for child in children)
    except (psutil.NoSuchProcess, ProcessLookupError):
        return 0


def test_a_stopped_worker_that_goes_on_later_is_not_believed():
    fleet = Fleet([FaultEnv] * 2)
    fleet.reset()
    process = fleet.processes[1]
    os.kill(process.pid, signal.SIGSTOP)
    fleet.step_async([1, 1])
    with pytest.raises(envfleet.WaitTimeout, match=r"Late envs: 1\."):
        fleet.step_wait(timeout=1.0)
    fleet.reset_async()
    with pytest.raises(envfleet.WaitTimeout):
        fleet.reset_wait(timeout=0.2)
    os.kill(process.pid, signal.SIGCONT)
    # The step of env 1 has happened and its late answer is dropped; both resets are one.
    assert fleet.reset_wait()[0].tolist() == [[2, 0, 1], [2, 0, 1]]
    assert fleet.step([1, 1])[0].tolist() == [[2, 1, 2], [2, 1, 2]]
    fleet.close()


@pytest.mark.parametrize("stuck", ["hang", "hang-stubbornly", "sigstop"])
def test_close_without_a_limit_does_not_wait_for_a_stuck_worker(stuck):
    fleet = Fleet([FaultEnv, partial(FaultEnv, {"step": Fault(stuck)})])
    fleet.reset()
    fleet.step_async([1, 1])
    pids = [process.pid for process in fleet.processes]
    with pytest.warns(UserWarning, match="Calling `close` while waiting"):
        fleet.close()
    assert gone(pids)


@pytest.mark.alone
@pytest.mark.parametrize("stuck", ["hang", "hang-stubbornly", "sigstop"])
def test_close_with_a_limit_keeps_to_it(stuck):
    fleet = Fleet([FaultEnv, partial(FaultEnv, {"close": Fault(stuck)})])
    pids = [process.pid for process in fleet.processes]
    start = time.monotonic()
    fleet.close(timeout=3.0)
    # One deadline for asking, SIGTERM and SIGKILL: the last second is for the signals.
    assert time.monotonic() - start < 3.8
    assert gone(pids)


# Messages that do not come through


class Talker(FaultEnv):
    """Answers at any length, and stops its process where it is told to."""

    def talk(self, size):
        return bytes(size)

    def listen(self, data):
        return len(data)


LONG = 50_000_000


def stop_when_talking(pid):
    """Stop a worker whose long answer has begun: the wire is full, and it waits to go on."""
    worker = psutil.Process(pid)
    wait_until(lambda: worker.memory_info().rss > LONG)
    wait_until(lambda: worker.status() == psutil.STATUS_SLEEPING)
    os.kill(pid, signal.SIGSTOP)


def wait_for_all_but(fleet, late):
    """Wait, with time-outs, until only these envs are late."""

    def is_so():
        with pytest.raises(envfleet.WaitTimeout) as caught:
            fleet.call_wait(timeout=0.1)
        return f"Late envs: {late}." in str(caught.value)

    wait_until(is_so)


def test_a_worker_stopped_in_mid_answer_costs_a_time_out_and_nothing_else():
    fleet = Fleet([Talker] * 2)
    fleet.call_async("talk", LONG)
    for process in fleet.processes:
        stop_when_talking(process.pid)
    with pytest.raises(envfleet.WaitTimeout, match="Late envs: 0-1"):
        fleet.call_wait(timeout=0.3)
    for process in fleet.processes:
        os.kill(process.pid, signal.SIGCONT)
    assert [len(answer) for answer in fleet.call_wait()] == [LONG, LONG]
    fleet.close()


def test_long_arguments_to_a_stopped_worker_do_not_hold_the_caller():
    fleet = Fleet([Talker] * 2)
    process = fleet.processes[1]
    os.kill(process.pid, signal.SIGSTOP)
    fleet.call_async("listen", bytes(LONG))
    wait_for_all_but(fleet, late=1)
    os.kill(process.pid, signal.SIGCONT)
    assert fleet.call_wait() == (LONG, LONG)
    assert fleet.call("listen", b"12") == (2, 2)
    fleet.close()


@pytest.mark.parametrize("direction", ["talk", "listen"])
@pytest.mark.parametrize("timeout", [None, 1.0])
def test_close_does_not_wait_for_half_a_message(direction, timeout):
    fleet = Fleet([Talker] * 2)
    pids = [process.pid for process in fleet.processes]
    if direction == "listen":
        os.kill(pids[1], signal.SIGSTOP)
    fleet.call_async(direction, bytes(LONG) if direction == "listen" else LONG)
    if direction == "talk":
        stop_when_talking(pids[1])
    with pytest.warns(UserWarning, match="Calling `close` while waiting"):
        fleet.close(timeout=timeout)
    assert gone(pids)


@pytest.mark.parametrize("direction", ["talk", "listen"])
def test_ctrl_c_in_mid_message_leaves_a_call_that_can_be_waited_for(direction):
    fleet = Fleet([Talker] * 2)
    pid = fleet.processes[1].pid
    if direction == "listen":
        os.kill(pid, signal.SIGSTOP)
    fleet.call_async(direction, bytes(LONG) if direction == "listen" else LONG)
    if direction == "talk":
        stop_when_talking(pid)
    wait_for_all_but(fleet, late=1)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    with pytest.raises(KeyboardInterrupt):
        fleet.call_wait()
    signal.signal(signal.SIGALRM, before)
    os.kill(pid, signal.SIGCONT)
    answers = fleet.call_wait()
    assert [len(a) if direction == "talk" else a for a in answers] == [LONG, LONG]
    fleet.close()


def test_a_call_of_another_thread_learns_that_the_fleet_was_closed():
    fleet = Fleet([partial(FaultEnv, {"step": Fault("hang")})] * 2)
    fleet.reset()
    fleet.step_async([1, 1])
    seen = []

    def wait():
        try:
            fleet.step_wait()
        except Exception as error:  # noqa: BLE001
            seen.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    with pytest.warns(UserWarning, match="Calling `close` while waiting"):
        fleet.close(timeout=0.5)
    thread.join(10)
    assert not thread.is_alive()
    assert [type(error) for error in seen] == [ClosedEnvironmentError]


@pytest.mark.parametrize("collected", [False, True])
def test_without_pidfds_a_watch_still_sees_the_end(monkeypatch, collected):
    monkeypatch.delattr(os, "pidfd_open")
    process = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    watch = Watch(process.pid)
    assert not watch.wait(0.0)
    watch.end_group()
    if collected:
        process.wait()
    assert watch.wait(10)
    process.wait()
    watch.close()


def test_a_number_that_was_given_to_another_process_is_left_alone():
    ours = subprocess.Popen(["true"], start_new_session=True)
    watch = Watch(ours.pid)
    assert watch.wait(10)
    ours.wait()  # collected: from now on the kernel may use the number again
    stranger = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    watch.pid = stranger.pid  # as if it had
    watch.end_group()
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()
    watch.close()


# Limits

LIMITED = """
import resource, sys
import envfleet
from envfleet.testing import FaultEnv
resource.setrlimit(resource.{limit}, ({value}, {value}))
try:
    envfleet.ProcessVectorEnv([FaultEnv] * {num_envs}, workers={workers}, context="fork")
except ({error}) as error:
    print(error)
import psutil
print(len(psutil.Process().children()))
"""


def run_limited(**parts):
    process = subprocess.run(
        [sys.executable, "-c", LIMITED.format(**parts)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert process.stderr == ""
    return process.stdout


def test_too_few_descriptors_say_how_many_are_needed_and_leave_nothing():
    output = run_limited(
        limit="RLIMIT_NOFILE", value=64, num_envs=100, workers=100, error="OSError"
    )
    assert "100 workers need about 600 file descriptors" in output
    assert "this process may have 64" in output
    assert output.endswith("\n0\n")


@pytest.mark.untraced  # coverage could not write its file either
def test_too_little_memory_is_an_error_that_says_how_much_is_needed():
    output = run_limited(
        limit="RLIMIT_FSIZE", value=64, num_envs=50, workers=2, error="MemoryError"
    )
    assert "bytes of shared memory" in output
    assert output.endswith("\n0\n")


def test_a_program_without_a_main_guard_gets_one_readable_error(tmp_path):
    program = start(
        tmp_path, 'fleet = envfleet.ProcessVectorEnv([FaultEnv] * 2, context="spawn")\n'
    )
    output, errors = program.communicate(timeout=30)
    assert program.returncode == 1
    assert output == ""
    assert errors.count("Traceback") == 1
    assert "if __name__ == '__main__':" in errors.splitlines()[-1]


def test_forking_after_torch_has_worked_gives_one_warning():
    pytest.importorskip("torch")
    script = """
import time, torch, warnings
import envfleet
from envfleet.engine.process.starting import _openmp_threads_wait
from envfleet.testing import FaultEnv
for work in (False, True):
    deadline = time.monotonic() + 10
    while work and not _openmp_threads_wait() and time.monotonic() < deadline:
        torch.randn(1_000_000).exp().sum()
        time.sleep(0.1)   # they spin for a moment before they wait
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for context in ("fork", "forkserver"):
            envfleet.ProcessVectorEnv([FaultEnv] * 2, context=context).close()
    print(work, [str(w.message) for w in caught])
"""
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    before, after = process.stdout.splitlines()
    assert before == "False []"
    assert after.count("forking after torch") == 1
    assert 'context="forkserver"' in after


# Time and again


@pytest.mark.full
def test_opening_and_closing_leaves_descriptors_threads_and_memory_flat():
    process = psutil.Process()

    def cycle(times):
        for _ in range(times):
            with Fleet([FaultEnv] * 2) as fleet:
                fleet.reset()
                fleet.step([1, 1])
        return process.num_fds(), process.num_threads(), process.memory_info().rss

    descriptors, threads, memory = cycle(20)
    after = cycle(180)
    assert after[0] <= descriptors
    assert after[1] <= threads  # one that an earlier test has left may end meanwhile
    assert after[2] - memory < 10_000_000


@pytest.mark.full
def test_twenty_thousand_steps_with_a_kill_every_second():
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print("seed", seed)
    rng = np.random.default_rng(seed)
    fns = [partial(FaultEnv, length=50)] * 8
    kills = cuts = 0
    with Fleet(
        fns, workers=4, on_failure="restart", restarts=(100, 60.0), step_timeout=30.0
    ) as fleet:
        observations, _ = fleet.reset(seed=1)
        due = np.zeros(8, dtype=bool)
        next_kill = time.monotonic() + 1.0
        for _ in range(20_000):
            if time.monotonic() > next_kill:
                victim = fleet.processes[rng.integers(4)]
                os.kill(victim.pid, signal.SIGKILL)
                kills += 1
                next_kill += 1.0
            before = observations
            observations, rewards, terminated, truncated, infos = fleet.step([1] * 8)
            cut = infos.get("worker_restarted", np.zeros(8)).astype(bool)
            cuts += int(cut.sum())
            plain = ~cut & ~due
            assert (truncated == cut).all()
            assert (observations[cut] == before[cut]).all()
            assert (observations[plain, 1:] == before[plain, 1:] + 1).all(), "stale or invented"
            assert (observations[due & ~cut, 1] == 0).all()
            assert (rewards == plain).all()
            due = terminated | truncated
        # One more step settles a kill of the last moment.
        _, *_, infos = fleet.step([1] * 8)
        cuts += int(infos.get("worker_restarted", np.zeros(8)).astype(bool).sum())
    assert kills > 0
    assert cuts == 2 * kills


@pytest.mark.parametrize(
    "size", [1, 65_536, 1_000_000, pytest.param(100_000_000, marks=pytest.mark.full)]
)
def test_infos_of_any_size_from_all_envs_at_once(size):
    class Talker(FaultEnv):
        def step(self, action):
            *rest, _ = super().step(action)
            return *rest, {"blob": b"x" * (size - 1) + bytes([self.episode_steps])}

    fleet = Fleet([Talker] * 4)
    fleet.reset()
    for step in (1, 2):
        blobs = fleet.step([1] * 4)[4]["blob"]
        assert [(len(blob), blob[-1]) for blob in blobs] == [(size, step)] * 4
    fleet.step_async([1] * 4)
    with pytest.warns(UserWarning, match="Calling `close` while waiting"):
        fleet.close()


def test_torch_is_seeded_differently_in_each_worker():
    torch = pytest.importorskip("torch")

    class Dice(FaultEnv):
        def roll(self):
            return float(torch.rand(()))

    with Fleet([Dice] * 3, workers=3) as fleet:
        assert len(set(fleet.call("roll"))) == 3
