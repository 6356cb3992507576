"""RayVectorEnv on a Ray of this machine: its contract beside what the conformance tests say."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import warnings
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import ray
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import envfleet
from clusters import stored_bytes
from envfleet.engine.ray.session import RaySession
from envfleet.testing import SpaceEnv, assert_same, compare
from fleet_envs import CounterEnv, EchoEnv
from waiting import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray")]


@pytest.fixture
def build():
    fleets = []

    def build(env_fns, **kwargs):
        kwargs = {"workers": 2, "start_timeout": 60, **kwargs}
        fleets.append(envfleet.RayVectorEnv(env_fns, **kwargs))
        return fleets[-1]

    yield build
    for fleet in fleets:
        fleet.close(terminate=True)
    fleets.clear()


def kill(fleet, env):
    """End the actor that an env lives in, as the out-of-memory killer does."""
    os.kill(fleet.call_on([env], "pid")[0], signal.SIGKILL)


def step_until_it_raises(fleet):
    """Step; Ray may take some steps to notice that a process is gone."""
    for _ in range(10_000):
        fleet.step([0] * fleet.num_envs)


def test_one_word_makes_it_a_ray_fleet():
    with envfleet.make("CartPole-v1", 3, backend="ray", workers=2, start_timeout=60) as fleet:
        assert isinstance(fleet, envfleet.RayVectorEnv)
        assert (fleet.plan.backend, fleet.plan.workers) == ("ray", 2)
        assert str(fleet.plan).startswith("ray, 2 actors")
        assert fleet.local_env_ids == []
        assert len(fleet.nodes) == 2
        compare(fleet, SyncVectorEnv([partial(gym.make, "CartPole-v1")] * 3), steps=80)
    assert fleet.nodes == []


def test_methods_attributes_frames_and_partial_batches(build):
    fleet = build([partial(CounterEnv, tag=i) for i in range(5)])
    fleet.reset(seed=3)
    assert fleet.np_random_seed == (3, 4, 5, 6, 7)
    assert fleet.call_on([4, 0], "add", 2) == (2, 2)
    assert fleet.get_attr("tag") == (0, 1, 2, 3, 4)
    fleet.set_attr("tag", list("abcde"))
    assert fleet.get_attr("tag") == tuple("abcde")
    assert [frame.shape for frame in fleet.render()] == [(4, 5, 3)] * 5
    assert len(set(fleet.call("pid"))) == 2
    assert os.getpid() not in fleet.call("pid")
    fleet.send([0, 1], env_ids=[3, 1])
    batch = fleet.recv()
    assert batch.env_ids.tolist() == [1, 3]
    assert batch.observations.tolist() == [[1, 1], [1, 1]]
    assert fleet.call_on([3, 1], "first_action") == (0, 1)
    mask = np.array([False, True, False, False, False])
    assert fleet.reset(options={"reset_mask": mask})[0][:, 0].tolist() == [1, 2, 1, 1, 1]
    assert fleet.step([0] * 5, env_ids=range(5))[0][:, 1].tolist() == [1, 1, 1, 2, 1]


def test_a_slow_env_holds_up_nobody_in_another_actor(build):
    fleet = build([partial(CounterEnv, sleep=2.0), CounterEnv])
    fleet.reset()
    fleet.send([0, 0])
    assert fleet.recv(min_envs=1).env_ids.tolist() == [1]
    fleet.send([0], env_ids=[1])
    assert fleet.recv(min_envs=1).env_ids.tolist() == [1]
    assert fleet.recv().env_ids.tolist() == [0]


@pytest.mark.full
def test_partial_batches_give_the_numbers_of_whole_steps(build):
    space = gym.spaces.Dict(note=gym.spaces.Text(4), image=gym.spaces.Box(0, 255, (3, 2), np.uint8))
    for mode in AutoresetMode:
        if mode is AutoresetMode.DISABLED:
            continue
        fns = [partial(SpaceEnv, space, gym.spaces.Discrete(3))] * 3
        fleet, oracle = build(fns, autoreset_mode=mode), SyncVectorEnv(fns, autoreset_mode=mode)
        fleet.send_reset(seed=5)
        assert_same(fleet.recv()[1], oracle.reset(seed=5)[0])
        for t in range(20):
            fleet.send(np.full(3, t % 3))
            assert_same(tuple(fleet.recv()[1:]), oracle.step(np.full(3, t % 3)), f"step {t}")
        fleet.close()


def test_an_env_that_raises_is_named_with_its_node_and_the_others_go_on(build):
    fleet = build([CounterEnv, CounterEnv, partial(CounterEnv, fail_at=2)])
    fleet.reset()
    fleet.step([0] * 3)
    with pytest.raises(ValueError, match="planned") as caught:
        fleet.step([0] * 3)
    assert "raised by env 2 in step, worker 1 (pid " in caught.value.__notes__[0]
    assert fleet.nodes[1] in caught.value.__notes__[0]
    fleet.reset(options={"reset_mask": np.array([False, False, True])})
    assert fleet.step([0] * 3)[0][:, 1].tolist() == [3, 3, 1]


def test_an_actor_that_dies_is_named_with_its_node_and_envs(build):
    fleet = build([CounterEnv] * 3)
    fleet.reset()
    node = fleet.nodes[1]
    kill(fleet, 2)
    with pytest.raises(envfleet.WorkerDied) as caught:
        step_until_it_raises(fleet)
    death = caught.value
    assert (death.worker, death.envs, death.node) == (1, (2,), node)
    assert f"on node {node}, envs 2)" in str(death)
    assert str(pickle.loads(pickle.dumps(death))) == str(death)
    assert isinstance(death.__cause__, ray.exceptions.RayActorError)
    with pytest.raises(envfleet.FleetBroken) as broken:
        fleet.step([0] * 3)
    assert broken.value.__cause__ is death


@pytest.mark.parametrize(
    "mode",
    [AutoresetMode.NEXT_STEP, pytest.param(AutoresetMode.SAME_STEP, marks=pytest.mark.full)],
)
def test_an_actor_that_dies_is_replaced_and_its_transition_is_truncated(build, mode):
    fleet = build([CounterEnv] * 3, on_failure="restart", autoreset_mode=mode)
    fleet.reset(seed=1)
    fleet.set_attr("tag", "kept")
    before = fleet.step([0] * 3)[0]
    kill(fleet, 0)
    wait_until(lambda: fleet.step([0] * 3)[3].any() or fleet.restart_count)
    assert fleet.restart_count == 1
    assert fleet.get_attr("tag") == ("kept",) * 3
    observations = fleet.step([0] * 3)[0]
    assert observations[2, 1] > before[2, 1]
    assert observations[0, 1] < observations[2, 1]


@pytest.mark.full
def test_no_restart_is_left_when_the_budget_is_spent(build):
    fleet = build([CounterEnv] * 2, on_failure="restart", restarts=(0, 60.0))
    fleet.reset()
    kill(fleet, 0)
    with pytest.raises(envfleet.WorkerDied) as caught:
        step_until_it_raises(fleet)
    assert any("allows no further restart" in note for note in caught.value.__notes__)


@pytest.mark.full
def test_a_step_that_hangs_is_a_death(build):
    fleet = build([CounterEnv, partial(CounterEnv, sleep=3600)], step_timeout=1.0)
    fleet.reset()
    with pytest.raises(envfleet.WorkerDied, match=r"envs 1\).* during step \(no answer within 1"):
        fleet.step([0, 0])


def test_a_cluster_without_room_is_an_error_that_says_what_is_asked_for_and_what_there_is(build):
    build([CounterEnv] * 2)
    with pytest.raises(envfleet.NoRoom) as caught:
        build([CounterEnv] * 2, start_timeout=1.0)
    text = str(caught.value)
    assert "no room for 2 actors with 1 CPU each for 1 s: 0 of 2 CPU free, on 1 node" in text
    with pytest.raises(envfleet.NoRoom, match=r"1 CPU and 1 tpu each .* 0 of 0 tpu free"):
        build([CounterEnv], workers=1, resources={"CPU": 1, "tpu": 1}, start_timeout=0.5)
    build([CounterEnv], workers=1, resources={"CPU": 0}).reset()  # there is always room for that


@pytest.mark.parametrize("resources", [{"CPU": -1}, {"CPU": "one"}, {1: 1}])
def test_bad_resources_are_refused(build, resources):
    with pytest.raises(ValueError, match=r"ray\.cluster_resources"):
        build([CounterEnv], resources=resources)


@pytest.mark.full
def test_variables_of_a_runtime_env_reach_the_envs(build):
    fleet = build([CounterEnv], workers=1, runtime_env={"env_vars": {"ENVFLEET_TEST": "from afar"}})
    assert fleet.call(lambda env: os.environ.get("ENVFLEET_TEST")) == ("from afar",)


def test_a_ray_that_was_there_stays_and_no_actor_is_left(build):
    fleet = build([CounterEnv] * 2)
    fleet.close()
    assert ray.is_initialized()
    wait_until(lambda: ray.available_resources().get("CPU") == 2)


def test_another_cluster_than_the_one_that_was_joined_is_refused(build):
    with pytest.raises(ValueError, match=r"has joined the Ray cluster at .* cannot join '10\.0"):
        build([CounterEnv], address="10.0.0.1:6379")


def test_a_ray_client_address_gets_a_warning_with_the_reason(monkeypatch):
    def refuse(**_):
        raise ConnectionError("nobody there")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)  # a real one would wait for half a minute
    with (
        pytest.warns(UserWarning, match="is a Ray Client address: every message takes a detour"),
        pytest.raises(ConnectionError),
    ):
        RaySession("test", "ray://127.0.0.1:1")


def output_of(program):
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout


def test_without_ray_one_is_told_what_to_install():
    program = (
        "import sys; sys.modules['ray'] = None\n"
        "import envfleet, gymnasium\n"
        "try: envfleet.make('CartPole-v1', 2, backend='ray')\n"
        "except ImportError as error: print(error)\n"
    )
    assert output_of(program) == "RayVectorEnv needs Ray: pip install 'envfleet[ray]'.\n"


@pytest.mark.full
def test_a_ray_that_we_started_is_shut_down_by_us():
    program = (
        "import ray, envfleet\n"
        "one = envfleet.make('CartPole-v1', 1, backend='ray', address='local', start_timeout=60)\n"
        "two = envfleet.make('CartPole-v1', 1, backend='ray', resources={'CPU': 0.1})\n"
        "one.reset(); one.close(); two.reset()\n"
        "print(ray.is_initialized())\n"
        "two.close()\n"
        "print(ray.is_initialized())\n"
    )
    assert output_of(program) == "True\nFalse\n"


@pytest.mark.full
def test_a_ray_that_the_program_began_after_ours_stays():
    program = (
        "import ray, envfleet\n"
        "one = envfleet.make('CartPole-v1', 1, backend='ray', address='local', start_timeout=60)\n"
        "one.reset()\n"
        "ray.shutdown()\n"
        "try: one.step([0])\n"
        "except envfleet.WorkerDied as error: print(error.__notes__)\n"
        "print(ray.is_initialized())\n"
        "ray.init(address='local', num_cpus=1, logging_level='error')\n"
        "one.close()\n"
        "print(ray.is_initialized())\n"
    )
    note = ["Ray: this program has left the cluster that it ran on"]
    assert output_of(program) == f"{note}\nFalse\nTrue\n"


@pytest.mark.full
def test_twenty_thousand_steps_with_an_actor_killed_every_few_seconds(build):
    fleet = build([EchoEnv] * 4, on_failure="restart", restarts=(1000, 60.0))
    fleet.reset(seed=1)
    kills, episode = 0, np.zeros(4)
    for t in range(20_000):
        if t % 1000 == 500:
            kill(fleet, kills % 4)
            kills += 1
        observations, _, terminated, truncated, infos = fleet.step(np.full(4, float(t)))
        restarted = infos.get("worker_restarted", np.zeros(4, bool))
        assert (truncated == restarted).all()
        assert not terminated.any()
        # A fresh row has this step's action; a row that was cut off repeats the last observation,
        # and the one after it is a reset's.
        fresh = observations[:, 2] == t
        begun = observations[:, 2] == -1.0
        assert (fresh | begun | truncated).all(), t
        assert (observations[fresh, 1] == episode[fresh] + 1).all(), t
        episode = np.where(begun, 0, observations[:, 1])
    wait_until(lambda: fleet.step(np.zeros(4)) and fleet.restart_count >= kills)
    assert fleet.restart_count == kills == 20


@pytest.mark.full
def test_a_thousand_steps_of_images_leave_the_object_store_as_it_was(build):
    image = gym.spaces.Box(0, 255, (84, 84, 4), np.uint8)  # 16 of them go through the store
    fns = [partial(SpaceEnv, image, gym.spaces.Discrete(2), 50)] * 16
    fleet = build(fns)
    fleet.reset(seed=1)
    for _ in range(100):
        fleet.step(np.zeros(16, int))
    early = stored_bytes()
    for _ in range(1000):
        fleet.step(np.zeros(16, int))
    assert stored_bytes() <= early + 20 * 16 * 84 * 84 * 4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fleet.close()
    wait_until(lambda: stored_bytes() == 0)
