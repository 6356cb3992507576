"""What action masks are worth: Taxi with and without them, the same hyper-parameters and seeds.

python benchmarks/masks.py    # needs the extra train; writes docs/data/masks.json and masks.png
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl

import envfleet

mpl.use("Agg")

import matplotlib.pyplot as plt

DATA = Path(__file__).parent.parent / "docs" / "data"
NAMES = {"action_mask": "with masks", None: "without masks"}


def learn(mask_key: str | None, seed: int, steps: int) -> list[tuple[int, float]]:
    """The mean return of the last 100 episodes at each update, and its step."""
    curve: list[tuple[int, float]] = []

    class Note:
        """Keeps the mean return of every update."""

        def on_update(self, run: Any, metrics: dict[str, float]) -> None:
            if "return_mean" in metrics:
                curve.append((run.steps, round(metrics["return_mean"], 2)))

    with tempfile.TemporaryDirectory() as folder:
        envfleet.train(
            "Taxi-v4",
            total_steps=steps,
            run_dir=folder,
            seed=seed,
            callbacks=[Note()],
            progress=False,
            backend="serial",
            num_envs=16,
            rollout_steps=128,
            batch_size=256,
            epochs=4,
            learning_rate=1e-3,
            entropy_coef=0.01,
            mask_key=mask_key,
        )
    return curve


def draw(curves: dict[str, list[list[tuple[int, float]]]], path: Path) -> None:
    """All seeds thin, their median bold."""
    figure, axes = plt.subplots(figsize=(7, 3.5))
    for (name, runs), colour in zip(curves.items(), ("C0", "C1"), strict=True):
        for run in runs:
            axes.plot(*zip(*run, strict=True), color=colour, alpha=0.3, linewidth=1)
        rows = list(zip(*runs, strict=False))
        median = [statistics.median(value for _, value in row) for row in rows]
        axes.plot([row[0][0] for row in rows], median, color=colour, label=name)
    axes.set(xlabel="steps", ylabel="mean return", ylim=(-650, 50), title="PPO on Taxi-v4")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Train, write the data, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300_000)
    words = parser.parse_args()
    curves = {
        name: [learn(key, seed, words.steps) for seed in range(words.seeds)]
        for key, name in NAMES.items()
    }
    (DATA / "masks.json").write_text(json.dumps(curves) + "\n")
    draw(curves, DATA / "masks.png")
    print("| Taxi-v4 | steps until the mean return is 0 | mean return at the end |")
    print("|---|---|---|")
    for name, runs in curves.items():
        first = [next((f"{step:,}" for step, mean in run if mean > 0), "never") for run in runs]
        last = [f"{run[-1][1]:.1f}" for run in runs]
        print(f"| {name} | {', '.join(first)} | {', '.join(last)} |")


if __name__ == "__main__":
    main()
