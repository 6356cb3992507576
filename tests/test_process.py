"""What only the process engine does: workers, their deaths, time-outs, transport, start methods."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import psutil
import pytest
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ResetNeeded

import envfleet
from envfleet.testing import SpaceEnv
from fleet_envs import CounterEnv
from waiting import wait_until

Fleet = partial(envfleet.ProcessVectorEnv, context="fork", workers=2)


# Workers


@pytest.mark.parametrize(
    ("num_envs", "workers", "sizes"), [(4, 2, [2, 2]), (13, 3, [5, 4, 4]), (2, 9, [1, 1])]
)
def test_envs_are_split_evenly(num_envs, workers, sizes):
    with Fleet([CounterEnv] * num_envs, workers=workers) as fleet:
        pids = fleet.call("pid")
        assert [pids.count(pid) for pid in dict.fromkeys(pids)] == sizes
        assert fleet.workers == len(sizes)


def test_by_default_there_is_a_worker_per_usable_core():
    cores = len(os.sched_getaffinity(0))
    with envfleet.ProcessVectorEnv([CounterEnv] * (cores + 3)) as fleet:
        assert fleet.workers <= cores
        assert len(set(fleet.call("pid"))) == fleet.workers


@pytest.mark.parametrize("workers", [0, -1, 1.5, "two"])
def test_a_bad_number_of_workers_is_refused(workers):
    with pytest.raises(ValueError, match="`workers` must be a positive integer or None"):
        Fleet([CounterEnv] * 2, workers=workers)


def test_a_worker_function_is_refused_with_a_hint():
    with pytest.raises(TypeError, match=r"subclass of envfleet\.EnvHost"):
        Fleet([CounterEnv] * 2, worker=lambda *args: None)


class SeasonHost(envfleet.EnvHost):
    """Every autoreset starts the next of four seasons."""

    def reset_env(self, i, **kwargs):
        if not kwargs:
            kwargs = {"options": {"season": self.envs[i].get_wrapper_attr("resets") % 4}}
        return super().reset_env(i, **kwargs)


def test_a_host_may_change_how_envs_are_reset():
    with Fleet([partial(CounterEnv, length=1)] * 3, worker=SeasonHost) as fleet:
        fleet.reset()
        fleet.step([0] * 3)
        fleet.step([0] * 3)
        assert fleet.call("options") == ({"season": 1},) * 3


def test_the_worker_of_the_documentation_works():
    page = Path(__file__).parent.parent / "docs" / "differences.md"
    example = page.read_text().split("```python\n")[1].split("```")[0]
    names = {}
    exec(example, names)
    with names["envs"] as fleet:
        fleet.reset()
        ended = np.zeros(8, int)
        for _ in range(60):
            ended += fleet.step([0] * 8)[2]  # a cart that is pushed one way falls soon
        levels = np.array(fleet.call("level"))
        assert (levels > 1).all()
        assert (levels >= ended - 1).all()  # the last end may not have been reset yet
        assert (levels <= ended).all()


def test_envs_that_wait_give_one_warning_that_names_workers():
    with Fleet([partial(CounterEnv, sleep=0.03)] * 4) as fleet:
        fleet.reset()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(12):
                fleet.step([0] * 4)
        assert "workers=num_envs (workers=4)" in str(caught[0].message)
        assert len(caught) == 1
        assert caught[0].filename == __file__


def test_envs_that_compute_or_have_a_worker_each_give_no_warning():
    class Busy(CounterEnv):
        def step(self, action):
            end = time.thread_time() + 0.02
            while time.thread_time() < end:
                pass
            return super().step(action)

    with Fleet([Busy] * 4) as busy, Fleet([partial(CounterEnv, sleep=0.03)] * 2) as alone:
        busy.reset()
        alone.reset()
        for _ in range(12):
            busy.step([0] * 4)
            alone.step([0] * 2)


def test_global_generators_are_repeatable_and_differ_between_fleets_too():
    script = textwrap.dedent("""
        import random, numpy as np, envfleet
        from fleet_envs import CounterEnv
        class Dice(CounterEnv):
            def roll(self):
                return random.random(), float(np.random.random())
        random.seed(7); np.random.seed(7)
        for _ in range(2):
            with envfleet.ProcessVectorEnv([Dice] * 2, context="fork", workers=2) as fleet:
                print(fleet.call("roll"))
    """)
    first, second = (run_script(script) for _ in range(2))
    assert first == second
    lines = first.splitlines()
    assert lines[0] != lines[1]


# Transport


def test_observations_by_pipe_are_not_in_the_arena():
    image = spaces.Box(0, 255, (200, 200, 3), np.uint8)
    fns = [partial(SpaceEnv, image, spaces.Discrete(2))] * 2
    with Fleet(fns, shared_memory=False) as piped:
        assert arena_size(piped.processes[0].pid) <= 4096
    with Fleet(fns) as shared:
        assert arena_size(shared.processes[0].pid) >= 2 * 200 * 200 * 3


def arena_size(pid):
    total = 0
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if "memfd:envfleet" in line:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            total = max(total, end - start)
    return total


def test_large_infos_from_all_envs_at_once_do_not_block():
    class Talker(CounterEnv):
        def step(self, action):
            *rest, _ = super().step(action)
            return *rest, {"blob": np.full(1_000_000, self.steps)}

    with Fleet([Talker] * 4) as fleet:
        fleet.reset()
        for step in (1, 2):
            blobs = fleet.step([0] * 4)[4]["blob"]
            assert blobs.shape == (4, 1_000_000)
            assert (blobs == step).all()


class Lock:
    def __reduce__(self):
        raise TypeError("cannot be pickled, ever")


class Broken(Exception):  # noqa: N818
    """Pickles, but does not unpickle."""

    def __init__(self, a, b):
        super().__init__("only one")


@pytest.mark.parametrize(
    ("value", "text"),
    [(Lock(), r"info\['x'\] cannot be pickled"), (Broken(1, 2), "could not be unpickled")],
    ids=["unpicklable", "not unpicklable"],
)
def test_an_info_that_cannot_travel_costs_nothing_else(value, text):
    class Sender(CounterEnv):
        def step(self, action):
            *rest, _ = super().step(action)
            return *rest, {"x": value, "y": 1} if self.steps == 2 else {}

    with Fleet([CounterEnv, CounterEnv, Sender]) as fleet:
        fleet.reset()
        fleet.step([0] * 3)
        with pytest.raises((TypeError, envfleet.EnvError), match=text):
            fleet.step([0] * 3)
        assert fleet.step([0] * 3)[0].tolist() == [[1, 3]] * 3


def test_a_result_that_cannot_travel_costs_nothing_else():
    class Holder(CounterEnv):
        def lock(self):
            return Lock()

        def broken(self):
            return Broken(1, 2)

    with Fleet([Holder] * 3) as fleet:
        for name in ("lock", "broken"):
            with pytest.raises((TypeError, envfleet.EnvError)):
                fleet.call(name)
        assert fleet.get_attr("tag") == ("unset",) * 3


def test_an_argument_that_cannot_be_pickled_costs_nothing():
    with Fleet([CounterEnv] * 2) as fleet:
        fleet.reset()
        with pytest.raises(TypeError, match="ever"):
            fleet.reset(options={"x": Lock()})
        with pytest.raises(TypeError, match="ever"):
            fleet.set_attr("tag", Lock())
        assert fleet.step([0, 0])[0].tolist() == [[1, 1]] * 2


def test_an_argument_that_a_worker_cannot_unpickle_costs_nothing():
    with Fleet([CounterEnv] * 2) as fleet:
        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            fleet.set_attr("tag", Broken(1, 2))
        assert fleet.get_attr("tag") == ("unset", "unset")


def test_the_workers_traceback_is_the_cause():
    with Fleet([CounterEnv, partial(CounterEnv, fail_at=1, error=OSError(5, "disk"))]) as fleet:
        fleet.reset()
        with pytest.raises(OSError, match="disk") as caught:
            fleet.step([0, 0])
        assert isinstance(caught.value.__cause__, envfleet.EnvError)
        assert 'fleet_envs.py", line' in str(caught.value.__cause__)
        pid = fleet.processes[1].pid
        assert f"raised by env 1 in step, worker 1 (pid {pid})" in caught.value.__notes__


@pytest.mark.parametrize("error", [KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_no_exception_of_an_env_ends_its_worker(error):
    with Fleet([CounterEnv, partial(CounterEnv, fail_at=1, error=error)]) as fleet:
        fleet.reset()
        with pytest.raises(envfleet.EnvError, match=type(error).__name__):
            fleet.step([0, 0])
        fleet.reset()
        assert fleet.step([0, 0])[0].tolist() == [[2, 1]] * 2


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_factory_that_fails_says_which_env(context):
    def nothing():
        return None

    with pytest.raises(TypeError, match="env 1: its factory returned None") as caught:
        envfleet.ProcessVectorEnv([CounterEnv, nothing], context=context, workers=1)
    assert "raised by env 1 in construct" in caught.value.__notes__[0]


def test_every_env_of_a_failed_start_is_closed(tmp_path):
    class Closer(CounterEnv):
        def __init__(self, name):
            super().__init__()
            self.path = tmp_path / name

        def close(self):
            self.path.touch()

    def failing():
        raise ValueError("planned")

    with pytest.raises(ValueError, match="planned"):
        Fleet([partial(Closer, "a"), partial(Closer, "b"), partial(Closer, "c"), failing])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


# Time-outs


def slow_second(**kwargs):
    return Fleet([CounterEnv, partial(CounterEnv, sleep=1.5)], **kwargs)


def test_a_time_out_names_the_late_envs_and_leaves_the_call_pending():
    with slow_second() as fleet:
        fleet.reset()
        fleet.step_async([0, 0])
        with pytest.raises(envfleet.WaitTimeout, match=r"Late envs: 1\."):
            fleet.step_wait(timeout=0.5)
        for busy in (
            lambda: fleet.step_async([0, 0]),
            lambda: fleet.call("tag"),
            lambda: fleet.set_attr("tag", 1),
        ):
            with pytest.raises(AlreadyPendingCallError):
                busy()
        assert fleet.step_wait()[0].tolist() == [[1, 1]] * 2


@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_masked_reset_after_a_time_out_keeps_what_came_in_time(shared_memory):
    with slow_second(shared_memory=shared_memory) as fleet:
        fleet.reset()
        fleet.step_async([0, 0])
        with pytest.raises(envfleet.WaitTimeout):
            fleet.step_wait(timeout=0.5)
        observations, _ = fleet.reset(options={"reset_mask": np.array([False, True])})
        assert observations.tolist() == [[1, 1], [2, 0]]


def test_a_failure_in_a_call_that_timed_out_is_not_forgotten():
    fns = [partial(CounterEnv, fail_at=1), partial(CounterEnv, sleep=1.5)]
    with Fleet(fns) as fleet:
        fleet.reset()
        fleet.step_async([0, 0])
        with pytest.raises(envfleet.WaitTimeout):
            fleet.step_wait(timeout=0.5)
        fleet.reset(options={"reset_mask": np.array([False, True])})
        with pytest.raises(ResetNeeded, match="envs 0 raised"):
            fleet.step([0, 0])


def test_a_full_reset_that_timed_out_is_not_lost_to_a_masked_one():
    with slow_second() as fleet:
        fleet.reset()
        fleet.step_async([0, 0])
        with pytest.raises(envfleet.WaitTimeout):
            fleet.step_wait(timeout=0.01)
        fleet.reset_async()
        with pytest.raises(envfleet.WaitTimeout):
            fleet.reset_wait(timeout=0.01)
        observations, _ = fleet.reset(options={"reset_mask": np.array([True, False])})
        assert observations[1].tolist() == [2, 0]


def test_a_reset_that_cannot_be_sent_leaves_the_timed_out_call_pending():
    with slow_second() as fleet:
        fleet.reset()
        fleet.step_async([0, 0])
        with pytest.raises(envfleet.WaitTimeout):
            fleet.step_wait(timeout=0.01)
        with pytest.raises(TypeError, match="ever"):
            fleet.reset(options={"x": Lock()})
        assert fleet.step_wait()[0].tolist() == [[1, 1]] * 2


# Deaths and ends


def step_until_error(fleet):
    """A worker that was killed may have answered one more step before it died."""
    for _ in range(2):
        fleet.step([0] * fleet.num_envs)


def test_a_killed_worker_is_named_and_breaks_the_fleet():
    fleet = Fleet([CounterEnv] * 3)
    fleet.reset()
    victim = fleet.processes[1].pid
    os.kill(victim, signal.SIGKILL)
    with pytest.raises(envfleet.WorkerDied, match="SIGKILL") as caught:
        step_until_error(fleet)
    assert (caught.value.worker, caught.value.pid) == (1, victim)
    assert tuple(caught.value.envs) == (2,)
    for call in (fleet.reset, lambda: fleet.step([0] * 3), lambda: fleet.call("tag")):
        with pytest.raises(envfleet.FleetBroken) as broken:
            call()
        assert broken.value.__cause__ is caught.value
    fleet.close()
    assert fleet.closed


def test_an_env_that_ends_its_process_is_told_by_exit_code_and_command():
    class Leaver(CounterEnv):
        def step(self, action):
            os._exit(3)

    fleet = Fleet([CounterEnv, Leaver])
    fleet.reset()
    with pytest.raises(envfleet.WorkerDied, match="exited with code 3 during step"):
        fleet.step([0, 0])
    fleet.close()


def test_the_survivors_of_a_death_are_closed(tmp_path):
    class Closer(CounterEnv):
        def close(self):
            (tmp_path / "closed").touch()

    fleet = Fleet([Closer, CounterEnv])
    os.kill(fleet.processes[1].pid, signal.SIGKILL)
    fleet.processes[1].join()
    with pytest.raises(envfleet.WorkerDied, match=r"SIGKILL.*\(often"):
        fleet.reset()
    fleet.close()
    assert (tmp_path / "closed").exists()


def test_closing_many_times_never_mistakes_leaving_for_dying():
    class SlowCloser(CounterEnv):
        def close(self):
            time.sleep(self.sleep)

    for _ in range(10):
        fleet = Fleet([CounterEnv, SlowCloser, CounterEnv], workers=3)
        fleet.set_attr("sleep", 0.05)
        fleet.close()
        fleet.close_extras()


def test_close_gives_envs_the_time_they_need(tmp_path):
    class SlowCloser(CounterEnv):
        def close(self):
            time.sleep(1.2)
            (tmp_path / "closed").touch()

    Fleet([SlowCloser, CounterEnv]).close()
    assert (tmp_path / "closed").exists()


@pytest.mark.parametrize("on_failure", ["raise", "restart"])
def test_a_closed_fleet_that_is_kept_holds_no_shared_memory(on_failure):
    def shared():
        return Path("/proc/self/maps").read_text().count("memfd:envfleet")

    before = shared()
    fleet = Fleet([CounterEnv] * 2, on_failure=on_failure)
    fleet.reset()
    fleet.step([0, 0])
    assert shared() > before
    fleet.close()
    assert shared() == before


def test_a_closed_fleet_that_is_kept_holds_no_descriptor():
    before = len(list(Path("/proc/self/fd").iterdir()))
    fleets = [Fleet([CounterEnv] * 2) for _ in range(3)]
    for fleet in fleets:
        fleet.reset()
        fleet.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert [fleet.observations.tolist() for fleet in fleets] == [[[1, 0], [1, 0]]] * 3


def test_a_fleet_that_is_dropped_stops_its_workers():
    fleet = Fleet([CounterEnv] * 2)
    pids = [process.pid for process in fleet.processes]
    del fleet
    gc.collect()
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def test_workers_leave_when_the_caller_is_killed():
    script = textwrap.dedent("""
        import os, signal, sys, envfleet
        from fleet_envs import CounterEnv
        a = envfleet.ProcessVectorEnv([CounterEnv] * 3, context="fork", workers=3)
        b = envfleet.ProcessVectorEnv([CounterEnv] * 2, context="fork", workers=2)
        print(*[p.pid for fleet in (a, b) for p in fleet.processes], flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    pids = [int(pid) for pid in run_script(script, code=-signal.SIGKILL).split()]
    assert len(pids) == 5
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def test_a_program_that_never_closes_its_fleet_ends():
    script = textwrap.dedent("""
        import tempfile
        kept = tempfile.TemporaryDirectory()   # its exit hook is registered before ours
        import envfleet
        from fleet_envs import CounterEnv
        fleet = envfleet.ProcessVectorEnv([CounterEnv] * 2, context="fork", daemon=False)
        fleet.reset()
        print("done")
    """)
    assert run_script(script) == "done\n"


def test_a_forked_child_cannot_use_or_harm_the_fleet():
    with Fleet([CounterEnv] * 2) as fleet:
        fleet.reset()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                fleet.step([0, 0])
            except envfleet.FleetBroken:
                os.write(writer, b"refused")
            fleet.close()
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writer)
        assert os.read(reader, 99) == b"refused"
        os.close(reader)
        assert fleet.step([0, 0])[0].tolist() == [[1, 1]] * 2


