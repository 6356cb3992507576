"""Trains everything that docs/results.md shows, and writes that page's tables and charts.

make results                                # all of it; run it again to go on where it was stopped
python benchmarks/results.py --list         # the steps, what each takes, and which are done
python benchmarks/results.py zoo/Acrobot    # only the steps whose names begin like this

Needs the extras train, sb3, box2d and mujoco. One env and one seed are one step; what a step has
found is kept in build/results, and a training run that was interrupted is resumed.
"""

from __future__ import annotations

import argparse
import csv
import datetime as dt
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import results_page

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "build" / "results"
BIN = Path(sys.executable).parent
SEEDS = (0, 1, 2)

ZOO = {
    "CartPole-v1": 0.3,
    "Pendulum-v1": 0.3,
    "Acrobot-v1": 2,
    "MountainCar-v0": 2,
    "LunarLander-v3": 2,
    "LunarLanderContinuous-v3": 2,
    "BipedalWalker-v3": 20,
}
"""Envs that are trained with rl-zoo's preset to its end, and the minutes that a seed takes."""
FAST = {
    "CartPole-v1": (0.2, 1),
    "Pendulum-v1": (0.3, 2),
    "LunarLander-v3": (0.7, 8),
    "BipedalWalker-v3": (4, 6),
    "Hopper-v5": (1, 6),
    "Walker2d-v5": (2, 6),
    "HalfCheetah-v5": (1, 6),
}
"""Envs that are trained until a threshold: minutes of a seed with envfleet and with SB3."""
TAXI = shlex.split(
    "--num-envs 16 --rollout-steps 128 --batch-size 256 --epochs 4 --learning-rate 1e-3 "
    "--entropy-coef 0.01 --total-steps 300000"
)
SB3_LIMIT = {"LunarLander-v3": 600, "Pendulum-v1": 600}
"""Seconds that Stable-Baselines3 may train; 200 where nothing is said."""


@dataclass(frozen=True)
class Step:
    """One env and one seed."""

    group: str
    subject: str
    seed: int
    minutes: float
    """About how long it takes on 2 cores."""
    command: tuple[str, ...]

    @property
    def name(self) -> str:
        """What it is called on the command line."""
        return f"{self.group}/{self.subject}/{self.seed}"

    @property
    def kept(self) -> Path:
        """Where its findings are kept."""
        return KEPT / f"{self.name}.json"

    @property
    def is_done(self) -> bool:
        """Whether it has been run."""
        return self.kept.exists()


def steps() -> Iterator[Step]:
    """All of them, in the order in which they are run."""
    measure = ("python", "benchmarks/threshold.py")
    taxi: dict[str, tuple[str, ...]] = {"masks": (), "no-masks": ("--mask-key", "None")}
    for seed in SEEDS:
        for env, minutes in ZOO.items():
            yield Step("zoo", env, seed, minutes, ("envfleet", "train", env))
        for env, (minutes, _) in FAST.items():
            yield Step("fast", env, seed, minutes, (*measure, env))
        for subject, words in taxi.items():
            yield Step("taxi", subject, seed, 0.5, ("envfleet", "train", "Taxi-v4", *TAXI, *words))
    for seed in SEEDS:  # the longest part, of another library, is the last
        for env, (_, minutes) in FAST.items():
            limit = str(SB3_LIMIT.get(env, 200))
            yield Step(
                "sb3", env, seed, minutes, (*measure, env, "--side", "sb3", "--limit", limit)
            )


def run(step: Step) -> None:
    """Run a step and keep what it found."""
    begun = time.perf_counter()
    found = train(step) if step.command[0] == "envfleet" else measure(step)
    found |= {
        "group": step.group,
        "subject": step.subject,
        "seed": step.seed,
        "command": shlex.join((*step.command, "--seed", str(step.seed))),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "minutes": round((time.perf_counter() - begun) / 60, 2),
    }
    step.kept.parent.mkdir(parents=True, exist_ok=True)
    partial = step.kept.with_suffix(".partial")
    partial.write_text(json.dumps(found))
    partial.rename(step.kept)


def train(step: Step) -> dict[str, Any]:
    """A run of ``envfleet train``, resumed if it has begun, and 100 deterministic episodes."""
    runs = KEPT / "runs" / step.group / step.subject
    envfleet = str(BIN / "envfleet")
    folder = next(runs.glob(f"*/{step.seed}"), None)
    if folder is None:
        words = ["--seed", str(step.seed), "--name", str(step.seed), "--run-dir", str(runs)]
        subprocess.run([envfleet, *step.command[1:], *words], check=True)
        folder = next(runs.glob(f"*/{step.seed}"))
    else:
        subprocess.run([envfleet, "resume", str(folder)], check=True)
    words = ["eval", str(folder), "--episodes", "100", "--seed", str(1_000 + step.seed), "--json"]
    played = subprocess.run([envfleet, *words], check=True, stdout=subprocess.PIPE, text=True)
    return {"evaluation": json.loads(played.stdout), "curve": curve(folder / "metrics.csv")}


def curve(path: Path) -> list[tuple[int, float]]:
    """Steps and mean returns of a run, at most 200 of them."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("return_mean")]
    every = max(1, len(rows) // 200)
    return [(int(row["step"]), round(float(row["return_mean"]), 2)) for row in rows[::every]]


def measure(step: Step) -> dict[str, Any]:
    """What ``benchmarks/threshold.py`` prints."""
    words = [sys.executable, *step.command[1:], "--seed", str(step.seed)]
    printed = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    found: dict[str, Any] = json.loads(printed.stdout.splitlines()[-1])
    return found


def hours(some: list[Step]) -> str:
    """How long steps take, in words."""
    minutes = sum(step.minutes for step in some)
    return f"{minutes / 60:.1f} hours" if minutes > 90 else f"{minutes:.0f} minutes"


def main() -> None:
    """Run what has not been run, then write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="how the names of the steps begin; all if none")
    parser.add_argument("--list", action="store_true", help="show the steps and run none")
    parser.add_argument("--page", action="store_true", help="write the page and run none")
    words = parser.parse_args()
    chosen = [s for s in steps() if not words.names or s.name.startswith(tuple(words.names))]
    if not chosen:
        parser.error(f"no step begins with {' or '.join(words.names)}; --list shows all.")
    left = [step for step in chosen if not step.is_done]
    if words.list:
        for step in chosen:
            mark = "done" if step.is_done else f"{step.minutes:g} min"
            print(f"{step.name:<32}{mark:<10}{shlex.join(step.command)}")
        print(f"{len(chosen)} steps, {len(left)} to do: about {hours(left)} on 2 cores.")
        return
    if not words.page:
        for done, step in enumerate(left):
            print(
                f"[{done + 1} of {len(left)}] {step.name}, about {step.minutes:g} min; "
                f"all that is left: about {hours(left[done:])}",
                flush=True,
            )
            run(step)
    found = [json.loads(step.kept.read_text()) for step in steps() if step.is_done]
    results_page.write(found)
    missing = sum(not step.is_done for step in steps())
    print(f"docs/results.md shows {len(found)} steps; {missing} have not been run.")


if __name__ == "__main__":
    main()
