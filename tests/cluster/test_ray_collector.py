"""RayCollector on a Ray of this machine: the rollouts of a Collector, and what happens to some."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from functools import partial

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
import ray
import torch

import envfleet
from clusters import stored_bytes
from envfleet import Collector, RayCollector
from envfleet.rollout.nested import tree_leaves
from envfleet.testing import SpaceEnv
from fleet_envs import CounterEnv
from rollout_envs import WeightAgent
from waiting import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray")]
PENDULUM = partial(gym.make, "Pendulum-v1", max_episode_steps=7)


@pytest.fixture
def build():
    collectors = []

    def build(env, agent, **kwargs):
        kwargs = {"actors": 2, "envs_per_actor": 2, "steps": 10, "start_timeout": 60, **kwargs}
        collectors.append(RayCollector(env, agent, **kwargs))
        return collectors[-1]

    yield build
    for collector in collectors:
        collector.close()
    collectors.clear()


@pytest.fixture
def by_value():
    """What is defined here travels as it is: actors cannot import it."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def assert_equal(one, two):
    for name in one.__dataclass_fields__:
        ours, theirs = (tree_leaves(getattr(rollout, name)) for rollout in (one, two))
        for a, b in zip(ours, theirs, strict=True):
            if isinstance(a, torch.Tensor):
                assert a.dtype == b.dtype, name
                assert torch.equal(a, b), name
            elif name == "total_return":
                assert a == pytest.approx(b, rel=1e-12)  # parts are summed up one by one
            else:
                np.testing.assert_equal(a, b, err_msg=name)


FULL_MODES = [pytest.param(mode, marks=pytest.mark.full) for mode in ("SameStep", "Disabled")]


@pytest.mark.parametrize("mode", ["NextStep", *FULL_MODES])
def test_one_actor_gives_the_numbers_of_a_collector(build, mode):
    fleet = {"backend": "serial", "autoreset_mode": mode}
    ours, theirs = WeightAgent(), WeightAgent()
    remote = build(PENDULUM, ours, actors=1, envs_per_actor=3, seed=4, fleet=fleet)
    with Collector(envfleet.make(PENDULUM, 3, **fleet), theirs, 10, seed=4) as local:
        for t in range(3):
            torch.manual_seed(t)
            expected, after = local.collect(), torch.get_rng_state()
            torch.manual_seed(t)
            assert_equal(remote.collect(), expected)
            assert torch.equal(torch.get_rng_state(), after)
            for agent in (ours, theirs):
                agent.learn()
        assert remote.statistics.episodes == local.statistics.episodes
        assert remote.total_steps == local.total_steps
        assert remote.single_action_space == local.envs.single_action_space


def test_several_actors_have_the_columns_of_one_fleet_whatever_their_order(build):
    agent = WeightAgent(noise=0.0)
    remote = build(PENDULUM, agent, seed=4)
    with Collector(envfleet.make(PENDULUM, 4, backend="serial"), agent, 10, seed=4) as local:
        for _ in range(3):
            rollout = remote.collect()
            assert_equal(rollout, local.collect())
        assert rollout.env_ids.tolist() == [0, 1, 2, 3]
        assert remote.statistics.episodes == local.statistics.episodes
    assert remote.health() == (2, 0, 0, 0, 0)


@pytest.mark.full
def test_several_actors_give_the_same_numbers_again(build):
    def run():
        torch.manual_seed(1)
        with build(PENDULUM, WeightAgent(), seed=4) as collector:
            return [collector.collect() for _ in range(2)]

    for one, two in zip(run(), run(), strict=True):
        assert_equal(one, two)
        assert not torch.equal(one.actions[:, :2], one.actions[:, 2:])


class WaitingEnv(CounterEnv):
    """The first that is built in a folder waits in its steps until the folder has a file ``go``."""

    def __init__(self, folder):
        super().__init__()
        self._folder = folder
        try:
            (folder / "first").touch(exist_ok=False)
            self._is_first = True
        except FileExistsError:
            self._is_first = False

    def step(self, action):
        while self._is_first and not (self._folder / "go").exists():
            time.sleep(0.01)
        return super().step(action)


def test_a_late_actor_is_missing_in_its_round_and_back_later(build, tmp_path, by_value):
    agent = WeightAgent(noise=0.0, discrete=True)
    env = partial(WaitingEnv, tmp_path)
    collector = build(env, agent, envs_per_actor=1, on_late="drop", deadline=0.5)
    rollout = collector.collect()
    assert rollout.env_ids.tolist() in ([0], [1])
    assert rollout.rewards.shape == (10, 1)
    assert collector.health() == (2, 0, 1, 1, 1)
    (tmp_path / "go").touch()
    wait_until(lambda: collector.collect().env_ids.tolist() == [0, 1])
    assert collector.health().late == 0
    with pytest.raises(ValueError, match="came too late or were lost, and were dropped"):
        collector.load_state_dict(collector.state_dict())


