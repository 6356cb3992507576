"""What makes steps fast: signals, the caller's share, chosen infos, few threads, and the choice."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import psutil
import pytest
import threadpoolctl
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv

import envfleet
from envfleet.bench.contestants import BUILDERS
from envfleet.bench.contestants import Fleet as BenchedFleet
from envfleet.bench.rounds import measure_cell
from envfleet.bench.works import factory
from envfleet.cli.main import main
from envfleet.testing import Fault, FaultEnv, assert_same
from fleet_envs import CounterEnv, InfoEnv
from waiting import wait_until

Fleet = partial(envfleet.ProcessVectorEnv, context="fork", workers=2)


def activity(pids):
    """What these processes have done so far: seconds of CPU, and how often a thread was woken."""
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    tasks = [task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()]
    lines = [line for task in tasks for line in (task / "status").read_text().splitlines()]
    switches = sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
    return sum(t.user + t.system for t in times), switches


@pytest.mark.parametrize("caller_steps", [False, True])
def test_an_idle_fleet_burns_no_cpu(caller_steps):
    with Fleet([FaultEnv] * 4, caller_steps=caller_steps) as fleet:
        fleet.reset()
        for _ in range(200):
            fleet.step([1] * 4)
        pids = [process.pid for process in fleet.processes]

        def is_at_rest():
            before, own = activity(pids), time.process_time()
            time.sleep(0.5)
            # The caller has slept, and looked at its workers.
            return activity(pids) == before and time.process_time() - own < 0.1

        wait_until(is_at_rest)


# The caller's share


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_caller_steps_the_last_of_the_shards(workers):
    with Fleet([CounterEnv] * 5, workers=workers, caller_steps=True) as fleet:
        assert len(fleet.processes) == workers - 1
        pids = fleet.call("pid")
        own = [pid == os.getpid() for pid in pids]
        assert own == sorted(own)
        assert sum(own) == 5 // workers
        fleet.reset()
        assert fleet.step([0] * 5)[0].tolist() == [[1, 1]] * 5


@pytest.mark.parametrize("options", [{"on_failure": "restart"}, {"step_timeout": 1.0}])
def test_the_callers_share_can_be_neither_restarted_nor_timed_out(options):
    with pytest.raises(ValueError, match="`caller_steps` runs envs in this process"):
        Fleet([FaultEnv] * 2, caller_steps=True, **options)


def test_a_worker_beside_the_caller_may_die():
    fleet = Fleet([FaultEnv] * 4, caller_steps=True)
    fleet.reset()
    os.kill(fleet.processes[0].pid, signal.SIGKILL)
    with pytest.raises(envfleet.WorkerDied, match="SIGKILL"):
        fleet.step([1] * 4)
    with pytest.raises(envfleet.FleetBroken):
        fleet.step([1] * 4)
    fleet.close()


def test_a_constructor_that_fails_in_the_caller_leaves_nothing():
    fns = [FaultEnv, FaultEnv, FaultEnv, partial(FaultEnv, {"construct": Fault("raise")})]
    with pytest.raises(ValueError, match="planned") as caught:
        Fleet(fns, caller_steps=True)
    assert caught.value.__notes__ == ["raised by env 3 in construct"]


def test_ctrl_c_in_the_callers_own_env_asks_for_a_reset():
    fns = [FaultEnv, partial(FaultEnv, {"step": Fault("raise-keyboard-interrupt")})]
    with Fleet(fns, caller_steps=True) as fleet:
        fleet.reset()
        with pytest.raises(KeyboardInterrupt):
            fleet.step([1, 1])
        with pytest.raises(gym.error.NoAsyncCallError):
            fleet.step_wait()
        # Whether the other one had begun its step when it heard of the interrupt is open.
        others, own = fleet.reset()[0].tolist()
        assert others in ([2, 0, 0], [2, 0, 1])
        assert own == [2, 0, 1]
        assert fleet.step([1, 1])[0].tolist() == [[2, 1, others[2] + 1], [2, 1, 2]]


# Infos


@pytest.fixture(params=["serial", "process", "caller"])
def build(request):
    if request.param == "serial":
        return envfleet.SerialVectorEnv
    return partial(Fleet, caller_steps=request.param == "caller")


def test_which_infos_travel_can_be_chosen(build):
    class Teller(CounterEnv):
        def step(self, action):
            *rest, info = super().step(action)
            return *rest, {**info, "speed": 1.5}

    fns = [partial(Teller, length=2), partial(Teller, length=9)]
    for mode, key in (("NextStep", "speed"), ("SameStep", "final_info")):
        told = {}
        for infos in ("all", "final", "none"):
            with build(fns, infos=infos, autoreset_mode=mode) as fleet:
                fleet.reset()
                told[infos] = [fleet.step([0, 0])[4] for _ in range(2)]
        assert "speed" in told["all"][0]
        assert told["final"][0] == told["none"][0] == {}
        assert told["final"][1][f"_{key}"].tolist() == [True, False]
        assert key not in told["none"][1]
        assert ("final_obs" in told["none"][1]) == (mode == "SameStep")
    with pytest.raises(ValueError, match="`infos` must be 'all', 'final' or 'none'"):
        build(fns, infos="some")


def test_a_cut_is_told_also_without_infos():
    with Fleet([FaultEnv] * 2, on_failure="restart", infos="none") as fleet:
        fleet.reset()
        os.kill(fleet.processes[0].pid, signal.SIGKILL)
        assert fleet.step([1, 1])[4]["worker_restarted"].tolist() == [True, False]
        assert fleet.step([1, 1])[4] == {}


def test_infos_of_the_same_numbers_are_the_same_over_all_engines():
    infos = [{"speed": 0.5 * i, "count": i, "deep": {"x": 1.0 + i}} for i in range(4)]
    infos.append({"speed": 1, "other": "text"})

    def answers(engine):
        with engine([partial(InfoEnv, info) for info in infos]) as fleet:
            fleet.reset(seed=3)
            return [fleet.step([0] * 5)[4] for _ in range(6)]

    serial = answers(envfleet.SerialVectorEnv)
    for engine in (Fleet, partial(Fleet, caller_steps=True)):
        for one, other in zip(serial, answers(engine), strict=True):
            assert one.keys() == other.keys()
            assert_same(one, other)


class FloatTeller(gym.Env):
    """Tells floats of two types, always new ones; other keys at every fifth step."""

    observation_space = spaces.Discrete(4)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return 0, {"x": self.np_random.random()}

    def step(self, action):
        self.steps += 1
        time.sleep(1.0 * action)
        info = {"x": self.np_random.random(), "y": np.float32(self.np_random.random())}
        if self.steps % 5 == 0:
            info["z"] = self.steps
        return 1, 0.5, self.steps % 7 == 0, False, info


def told_infos(fleet, steps=25):
    fleet.reset(seed=5)
    return [fleet.step([0] * 5)[4] for _ in range(steps)]


@pytest.mark.parametrize("options", [{}, {"caller_steps": True}, {"shared_memory": False}])
def test_floats_that_stay_in_shared_memory_are_those_of_the_serial_engine(options):
    with (
        envfleet.SerialVectorEnv([FloatTeller] * 5) as serial,
        Fleet([FloatTeller] * 5, **options) as fleet,
    ):
        kept = told_infos(fleet)
        assert_same(told_infos(serial), kept)
        assert {kept[0]["x"].dtype.name, kept[0]["y"].dtype.name} == {"float64", "float32"}


def test_floats_arrive_also_when_the_first_ones_came_too_late():
    with envfleet.SerialVectorEnv([FloatTeller] * 5) as serial, Fleet([FloatTeller] * 5) as fleet:
        fleet.reset(seed=1)
        fleet.step_async([1] + [0] * 4)
        with pytest.raises(envfleet.WaitTimeout):
            fleet.step_wait(timeout=0.05)
        # What the reset drops is the only message that had the keys.
        assert_same(told_infos(serial, 4), told_infos(fleet, 4))


def test_a_new_worker_learns_the_keys_again():
    with Fleet([FloatTeller] * 5, on_failure="restart") as fleet:
        fleet.reset(seed=5)
        for _ in range(3):
            fleet.step([0] * 5)
        os.kill(fleet.processes[0].pid, signal.SIGKILL)
        assert fleet.step([0] * 5)[4]["worker_restarted"].any()
        fleet.step([0] * 5)
        with envfleet.SerialVectorEnv([FloatTeller] * 5) as serial:
            assert_same(told_infos(serial), told_infos(fleet))


# Copies and threads


@pytest.mark.parametrize("caller_steps", [False, True])
def test_without_copies_observations_are_the_arena_itself(caller_steps):
    with Fleet([CounterEnv] * 4, copy=False, caller_steps=caller_steps) as fleet:
        first, _ = fleet.reset()
        second = fleet.step([0] * 4)[0]
        assert first is second is fleet.observations
    with Fleet([CounterEnv] * 4, caller_steps=caller_steps) as fleet:
        first, _ = fleet.reset()
        assert not np.shares_memory(first, fleet.step([0] * 4)[0])
        assert not np.shares_memory(first, fleet.observations)


class ThreadCounter(FaultEnv):
    def threads(self):
        import threadpoolctl  # noqa: PLC0415
        import torch  # noqa: PLC0415

        counts = {library["num_threads"] for library in threadpoolctl.threadpool_info()}
        return sorted({*counts, torch.get_num_threads(), int(os.environ["OMP_NUM_THREADS"])})


@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("count", [1, 2])
def test_numerical_libraries_get_few_threads_in_a_worker(context, count):
    before = dict(os.environ)
    # Forking after torch has worked warns; that is not the matter here.
    with (
        warnings.catch_warnings(action="ignore"),
        threadpoolctl.threadpool_limits(4),  # what a forked worker would have
        Fleet([ThreadCounter], context=context, worker_threads=count) as fleet,
    ):
        assert all(max(threads) <= count for threads in fleet.call("threads"))
    assert dict(os.environ) == before


@pytest.mark.parametrize("count", [0, 1.5, "two"])
def test_a_bad_number_of_threads_is_refused(count):
    with pytest.raises(ValueError, match="`worker_threads` must be a positive integer or None"):
        Fleet([FaultEnv], worker_threads=count)


# The choice


@pytest.mark.alone
def test_auto_measures_once_says_why_and_logs_one_line(caplog, monkeypatch, tmp_path):
    builds = tmp_path / "builds"

    def noted():
        with builds.open("a") as file:
            file.write(".")
        return CartPoleEnv()

    spec = gym.envs.registration.EnvSpec("Noted-v0", noted)
    monkeypatch.setitem(gym.registry, spec.id, spec)
    caplog.set_level(logging.INFO, logger="envfleet")
    plans, built = [], []
    for _ in range(2):
        with envfleet.make(spec.id, 64) as envs:
            plans.append(envs.plan)
            built.append(builds.stat().st_size)
            assert envs.reset(seed=1)[0].shape == (64, 4)
    # What others do on the machine is asked each time, and may change.
    first, second = (replace(plan.measured, neighbours=0.0) for plan in plans)
    assert first == second
    assert built[1] - built[0] == 64  # the fleet's own: none is measured again
    assert "64 envs on" in str(plans[0])
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [f"Noted-v0 x 64: {plan}" for plan in plans]


@pytest.mark.alone
def test_auto_gives_envs_that_wait_a_worker_each():
    with envfleet.make(partial(CounterEnv, sleep=0.005), 16) as envs:
        assert (envs.plan.backend, envs.plan.workers) == ("process", 16)
        assert "mostly waits" in envs.plan.reason


class EndsAtOnce(CartPoleEnv):
    """Its resets take nearly all of the time."""

    def reset(self, **kwargs):
        time.sleep(0.002)
        return super().reset(**kwargs)

    def step(self, action):
        observation, reward, _, _, info = super().step(action)
        return observation, reward, True, False, info


def test_a_plan_has_what_was_measured_to_make_it():
    with envfleet.make(EndsAtOnce, 2) as envs:
        measured = envs.plan.measured
    assert 0.0 < measured.median <= measured.slow
    assert 0.5 < measured.resets < 1.0
    assert measured.observation_bytes == 16
    assert 0.0 <= measured.busy <= 1.0
    assert "observations have 16 bytes" in str(measured)
    with envfleet.make(EndsAtOnce, 2, backend="serial") as envs:
        assert envs.plan.measured is None


def test_auto_gives_envs_that_start_slowly_a_worker_each():
    def slow():
        time.sleep(1.0)
        return FaultEnv()

    with envfleet.make(slow, 3) as envs:
        assert len(set(envs.call("ping"))) == 3
        assert "slowly" in envs.plan.reason


def test_auto_never_builds_an_env_in_the_caller_to_measure_it():
    class NotHere(FaultEnv):
        caller = os.getpid()

        def __init__(self):
            assert os.getpid() != self.caller
            super().__init__()

    with envfleet.make(NotHere, 3, isolate=True) as envs:
        assert (envs.plan.backend, envs.plan.caller_steps) == ("process", False)
    with pytest.raises(ValueError, match="isolate=True forbids caller_steps"):
        envfleet.make(NotHere, 3, isolate=True, vector_kwargs={"caller_steps": True})


@pytest.mark.parametrize("phase", ["construct", "reset", "step"])
def test_what_an_env_raises_while_it_is_measured_is_raised_by_the_fleet(phase):
    make = partial(FaultEnv, {phase: Fault("raise")})
    if phase == "construct":
        with pytest.raises(ValueError, match="planned"):
            envfleet.make(make, 2)
        return
    with envfleet.make(make, 2) as envs:
        if phase == "step":
            envs.reset()
        with pytest.raises(ValueError, match="planned"):
            envs.reset() if phase == "reset" else envs.step([1, 1])


def test_options_narrow_the_choice():
    with envfleet.make(FaultEnv, 4, vector_kwargs={"on_failure": "restart"}) as envs:
        assert (envs.plan.backend, envs.plan.caller_steps) == ("process", False)
    with envfleet.make(FaultEnv, 4, vector_kwargs={"context": "fork"}) as envs:
        assert envs.plan.backend == "process"
    with envfleet.make(FaultEnv, 1) as envs:
        assert str(envs.plan) == "serial, in the calling process: there is one env"


# envfleet bench


def envfleet_bench(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "envfleet", "bench", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_bench_prints_a_table_and_writes_figures_and_an_image(tmp_path):
    peers = tmp_path / "peers.py"
    peers.write_text(
        textwrap.dedent("""
        def fail(make, num_envs):
            raise RuntimeError("not today")
        PEERS = {"failing peer": fail}
        """)
    )
    figures, image = tmp_path / "bench.json", tmp_path / "bench.png"
    done = envfleet_bench(
        "CartPole-v1", "--num-envs", "4", "--rounds", "1", "--seconds", "0.05",
        "--peers", str(peers), "--json", str(figures), "--png", str(image),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (cell,) = json.loads(figures.read_text())["cells"]
    engines = cell["engines"]
    assert engines.pop("failing peer")["problem"] == "RuntimeError: not today"
    assert "*RuntimeError: not today*" in done.stdout
    assert engines.pop("limit")["agrees"] is None
    native = engines.pop("envfleet native")
    assert native["steps_per_second"] > 0
    assert native["agrees"] is None
    assert len(engines) == 6
    for name, row in engines.items():
        assert row["steps_per_second"] > 0, name
        assert row["agrees"] is True, name
        assert f"| {name} | " in done.stdout
    assert "4 envs on" in engines["envfleet auto"]["plan"]
    assert image.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["CartPole-v99"], "CartPole"),
        (["--engines", "rocket"], "unknown engines"),
        (["--rounds", "0"], "must be 1 or more"),
        (["--busy", "-1"], "busy must be 0 or more"),
        (["--fleet", "workers"], "name=value"),
        (["--why", "--engines", "limit"], "leave out --engines"),
        (["nowhere:Env"], "No module named 'nowhere'"),
        (["fleet_envs:CounterEnvy"], "Did you mean fleet_envs:CounterEnv"),
    ],
)
def test_bench_refuses_what_it_does_not_know(arguments, text, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(sys, "argv", ["envfleet", "bench", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert text in capsys.readouterr().err


def test_bench_says_why_the_fleet_of_a_modules_callable_is_slow(tmp_path):
    (tmp_path / "my_envs.py").write_text(
        textwrap.dedent("""
        from gymnasium.envs.classic_control import CartPoleEnv

        class Ends(CartPoleEnv):
            def step(self, action):
                observation, reward, _, _, info = super().step(action)
                return observation, reward, True, False, {"word": "hello"}
        """)
    )
    figures = tmp_path / "why.json"
    done = envfleet_bench(
        "my_envs:Ends", "--why", "--num-envs", "4", "--rounds", "1", "--seconds", "0.1",
        "--busy", "1", "--fleet", "backend=process", "workers=2", "--json", str(figures),
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    data = json.loads(figures.read_text())
    assert data["how"]["busy"] == 1
    (cell,) = data["cells"]
    assert cell["engines"] == {}
    why = cell["why"]
    assert why["plan"].startswith("process, 2 shards: backend='process' was asked for")
    found = why["figures"]
    assert 0 < found["fillers"] < 1
    assert 0 < found["resets"] < 1
    assert found["pickled"] == ["word"]
    assert all(part >= 0 for part in found["split"].values())
    assert found["split"]["env"] > 0
    assert why["observation_bytes"] == 16
    assert why["info_bytes"] > 0
    assert 0 < why["median"] <= why["slow"]
    assert why["rate"] > 0
    assert "Why is it slow? my_envs:Ends, 4 envs" in done.stdout
    assert "of all rows only say that an env was reset" in done.stdout
    assert "What would help most" in done.stdout


def test_why_a_fleet_is_slow_cannot_be_said_where_its_envs_fail(capsys, monkeypatch, tmp_path):
    (tmp_path / "broken_envs.py").write_text(
        textwrap.dedent("""
        from gymnasium.envs.classic_control import CartPoleEnv

        class Broken(CartPoleEnv):
            def step(self, action):
                raise RuntimeError("not today")
        """)
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    with pytest.raises(SystemExit) as end:
        main(["bench", "broken_envs:Broken", "--why", "--num-envs", "2", "--seconds", "0.01"])
    assert end.value.code == 1
    assert "It cannot be said: RuntimeError: not today" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("autoreset_mode", "steps"),
    [("NextStep", [2, 1, 2]), ("SameStep", [2, 2, 2])],
)
def test_steps_are_counted_as_gymnasium_counts_them(autoreset_mode, steps):
    class Alternates(CartPoleEnv):
        """Env 0 ends in each step, env 1 never."""

        def __init__(self, ends):
            super().__init__()
            self._ends = ends

        def step(self, action):
            observation, reward, _, _, info = super().step(action)
            return observation, reward, self._ends, False, info

    fns = [partial(Alternates, ends) for ends in (True, False)]
    fleet = BenchedFleet(envfleet.SerialVectorEnv(fns, autoreset_mode=autoreset_mode))
    # So short a time is one turn; what the last one left is known to the next.
    assert [fleet.pace(1e-9).steps for _ in steps] == steps
    fleet.answers(1)
    assert fleet.pace(1e-9).steps == steps[1]
    fleet.close()


def test_the_limit_of_envs_that_wait_has_a_process_each():
    limit = BUILDERS["limit"](factory("Sleep-5ms"), 3)
    assert limit.plan == "3 processes"
    assert limit.run(0.02) > 0
    limit.close()
    limit = BUILDERS["limit"](factory("Frame-210x160x3"), 2)
    assert limit.plan.endswith("each observation copied once")
    assert limit.run(0.02) > 0
    limit.close()


def test_an_engine_that_returns_other_numbers_is_found_out(tmp_path):
    peers = tmp_path / "peers.py"
    peers.write_text(
        textwrap.dedent("""
        from gymnasium.vector import SyncVectorEnv
        from envfleet.bench.contestants import Fleet
        class Cheat(SyncVectorEnv):
            def step(self, actions):
                observations, rewards, *rest = super().step(actions)
                return observations, rewards + 1, *rest
        PEERS = {"cheat": lambda make, n: Fleet(Cheat([make] * n))}
        """)
    )
    results = measure_cell(
        "CartPole-v1",
        2,
        ["Gymnasium sync", "cheat"],
        rounds=1,
        seconds=0.01,
        peers=peers,
        tell=lambda _: None,
    )
    assert results["Gymnasium sync"].agrees is True
    assert results["cheat"].agrees is False


def test_without_its_extra_the_command_says_what_to_install():
    program = "import sys; sys.modules['tyro'] = None; from envfleet.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "pip install 'envfleet[train]'" in done.stderr
