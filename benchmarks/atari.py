"""One Atari env per step: AtariEnv beside Gymnasium's AtariPreprocessing and FrameStackObservation.

python benchmarks/atari.py

Envs take turns in one process, in another order each round; figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import ale_py
import gymnasium
import numpy as np
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from envfleet.envs import AtariEnv

GAME: dict[str, Any] = {
    "channels_first": True,
    "episodic_life": False,
    "fire_reset": False,
    "clip_reward": False,
}
"""What makes AtariEnv play just as Gymnasium's wrappers do."""


def gymnasiums(env_id: str) -> gymnasium.Env[Any, Any]:
    """Gymnasium's own preprocessing."""
    return FrameStackObservation(AtariPreprocessing(gymnasium.make(env_id, frameskip=1)), 4)


CONTESTANTS: dict[str, Callable[[str], gymnasium.Env[Any, Any]]] = {
    "Gymnasium": gymnasiums,
    "AtariEnv, the same game": partial(AtariEnv, **GAME),
    "AtariEnv, the same game, lazy": partial(AtariEnv, **GAME, lazy=True),
    "AtariEnv, (84, 84, 4)": partial(AtariEnv, **{**GAME, "channels_first": False}),
    "AtariEnv, lives and FIRE": partial(AtariEnv, channels_first=True),
}


def run(env: gymnasium.Env[Any, Any], actions: list[int]) -> float:
    """Microseconds per step, resets included."""
    start = time.perf_counter()
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    return (time.perf_counter() - start) / len(actions) * 1e6


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env-id", default="ALE/Breakout-v5")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=300)
    asked = parser.parse_args()
    gymnasium.register_envs(ale_py)
    envs = {name: build(asked.env_id) for name, build in CONTESTANTS.items()}
    for env in envs.values():
        env.reset(seed=0)
    choices: Any = envs["Gymnasium"].action_space
    times: dict[str, list[float]] = {name: [] for name in envs}
    for number in range(asked.rounds + 1):
        draw = np.random.default_rng(number)
        actions: list[int] = draw.integers(choices.n, size=asked.steps).tolist()
        for name in random.Random(number).sample(list(envs), len(envs)):
            took = run(envs[name], actions)
            if number:  # the first round warms up
                times[name].append(took)
    yardstick = statistics.median(times["Gymnasium"])
    print(f"| {asked.env_id} | us per step | Gymnasium's / this |\n|---|---:|---:|")
    for name, measured in times.items():
        took = statistics.median(measured)
        print(f"| {name} | {took:,.0f} | {yardstick / took:.2f} |")


if __name__ == "__main__":
    main()
