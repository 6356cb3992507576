"""Two commits of this repository side by side: is the newer one slower anywhere?

python benchmarks/commits.py HEAD~1                      # HEAD~1 and the working tree
python benchmarks/commits.py v1 v2 --rounds 15 --cells fixed cartpole-64-process

Every cell runs both commits in processes of their own, which take turns. A row has the medians, the
median of the rounds' ratios (new / old, above 1 is faster) and its 95 % bootstrap interval. "fixed"
is what a step costs beside the envs: 8 envs that do nothing, half of them the caller's.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import gymnasium
import numpy as np
from gymnasium import spaces

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 0.5


class Nothing(gymnasium.Env[Any, Any]):
    """Returns the same observation each step."""

    observation_space = spaces.Box(-1, 1, (4,), np.float32)
    action_space = spaces.Discrete(2)
    _observation = np.zeros(4, dtype=np.float32)
    _nothing: dict[str, Any] = {}  # noqa: RUF012 - never changed

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        """Begin."""
        return self._observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        """Do nothing."""
        return self._observation, 0.0, False, False, self._nothing


def stepping(env: Any, num_envs: int, **options: Any) -> Iterator[float]:
    """Rates of a fleet: env steps per second, a turn each."""
    import envfleet

    with envfleet.make(env, num_envs, **options) as envs:
        envs.reset(seed=1)
        actions = [envs.action_space.sample() for _ in range(8)]
        while True:
            steps, start = 0, time.perf_counter()
            while time.perf_counter() - start < SECONDS:
                for action in actions:
                    envs.step(action)
                steps += len(actions) * num_envs
            yield steps / (time.perf_counter() - start)


def training(env_id: str, name: str, total: int) -> Iterator[float]:
    """Rates of PPO: env steps per second of training, start-up left out, a whole run per turn."""
    from envfleet.training.presets import preset

    try:
        from envfleet.training.trainer import Run
    except ImportError:  # older commits
        from envfleet.training.run import Run  # type: ignore[import-not-found, no-redef]
    options: Any = importlib.import_module(Run.__module__).RunOptions()
    while True:
        config = replace(preset(env_id, name), total_steps=total)
        with (
            tempfile.TemporaryDirectory() as folder,
            Run.start(Path(folder) / "run", config, options) as run,
        ):
            start = time.perf_counter()
            run.train()
            yield run.collector.total_steps / (time.perf_counter() - start)


PROCESS = {"backend": "process", "workers": 2}
CALLER = {"backend": "process", "workers": 2, "caller_steps": True}
CELLS: dict[str, Callable[[], Iterator[float]]] = {
    "fixed": partial(stepping, Nothing, 8, **CALLER),
    "cartpole-8-serial": partial(stepping, "CartPole-v1", 8, backend="serial"),
    "cartpole-8-caller": partial(stepping, "CartPole-v1", 8, **CALLER),
    "cartpole-8-process": partial(stepping, "CartPole-v1", 8, **PROCESS),
    "cartpole-64-serial": partial(stepping, "CartPole-v1", 64, backend="serial"),
    "cartpole-64-caller": partial(stepping, "CartPole-v1", 64, **CALLER),
    "cartpole-64-process": partial(stepping, "CartPole-v1", 64, **PROCESS),
    "cartpole-64-restart": partial(
        stepping, "CartPole-v1", 64, **PROCESS, on_failure="restart", step_timeout=30.0
    ),
    "lander-64-process": partial(stepping, "LunarLander-v3", 64, **PROCESS),
    "train-cartpole-zoo": partial(training, "CartPole-v1", "zoo", 20_000),
    "train-cartpole-cleanrl": partial(training, "CartPole-v1", "cleanrl", 20_000),
    "train-lander-zoo": partial(training, "LunarLander-v3", "zoo", 32_768),
}


@contextmanager
def checked_out(revision: str | None) -> Iterator[Path]:
    """A folder with a commit's files; None is the working tree."""
    if revision is None:
        yield ROOT
        return
    with tempfile.TemporaryDirectory() as folder:
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", folder, revision], check=True)
        try:
            yield Path(folder)
        finally:
            subprocess.run([*git, "remove", "--force", folder], check=True)


class Seat:
    """A cell of one commit, in a process of its own: a rate per turn."""

    def __init__(self, tree: Path, cell: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", cell],
            env={**os.environ, "PYTHONPATH": str(tree / "src")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def turn(self) -> float:
        """The rate of one turn; ends the program if the process has ended."""
        if self._process.stdin is None or self._process.stdout is None:
            raise AssertionError
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def serve(cell: str) -> None:
    """Print a rate for every line that comes."""
    rates = CELLS[cell]()
    for _ in sys.stdin:
        print(next(rates), flush=True)
    del rates


def interval(ratios: list[float]) -> tuple[float, float]:
    """The 95 % bootstrap interval of the median."""
    generator = random.Random(0)
    medians = sorted(
        statistics.median(generator.choices(ratios, k=len(ratios))) for _ in range(2000)
    )
    return medians[49], medians[1949]


def main() -> None:
    """Print a row per cell."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", nargs="?", default="HEAD~1", help="a revision")
    parser.add_argument("new", nargs="?", help="another; the working tree by default")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS), metavar="CELL")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked.serve)
        return
    print("| cell | old | new | new / old | 95 % interval |")
    print("|---|---:|---:|---:|---|")
    with checked_out(asked.old) as old, checked_out(asked.new) as new:
        for cell in asked.cells:
            with ExitStack() as stack:
                seats = [stack.enter_context(Seat(tree, cell)) for tree in (old, new)]
                for seat in seats:
                    seat.turn()  # not counted: caches fill, patience is learnt
                rates: tuple[list[float], list[float]] = ([], [])
                for done in range(asked.rounds):
                    for i in (0, 1) if done % 2 else (1, 0):
                        rates[i].append(seats[i].turn())
            ratios = [b / a for a, b in zip(*rates, strict=True)]
            low, high = interval(ratios)
            before, after = map(statistics.median, rates)
            ratio = statistics.median(ratios)
            medians = f"{before:,.0f} | {after:,.0f} | {ratio:.3f}"
            print(f"| {cell} | {medians} | {low:.3f} to {high:.3f} |", flush=True)


if __name__ == "__main__":
    main()
