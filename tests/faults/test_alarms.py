"""Exceptions that signal handlers raise, at any moment: rows of one step, or an error; no mixture.

Time-outs by SIGALRM, ``sys.exit`` in a SIGTERM handler and pytest-timeout all work that way.
"""

from __future__ import annotations

import collections
import contextlib
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from gymnasium.error import (
    AlreadyPendingCallError,
    ClosedEnvironmentError,
    NoAsyncCallError,
    ResetNeeded,
)

import envfleet
from envfleet.testing import FaultEnv
from waiting import wait_until

ENVS = 6
ALARMS = 250
"""Per test: there are dozens of tests."""


pytestmark = [
    # Python drops what a handler raises in a weak reference's callback; the alarm comes again.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.untraced,  # what is raised while coverage holds its lock leaves it locked for good
]


class Alarm(Exception):  # noqa: N818 - what a user's time-out might be called
    """Raised by a signal handler, and by nobody else."""


class AlarmTimeout(Alarm, TimeoutError):  # noqa: N818
    """An OSError, as a pipe that has ended raises."""


class AlarmValue(Alarm, ValueError):  # noqa: N818
    """What an observation of a wrong shape raises."""


class Telling(FaultEnv):
    """Tells its step count as an info too, beside a long array if it is asked to."""

    def __init__(self, length=0):
        super().__init__()
        self.blob = np.zeros(length)

    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        info = {"count": self.episode_steps}
        if len(self.blob):
            info["blob"] = self.blob + self.episode_steps
        return observation, reward, terminated, truncated, info

    def count(self):
        return self.episode_steps


def small():
    return Telling()


def large():
    return Telling(20_000)


class Alarms:
    """Alarms that come soon after they are asked for, and again until they are called off."""

    def __init__(self, rng, errors=(Alarm, AlarmTimeout, AlarmValue), handler=None):
        self.rng, self.errors = rng, errors
        self.is_on = False
        self.handler = handler or self.ring

    def ring(self, *_):
        if self.is_on:
            raise self.rng.choice(self.errors)

    def __enter__(self):
        self.before = signal.signal(signal.SIGALRM, self.handler)
        return self

    def soon(self, mean=0.001):
        self.is_on = True
        signal.setitimer(signal.ITIMER_REAL, self.rng.expovariate(1 / mean) + 1e-6, 0.1)

    def off(self):
        self.is_on = False
        signal.setitimer(signal.ITIMER_REAL, 0)

    def __exit__(self, *_):
        self.off()
        signal.signal(signal.SIGALRM, self.before)


def interrupt(fleet, alarms):
    """Go on with some operation until an alarm interrupts it."""
    operation = alarms.rng.choice(["step", "step", "reset", "call"])
    try:
        alarms.soon()
        while True:
            if operation == "step":
                fleet.step([1] * ENVS)
            elif operation == "reset":
                fleet.reset(seed=1)
                fleet.step([1] * ENVS)
            else:
                fleet.call("count")
    except Alarm:
        alarms.off()


def next_answer(fleet, seen):
    """What a program that has caught the alarm sees next: counts by env, told in two ways."""
    if hasattr(fleet, "step_wait"):
        with contextlib.suppress(NoAsyncCallError):
            answer = fleet.step_wait(timeout=10)
            seen["pending step"] += 1
            return answer
        with contextlib.suppress(NoAsyncCallError):
            fleet.call_wait(timeout=10)
            seen["pending call"] += 1
        with contextlib.suppress(NoAsyncCallError):
            fleet.reset_wait(timeout=10)
            seen["pending reset"] += 1
    try:
        answer = fleet.step([1] * ENVS)
        seen["whole"] += 1
    except ResetNeeded:
        observations, _ = fleet.reset()
        assert observations[:, 1].tolist() == [0] * ENVS
        answer = fleet.step([1] * ENVS)
        assert answer[0][:, 1].tolist() == [1] * ENVS
        seen["reset"] += 1
    return answer


