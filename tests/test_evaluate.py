"""Evaluation: a quota per env, whole episodes, and no trace in what is trained."""

from __future__ import annotations

import os
import random
import signal
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import RecordEpisodeStatistics

import envfleet
from envfleet import evaluate
from rollout_envs import ENGINES, Formula, ScriptedEnv


def fleet(lengths=(1, 5, 30), engine="serial", mode="NextStep"):
    fns = [partial(ScriptedEnv, [(length, "term")], i) for i, length in enumerate(lengths)]
    return ENGINES[engine](fns, autoreset_mode=mode)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("engine", ENGINES)
def test_every_env_plays_its_share_of_whole_episodes(engine, mode):
    envs = fleet(engine=engine, mode=mode)
    result = evaluate(Formula(), envs, episodes=7)
    envs.close()
    # Stopping at the first seven would have taken five of the shortest.
    assert result.lengths.tolist() == [1, 1, 1, 5, 5, 30, 30]
    assert result.mean == result.returns.mean()
    assert result.std == result.returns.std()
    assert result.percentiles == tuple(np.percentile(result.returns, [5, 50, 95]))
    assert result.summary.n == 7
    assert "over 7 episodes" in str(result)


def test_fewer_episodes_than_envs_are_played_by_the_first_ones():
    with fleet() as envs:
        assert evaluate(Formula(), envs, episodes=2).lengths.tolist() == [1, 5]


def test_returns_are_the_envs_own_where_they_tell_them():
    class Clipped(gym.RewardWrapper):
        def reward(self, reward):
            return float(np.sign(reward))

    def make():
        return Clipped(RecordEpisodeStatistics(ScriptedEnv([(3, "term")])))

    with envfleet.SerialVectorEnv([make]) as envs:
        told = evaluate(Formula(), envs, episodes=1)
        summed = evaluate(Formula(), envs, episodes=1, source="own")
    assert summed.returns.tolist() == [3.0]
    assert told.returns[0] > 5.0


class Noisy(torch.nn.Module):
    """Has everything that an evaluation might disturb."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)
        self.frozen = torch.nn.Dropout().eval()
        self.device = torch.device("cpu")

    def act(self, observations, deterministic=False):
        values = self.norm(observations).sum(1)
        noise = torch.rand(len(values)) + random.random() + np.random.rand()
        noise = torch.zeros(len(values)) if deterministic else noise
        return (values + noise).long() % 2, values, values


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("seed", [None, 5])
def test_what_is_trained_is_as_before(deterministic, seed):
    agent = Noisy()
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    buffers = {name: value.clone() for name, value in agent.state_dict().items()}
    with fleet() as envs:
        evaluate(agent, envs, 6, deterministic, seed)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert (states[2] == np.random.get_state()[1]).all()
    assert all(torch.equal(buffers[k], v) for k, v in agent.state_dict().items())
    assert agent.norm.training
    assert not agent.frozen.training


def test_agents_that_are_no_modules_are_as_before_too():
    class Holder:
        def __init__(self):
            self.norm = torch.nn.BatchNorm1d(3)
            self.torch_random = torch.Generator().manual_seed(1)
            self.numpy_random = np.random.default_rng(1)

        def act(self, observations):
            values = self.norm(observations).sum(1)
            draw = torch.rand(len(values), generator=self.torch_random)
            draw += torch.from_numpy(self.numpy_random.random(len(values)))
            return (4 * draw).long() % 2, values, values

    agent = Holder()
    returns = []
    for _ in range(2):
        with fleet() as envs:
            returns.append(evaluate(agent, envs, 4, deterministic=False, seed=3).returns.tolist())
    assert returns[0] == returns[1]
    assert agent.norm.running_mean.tolist() == [0.0] * 3
    assert agent.norm.training
    assert agent.torch_random.initial_seed() == 1
    assert agent.numpy_random.random() == np.random.default_rng(1).random()


def test_replaced_workers_are_no_episodes():
    class KillOnce(Formula):
        asked = 0

        def act(self, observations, deterministic=False):
            self.asked += 1
            if self.asked == 3:
                os.kill(envs.processes[0].pid, signal.SIGKILL)
            return super().act(observations)

    fns = [partial(ScriptedEnv, [(5, "term")], i) for i in range(2)]
    envs = envfleet.ProcessVectorEnv(fns, workers=2, context="fork", on_failure="restart")
    with envs:
        assert evaluate(KillOnce(), envs, 4).lengths.tolist() == [5] * 4


def test_actions_that_the_space_does_not_have_are_refused():
    class Wild:
        def __init__(self, actions):
            self.actions = actions

        def act(self, observations, deterministic=False):
            return self.actions, torch.zeros(3), torch.zeros(3)

    for actions in (torch.full((3,), 7), torch.zeros(3), torch.zeros(2, dtype=torch.long)):
        with fleet() as envs, pytest.raises((ValueError, TypeError), match="agent's actions"):
            evaluate(Wild(actions), envs, 2)


def test_a_seed_decides_everything():
    class Sampler:
        def act(self, observations):
            count = len(observations)
            return torch.randint(0, 2, (count,)), torch.zeros(count), torch.zeros(count)

    def play(seed):
        with envfleet.make("CartPole-v1", 4, backend="serial") as envs:
            return evaluate(Sampler(), envs, 12, deterministic=False, seed=seed).returns.tolist()

    assert play(3) == play(3)
    assert play(3) != play(4)


def test_an_agent_that_can_only_sample_is_told_so():
    class Sampler:
        def get_actions_and_values(self, observations, actions=None):
            return *Formula().act(observations), None

    with fleet() as envs:
        with pytest.raises(TypeError, match="cannot act deterministically"):
            evaluate(Sampler(), envs, 3)
        assert evaluate(Sampler(), envs, 3, deterministic=False).summary.n == 3
        with pytest.raises(ValueError, match="episodes must be at least 1"):
            evaluate(Formula(), envs, 0)


def test_a_bar_shows_how_far_it_is(capsys):
    with fleet() as envs:
        evaluate(Formula(), envs, 3, progress=True)
        assert "3/3" in capsys.readouterr().err
        evaluate(Formula(), envs, 3)  # no terminal
        assert capsys.readouterr().err == ""
