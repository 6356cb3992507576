"""What a cluster of machines like this one would do: a cost model with measured constants.

python benchmarks/ray_fleets.py --json docs/data/scaling.json   # measures the constants
python benchmarks/scaling.py                                    # the tables and the plot

S actors on n nodes, one per core, with k envs each:

    stepping (RayVectorEnv)     t = c k t_env + t_message + S t_actor            for S k steps
    collecting (RayCollector)   t = T c (k t_env + t_policy)                     in the actors
                                    + t_round + S t_actor + S T k t_row          on the way
                                    + S T k t_learn                              the learner
                                                                                 for S T k steps

The first part is the same on any number of nodes; the others are the learner's own time, which
grows with S. t_env and t_policy were measured with one core at work; c says how much slower work is
when all cores of a node are, and is fitted so that the model has RayCollector's measured speed on
one node. Errors are one standard deviation of the result when the constants vary by theirs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

NODES = (1, 2, 3, 5, 10)
BEYOND = (20, 50, 100)
"""Extrapolated: what the network and Ray's own bookkeeping do there was not measured."""
ENVS, STEPS = 16, 128
COLLECTED = 32
"""Envs of the measurement on one node (``ray_fleets.collecting``)."""


class Constants:
    """Seconds each, with their errors; a draw is the constants as they might be."""

    def __init__(self, measured: dict[str, Any]) -> None:
        costs, messages = measured["costs"], measured["messages"]
        self.cores: int = measured["cores"]
        row = costs["bytes_per_row"]
        self._values = {
            "t_env": (costs["env"], costs["env_error"]),
            "t_policy": (costs["policy_per_step"], costs["policy_per_step_error"]),
            "t_message": (messages["first"], messages["first_error"]),
            "t_actor": (messages["per_actor"], messages["per_actor_error"]),
            "t_round": (costs["round"], costs["round_error"]),
            "t_row": (row * messages["per_byte"], row * messages["per_byte_error"]),
            "t_learn": (costs["learn_per_row"], costs["learn_per_row_error"]),
        }
        alone = self.draw() | {"t_learn": 0.0, "c": 1.0}
        envs = COLLECTED // self.cores
        expected = self.cores * STEPS * envs / collecting(alone, self.cores, envs)[0]
        work = STEPS * (envs * alone["t_env"] + alone["t_policy"])
        taken = STEPS * COLLECTED / measured["collecting"]["ray"]
        self._values["c"] = ((taken - expected + work) / work, 0.0)

    def table(self) -> str:
        """Each constant with its error."""
        lines = ["| constant | microseconds |", "|---|---|"]
        lines += [
            f"| `{name}` | {1e6 * value:,.2f} ± {1e6 * error:,.2f} |"
            for name, (value, error) in self._values.items()
            if name != "c"
        ]
        lines.append(f"| `c` | {self._values['c'][0]:.2f} (no unit) |")
        return "\n".join(lines)

    def draw(self, random: np.random.Generator | None = None) -> dict[str, float]:
        """The constants, or what they might be."""
        return {
            name: max(value if random is None else random.normal(value, error), 0.0)
            for name, (value, error) in self._values.items()
        }


def stepping(c: dict[str, float], actors: int, envs: int = ENVS, scale: float = 1.0) -> float:
    """Steps per second of a RayVectorEnv; ``scale`` makes envs slower."""
    seconds = envs * scale * c["c"] * c["t_env"] + c["t_message"] + actors * c["t_actor"]
    return actors * envs / seconds


def collecting(c: dict[str, float], actors: int, envs: int = ENVS) -> tuple[float, float]:
    """Steps per second of PPO on a RayCollector, and the learner's share of the time."""
    rows = actors * STEPS * envs
    collect = STEPS * c["c"] * (envs * c["t_env"] + c["t_policy"])
    way = c["t_round"] + actors * c["t_actor"] + rows * c["t_row"]
    learn = rows * c["t_learn"]
    return rows / (collect + way + learn), learn / (collect + way + learn)


def rate_of_collecting(c: dict[str, float], actors: int) -> float:
    """The first of the two."""
    return collecting(c, actors)[0]


def main() -> None:
    """Print the tables and draw the plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, default=Path("docs/data/scaling.json"))
    parser.add_argument("--plot", type=Path, default=Path("docs/data/scaling.png"))
    arguments = parser.parse_args()
    constants = Constants(json.loads(arguments.json.read_text()))
    print(constants.table(), "\n")
    best, random = constants.draw(), np.random.default_rng(0)
    draws = [constants.draw(random) for _ in range(2000)]
    print("| nodes | actors | RayVectorEnv | the same, envs of 1 ms | RayCollector | learner |")
    print("|---|---|---|---|---|---|")
    slow = 1e-3 / best["t_env"]
    for nodes in (*NODES, *BEYOND):
        actors = nodes * constants.cores
        numbers = []
        ways: list[Callable[[dict[str, float]], float]] = [
            partial(stepping, actors=actors),
            partial(stepping, actors=actors, scale=slow),
            partial(rate_of_collecting, actors=actors),
        ]
        for run in ways:
            error = float(np.std([run(draw) for draw in draws]))
            numbers.append(f"{run(best):,.0f} ± {error:,.0f}")
        share = f"{collecting(best, actors)[1]:.0%}"
        mark = "" if nodes in NODES else " (extrapolated)"
        print(f"| {nodes}{mark} | {actors} | {' | '.join(numbers)} | {share} |")
    plot(constants, arguments.plot)


def plot(constants: Constants, path: Path) -> None:
    """Throughput by the number of nodes, for all three ways."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    c = constants.draw()
    nodes = np.geomspace(1, 100, 60)
    actors = nodes * constants.cores
    figure, axes = plt.subplots(figsize=(7, 4))
    rows = {
        "RayCollector, no learner": [collecting({**c, "t_learn": 0.0}, a)[0] for a in actors],
        "RayCollector and one learner": [collecting(c, a)[0] for a in actors],
        "RayVectorEnv": [stepping(c, a) for a in actors],
    }
    for name, values in rows.items():
        axes.plot(nodes, values, label=name)
    axes.axvspan(10, 100, alpha=0.1, color="grey", label="extrapolated")
    axes.set(xscale="log", yscale="log", xlabel=f"nodes with {constants.cores} cores each")
    axes.set_ylabel("env steps per second")
    axes.set_title(f"LunarLander-v3, {ENVS} envs per actor, rollouts of {STEPS}")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
