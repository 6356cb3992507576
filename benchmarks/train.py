"""Training speed beside Stable-Baselines3 and SBX, with the same hyper-parameters, and the returns.

make bench-train                                 # installs SBX in an environment of its own
python benchmarks/train.py                       # without SBX if that is not there
python benchmarks/train.py --cells cartpole-zoo --seeds 5

Libraries take turns, seed by seed, each run in a fresh process. Start-up is left out, and so is
JAX's compilation: SBX trains for two updates, then begins anew with the parameters it had
(train_peers.py). Returns are from 20 episodes with the trained policy's best actions. Nobody clips
values: Stable-Baselines3 does it in another way than CleanRL and we, SBX not at all. "solved" is
the time of training until the last 100 episodes reach the env's reward threshold, with --preset
fast.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from envfleet.rollout.evaluate import evaluate
from envfleet.training.config import RunOptions, TrainConfig
from envfleet.training.envs import build_fleet
from envfleet.training.presets import preset
from envfleet.training.trainer import Run
from train_peers import Result

CELLS = {
    "cartpole-zoo": ("CartPole-v1", "zoo", 60_000),
    "cartpole-cleanrl": ("CartPole-v1", "cleanrl", 40_000),
    "lunarlander-zoo": ("LunarLander-v3", "zoo", 65_536),
}
HERE = Path(__file__).parent
SBX = HERE.parent / ".venv-clients" / "sbx" / "bin" / "python"

Train = Callable[[TrainConfig], Result]


def ours(config: TrainConfig, options: RunOptions | None = None) -> Result:
    """Train with envfleet."""
    with tempfile.TemporaryDirectory() as folder:
        with Run.start(Path(folder) / "run", config, options or RunOptions()) as run:
            start = time.perf_counter()
            run.train()
            seconds = time.perf_counter() - start
            policy = run.policy
        with build_fleet(config.env_id, config.num_envs, backend="serial") as envs:
            result = evaluate(policy, envs, 20, seed=1000 + config.seed)
        return Result(seconds, run.steps, result.mean)


def in_fresh_process(config: TrainConfig, options: RunOptions | None = None) -> Result:
    """The same as ``ours``, where nothing has run before."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(ours, config, options).result()


def theirs(python: str, library: str, config: TrainConfig) -> Result:
    """Train with another library, in a process of this Python."""
    command = [python, str(HERE / "train_peers.py"), library, json.dumps(asdict(config))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Result(**json.loads(done.stdout.splitlines()[-1]))


def libraries() -> dict[str, Train]:
    """Those that are installed, ours first."""
    found: dict[str, Train] = {
        "envfleet": in_fresh_process,
        "SB3": partial(theirs, sys.executable, "sb3"),
    }
    if SBX.exists():
        found["SBX"] = partial(theirs, str(SBX), "sbx")
    else:
        print("SBX is not installed: `make bench-train` installs it and runs this.\n")
    return found


def row(cell: str, trains: dict[str, Train], seeds: int) -> str:
    """A row of the table: medians of steps per second, ratios, and means of returns."""
    env_id, name, total = CELLS[cell]
    rates: dict[str, list[float]] = {library: [] for library in trains}
    returns: dict[str, list[float]] = {library: [] for library in trains}
    for seed in range(seeds):
        config = replace(preset(env_id, name), total_steps=total, seed=seed, clip_values=False)
        for library, train in trains.items():
            result = train(config)
            rates[library].append(result.steps / result.seconds)
            returns[library].append(result.mean_return)
    speeds = {library: statistics.median(rate) for library, rate in rates.items()}
    cells = [env_id, name, f"{speeds['envfleet']:,.0f}"]
    for speed in list(speeds.values())[1:]:
        cells += [f"{speed:,.0f}", f"{speeds['envfleet'] / speed:.1f}x"]
    cells += [f"{statistics.mean(each):.0f}" for each in returns.values()]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print a row per cell, then the time until CartPole is solved."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--cells", nargs="+", choices=[*CELLS, "solved"], default=[*CELLS, "solved"]
    )
    asked = parser.parse_args()
    trains = libraries()
    others = list(trains)[1:]
    heads = ["env", "preset", "steps/s", *(h for o in others for h in (f"{o}, steps/s", "ratio"))]
    heads += ["return", *(f"{other}, return" for other in others)]
    print(f"| {' | '.join(heads)} |")
    print("|---|---" + "|---:" * (len(heads) - 2) + "|")
    for cell in asked.cells:
        if cell != "solved":
            print(row(cell, trains, asked.seeds), flush=True)
    if "solved" in asked.cells:
        fast = preset("CartPole-v1", "fast")
        solved = RunOptions(stop_at=475.0)
        times = [in_fresh_process(replace(fast, seed=seed), solved).seconds for seed in range(5)]
        print(f"\nCartPole-v1 solved in {statistics.median(times):.1f} s (median of 5 seeds)")


if __name__ == "__main__":
    main()
