"""Steps per second of our two engines and Gymnasium's two, side by side in one run.

    python benchmarks/engines.py --env CartPole-v1 --num-envs 64

The engines take turns in changing order, round after round, on the same actions, so that a busy
moment of the machine hits all of them. The table shows medians and their ratios, which mean more
than absolute numbers. Before anything is timed, all engines must have returned the same numbers.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

import envfleet
from envfleet.engine.pool.cores import usable_cores

ENGINES: dict[str, Callable[..., VectorEnv[Any, Any, Any]]] = {
    "envfleet serial": envfleet.SerialVectorEnv,
    "envfleet process": envfleet.ProcessVectorEnv,
    "Gymnasium sync": SyncVectorEnv,
    "Gymnasium async": AsyncVectorEnv,
}


def check_equal(fleets: dict[str, VectorEnv[Any, Any, Any]], batches: list[Any]) -> None:
    """Stop if two engines disagree on any observation, reward or flag."""
    reference: list[Any] | None = None
    for name, fleet in fleets.items():
        answers: list[Any] = [fleet.reset(seed=1)[0]]
        for actions in batches:
            answers += fleet.step(actions)[:4]
        if reference is None:
            reference = answers
        elif not all(np.array_equal(a, b) for a, b in zip(answers, reference, strict=True)):
            sys.exit(f"{name} returned other numbers than {next(iter(fleets))}")


def measure(
    fleets: dict[str, VectorEnv[Any, Any, Any]], batches: list[Any], rounds: int
) -> dict[str, float]:
    """Median steps per second (of single envs) of each engine over interleaved rounds."""
    rates: dict[str, list[float]] = {name: [] for name in fleets}
    names = list(fleets)
    for done in range(rounds):
        # In another order each time, so that none always runs in the wake of the same other.
        for name in random.Random(done).sample(names, len(names)):
            fleet = fleets[name]
            start = time.perf_counter()
            for actions in batches:
                fleet.step(actions)
            elapsed = time.perf_counter() - start
            rates[name].append(len(batches) * fleet.num_envs / elapsed)
        if sys.stderr.isatty():
            print(f"\rround {done + 1} of {rounds}", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)
    return {name: statistics.median(values) for name, values in rates.items()}


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--env", default="CartPole-v1", help="a registered env id")
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200, help="steps of the fleet per round")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()

    fns = [partial(gymnasium.make, args.env)] * args.num_envs
    fleets = {name: engine(fns) for name, engine in ENGINES.items()}
    space = fleets["envfleet serial"].action_space
    space.seed(0)
    batches = [space.sample() for _ in range(args.steps)]
    try:
        check_equal(fleets, batches)
        rates = measure(fleets, batches, args.rounds)
    finally:
        for fleet in fleets.values():
            fleet.close()

    print(
        f"{args.num_envs} x {args.env}, {usable_cores()} cores, Python "
        f"{platform.python_version()}, Gymnasium {gymnasium.__version__}; medians of "
        f"{args.rounds} interleaved rounds"
    )
    print(f"{'engine':<18}{'steps/s':>12}{'vs sync':>10}{'vs async':>10}")
    for name, rate in rates.items():
        against = [rate / rates[f"Gymnasium {peer}"] for peer in ("sync", "async")]
        print(f"{name:<18}{rate:>12,.0f}{against[0]:>9.2f}x{against[1]:>9.2f}x")
    if args.json is not None:
        args.json.write_text(json.dumps({"env": args.env, "steps_per_second": rates}, indent=1))


if __name__ == "__main__":
    main()
