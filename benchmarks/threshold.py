"""Seconds of training until a policy reaches the return that rl-zoo publishes.

python benchmarks/threshold.py Hopper-v5 --seed 0               # --preset fast, on a fleet
python benchmarks/threshold.py Hopper-v5 --seed 0 --side sb3    # Stable-Baselines3, rl-zoo's preset

Needs the extras train, sb3, box2d and mujoco. Prints one line of JSON. Both sides play the same
evaluations, which are not counted as training: 20 deterministic episodes every so many steps and at
the end, and when their mean reaches the threshold, 100 others, whose mean has to reach it too.

Stable-Baselines3 has one torch thread, which is faster here than two, and its time is CPU time: it
never has more than one core, so that this is no more than the wall-clock time, and does not depend
on what else runs. Ours is wall-clock time.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from envfleet.rollout.evaluate import evaluate
from envfleet.training.config import RunOptions, TrainConfig
from envfleet.training.envs import build_fleet
from envfleet.training.presets import preset
from envfleet.training.trainer import Run


@dataclass(frozen=True)
class Goal:
    """What has to be reached, and how often it is looked."""

    threshold: float
    every: int
    """Steps between evaluations."""


GOALS = {
    "CartPole-v1": Goal(500.0, 5_000),
    "Pendulum-v1": Goal(-172.2, 5_000),
    "LunarLander-v3": Goal(242.1, 25_000),
    "BipedalWalker-v3": Goal(287.9, 50_000),
    "Hopper-v5": Goal(2_000.0, 25_000),
    "Walker2d-v5": Goal(3_479.0, 25_000),
    "HalfCheetah-v5": Goal(5_819.0, 25_000),
}
"""rl-zoo's benchmark.md, one run each (LunarLander-v2, MuJoCo v3); Hopper less than its 2,410."""

UNRENDERED = {"render_mode": None}
"""make_vec_env asks for "rgb_array" otherwise. LunarLander then keeps every particle until it is
rendered, or the episode ends: a step of an agent that hovers takes four times as long."""

Play = Callable[[int, int], float]
"""The mean return of so many deterministic episodes, with this seed."""


class Watch:
    """Stops the clock for evaluations, keeps the curve, and says when it is over."""

    def __init__(self, goal: Goal, limit: float, clock: Callable[[], float]) -> None:
        self.goal, self.limit, self.clock = goal, limit, clock
        self.curve: list[tuple[int, float, float]] = []
        """Steps, seconds and mean return of 20 episodes."""
        self.reached: tuple[int, float, float] | None = None
        """The same of the 100 episodes that reached the goal."""
        self._next = goal.every
        self._paused = 0.0
        self._start = clock()

    @property
    def seconds(self) -> float:
        """Seconds of training so far."""
        return self.clock() - self._start - self._paused

    def goes_on(self, steps: int, play: Play, *, is_last: bool = False) -> bool:
        """Evaluate if it is time, or the last policy; False at the goal, or the limit."""
        seconds = self.seconds
        if steps < self._next and seconds < self.limit and not is_last:
            return True
        self._next = steps + self.goal.every
        begun = self.clock()
        mean = play(20, steps)
        self.curve.append((steps, round(seconds, 2), round(mean, 1)))
        if mean >= self.goal.threshold:
            confirmed = play(100, steps + 1)
            if confirmed >= self.goal.threshold:
                self.reached = steps, round(seconds, 2), round(confirmed, 1)
        self._paused += self.clock() - begun
        return self.reached is None and seconds < self.limit


def ours(env_id: str, seed: int, limit: float) -> Watch:
    """``--preset fast`` on a fleet."""
    config = replace(preset(env_id, "fast"), seed=seed)
    envs = build_fleet(env_id, 20, backend="serial")
    watch: Watch

    class Look:
        """Evaluates the policy as it is after an update."""

        def on_update(self, run: Any, _: dict[str, float]) -> bool:
            def play(episodes: int, seed: int) -> float:
                mean: float = evaluate(run.policy, envs, episodes, seed=seed, progress=False).mean
                return mean

            return watch.goes_on(run.steps, play, is_last=run.steps >= config.last_step)

    with (
        envs,
        tempfile.TemporaryDirectory() as folder,
        Run.start(Path(folder) / "run", config, RunOptions(), callbacks=[Look()]) as run,
    ):
        watch = Watch(GOALS[env_id], limit, time.perf_counter)
        run.train()
    return watch


def theirs(env_id: str, seed: int, limit: float) -> Watch:
    """Stable-Baselines3 with rl-zoo's preset."""
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize, sync_envs_normalization

    torch.set_num_threads(1)
    config = preset(env_id, "zoo")
    envs: Any = make_vec_env(env_id, config.num_envs, seed=seed, env_kwargs=UNRENDERED)
    shown: Any = make_vec_env(env_id, 20, seed=1_000 + seed, env_kwargs=UNRENDERED)
    if config.normalize_observations:
        envs = VecNormalize(envs, gamma=config.gamma)
        shown = VecNormalize(shown, training=False, norm_reward=False)
    model = zoo_model(config, envs, seed)

    def play(episodes: int, seed: int) -> float:
        if config.normalize_observations:
            sync_envs_normalization(envs, shown)
        shown.seed(seed)
        mean: Any = evaluate_policy(model, shown, n_eval_episodes=episodes)[0]
        return float(mean)

    watch = Watch(GOALS[env_id], limit, time.process_time)

    class Look(BaseCallback):
        """Evaluates the model after each update: before the next rollout."""

        def _on_step(self) -> bool:
            return watch.reached is None and watch.seconds < watch.limit

        def _on_rollout_start(self) -> None:
            if self.num_timesteps:
                watch.goes_on(self.num_timesteps, play)

    model.learn(config.total_steps, callback=Look())
    if watch.reached is None:
        watch.goes_on(model.num_timesteps, play, is_last=True)
    return watch


def zoo_model(config: TrainConfig, envs: Any, seed: int) -> Any:
    """Stable-Baselines3's PPO with what rl-zoo gives it; it explores Pendulum by gSDE."""
    import torch
    from stable_baselines3 import PPO

    def scheduled(value: float, schedule: str) -> float | Callable[[float], float]:
        return (lambda left: left * value) if schedule == "linear" else value

    hidden = list(config.hidden)
    explores_by_sde = config.env_id == "Pendulum-v1"
    return PPO(
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
        seed=seed,
        device="cpu",
        policy_kwargs={
            "net_arch": {"pi": hidden, "vf": hidden},
            "activation_fn": torch.nn.ReLU if config.activation == "relu" else torch.nn.Tanh,
            "log_std_init": config.log_std,
            "ortho_init": config.orthogonal,
        },
        use_sde=explores_by_sde,
        sde_sample_freq=4 if explores_by_sde else -1,
    )


def main() -> None:
    """Train one seed on one side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("env", choices=GOALS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--side", choices=("envfleet", "sb3"), default="envfleet")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of training at most")
    words = parser.parse_args()
    train = ours if words.side == "envfleet" else theirs
    watch = train(words.env, words.seed, words.limit)
    line = {
        "env": words.env,
        "side": words.side,
        "seed": words.seed,
        "threshold": GOALS[words.env].threshold,
        "seconds": round(watch.seconds, 2),
        "reached": watch.reached,
        "curve": watch.curve,
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
