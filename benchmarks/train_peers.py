"""One training run with Stable-Baselines3, or with SBX (the same on JAX); for benchmarks/train.py.

python benchmarks/train_peers.py sb3|sbx CONFIG  # a TrainConfig as JSON; prints a Result as JSON

Runs in an environment of its own: it needs nothing of envfleet.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy


class Result(NamedTuple):
    """What a run took and came to."""

    seconds: float
    """Of training, without start-up and compilation."""
    steps: int
    mean_return: float
    """Of 20 episodes with the trained policy's best actions."""


def train(library: str, config: dict[str, Any]) -> Result:
    """Train once."""
    # Without render_mode="rgb_array", make_vec_env's own: see UNRENDERED in threshold.py.
    unrendered = {"render_mode": None}
    envs = make_vec_env(
        config["env_id"], config["num_envs"], seed=config["seed"], env_kwargs=unrendered
    )
    model = _model(library, envs, config)
    if library == "sbx":
        _compile(model)
    start = time.perf_counter()
    model.learn(config["total_steps"])
    seconds = time.perf_counter() - start
    envs.seed(1000 + config["seed"])
    evaluated: Any = evaluate_policy(model, envs, n_eval_episodes=20)
    envs.close()
    return Result(seconds, model.num_timesteps, float(evaluated[0]))


def _model(library: str, envs: Any, config: dict[str, Any]) -> Any:
    if library == "sbx":
        from sbx import PPO
    else:
        from stable_baselines3 import PPO

    def scheduled(name: str) -> float | Callable[[float], float]:
        value = float(config[name])
        return (lambda left: left * value) if config[f"{name}_schedule"] == "linear" else value

    return PPO(
        "MlpPolicy",
        envs,
        n_steps=config["rollout_steps"],
        batch_size=config["batch_size"],
        n_epochs=config["epochs"],
        learning_rate=scheduled("learning_rate"),
        gamma=config["gamma"],
        gae_lambda=config["gae_lambda"],
        clip_range=scheduled("clip_range"),
        ent_coef=config["entropy_coef"],
        vf_coef=config["value_coef"],
        max_grad_norm=config["max_grad_norm"],
        seed=config["seed"],
        device="cpu",
    )


def _compile(model: Any) -> None:
    """Have JAX compile all that training will call, then put the parameters back.

    Two rollouts and updates, because the second update has other types than the first, and the
    value of a single observation, which is asked for where an episode is truncated.
    """
    policy = model.policy
    states = policy.actor_state, policy.vf_state  # updates replace them
    model.learn(2 * model.n_steps * model.n_envs)
    seen, _ = policy.prepare_obs(model.observation_space.sample())
    model.vf.apply(policy.vf_state.params, seen).block_until_ready()
    policy.actor_state, policy.vf_state = states


if __name__ == "__main__":
    print(json.dumps(train(sys.argv[1], json.loads(sys.argv[2]))._asdict()))
