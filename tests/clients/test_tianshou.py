"""TianshouVectorEnv: DummyVectorEnv's answers, and Tianshou's collectors and algorithms on it."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.error import (
    AlreadyPendingCallError,
    ClosedEnvironmentError,
    NoAsyncCallError,
    ResetNeeded,
)
from gymnasium.wrappers import RescaleAction, TimeLimit
from tianshou.algorithm import DQN, PPO
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import AsyncCollector, Collector, VectorReplayBuffer
from tianshou.env import BaseVectorEnv, DummyVectorEnv, VectorEnvNormObs
from tianshou.trainer import OffPolicyTrainerParams, OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

import envfleet
from envfleet.adapters import TianshouVectorEnv
from envfleet.testing import Fault, FaultEnv
from sb3_envs import Strict, Teller

SERIAL = {"backend": "serial"}
PROCESS = {"backend": "process", "context": "fork", "workers": 2}
CALLER = {"backend": "process", "workers": 2, "caller_steps": True}
ENGINES = pytest.mark.parametrize(
    "options", [SERIAL, PROCESS, CALLER], ids=["serial", "process", "caller"]
)
EACH = {"backend": "process", "context": "fork", "workers": 4}
SHORT = partial(gym.make, "CartPole-v1", max_episode_steps=12)
NESTED = spaces.Dict(
    z=spaces.Box(-1, 1, (2,), np.float32),
    deep=spaces.Dict(a=spaces.Discrete(4)),
    pair=spaces.Tuple([spaces.Discrete(3), spaces.Text(3)]),
)


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def same(ours, theirs):
    """Equal values in the same containers; scalars of NumPy and Python are not told apart."""
    if isinstance(theirs, dict):
        assert isinstance(ours, dict)
        assert ours.keys() == theirs.keys()
        for key in theirs:
            same(ours[key], theirs[key])
    elif isinstance(theirs, (list, tuple)) or (
        isinstance(theirs, np.ndarray) and theirs.dtype.kind == "O"
    ):
        assert type(ours) is type(theirs)
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            same(mine, other)
    else:
        assert getattr(ours, "shape", ()) == getattr(theirs, "shape", ())
        np.testing.assert_array_equal(ours, theirs)


def both(env_fns, options):
    return TianshouVectorEnv(env_fns, **options), DummyVectorEnv(env_fns)


# The contract


@ENGINES
@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"observations": NESTED, "actions": spaces.MultiDiscrete([3, 4])},
        {"observations": spaces.Discrete(7), "actions": spaces.Box(-1, 1, (2,), np.float32)},
        {"observations": spaces.Box(0, 255, (3, 4), np.uint8), "actions": NESTED},
    ],
    ids=["box", "dict", "discrete", "bytes"],
)
def test_resets_and_steps_are_those_of_dummy_vector_env(options, kwargs):
    env_fns = [partial(Teller, length, **kwargs) for length in (1, 2, 3, 50)]
    ours, theirs = both(env_fns, options)
    assert isinstance(ours, BaseVectorEnv)
    assert len(ours) == ours.env_num == 4
    assert not ours.is_async
    assert ours.seed(5) == theirs.seed(5)
    same(ours.reset(), theirs.reset())
    space = ours.action_space[0]
    kept = []
    for ids in (None, [2, 0], np.array([3]), 1, [1, 3, 2], np.arange(4)):
        count = 4 if ids is None else np.size(ids)
        actions = [space.sample() for _ in range(count)]
        if not isinstance(space, spaces.Dict):
            actions = np.stack(actions)
        result, expected = ours.step(actions, ids), theirs.step(actions, ids)
        same(result, expected)
        assert result[4].dtype == object
        observations = result[0].copy()
        kept.append((result[0], observations))
        rows = [0] if np.isscalar(ids) else range(count)
        ended = [
            int(info["env_id"])
            for row, info in zip(rows, result[4], strict=True)
            if result[2][row] or result[3][row]
        ]
        if ended:
            same(ours.reset(ended), theirs.reset(ended))
    for observations, copies in kept:  # nothing was written to since
        same(observations, copies)
    same(ours.reset(2, options={"level": 1}), theirs.reset(2, options={"level": 1}))
    same(ours.reset(seed=3), theirs.reset(seed=3))  # the same seed for every env, as there
    for mine, other in zip(ours.get_env_attr("given"), theirs.get_env_attr("given"), strict=True):
        same(mine[-2:], other[-2:])
    ours.close()


@ENGINES
def test_seeds(options):
    ours, theirs = both([Teller] * 3, options)
    for seed in (7, [3, 4, 9], None, 0):
        assert ours.seed(seed) == theirs.seed(seed)
        if seed is not None:
            same(ours.reset()[0], theirs.reset()[0])
            for mine, other in zip(ours.action_space, theirs.action_space, strict=True):
                assert [mine.sample() for _ in range(9)] == [other.sample() for _ in range(9)]
    with pytest.raises(ValueError, match="2 seeds for 3 envs"):
        ours.seed([1, 2])
    ours.close()


def test_envs_with_a_seed_method_and_a_reset_without_arguments():
    class Old(Strict):
        def reset(self):
            return super().reset(seed=getattr(self, "number", None))

        def seed(self, seed=None):
            self.number = seed
            return ["seeded", seed]

    ours, theirs = both([Old, Old], PROCESS)
    assert ours.seed(4) == theirs.seed(4) == [["seeded", 4], ["seeded", 5]]
    same(ours.reset(), theirs.reset())
    same(ours.step([0, 1]), theirs.step([0, 1]))
    ours.close()


@ENGINES
def test_attributes_by_id(options):
    def wrapped(name):
        return TimeLimit(Teller(name=name), 9)

    ours, theirs = both([partial(wrapped, name) for name in "abc"], options)
    for envs in (ours, theirs):
        assert envs.get_env_attr("name") == ["a", "b", "c"]
        assert envs.get_env_attr("name", 1) == ["b"]
        assert envs.get_env_attr("name", [2, 0, 0]) == ["c", "a", "a"]
        assert envs.get_env_attr("name", np.array([1])) == ["b"]
        envs.set_env_attr("name", "x", 0)
        envs.set_env_attr("name", "y", id=[1, -1])
        assert envs.get_env_attr("name") == ["x", "y", "y"]
        assert envs.action_space == [spaces.Discrete(5)] * 3
        assert envs.observation_space == envs.get_env_attr("observation_space")
        assert envs.metadata == [Teller.metadata] * 3
        with pytest.raises(AttributeError):
            envs.get_env_attr("nothing")
    ours.set_env_attr("new", 5)  # where the env itself finds it
    assert ours.fleet.call(lambda env: env.unwrapped.new) == (5, 5, 5)
    ours.set_env_attr("action_space", spaces.Discrete(2), [0])
    assert ours.action_space == [spaces.Discrete(2), *[spaces.Discrete(5)] * 2]
    ours.close()


def test_spaces_are_those_of_the_wrapped_envs():
    envs = TianshouVectorEnv(
        [lambda: RescaleAction(gym.make("Pendulum-v1"), -1.0, 1.0)] * 2, **PROCESS
    )
    assert envs.action_space == [spaces.Box(-1, 1, (1,), np.float32)] * 2
    envs.close()


def test_what_set_env_attr_has_set_survives_a_restart(tmp_path):
    fault = {"step": Fault("sigkill", at=2, once=str(tmp_path / "fired"))}
    envs = TianshouVectorEnv(
        [lambda: TimeLimit(FaultEnv(fault), 9), FaultEnv], **PROCESS, on_failure="restart"
    )
    envs.reset()
    envs.set_env_attr("tag", "kept", 0)
    envs.step([0, 0])
    _, _, terminated, truncated, infos = envs.step([0, 0])
    assert truncated.tolist() == [True, False]
    assert not terminated.any()
    assert infos[0]["worker_restarted"]
    assert envs.get_env_attr("tag") == ["kept", None]
    envs.reset([0])
    assert envs.step([0, 0])[0].tolist() == [[1, 1, 1], [1, 3, 3]]
    envs.close()


@ENGINES
def test_render_and_the_end(options):
    ours, theirs = both([Teller] * 3, options)
    for envs in (ours, theirs):
        envs.reset()
        envs.step([0, 1, 2])
    same(ours.render(), theirs.render())
    ours.close()
    ours.close()
    assert ours.is_closed
    with pytest.raises(ClosedEnvironmentError):
        ours.step([0, 1, 2])


def test_a_finished_env_must_be_reset():
    envs = TianshouVectorEnv([partial(Teller, 1), Teller], **PROCESS)
    envs.reset()
    envs.step([0, 0])
    with pytest.raises(ResetNeeded):
        envs.step([0, 0])
    assert envs.step([0], [1])[4][0]["a"] == 2  # the refused step moved nobody
    envs.close()


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: TianshouVectorEnv([]), ValueError, "at least one env"),
        (lambda: TianshouVectorEnv("CartPole-v1"), TypeError, "got str"),
        (lambda: TianshouVectorEnv([Teller], wait_num=2, **SERIAL), ValueError, "from 1 to 1"),
        (lambda: TianshouVectorEnv([Teller], wait_num=0, **SERIAL), ValueError, "from 1 to 1"),
        (lambda: TianshouVectorEnv([Teller], timeout=0, **SERIAL), ValueError, "more than 0"),
        (lambda: TianshouVectorEnv([Teller], share_memory=True), TypeError, "no such option"),
        (lambda: TianshouVectorEnv([Teller], info_format="list"), TypeError, "needs its own"),
        (
            lambda: TianshouVectorEnv(
                [partial(Teller, observations=spaces.Tuple([spaces.Discrete(2)]))], **SERIAL
            ),
            TypeError,
            "these are tuples",
        ),
    ],
)
def test_what_is_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_a_fleet_is_taken_over_unless_it_was_reset_in_another_mode():
    fleet = envfleet.make(Teller, 2, backend="process", workers=2, copy=False)
    ours, theirs = TianshouVectorEnv(fleet), DummyVectorEnv([Teller] * 2)
    ours.seed(1)
    theirs.seed(1)
    first, expected = ours.reset()[0], theirs.reset()[0]
    same(ours.step([0, 1]), theirs.step([0, 1]))
    same(first, expected)
    with pytest.raises(TypeError, match="built already"):
        TianshouVectorEnv(fleet, workers=2)
    ours.close()
    assert fleet.closed
    with envfleet.make(Teller, 2, backend="serial") as fleet:
        fleet.reset()
        with pytest.raises(RuntimeError, match="autoreset_mode='Disabled'"):
            TianshouVectorEnv(fleet)
        assert fleet.info_format == "columns"


# Some envs at a time


class Gated(gym.Env):
    """Counts its steps, and waits in a step with action 1 until a file is there."""

    observation_space = spaces.Box(0, 1000, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, gate, length=1000):
        self.gate, self.length = Path(gate), length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        while action and not self.gate.exists():
            time.sleep(0.001)
        self.count += 1
        return np.full(1, self.count, np.float32), 1.0, self.count >= self.length, False, {}


def ids_of(result):
    return sorted(info["env_id"] for info in result[4])


@pytest.mark.parametrize("timeout", [None, 0.01])
def test_a_step_returns_with_wait_num_envs_and_the_others_go_on(tmp_path, timeout):
    gate = tmp_path / "gate"
    envs = TianshouVectorEnv([partial(Gated, gate)] * 4, wait_num=2, timeout=timeout, **EACH)
    assert envs.is_async
    envs.reset()
    ready, late = set(), {1, 2}
    result = envs.step(np.array([0, 1, 1, 0]))
    ready.update(ids_of(result))
    while ready != {0, 3}:  # with a time-out, a step may return with one of them
        assert ready < {0, 3}
        result = envs.step(None)
        ready.update(ids_of(result))
    assert set(envs.waiting_id) == late
    assert envs.ready_id == [0, 3]
    with pytest.raises(AlreadyPendingCallError):
        envs.step([0], [1])
    with pytest.raises(AlreadyPendingCallError):
        envs.reset()
    with pytest.raises(AlreadyPendingCallError):
        envs.render()
    assert envs.get_env_attr("count", [0, 3]) == [1, 1]
    assert envs.reset([3])[0].tolist() == [[0]]
    result = envs.step([0, 0], [3, 0])
    counts = {info["env_id"]: row[0] for row, info in zip(result[0], result[4], strict=True)}
    while counts.keys() != {0, 3}:
        result = envs.step(None)
        counts |= {info["env_id"]: row[0] for row, info in zip(result[0], result[4], strict=True)}
    assert counts == {0: 2, 3: 1}
    gate.touch()
    result = envs.step(None, [2, 1])
    assert [info["env_id"] for info in result[4]] == [2, 1]
    assert envs.waiting_id == []
    with pytest.raises(NoAsyncCallError):
        envs.step(None)
    envs.close()


def test_a_time_out_returns_what_is_ready(tmp_path):
    envs = TianshouVectorEnv([partial(Gated, tmp_path / "gate")] * 4, timeout=0.5, **EACH)
    envs.reset()
    result = envs.step([0, 1, 0, 1])  # waits for all four, but not for ever
    while ids_of(result) != [0, 2]:
        assert set(ids_of(result)) < {0, 2}
        result = tuple(np.concatenate(pair) for pair in zip(result, envs.step(None), strict=True))
    envs.close()  # two of them never answer


class Upright(torch.nn.Module):
    """Q-values that push the pole back: each row by itself, so that batches make no difference.

    It has a state, for the AsyncCollector of Tianshou 2.0.1 fails on policies without one, on its
    own vector envs too: "Cannot access item from empty Batch object".
    """

    def forward(self, obs, state=None, info=None):
        lean = torch.as_tensor(obs)[:, 2] + torch.as_tensor(obs)[:, 3]
        return torch.stack([-lean, lean], dim=1), torch.zeros(len(lean), 1)


def upright():
    return DiscreteQLearningPolicy(model=Upright(), action_space=spaces.Discrete(2))


def episodes(buffer):
    """By env, all that it went through; the buffer is large enough to hold it."""
    keys = ("obs", "act", "obs_next", "rew", "terminated", "truncated")
    return [{key: part[:][key] for key in keys} for part in buffer.buffers]


@pytest.mark.parametrize("options", [SERIAL, PROCESS, EACH], ids=["serial", "process", "each"])
@pytest.mark.parametrize("amount", [{"n_step": 150}, {"n_episode": 9}], ids=str)
@pytest.mark.parametrize("wait_num", [1, 3])
def test_the_asynchronous_collector_collects_whole_episodes_of_each_env(options, amount, wait_num):
    envs = TianshouVectorEnv([SHORT] * 4, wait_num=wait_num, **options)
    envs.seed(3)
    collector = AsyncCollector(upright(), envs, VectorReplayBuffer(4000, 4))
    collector.reset()
    stats = [collector.collect(**amount) for _ in range(2)]
    ((kind, number),) = amount.items()
    counted = "n_collected_steps" if kind == "n_step" else "n_collected_episodes"
    assert all(getattr(each, counted) >= number for each in stats)
    ours = episodes(collector.buffer)

    others = DummyVectorEnv([SHORT] * 4)
    others.seed(3)
    reference = Collector(upright(), others, VectorReplayBuffer(4000, 4))
    reference.reset()
    longest = max(len(each["rew"]) for each in ours)
    reference.collect(n_step=4 * longest)
    for mine, theirs in zip(ours, episodes(reference.buffer), strict=True):
        for key in mine:
            np.testing.assert_array_equal(mine[key], theirs[key][: len(mine[key])])
    collector.reset()  # while envs are stepping
    collector.collect(**amount)
    collector.close()


# Tianshou itself


@ENGINES
@pytest.mark.parametrize(
    "amounts",
    [
        [{"n_step": 40}] * 2,
        [{"n_episode": 7}] * 2,
        [{"n_episode": 2}],
        [{"n_step": 40, "random": True}],
    ],
    ids=["steps", "episodes", "fewer episodes than envs", "random"],
)
def test_its_collector_collects_what_it_collects_from_dummy_vector_env(options, amounts):
    collected = []
    for envs in both([SHORT] * 4, options):
        envs.seed(3)
        collector = Collector(upright(), envs, VectorReplayBuffer(4000, 4))
        collector.reset()
        stats = [collector.collect(**amount) for amount in amounts]
        counts = [(each.n_collected_steps, each.n_collected_episodes) for each in stats]
        returns = [each.returns.tolist() for each in stats]
        collected.append((episodes(collector.buffer), counts, returns))
        collector.close()
    (ours, *numbers), (theirs, *expected) = collected
    assert numbers == expected
    for mine, other in zip(ours, theirs, strict=True):
        for key in other:
            assert mine[key].dtype == other[key].dtype
            np.testing.assert_array_equal(mine[key], other[key])


def ppo(space, action_space):
    net = Net(state_shape=space.shape, hidden_sizes=(16,))
    actor = DiscreteActor(
        preprocess_net=net, action_shape=int(action_space.n), softmax_output=False
    )
    policy = DiscreteActorPolicy(actor=actor, action_space=action_space)
    critic = DiscreteCritic(preprocess_net=net)
    return PPO(policy=policy, critic=critic, optim=AdamOptimizerFactory(lr=1e-3))


def dqn(space, action_space):
    net = Net(state_shape=space.shape, action_shape=int(action_space.n), hidden_sizes=(16,))
    policy = DiscreteQLearningPolicy(model=net, action_space=action_space, eps_training=0.2)
    return DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-3), target_update_freq=20)


TRAININGS = {
    "PPO": (ppo, OnPolicyTrainerParams, {"update_step_num_repetitions": 2}, 80),
    "DQN": (dqn, OffPolicyTrainerParams, {"update_step_num_gradient_steps_per_sample": 0.25}, 8),
}


def trained(name, envs, test_envs):
    build, params, more, steps = TRAININGS[name]
    np.random.seed(1)
    torch.manual_seed(1)
    envs.seed(5)
    test_envs.seed(50)
    algorithm = build(gym.make("CartPole-v1").observation_space, envs.action_space[0])
    collector = Collector(
        algorithm, envs, VectorReplayBuffer(2000, len(envs)), exploration_noise=True
    )
    collector.reset()
    collector.collect(n_step=40, random=True)
    settings = params(
        training_collector=collector,
        test_collector=Collector(algorithm, test_envs),
        max_epochs=2,
        epoch_num_steps=160,
        collection_step_num_env_steps=steps,
        test_step_num_episodes=3,
        batch_size=32,
        show_progress=False,
        verbose=False,
        **more,
    )
    result = algorithm.run_training(settings)
    envs.close()
    test_envs.close()
    return algorithm.state_dict(), (result.best_reward, result.train_step, result.train_episode)


@pytest.mark.parametrize("name", TRAININGS)
def test_what_it_learns_is_what_it_learns_on_dummy_vector_env(name):
    expected, numbers = trained(name, DummyVectorEnv([SHORT] * 4), DummyVectorEnv([SHORT] * 2))
    for options in (SERIAL, PROCESS):
        parameters, ours = trained(
            name,
            TianshouVectorEnv([SHORT] * 4, **options),
            TianshouVectorEnv([SHORT] * 2, **options),
        )
        assert ours == numbers
        same(parameters, expected)


def test_training_goes_on_when_a_worker_is_killed(tmp_path):
    class Faulty(FaultEnv):
        observation_space = spaces.Box(0, 100, (3,), np.float32)

        def _observe(self):
            return super()._observe().astype(np.float32)

    plan = {"step": Fault("sigkill", at=20, once=str(tmp_path / "fired"))}
    fns = [partial(Faulty, plan, 15), *[partial(Faulty, {}, 15)] * 3]
    envs = TianshouVectorEnv(fns, **PROCESS, on_failure="restart")
    algorithm = ppo(Faulty.observation_space, Faulty.action_space)
    collector = Collector(algorithm, envs, VectorReplayBuffer(2000, 4))
    collector.reset()
    algorithm.run_training(
        OnPolicyTrainerParams(
            training_collector=collector,
            max_epochs=1,
            epoch_num_steps=400,
            collection_step_num_env_steps=80,
            show_progress=False,
            verbose=False,
        )
    )
    assert envs.fleet.restart_count == 1
    envs.close()


def test_its_wrapper_normalises_observations():
    ours, theirs = (VectorEnvNormObs(envs) for envs in both([SHORT] * 4, PROCESS))
    for envs in (ours, theirs):
        envs.seed(2)
    same(ours.reset()[0], theirs.reset()[0])
    for k in range(8):
        same(ours.step(np.full(4, k % 2))[0], theirs.step(np.full(4, k % 2))[0])
    same(ours.get_obs_rms().mean, theirs.get_obs_rms().mean)
    ours.close()
