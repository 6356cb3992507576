"""Stable-Baselines3's PPO on SB3VecEnv, beside its own SubprocVecEnv and DummyVecEnv.

python benchmarks/sb3.py                         # needs the extras sb3 and box2d

LunarLander-v3, 16 envs, 256 steps, batches of 64, 4 epochs: medians of interleaved rounds, one
rollout and its update each. All three learn the same, bit for bit, and the program checks that.
"envs" is the time of a step of all envs as the algorithm sees it; the rest is the library's own.
torch has one thread, which suits networks as small as these: with more, their threads go on
spinning for a while after each use, on the cores that envs in other processes need.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from envfleet.adapters import SB3VecEnv

STEPS = 256
CLASSES: dict[str, type[Any]] = {
    "SB3VecEnv": SB3VecEnv,
    "SubprocVecEnv": SubprocVecEnv,
    "DummyVecEnv": DummyVecEnv,
}


@dataclass
class Contestant:
    """A model on envs of its own, and what it took so far."""

    name: str
    env_id: str
    num_envs: int
    seconds: list[float] = field(default_factory=list)
    in_envs: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        envs: Any = make_vec_env(self.env_id, self.num_envs, seed=0, vec_env_cls=CLASSES[self.name])
        self.envs = envs
        self._spent = 0.0
        self._step = self.envs.step
        self.envs.step = self._timed_step
        self.model = PPO(
            "MlpPolicy",
            self.envs,
            n_steps=STEPS,
            batch_size=64,
            n_epochs=4,
            seed=0,
            device="cpu",
        )

    def _timed_step(self, actions: Any) -> Any:
        begun = time.perf_counter()
        try:
            return self._step(actions)
        finally:
            self._spent += time.perf_counter() - begun

    def run(self, seed: int) -> None:
        """Train for one rollout; torch's random numbers are shared by all, so they begin anew."""
        set_random_seed(seed)
        self._spent = 0.0
        begun = time.perf_counter()
        self.model.learn(STEPS * self.num_envs, reset_num_timesteps=False)
        self.seconds.append(time.perf_counter() - begun)
        self.in_envs.append(self._spent)

    def forget(self) -> None:
        """Leave out what was measured so far: the first rollout warms up."""
        self.seconds.clear()
        self.in_envs.clear()


def main() -> None:
    """Print a row per class and the two ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("env_id", nargs="?", default="LunarLander-v3")
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--torch-threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.torch_threads)
    contestants = [Contestant(name, args.env_id, args.num_envs) for name in CLASSES]
    for round_ in range(args.rounds + 1):
        for contestant in random.sample(contestants, len(contestants)):
            contestant.run(round_)
            if round_ == 0:
                contestant.forget()
    steps = STEPS * args.num_envs
    print(f"{args.env_id}, {args.num_envs} envs; ours: {contestants[0].envs.fleet.plan}\n")
    print("| vec_env_cls | steps/s | envs, ms per step | ours is faster by |")
    print("|---|---:|---:|---:|")
    for contestant in contestants:
        rate = steps / statistics.median(contestant.seconds)
        share = 1000 * statistics.median(contestant.in_envs) / STEPS
        ratio = statistics.median(
            theirs / ours
            for theirs, ours in zip(contestant.seconds, contestants[0].seconds, strict=True)
        )
        print(f"| {contestant.name} | {rate:,.0f} | {share:.2f} | {ratio:.2f}x |")
    first, *others = (contestant.model.policy.state_dict() for contestant in contestants)
    if not all(torch.equal(first[key], other[key]) for other in others for key in first):
        raise SystemExit("they have not learned the same")
    for contestant in contestants:
        contestant.envs.close()


if __name__ == "__main__":
    main()
