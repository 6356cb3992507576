"""Draws who steps and who waits when some environments are slow: step() above, recv() below.

python examples/uneven_envs.py          # writes uneven_envs.png
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import gymnasium
import matplotlib as mpl
import numpy as np
from gymnasium import spaces

import envfleet

mpl.use("Agg")
from matplotlib import pyplot as plt

Span = tuple[int, float, float]
"""An env, and when a step of it began and ended."""


class UnevenEnv(gymnasium.Env[Any, Any]):
    """Takes 2 ms per step, and 25 ms now and then: a level that loads, a server that thinks."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin."""
        super().reset(seed=seed, options=options)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        """Take a while, and tell when that was; all processes of a machine share this clock."""
        begin = time.monotonic()
        time.sleep(0.025 if self.np_random.random() < 0.1 else 0.002)
        span = {"begin": begin, "end": time.monotonic()}
        return np.zeros(1, np.float32), 1.0, False, False, span


def in_step(envs: envfleet.ProcessVectorEnv[Any, Any], seconds: float) -> list[Span]:
    """Step the whole fleet: everybody waits for the slowest."""
    spans: list[Span] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        infos = envs.step(envs.action_space.sample())[-1]
        spans += zip(range(envs.num_envs), infos["begin"], infos["end"], strict=True)
    return spans


def as_ready(envs: envfleet.ProcessVectorEnv[Any, Any], seconds: float) -> list[Span]:
    """Act for whoever is ready, half of the fleet or more at a time."""
    spans: list[Span] = []
    end = time.monotonic() + seconds
    envs.send(envs.action_space.sample())
    while time.monotonic() < end:
        batch = envs.recv(min_envs=envs.num_envs // 2)
        spans += zip(batch.env_ids, batch.infos["begin"], batch.infos["end"], strict=True)
        envs.send(envs.action_space.sample()[: len(batch.env_ids)], batch.env_ids)
    envs.recv()  # so that nobody is outstanding
    return spans


def draw(ways: dict[str, list[Span]], path: str) -> None:
    """One line per env: a bar is a step, white is waiting."""
    figure, panels = plt.subplots(len(ways), sharex=True, figsize=(9, 5), layout="constrained")
    for panel, (name, spans) in zip(panels, ways.items(), strict=True):
        begin = min(start for _, start, _ in spans)
        for env, start, end in spans:
            colour = "tab:red" if end - start > 0.01 else "tab:blue"
            panel.barh(env, 1e3 * (end - start), left=1e3 * (start - begin), color=colour)
        panel.set(title=f"{name}: {len(spans)} steps", ylabel="env")
    panels[-1].set_xlabel("milliseconds")
    figure.savefig(path, dpi=100)


def main() -> None:
    """Run both ways for a moment each, and draw them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--path", default="uneven_envs.png")
    parser.add_argument("--seconds", type=float, default=0.3)
    given = parser.parse_args()
    with envfleet.ProcessVectorEnv([UnevenEnv] * 8, workers=8) as envs:
        envs.reset(seed=0)
        ways = {"step()": in_step(envs, given.seconds)}
        envs.flow()  # begins to count anew
        ways["recv(min_envs=4)"] = as_ready(envs, given.seconds)
        print(envs.flow())
    draw(ways, given.path)
    print(given.path, {name: len(spans) for name, spans in ways.items()})


if __name__ == "__main__":
    main()
