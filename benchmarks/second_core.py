"""Would a second core help the update by hand? One step of PPO in several ways, side by side.

python benchmarks/second_core.py                 # needs the extra train

Ways: as it is; the two halves of a minibatch in two threads; the actor in one thread and the critic
in another; BLAS with two threads, which look for work (spin) for 25 ms after each product, or sleep
at once (OPENBLAS_THREAD_TIMEOUT=4). A row has the medians of interleaved rounds. What spinning
threads do to the workers of a fleet is not in it.
"""

# ruff: noqa: SLF001 - it replaces what is inside of a learner

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import threadpoolctl
import torch
from gymnasium import spaces

from envfleet.training.config import TrainConfig
from envfleet.training.fast.learner import FastLearner, Rows
from envfleet.training.fast.network import Array, Twins
from envfleet.training.policy import Policy

SIZES = [(batch, width) for width in (64, 256) for batch in (64, 128, 256, 512)]
WAYS = ("present", "halves", "actor, critic", "BLAS 2")


class Halves:
    """Twins whose halves of the rows are computed in two threads, each with its own gradient."""

    def __init__(self, twins: Twins, other: Twins, helper: ThreadPoolExecutor) -> None:
        self._parts, self._helper = (twins, other), helper
        self.gradient = twins.gradient

    def forward(self, x: Array) -> tuple[Any, Array, Array]:
        """As ``Twins.forward``."""
        first, second = self._parts
        second.values[:] = first.values
        middle = len(x) // 2
        later = self._helper.submit(second.forward, x[middle:])
        one, two = first.forward(x[:middle]), later.result()
        out, values = (np.concatenate([one[i], two[i]], axis=-1) for i in (1, 2))
        return (one[0], two[0]), out, values

    def backward(self, hidden: Any, by_out: Array, by_value: Array) -> None:
        """As ``Twins.backward``."""
        first, second = self._parts
        middle = len(by_value) // 2
        later = self._helper.submit(
            second.backward, hidden[1], by_out[:, middle:], by_value[middle:]
        )
        first.backward(hidden[0], by_out[:, :middle], by_value[:middle])
        later.result()
        first.gradient += second.gradient


class Beside:
    """Twins of which one computes in another thread: views of one half of each array."""

    def __init__(self, twins: Twins, helper: ThreadPoolExecutor) -> None:
        self._twins, self._helper = twins, helper
        self.gradient = twins.gradient

    def forward(self, x: Array) -> tuple[Any, Array, Array]:
        """As ``Twins.forward``."""
        actor_weight, actor_bias, critic_weight, critic_bias = self._twins._last
        later = self._helper.submit(self._hidden, 1, x)
        left = self._hidden(0, x)
        out = actor_weight @ left[-1].T + actor_bias[:, None]
        right = later.result()
        return (left, right), out, right[-1] @ critic_weight[0] + critic_bias

    def _hidden(self, which: int, x: Array) -> list[Array]:
        hidden = [x]
        for weight, bias in zip(self._twins._weights, self._twins._biases, strict=True):
            x = x @ weight[which].T
            x += bias[which]
            hidden.append(self._twins._activate(x))
        return hidden

    def backward(self, hidden: Any, by_out: Array, by_value: Array) -> None:
        """As ``Twins.backward``."""
        later = self._helper.submit(self._slopes, 1, hidden[1], by_value[None])
        self._slopes(0, hidden[0], by_out)
        later.result()

    def _slopes(self, which: int, hidden: list[Array], by_out: Array) -> None:
        weight, bias = self._twins._last_slopes[2 * which : 2 * which + 2]
        np.matmul(by_out, hidden[-1], out=weight)
        by_out.sum(1, out=bias)
        slope = by_out.T @ self._twins._last[2 * which]
        ones = np.ones(len(slope), dtype=np.float32)
        for i in reversed(range(len(self._twins._slopes))):
            steepness = hidden[i + 1] * hidden[i + 1]
            slope *= np.subtract(1.0, steepness, out=steepness)
            weights, biases = self._twins._slopes[i]
            np.matmul(slope.T, hidden[i], out=weights[which])
            np.matmul(ones, slope, out=biases[which, 0])
            if i:
                slope = slope @ self._twins._weights[i][which]


def learner_of(way: str, width: int, helper: ThreadPoolExecutor) -> FastLearner:
    """A learner for LunarLander's spaces that computes in one of the ways."""
    torch.manual_seed(0)
    policy = Policy(spaces.Box(-9, 9, (8,)), spaces.Discrete(4), hidden=(width, width))
    learner = FastLearner(policy, TrainConfig(), np.random.default_rng(0))
    changed: Any = learner
    if way == "halves":
        copied: Any = copy.deepcopy(policy)
        other = Twins(copied.actor, copied.critic, [])
        changed._twins = Halves(learner._twins, other, helper)
    elif way == "actor, critic":
        changed._twins = Beside(learner._twins, helper)
    return learner


def batch_of(count: int) -> Rows:
    """Rows at random."""
    generator = np.random.default_rng(1)
    features = generator.standard_normal((count, 8), dtype=np.float32)
    columns = generator.standard_normal((4, count), dtype=np.float32)
    columns[0] = -np.log(4)
    return Rows(features, generator.integers(4, size=count), columns, None)


def seconds(step: Callable[[], object], times: int) -> float:
    """Of one call, over many."""
    start = time.perf_counter()
    for _ in range(times):
        step()
    return (time.perf_counter() - start) / times


def measure(ways: list[str], rounds: int) -> list[dict[str, float]]:
    """For each size and way the seconds of a step."""
    blas = threadpoolctl.ThreadpoolController().select(user_api="blas")
    table = []
    with ThreadPoolExecutor(1) as helper:
        for count, width in SIZES:
            batch = batch_of(count)
            taken: dict[str, list[float]] = {way: [] for way in ways}
            learners = {way: learner_of(way, width, helper) for way in ways}
            times = max(5, int(4e6 / (count * width)))
            for _ in range(rounds):
                for way, learner in learners.items():
                    with blas.limit(limits=2 if way == "BLAS 2" else 1):
                        learner.step(batch, 0.2, report=False)
                        step = partial(learner.step, batch, 0.2, report=False)
                        taken[way].append(seconds(step, times))
            table.append({way: statistics.median(each) for way, each in taken.items()})
    return table


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        print(json.dumps(measure(["present", "BLAS 2"], asked.rounds)))
        return
    table = measure(list(WAYS), asked.rounds)
    command = [sys.executable, __file__, "--serve", "--rounds", str(asked.rounds)]
    asleep = {**os.environ, "OPENBLAS_THREAD_TIMEOUT": "4"}
    done = subprocess.run(command, env=asleep, check=True, capture_output=True, text=True)
    for row, slept in zip(table, json.loads(done.stdout), strict=True):
        row["BLAS 2, asleep"] = slept["BLAS 2"] * row["present"] / slept["present"]
    print("| batch | network | present, us |" + "".join(f" {w} |" for w in list(table[0])[1:]))
    print("|---:|---|" + "---:|" * len(table[0]))
    for (count, width), row in zip(SIZES, table, strict=True):
        base = row.pop("present")
        cells = "".join(f" {base / each:.2f}x |" for each in row.values())
        print(f"| {count} | {width}-{width} | {1e6 * base:.0f} |{cells}")


if __name__ == "__main__":
    main()
