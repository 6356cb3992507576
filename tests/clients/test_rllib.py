"""RLlib on a fleet, without an adapter: the vector entry point of its env runners."""

from __future__ import annotations

import sys

import gymnasium as gym
import numpy as np
import pytest
import ray
from ray import cloudpickle
from ray.rllib.algorithms.ppo import PPOConfig
from ray.tune.registry import register_env

import envfleet


@pytest.fixture(scope="module", autouse=True)
def _cluster():
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # runners cannot import this file
    yield
    ray.shutdown()


def fleet(config):
    """What RLlib calls for an env, with one key more in the config for a vector of them."""
    return envfleet.make("CartPole-v1", config["num_envs"], backend="process", workers=2)


def single(config):
    """The spaces are asked of a single env."""
    return gym.make("CartPole-v1")


def either(config):
    return fleet(config) if "num_envs" in config else single(config)


def trained(env, runners, mode):
    config = (
        PPOConfig()
        .environment(env)
        .env_runners(
            num_env_runners=runners, num_envs_per_env_runner=4, gym_env_vectorize_mode=mode
        )
        .training(train_batch_size=400, minibatch_size=100, num_epochs=2)
        .debugging(seed=1)
    )
    algorithm = config.build_algo()
    try:
        result = algorithm.train()
        weights = algorithm.get_module().state_dict()
        runner = algorithm.env_runner_group.local_env_runner
        kind = None if runners else type(runner.env.unwrapped)
    finally:
        algorithm.stop()
    return result["env_runners"], weights, kind


def test_a_local_runner_learns_on_a_fleet_what_it_learns_on_gymnasiums_own_engine():
    register_env("fleet", either)
    ours, weights, kind = trained("fleet", 0, "vector_entry_point")
    theirs, expected, _ = trained("CartPole-v1", 0, "sync")
    assert kind is envfleet.ProcessVectorEnv
    assert ours["num_env_steps_sampled"] == theirs["num_env_steps_sampled"]
    assert ours["episode_return_mean"] == theirs["episode_return_mean"]
    assert all(np.array_equal(weights[key], expected[key]) for key in expected)


def test_remote_runners_have_a_fleet_each():
    register_env("fleet", either)
    result, _, _ = trained("fleet", 2, "vector_entry_point")
    assert result["num_env_steps_sampled"] >= 400
