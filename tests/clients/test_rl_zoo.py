"""rl-zoo on SB3VecEnv: one line before its ``train``, and the same model comes out."""

from __future__ import annotations

import sys

import pytest
import torch
from rl_zoo3.exp_manager import ExperimentManager
from rl_zoo3.train import train
from stable_baselines3 import PPO

from envfleet.adapters import SB3VecEnv

COMMAND = "train --algo ppo --env CartPole-v1 -n 512 --eval-freq 200 --eval-episodes 2 --seed 3"
SMALL = "--hyperparams n_envs:4 n_steps:32 batch_size:64 n_epochs:2 --device cpu --num-threads 1"


@pytest.mark.parametrize("normalize", ["False", "True"])
def test_it_trains_the_same_model(tmp_path, monkeypatch, normalize):
    built = []

    class Watched(SB3VecEnv):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            built.append(self)

    parameters = []
    for folder, vec_env_cls in (("ours", Watched), ("theirs", None)):
        monkeypatch.setattr(ExperimentManager, "default_vec_env_cls", vec_env_cls)
        more = [f"normalize:{normalize}", "-f", str(tmp_path / folder)]
        words = [*COMMAND.split(), *SMALL.split()]
        at = words.index("--device")
        monkeypatch.setattr(sys, "argv", [*words[:at], more[0], *words[at:], *more[1:]])
        train()
        (path,) = (tmp_path / folder).glob("ppo/*/CartPole-v1.zip")
        parameters.append(PPO.load(path, device="cpu").policy.state_dict())
    ours, theirs = parameters
    assert sorted(envs.num_envs for envs in built) == [1, 4]  # one env to evaluate on
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    for envs in built:
        envs.close()
