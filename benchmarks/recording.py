"""What recording does to the time of a step: median, 99th percentile and longest, in milliseconds.

python benchmarks/recording.py                   # needs the extra train, and pygame-ce for CartPole

A step is the time from one call of the agent to the next. "recording" records one episode after the
other; "in the loop" is what it replaces: every frame rendered, kept, and the GIF encoded by Pillow
when the episode ends, while training waits. Rows take turns.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from PIL import Image

import envfleet

NUM_ENVS = 8
STEPS = 128


class Clocked:
    """A random policy that notes when it is asked."""

    def __init__(self) -> None:
        self.moments: list[float] = []

    def act(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Any actions."""
        self.moments.append(time.perf_counter())
        count = len(observations)
        return torch.randint(0, 2, (count,)), torch.zeros(count), torch.zeros(count)

    def get_values(self, observations: torch.Tensor) -> torch.Tensor:
        """None worth mentioning."""
        return torch.zeros(len(observations))

    def times(self) -> np.ndarray[Any, Any]:
        """Milliseconds between calls, within one rollout each."""
        return 1000 * np.diff(np.array(self.moments).reshape(-1, STEPS)).ravel()


class InTheLoop:
    """Films as a plain loop does."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._frames: list[Image.Image] = []
        self._films = 0

    def attach(self, envs: Any, autoreset_mode: Any) -> None:  # noqa: ARG002 - the recorder's
        """Film this fleet."""
        self._envs = envs

    def begin(self, which: Any = None) -> None:
        """An episode begins."""

    def step(self, rewards: Any, done: Any, valid: Any, infos: Any) -> None:  # noqa: ARG002 - same
        """Keep a frame; at the end, encode all."""
        self._frames.append(Image.fromarray(self._envs.render_on([0])[0]))
        if done[0]:
            path = self._folder / f"{self._films}.gif"
            first, *others = self._frames
            first.save(path, save_all=True, append_images=others, duration=20, loop=0)
            self._films += 1
            self._frames = []

    def close(self) -> None:
        """Nothing is open."""


def recorders(folder: Path) -> dict[str, Callable[[], Any]]:
    """What is compared."""
    return {
        "none": lambda: None,
        "attached, not recording": lambda: envfleet.Recorder(folder / "a", every_steps=10**9),
        "recording GIF": lambda: envfleet.Recorder(folder / "b", every_episodes=1),
        "recording MP4": lambda: envfleet.Recorder(folder / "c", every_episodes=1, format="mp4"),
        "in the loop": functools.partial(InTheLoop, folder),
    }


def main() -> None:
    """Print a row per way of recording."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    make = functools.partial(gymnasium.make, "CartPole-v1", render_mode="rgb_array")
    with tempfile.TemporaryDirectory() as name:
        rows = {}
        for title, recorder in recorders(Path(name)).items():
            agent = Clocked()
            envs = envfleet.ProcessVectorEnv([make] * NUM_ENVS)
            rows[title] = envfleet.Collector(envs, agent, STEPS, recorder=recorder()), agent
        for collector, agent in rows.values():
            collector.collect()
            agent.moments.clear()
        for _ in range(rounds):
            for collector, _ in rows.values():
                for _ in range(4):
                    collector.collect()
        print("| recording | median | 99th percentile | longest |")
        print("|---|---:|---:|---:|")
        for title, (collector, agent) in rows.items():
            times = agent.times()
            middle, high = np.percentile(times, [50, 99])
            print(f"| {title} | {middle:.2f} | {high:.2f} | {times.max():.1f} |")
            collector.close()


if __name__ == "__main__":
    main()