def check(answer):
    observations, _, _, _, infos = answer
    (count,) = set(observations[:, 1].tolist())
    assert infos["count"].tolist() == [count] * ENVS
    if "blob" in infos:
        assert all((blob == count).all() for blob in infos["blob"])


def torment(build, rounds=ALARMS):
    """Alarm after alarm; returns how often the fleet was found in which state."""
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    seen = collections.Counter()
    fleet = build()
    fleet.reset()
    with Alarms(rng) as alarms:
        for _ in range(rounds):
            interrupt(fleet, alarms)
            try:
                check(next_answer(fleet, seen))
            except envfleet.FleetBroken:
                seen["broken"] += 1
                fleet.close(timeout=10)
                fleet = build()
                fleet.reset()
    check(fleet.step([1] * ENVS))
    pids = [process.pid for process in getattr(fleet, "processes", ())]
    fleet.close(timeout=10)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    print(dict(seen))
    return seen


OPTIONS = {
    "plain": {},
    "caller": {"caller_steps": True},
    "pipes": {"shared_memory": False},
    "restart": {"on_failure": "restart", "restarts": (10**6, 60.0)},
}


@pytest.mark.parametrize("env", [small, large])
@pytest.mark.parametrize(
    "options", [pytest.param(o, marks=pytest.mark.full if o != "plain" else ()) for o in OPTIONS]
)
def test_an_alarm_at_any_moment_never_leaves_some_envs_a_step_ahead(options, env):
    seen = torment(
        lambda: envfleet.ProcessVectorEnv(
            [env] * ENVS, context="fork", workers=3, **OPTIONS[options]
        )
    )
    assert seen["reset"] > 0
    assert seen["broken"] < ALARMS / 2


@pytest.mark.full
@pytest.mark.parametrize("context", ["forkserver", "spawn"])
@pytest.mark.parametrize("env", [small, large])
def test_the_same_under_the_other_start_methods(env, context):
    torment(lambda: envfleet.ProcessVectorEnv([env] * ENVS, context=context, workers=3))


@pytest.mark.parametrize("env", [small, pytest.param(large, marks=pytest.mark.full)])
def test_the_same_on_the_serial_engine(env):
    seen = torment(lambda: envfleet.SerialVectorEnv([env] * ENVS))
    assert seen["reset"] > 0


