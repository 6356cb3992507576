"""Libraries that need no adapter: Gymnasium's make_vec, and agents and loops in CleanRL's form."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import gymnasium as gym
import pytest
import torch
from gymnasium.vector import AutoresetMode

import envfleet
from envfleet.rollout.agent import device_of
from envfleet.testing import assert_same
from fleet_envs import CounterEnv

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import ppo_single_file


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("SB3VecEnv", "stable_baselines3", "sb3"), ("TianshouVectorEnv", "tianshou", "tianshou")],
)
def test_without_its_library_an_adapter_says_what_to_install(name, package, extra):
    program = (
        f"import sys; sys.modules['{package}'] = None\n"
        "import envfleet.adapters as adapters\n"
        f"try: adapters.{name}\n"
        "except ImportError as error: print(error)"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert output == (
        f"envfleet.adapters.{name} needs {package}: pip install 'envfleet[{extra}]'.\n"
    )


# make_vec


@pytest.fixture
def register():
    """``gymnasium.register`` of ids that are forgotten afterwards."""
    ids = []

    def register(name, **kwargs):
        gym.register(name, vector_entry_point="envfleet:make", **kwargs)
        ids.append(name)

    yield register
    for name in ids:
        del gym.registry[name]


def test_make_vec_builds_a_fleet_that_is_registered(register):
    register("CartPoleFleet-v0", kwargs={"env": "CartPole-v1", "backend": "process", "workers": 2})
    theirs = gym.make_vec("CartPole-v1", 3, "sync", max_episode_steps=7)
    with gym.make_vec("CartPoleFleet-v0", 3, max_episode_steps=7) as ours:
        assert isinstance(ours, envfleet.ProcessVectorEnv)
        assert ours.workers == 2
        assert_same(ours.reset(seed=3), theirs.reset(seed=3))
        for _ in range(10):
            actions = theirs.action_space.sample()
            assert_same(ours.step(actions), theirs.step(actions))
        spec = ours.spec
    with gym.make_vec(spec) as again:
        assert isinstance(again, envfleet.ProcessVectorEnv)
        assert again.num_envs == 3
        assert again.get_attr("_max_episode_steps") == (7, 7, 7)


def test_make_vec_with_a_function_and_options_of_the_engine(register):
    register("Counters-v0", kwargs={"env": CounterEnv, "backend": "serial"})
    envs = gym.make_vec("Counters-v0", 2, length=3, autoreset_mode="SameStep")
    assert envs.get_attr("length") == (3, 3)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    envs.close()


def test_make_vec_with_a_list_of_functions(register):
    tagged = [partial(CounterEnv, tag=name) for name in "ab"]
    register("Tagged-v0", kwargs={"env": tagged, "backend": "serial"})
    envs = gym.make_vec("Tagged-v0", num_envs=2)
    assert envs.get_attr("tag") == ("a", "b")
    envs.close()


# CleanRL


class Plural(ppo_single_file.Agent):
    """The same agent in our form."""

    def get_actions_and_values(self, observations, actions=None):
        action, log_prob, entropy, value = self.get_action_and_value(observations, actions)
        return action, log_prob, value[:, 0], entropy


def agents():
    for kind in (ppo_single_file.Agent, Plural):
        torch.manual_seed(0)
        yield kind(4, 2)


def test_a_collector_takes_a_cleanrl_agent():
    rollouts = []
    for agent in agents():
        torch.manual_seed(1)
        envs = envfleet.make("CartPole-v1", 4, backend="serial", max_episode_steps=9)
        with envfleet.Collector(envs, agent, steps=40, seed=2) as collector:
            rollouts.append(collector.collect())
    ours, theirs = rollouts
    assert ours.truncated.any()
    for name in ("observations", "actions", "log_probs", "values", "last_values", "final_values"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name


def test_evaluate_takes_a_cleanrl_agent():
    results = []
    for agent in agents():
        with envfleet.make("CartPole-v1", 4, backend="serial") as envs:
            results.append(envfleet.evaluate(agent, envs, 8, deterministic=False, seed=0))
            with pytest.raises(TypeError, match="deterministic=False"):
                envfleet.evaluate(agent, envs, 8)
    assert results[0].returns.tolist() == results[1].returns.tolist()


def test_a_cleanrl_agent_with_another_answer_is_told_which_is_expected():
    class Recurrent:
        def get_action_and_value(self, x):
            return 1, 2, 3, 4, 5

    with envfleet.make("CartPole-v1", 2, backend="serial") as envs:
        collector = envfleet.Collector(envs, Recurrent(), steps=2)
        with pytest.raises(TypeError, match=r"\(action, log_prob, entropy, value\), got a tuple"):
            collector.collect()


def test_a_module_computes_where_its_parameters_are():
    agent = torch.nn.Linear(1, 1, device="meta")
    assert device_of(agent, None) == torch.device("meta")
    assert device_of(agent, "cpu") == torch.device("cpu")
    assert device_of(torch.nn.Tanh(), None) == torch.device("cpu")


def test_the_single_file_example_learns(capsys):
    args = ["--total-timesteps", "8192", "--num-steps", "64", "--seed", "1"]
    threads = torch.get_num_threads()
    try:
        agent, mean = ppo_single_file.train(ppo_single_file.parse(args))
    finally:
        torch.set_num_threads(threads)
    assert mean > 30  # random play has 22
    assert "8192 steps" in capsys.readouterr().out
    assert agent.get_value(torch.zeros(3, 4)).shape == (3, 1)