def test_ctrl_c_is_the_callers_alone():
    script = textwrap.dedent("""
        import envfleet, os, signal
        from fleet_envs import CounterEnv
        fleet = envfleet.ProcessVectorEnv([lambda: CounterEnv(sleep=0.5)] * 2, workers=2)
        fleet.reset()
        fleet.step_async([0, 0])
        try:
            os.killpg(0, signal.SIGINT)
            fleet.step_wait()
        except KeyboardInterrupt:
            print("interrupted")
        print(fleet.step_wait()[0].tolist())
        fleet.close()
    """)
    assert run_script(script) == "interrupted\n[[1.0, 1.0], [1.0, 1.0]]\n"


def test_a_half_failed_start_leaves_nothing():
    # The first worker is running when the second one's factory turns out not to travel.
    fns = [CounterEnv, partial(CounterEnv, tag=Lock())]
    with pytest.raises(TypeError, match="ever"):
        envfleet.ProcessVectorEnv(fns, context="spawn", workers=2)


# Start methods

MAIN_CLASSES = """
import gymnasium as gym, numpy as np, envfleet, sys
from gymnasium import spaces

class Level:
    def __init__(self, number): self.number = number

class Letters(gym.Space):
    def sample(self, mask=None, probability=None): return "a"
    def contains(self, x): return isinstance(x, str)
    def __eq__(self, other): return isinstance(other, Letters)

class MainEnv(gym.Env):
    observation_space = Letters()
    action_space = Letters()
    level = None
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "start", {"level": Level(0)}
    def step(self, action):
        assert isinstance(self.get_level(), Level)
        return action, 1.0, False, False, {"level": self.level}
    def get_level(self): return self.level

if __name__ == "__main__":
    envs = envfleet.ProcessVectorEnv(
        [lambda: MainEnv()] * 3, shared_memory=False, context=sys.argv[1], workers=2
    )
    assert isinstance(envs.single_observation_space, Letters), "identity of the space"
    observations, infos = envs.reset()
    assert all(isinstance(level, Level) for level in infos["level"]), "identity of the info"
    envs.set_attr("level", Level(7))
    observations, *_, infos = envs.step(["a", "b", "c"])
    assert [level.number for level in infos["level"]] == [7, 7, 7]
    assert all(type(level) is Level for level in envs.call("get_level"))
    print(observations)
    envs.close()
"""


