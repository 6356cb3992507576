"""What a preset learns: trained policies of some envs, evaluated.

python benchmarks/learning.py Pendulum-v1 LunarLander-v3 --seeds 3    # needs the extra train

Every seed is trained with the whole preset, then plays 100 episodes with its best actions.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from envfleet.rollout.evaluate import evaluate
from envfleet.training.envs import build_fleet, kind_of
from envfleet.training.presets import PRESETS, preset
from envfleet.training.trainer import Run


def learn(env_id: str, name: str, seed: int) -> tuple[float, float, int]:
    """The mean return of the trained policy, seconds of training, and steps."""
    config = replace(preset(env_id, name, **kind_of(env_id)), seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        with Run.start(Path(folder) / "run", config) as run:
            start = time.perf_counter()
            run.train()
            seconds = time.perf_counter() - start
        with build_fleet(env_id, 10, backend="auto", on_failure="raise") as envs:
            result = evaluate(run.policy.eval(), envs, 100, seed=1000 + seed)
    return result.mean, seconds, run.collector.total_steps


def main() -> None:
    """Print a row per env."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("envs", nargs="+", metavar="ENV_ID")
    parser.add_argument("--preset", choices=PRESETS, default="zoo")
    parser.add_argument("--seeds", type=int, default=3)
    words = parser.parse_args()
    print("| env | preset | steps | returns of the seeds | mean | steps/s |")
    print("|---|---|---:|---|---:|---:|")
    for env_id in words.envs:
        runs = [learn(env_id, words.preset, seed) for seed in range(words.seeds)]
        means = [mean for mean, _, _ in runs]
        steps = runs[0][2]
        each = ", ".join(f"{mean:.0f}" for mean in means)
        rate = steps / statistics.median(seconds for _, seconds, _ in runs)
        print(
            f"| {env_id} | {words.preset} | {steps:,} | {each} | {statistics.mean(means):.0f} | "
            f"{rate:,.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