@pytest.mark.full
@pytest.mark.parametrize("late", [{}, {"on_late": "drop", "deadline": 0.1}])
def test_a_round_may_be_given_up_when_nobody_answers(build, tmp_path, by_value, late):
    agent = WeightAgent(noise=0.0, discrete=True)
    env = partial(WaitingEnv, tmp_path)
    collector = build(env, agent, actors=1, envs_per_actor=2, timeout=0.5, **late)
    text = r"round 1 .* timeout=0.5 s. No answer from: actor 0 on node .*, envs 0-1\. Call collect"
    with pytest.raises(envfleet.WaitTimeout, match=text):
        collector.collect()
    assert collector.health() == (1, 0, 1, 1, 0)
    (tmp_path / "go").touch()
    rollouts = []

    def collects():
        with contextlib.suppress(envfleet.WaitTimeout):
            rollouts.append(collector.collect())
        return rollouts

    wait_until(collects)
    assert rollouts[0].env_ids.tolist() == [0, 1]


@pytest.mark.full
def test_nobody_is_late_while_a_round_is_collected(build, tmp_path, by_value):
    agent = WeightAgent(noise=0.0, discrete=True)
    collector = build(partial(WaitingEnv, tmp_path), agent, actors=1, envs_per_actor=1)
    thread = threading.Thread(target=collector.collect)
    thread.start()
    wait_until(lambda: collector.health().in_flight == 1)
    assert collector.health() == (1, 0, 0, 1, 0)
    (tmp_path / "go").touch()
    thread.join(60)
    assert collector.health() == (1, 0, 0, 0, 0)


@pytest.mark.parametrize("on_loss", ["again", pytest.param("drop", marks=pytest.mark.full)])
def test_a_dead_actor_is_replaced(build, on_loss):
    collector = build(CounterEnv, WeightAgent(noise=0.0, discrete=True), on_loss=on_loss)
    collector.collect()
    os.kill(collector._seats[1].pid, signal.SIGKILL)
    rollouts = []
    wait_until(lambda: rollouts.append(collector.collect()) or collector.health().restarted == 1)
    assert rollouts[-1].env_ids.tolist() == ([0, 1, 2, 3] if on_loss == "again" else [0, 1])
    wait_until(lambda: len(collector.collect().env_ids) == 4)
    assert collector.health()[:2] == (2, 1)


class GatedEnv(CounterEnv):
    """After the first four, none is built before their folder has a file ``go``."""

    def __init__(self, folder):
        super().__init__()
        while len(list(folder.glob("built*"))) >= 4 and not (folder / "go").exists():
            time.sleep(0.01)
        tempfile.mkstemp(prefix="built", dir=folder)


@pytest.mark.full
def test_with_drop_no_round_waits_for_a_replacement(build, tmp_path, by_value):
    collector = build(
        partial(GatedEnv, tmp_path),
        WeightAgent(noise=0.0, discrete=True),
        on_loss="drop",
        start_timeout=3600,  # a replacement has all the time it wants
        timeout=30,
    )
    collector.collect()
    os.kill(collector._seats[1].pid, signal.SIGKILL)
    wait_until(lambda: collector.collect() and collector.health().restarted == 1)
    assert collector.collect().env_ids.tolist() == [0, 1]
    assert collector.health()[:2] == (1, 1)
    (tmp_path / "go").touch()
    wait_until(lambda: len(collector.collect().env_ids) == 4)


class DiesAtFirst(CounterEnv):
    """Ends its process while it is built, as often as its folder allows."""

    def __init__(self, folder, times):
        super().__init__()
        if len(list(folder.iterdir())) < times:
            (folder / str(os.getpid())).touch()
            os._exit(3)


@pytest.mark.full
def test_an_actor_that_dies_while_it_starts_is_replaced_or_named(build, tmp_path, by_value):
    agent = WeightAgent(noise=0.0, discrete=True)
    words = {"actors": 1, "envs_per_actor": 2}
    collector = build(partial(DiesAtFirst, tmp_path, 1), agent, **words)
    assert collector.health()[:2] == (1, 1)
    assert collector.collect().env_ids.tolist() == [0, 1]
    collector.close()
    with pytest.raises(envfleet.WorkerDied, match=r"envs 0-1\).* during start"):
        build(partial(DiesAtFirst, tmp_path, 99), agent, restarts=(1, 60.0), **words)