@pytest.mark.parametrize("error", [Alarm, AlarmValue, SystemExit, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("engine", ["serial", "caller"])
def test_the_handlers_exception_is_the_callers_and_not_an_envs(engine, error):
    """Also where it comes while an env of the calling process is in ``step``."""

    class Ringing(FaultEnv):
        def step(self, action):
            signal.raise_signal(signal.SIGALRM)  # as if it came just now
            return super().step(action)

    if engine == "serial":
        fleet = envfleet.SerialVectorEnv([FaultEnv, Ringing])
    else:
        fleet = envfleet.ProcessVectorEnv(
            [FaultEnv, Ringing], context="fork", workers=2, caller_steps=True
        )
    fleet.reset()
    with Alarms(random.Random(1), [error]) as alarms:
        alarms.is_on = True
        with pytest.raises(error) as caught:
            fleet.step([1, 1])
        alarms.off()
    assert not getattr(caught.value, "__notes__", [])
    with pytest.raises(ResetNeeded, match="interrupted"):
        fleet.step([1, 1])
    assert fleet.reset()[0][:, 1].tolist() == [0, 0]
    with Alarms(random.Random(1)):  # one that does nothing
        assert fleet.step([1, 1])[0][:, 1].tolist() == [1, 1]
    fleet.close()


def test_reset_takes_over_from_a_wait_that_was_interrupted():
    class Slow(FaultEnv):
        def step(self, action):
            time.sleep(1.0)
            return super().step(action)

    with envfleet.ProcessVectorEnv([Slow] * 2, context="fork", workers=2) as fleet:
        fleet.reset()
        with Alarms(random.Random(5)) as alarms:
            with pytest.raises(Alarm):  # noqa: PT012 - it comes while the envs sleep
                alarms.soon(0.05)
                fleet.step([1, 1])
            alarms.off()
        assert fleet.reset()[0][:, 1].tolist() == [0, 0]
        assert fleet.step([1, 1])[0][:, 1].tolist() == [1, 1]


class Gated(FaultEnv):
    """Its step, or its reset from the second on, says that it has begun and waits to be let go."""

    def __init__(self, folder, method):
        super().__init__()
        self.folder, self.method, self.resets = folder, method, 0

    def _wait(self, method):
        if method == self.method:
            (self.folder / f"begun-{os.getpid()}").touch()
            wait_until((self.folder / "go").exists)

    def reset(self, **kwargs):
        self.resets += 1
        if self.resets > 1:
            self._wait("reset")
        return super().reset(**kwargs)

    def step(self, action):
        self._wait("step")
        return super().step(action)


@pytest.fixture(params=["step", "reset"])
def left_by_an_alarm(request, tmp_path):
    """A fleet of which an alarm has ended a call for envs 2 and 0, each in its own worker."""

    def ring(*_):
        if len(list(tmp_path.glob("begun-*"))) == 2:
            raise Alarm

    fns = [partial(Gated, tmp_path, request.param)] * 4
    with envfleet.ProcessVectorEnv(fns, context="fork", workers=4) as fleet:
        fleet.reset(seed=1)
        with Alarms(random.Random(6), handler=ring) as alarms:
            with pytest.raises(Alarm):  # noqa: PT012 - it comes while the envs wait
                alarms.soon()
                if request.param == "step":
                    fleet.step([1, 1], env_ids=[2, 0])
                else:
                    fleet.reset(env_ids=[2, 0])
            alarms.off()
        assert fleet.outstanding.tolist() == [0, 2]
        (tmp_path / "go").touch()
        yield fleet


def test_a_reset_takes_over_from_a_call_for_some_envs(left_by_an_alarm):
    fleet = left_by_an_alarm
    assert fleet.reset()[0][:, 1].tolist() == [0] * 4
    assert fleet.step([1] * 4)[0][:, 1].tolist() == [1] * 4


def test_a_reset_of_these_envs_takes_over_too(left_by_an_alarm):
    fleet = left_by_an_alarm
    assert fleet.reset(env_ids=[0, 1])[0][:, 1].tolist() == [0, 0]
    assert fleet.outstanding.tolist() == [2]
    assert fleet.reset(env_ids=[2])[0][:, 1].tolist() == [0]
    assert fleet.step([1] * 4)[0][:, 1].tolist() == [1] * 4


def test_what_such_a_call_asked_may_be_received(left_by_an_alarm):
    fleet = left_by_an_alarm
    for refused in (lambda: fleet.step([1], env_ids=[2]), lambda: fleet.send_reset([2])):
        with pytest.raises(AlreadyPendingCallError, match=r"envs 2 are outstanding: .*Reset them"):
            refused()
    assert fleet.recv().env_ids.tolist() == [0, 2]
    fleet.send([1], [0])
    for refused in (fleet.reset, lambda: fleet.reset(env_ids=[0])):
        with pytest.raises(AlreadyPendingCallError, match="envs 0 are outstanding: `send`"):
            refused()
    assert fleet.recv().env_ids.tolist() == [0]


def test_a_reset_takes_nothing_over_where_send_has_asked_one_of_the_envs(left_by_an_alarm):
    fleet = left_by_an_alarm
    fleet.send([1], [1])
    for refused in (fleet.reset, lambda: fleet.reset(env_ids=[2, 1])):
        with pytest.raises(AlreadyPendingCallError, match="`send` has asked"):
            refused()
    assert fleet.recv().env_ids.tolist() == [0, 1, 2]


def fleet_that_rings(engine):
    """Four envs, the last two in the calling process; env 2 rings in its step."""

    class Ringing(FaultEnv):
        def step(self, action):
            signal.raise_signal(signal.SIGALRM)
            return super().step(action)

    fns = [FaultEnv, FaultEnv, Ringing, FaultEnv]
    if engine == "serial":
        return envfleet.SerialVectorEnv(fns)
    return envfleet.ProcessVectorEnv(fns, context="fork", workers=2, caller_steps=True)


@pytest.mark.parametrize("call", ["step", "recv"])
@pytest.mark.parametrize("engine", ["serial", "caller"])
def test_the_env_that_was_interrupted_is_the_one_that_is_named(engine, call):
    """Of those in the calling process; its neighbour, asked with it, has yet to move."""
    with fleet_that_rings(engine) as fleet, Alarms(random.Random(1)) as alarms:
        fleet.reset()
        alarms.is_on = True
        with pytest.raises(Alarm):  # noqa: PT012
            if call == "step":
                fleet.step([1, 1], env_ids=[3, 2])
            else:
                fleet.send([1, 1], [3, 2])
                fleet.recv()
        alarms.off()
        with pytest.raises(ResetNeeded, match="envs 2 were interrupted"):
            fleet.step([1], env_ids=[0])
        assert fleet.outstanding.tolist() == [3]
        with pytest.raises(ResetNeeded, match="envs 2 were interrupted"):
            fleet.send([1], [2])
        if call == "recv":
            fleet.recv()
        assert fleet.reset(env_ids=[2, 3])[0][:, 1].tolist() == [0, 0]
        assert fleet.step([1] * 4)[0][:, 1].tolist() == [1] * 4


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("engine", ["serial", "caller"])
def test_a_reset_takes_over_from_a_call_whose_env_was_interrupted(engine, whole):
    with fleet_that_rings(engine) as fleet, Alarms(random.Random(1)) as alarms:
        fleet.reset()
        alarms.is_on = True
        with pytest.raises(Alarm):
            fleet.step([1] * 3, env_ids=[3, 2, 0])
        alarms.off()
        fleet.reset() if whole else fleet.reset(env_ids=[0, 2, 3])
        assert fleet.step([1] * 4)[0][:, 1].tolist() == [1] * 4


@pytest.mark.parametrize("options", ["plain", "caller", "pipes"])
def test_a_reset_takes_over_at_whatever_moment_the_alarm_came(options):
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    build = partial(
        envfleet.ProcessVectorEnv, [small] * ENVS, context="fork", workers=3, **OPTIONS[options]
    )
    fleet = build()
    try:
        fleet.reset()
        with Alarms(rng) as alarms:
            for attempt in range(100):
                some = rng.sample(range(ENVS), rng.randint(1, ENVS))
                with contextlib.suppress(Alarm):
                    alarms.soon()
                    while True:
                        fleet.step([1] * len(some), env_ids=some)
                        fleet.reset(env_ids=some)
                alarms.off()
                try:
                    fleet.reset(env_ids=some) if attempt % 2 else fleet.reset()
                    observations, *_, infos = fleet.step([1] * len(some), env_ids=some)
                    assert observations[:, 1].tolist() == [1] * len(some)
                    assert infos["count"].tolist() == [1] * len(some)
                    fleet.reset()
                except envfleet.FleetBroken as error:
                    assert "cut a message" in str(error)  # noqa: PT017
                    fleet.close(timeout=10)
                    fleet = build()
                    fleet.reset()
    finally:
        fleet.close(timeout=10)


@pytest.mark.parametrize("env", [small, pytest.param(large, marks=pytest.mark.full)])
def test_close_keeps_to_its_time_whatever_interrupts_it(env):
    rng = random.Random(2)
    with Alarms(rng) as alarms, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a call is pending
        for attempt in range(25):
            fleet = envfleet.ProcessVectorEnv([env] * ENVS, context="fork", workers=3)
            pids = [process.pid for process in fleet.processes]
            fleet.reset()
            interrupt(fleet, alarms)
            start = time.monotonic()
            with contextlib.suppress(Alarm):
                if attempt % 2:
                    alarms.soon()
                fleet.close(timeout=5)
            alarms.off()
            fleet.close(timeout=5)
            assert time.monotonic() - start < 20
            for pid in pids:
                with pytest.raises(ProcessLookupError):
                    os.kill(pid, 0)


def test_a_handler_may_close_the_fleet_itself():
    rng = random.Random(3)
    closed = 0
    for attempt in range(20):
        fleet = envfleet.ProcessVectorEnv([small] * ENVS, context="fork", workers=3)
        fleet.reset()

        def close_and_go_on(*_, fleet=fleet):
            fleet.close(timeout=5)

        def close_and_leave(*_, fleet=fleet):
            fleet.close(timeout=5)
            raise SystemExit(3)

        handler = close_and_leave if attempt % 2 else close_and_go_on
        with (  # noqa: PT012 - the alarm may come in any of these lines
            Alarms(rng, handler=handler) as alarms,
            warnings.catch_warnings(),
            pytest.raises((SystemExit, ClosedEnvironmentError)) as caught,
        ):
            warnings.simplefilter("ignore")  # a call is pending
            alarms.soon()
            while True:
                fleet.step([1] * ENVS)
        closed += caught.type is ClosedEnvironmentError
        assert fleet.closed
    assert closed == 10


def test_sys_exit_in_a_sigterm_handler_ends_a_program_at_once():
    program = """
    import os, signal, sys, envfleet
    from envfleet.testing import FaultEnv
    def build(engine):
        if engine == "serial":
            return envfleet.SerialVectorEnv([FaultEnv] * 2)
        return envfleet.ProcessVectorEnv(
            [FaultEnv] * 2, context="fork", workers=2, caller_steps=engine == "caller"
        )
    fleet = build(sys.argv[1])
    fleet.reset()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
    print("stepping", flush=True)
    while True:
        fleet.step([1, 1])
    """
    for engine in ("serial", "process", "caller"):
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), engine],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as running:
            assert running.stdout.readline() == "stepping\n"
            running.terminate()
            assert running.wait(20) == 5
            assert running.stderr.read() == ""


