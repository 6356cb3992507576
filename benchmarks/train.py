"""Training speed beside Stable-Baselines3's, with the same hyper-parameters, and the returns.

python benchmarks/train.py                       # needs the extras train, box2d and peers

Seeds take turns; start-up is left out. Returns are of 20 episodes with the trained policy's best
actions. Values are not clipped on either side: Stable-Baselines3 clips them in another way than
CleanRL and we. "solved" is the time of training until the last 100 episodes reach the env's reward
threshold, with --preset fast.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from envfleet.rollout.evaluate import evaluate
from envfleet.training.config import RunOptions, TrainConfig
from envfleet.training.envs import build_fleet
from envfleet.training.presets import preset
from envfleet.training.trainer import Run

CELLS = [
    ("CartPole-v1", "zoo", 100_000),
    ("CartPole-v1", "cleanrl", 60_000),
    ("LunarLander-v3", "zoo", 131_072),
]


def ours(config: TrainConfig, options: RunOptions | None = None) -> tuple[float, float, int]:
    """Seconds of training, the mean return of the trained policy, and steps."""
    with tempfile.TemporaryDirectory() as folder:
        with Run.start(Path(folder) / "run", config, options or RunOptions()) as run:
            start = time.perf_counter()
            run.train()
            seconds = time.perf_counter() - start
            policy = run.policy
        with build_fleet(
            config.env_id, config.num_envs, backend="serial", on_failure="raise"
        ) as envs:
            result = evaluate(policy, envs, 20, seed=1000 + config.seed)
        return seconds, result.mean, run.steps


def theirs(config: TrainConfig) -> tuple[float, float, int]:
    """The same with Stable-Baselines3."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    def scheduled(value: float, schedule: str) -> float | Callable[[float], float]:
        return (lambda left: left * value) if schedule == "linear" else value

    envs = make_vec_env(config.env_id, config.num_envs, seed=config.seed)
    model = PPO(
        "MlpPolicy",
        envs,
        n_steps=config.rollout_steps,
        batch_size=config.batch_size,
        n_epochs=config.epochs,
        learning_rate=scheduled(config.learning_rate, config.learning_rate_schedule),
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        clip_range=scheduled(config.clip_range, config.clip_range_schedule),
        ent_coef=config.entropy_coef,
        vf_coef=config.value_coef,
        max_grad_norm=config.max_grad_norm,
        seed=config.seed,
        device="cpu",
    )
    start = time.perf_counter()
    model.learn(config.total_steps)
    seconds = time.perf_counter() - start
    envs.seed(1000 + config.seed)
    evaluated: Any = evaluate_policy(model, envs, n_eval_episodes=20)
    envs.close()
    return seconds, float(evaluated[0]), model.num_timesteps


def main() -> None:
    """Print a row per cell, then the time until CartPole is solved."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    print("| env | preset | steps/s | SB3, steps/s | ratio | return | SB3, return |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for env_id, name, total in CELLS:
        rates: tuple[list[float], list[float]] = [], []
        returns: tuple[list[float], list[float]] = [], []
        for seed in range(seeds):
            config = preset(env_id, name)
            config = replace(config, total_steps=total, seed=seed, clip_values=False)
            for i, train in enumerate((ours, theirs)):
                seconds, mean, steps = train(config)
                rates[i].append(steps / seconds)
                returns[i].append(mean)
        mine, other = statistics.median(rates[0]), statistics.median(rates[1])
        means = " | ".join(f"{statistics.mean(r):.0f}" for r in returns)
        print(
            f"| {env_id} | {name} | {mine:,.0f} | {other:,.0f} | {mine / other:.1f}x | {means} |",
            flush=True,
        )
    times = []
    for seed in range(5):
        config = replace(preset("CartPole-v1", "fast"), seed=seed)
        times.append(ours(config, RunOptions(stop_at=475.0))[0])
    print(f"\nCartPole-v1 solved in {statistics.median(times):.1f} s (median of 5 seeds)")


if __name__ == "__main__":
    main()
