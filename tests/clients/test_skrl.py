"""skrl on a fleet, without an adapter: ``wrap_env(fleet)``, and its PPO."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model
from skrl.trainers.torch import SequentialTrainer
from skrl.utils import set_seed

import envfleet

ENV, ENVS = "CartPole-v1", 4


class Policy(CategoricalMixin, Model):
    def __init__(self, spaces):
        Model.__init__(self, **spaces)
        CategoricalMixin.__init__(self)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)
        )

    def compute(self, inputs, role):
        return self.net(inputs["observations"]), {}


class Value(DeterministicMixin, Model):
    def __init__(self, spaces):
        Model.__init__(self, **spaces)
        DeterministicMixin.__init__(self)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
        )

    def compute(self, inputs, role):
        return self.net(inputs["observations"]), {}


def trained(envs, folder):
    """What its PPO has learned after 96 steps of each env."""
    set_seed(7)
    torch.set_num_threads(1)
    env = wrap_env(envs, verbose=False)
    spaces = {
        "observation_space": env.observation_space,
        "action_space": env.action_space,
        "device": env.device,
    }
    config = PPO_CFG(rollouts=16, learning_epochs=2)
    config.experiment.directory = str(folder)
    config.experiment.write_interval = config.experiment.checkpoint_interval = 0
    models = {"policy": Policy(spaces), "value": Value(spaces)}
    memory = RandomMemory(memory_size=16, num_envs=env.num_envs, device=env.device)
    agent = PPO(models=models, memory=memory, cfg=config, **spaces)
    cfg = {"timesteps": 96, "headless": True, "close_environment_at_exit": False}
    trainer = SequentialTrainer(cfg=cfg, env=env, agents=agent)
    trainer.train()
    env.close()
    return {f"{name}.{k}": v for name, m in models.items() for k, v in m.state_dict().items()}


@pytest.mark.parametrize("mode", ["SameStep", "NextStep"])
@pytest.mark.parametrize("workers", [None, 2])
def test_its_ppo_learns_what_it_learns_on_gymnasiums_own_engine(tmp_path, workers, mode):
    options = {"backend": "serial"} if workers is None else {"workers": workers}
    ours = trained(envfleet.make(ENV, ENVS, autoreset_mode=mode, **options), tmp_path / "ours")
    env_fns = [lambda: gym.make(ENV)] * ENVS
    mode = gym.vector.AutoresetMode(mode)
    theirs = trained(SyncVectorEnv(env_fns, autoreset_mode=mode), tmp_path / "theirs")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_it_knows_our_fleets_by_themselves():
    with envfleet.make(ENV, ENVS, workers=2) as fleet:
        env = wrap_env(fleet, verbose=False)
        observations, _ = env.reset()
        assert observations.shape == (ENVS, 4)
        observations, rewards, *_ = env.step(torch.zeros(ENVS, 1, dtype=torch.int64))
        assert rewards.shape == (ENVS, 1)
        assert np.array_equal(observations.numpy(), fleet.observations)