@pytest.mark.parametrize(
    "context", ["fork", *(pytest.param(c, marks=pytest.mark.full) for c in ("forkserver", "spawn"))]
)
def test_an_alarm_while_a_fleet_is_built_leaves_nothing(context):
    rng = random.Random(4)
    built = 0
    with Alarms(rng) as alarms:
        for _ in range(15):
            try:
                alarms.soon(0.02)
                fleet = envfleet.ProcessVectorEnv([small] * 2, context=context, workers=2)
                alarms.off()
                built += 1
                fleet.close(timeout=5)
            except Alarm:
                alarms.off()
    assert built < 15


@pytest.mark.parametrize("package", ["vector", "engine/arena", "engine/pool", "engine/process"])
def test_an_alarm_at_any_line_of_building_leaves_nothing(package):
    """The same, not left to chance: a real signal when a line runs for the first time."""
    source = f"{Path(envfleet.__file__).parent / package}{os.sep}"
    caller = os.getpid()
    rung = set()

    def trace(frame, event, _):
        line = frame.f_code.co_filename, frame.f_lineno
        if not line[0].startswith(source) or os.getpid() != caller:
            return None
        if line[0].endswith("signals.py"):  # no handler runs inside its barrier unless traced
            return None
        if event == "line" and line not in rung:
            rung.add(line)
            signal.raise_signal(signal.SIGALRM)
        return trace

    with Alarms(random.Random(4)) as alarms:
        alarms.is_on = True
        built = False
        while not built:
            sys.settrace(trace)
            try:
                fleet = envfleet.ProcessVectorEnv([small] * 2, context="fork", workers=2)
                built = True
            except Alarm:
                continue
            finally:
                sys.settrace(None)
            fleet.close(timeout=5)
    assert len(rung) > 10