@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("source", ["script", "stdin"])
def test_classes_of_main_travel_both_ways(context, source, tmp_path):
    if source == "script":
        path = tmp_path / "program.py"
        path.write_text(MAIN_CLASSES)
        output = run([str(path), context])
    else:
        output = run(["-", context], stdin=MAIN_CLASSES)
    assert output == "('a', 'b', 'c')\n"


def test_an_id_registered_in_the_caller_only_works_under_spawn():
    gym.register("OnlyHere-v0", entry_point="fleet_envs:CounterEnv")
    try:
        options = {"context": "spawn"}
        with envfleet.make("OnlyHere-v0", 2, backend="process", vector_kwargs=options) as fleet:
            assert fleet.reset()[0].tolist() == [[1, 0]] * 2
    finally:
        del gym.registry["OnlyHere-v0"]


def test_the_default_start_method_is_the_platforms():
    with envfleet.ProcessVectorEnv([CounterEnv] * 2) as fleet:
        name = type(fleet.processes[0]).__name__.lower()
        assert name.startswith(multiprocessing.get_start_method())


def run(arguments, stdin="", code=0):
    """Run a Python program in a session of its own; stderr must stay silent."""
    process = subprocess.run(
        [sys.executable, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        start_new_session=True,
        check=False,
    )
    assert process.stderr == ""
    assert process.returncode == code
    return process.stdout


def run_script(script, code=0):
    return run(["-c", script], code=code)


# Concurrency inside the caller


def test_a_fleet_may_be_closed_from_another_thread():
    fleet = Fleet([CounterEnv] * 2)
    fleet.reset()
    closer = threading.Thread(target=fleet.close)
    closer.start()
    closer.join()
    assert fleet.closed


def test_nothing_warns_in_normal_use():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Fleet([partial(CounterEnv, length=2)] * 4) as fleet:
            fleet.reset(seed=3)
            for _ in range(5):
                fleet.step([0] * 4)
            fleet.render()
