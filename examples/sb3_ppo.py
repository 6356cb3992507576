"""Train Stable-Baselines3's PPO on a fleet: one argument of ``make_vec_env`` changes.

pip install 'envfleet[sb3]'
python examples/sb3_ppo.py --steps 50000
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from envfleet.adapters import SB3VecEnv


def main() -> None:
    """Train, then evaluate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50_000)
    args = parser.parse_args()
    torch.set_num_threads(1)  # networks as small as these are slower with more
    fleet: Any = SB3VecEnv  # the library's types know only its own two engines
    envs = make_vec_env("CartPole-v1", 8, seed=1, vec_env_cls=fleet)
    model = PPO("MlpPolicy", envs, n_steps=32, batch_size=256, device="cpu", seed=1)
    model.learn(args.steps)
    mean, deviation = evaluate_policy(model, envs, n_eval_episodes=16)
    print(f"return {mean:.0f} +- {deviation:.0f}")
    envs.close()


if __name__ == "__main__":
    main()