@pytest.mark.full
def test_envs_that_begin_anew_forget_earlier_replacements(build):
    """Or a resumed run, which knows of none, would go on with other seeds."""
    agent = WeightAgent(noise=0.0)
    collector = build(PENDULUM, agent, seed=4)
    collector.collect()
    os.kill(collector._seats[1].pid, signal.SIGKILL)
    wait_until(lambda: collector.collect() and collector.health().restarted == 1)
    collector.begin_episodes(9)
    rollout = collector.collect()
    collector.close()
    fresh = build(PENDULUM, agent, seed=9)
    assert torch.equal(rollout.observations, fresh.collect().observations)


class Choosy(gym.Env):
    """Allows one action at a time, another one in each step."""

    observation_space = gym.spaces.Box(0, 100, (1,))
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._allowed, self._steps = self.np_random.integers(3), 0
        return self._told()

    def step(self, action):
        assert action == self._allowed
        self._allowed, self._steps = (self._allowed + 1) % 3, self._steps + 1
        observation, info = self._told()
        return observation, 1.0, self._steps == 4, False, info

    def _told(self):
        mask = np.arange(3) == self._allowed
        return np.array([self._steps], np.float32), {"action_mask": mask.astype(np.int8)}


class Obedient(torch.nn.Module):
    """Does what is allowed."""

    def act(self, observations, action_masks):
        values = observations.sum(dim=-1)
        return action_masks.to(torch.int64).argmax(dim=-1), values, values

    def get_values(self, observations):
        return observations.sum(dim=-1)


@pytest.mark.full
def test_actors_send_masks_and_may_have_any_engine(build, by_value):
    agent = Obedient()
    remote = build(Choosy, agent, seed=4, fleet={"backend": "process", "workers": 2})
    with Collector(envfleet.make(Choosy, 4, backend="serial"), agent, 10, seed=4) as local:
        for _ in range(2):
            rollout = remote.collect()
            assert_equal(rollout, local.collect())
    assert rollout.action_masks.shape == (10, 4, 3)


@pytest.mark.full
def test_a_spent_budget_is_an_error_that_names_node_and_envs(build):
    collector = build(CounterEnv, WeightAgent(noise=0.0, discrete=True), restarts=(0, 60.0))
    collector.collect()
    os.kill(collector._seats[1].pid, signal.SIGKILL)
    with pytest.raises(envfleet.WorkerDied, match=r"on node .*, envs 2-3\).* during a rollout"):
        collect_until_it_raises(collector)


def collect_until_it_raises(collector):
    for _ in range(1000):
        collector.collect()


@pytest.mark.full
def test_a_thousand_rounds_leave_the_object_store_as_it_was(build):
    long = gym.spaces.Box(0, 1, (4000,), np.float32)  # 10 steps of 2 of them go through the store
    env = partial(SpaceEnv, long, gym.spaces.Discrete(2), 50)
    collector = build(env, WeightAgent(noise=0.0, discrete=True), actors=1)
    for _ in range(50):
        collector.collect()
    early = stored_bytes()
    for _ in range(1000):
        collector.collect()
    assert stored_bytes() <= early + 20 * 10 * 2 * 4000 * 4
    collector.close()
    wait_until(lambda: stored_bytes() == 0)


@pytest.mark.full
def test_what_an_env_raises_reaches_the_caller_and_the_next_round_begins_anew(build):
    agent = WeightAgent(noise=0.0, discrete=True)
    collector = build(partial(CounterEnv, fail_at=15), agent)
    collector.collect()
    with pytest.raises(ValueError, match="planned"):
        collector.collect()
    assert len(collector.collect().env_ids) == 4


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"actors": 0}, "`actors` must be a positive integer"),
        ({"on_late": "never"}, "`on_late` must be"),
        ({"on_late": "drop"}, "pass both or none"),
        ({"deadline": 1.0}, "pass both or none"),
        ({"on_loss": "cry"}, "`on_loss` must be"),
        ({"timeout": 0.0}, "`timeout` must be above 0"),
        ({"on_late": "drop", "deadline": 2.0, "timeout": 1.0}, "must be above deadline=2"),
    ],
)
def test_bad_options_are_refused(build, wrong, text):
    with pytest.raises(ValueError, match=text):
        build(CounterEnv, WeightAgent(), **wrong)


def test_an_env_that_cannot_be_built_is_an_error_and_leaves_nothing(build):
    with pytest.raises(gym.error.NameNotFound, match="Nowhere"):
        build("Nowhere-v0", WeightAgent())
    wait_until(lambda: ray.available_resources().get("CPU") == 2)
