"""An env of your own, with arguments: trained, saved, loaded and evaluated.

python examples/custom_env.py
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import gymnasium as gym
import numpy as np

import envfleet


class Landing(gym.Env[Any, Any]):
    """Steer a falling block onto the mark."""

    def __init__(self, wind: float = 0.0) -> None:
        self.wind = wind
        self.observation_space = gym.spaces.Dict(
            place=gym.spaces.Box(0.0, 1.0, (2,)),  # of the block, and of the mark
            height=gym.spaces.Discrete(9),
        )
        self.action_space = gym.spaces.Discrete(3)  # left, straight on, right

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002
        """Begin at the top."""
        super().reset(seed=seed)
        self.x, self.mark = self.np_random.random(2)
        self.height = 8
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        """Fall a little; the reward is how near the mark it lands."""
        drift = self.wind * self.np_random.normal()
        self.x = float(np.clip(self.x + 0.1 * (int(action) - 1) + drift, 0.0, 1.0))
        self.height -= 1
        landed = self.height == 0
        return self._observe(), 1.0 - abs(self.x - self.mark) if landed else 0.0, landed, False, {}

    def _observe(self) -> dict[str, Any]:
        place = np.array([self.x, self.mark], dtype=np.float32)
        return {"place": place, "height": self.height}


def main() -> None:
    """Train, load what was learnt, and play."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as folder:
        result = envfleet.train(
            Landing,
            total_steps=steps,
            run_dir=folder,
            seed=0,
            env_kwargs={"wind": 0.02},  # as --env-kwargs wind=0.02; config.json keeps it
            backend="serial",
            num_envs=16,
            rollout_steps=32,
            epochs=4,
            learning_rate=1e-3,
        )
        print(f"while training: {result.statistics.window.returns.mean:.2f}")
        policy = envfleet.load(result.folder, env=Landing)
    with envfleet.make(Landing, 8, backend="serial", wind=0.02) as envs:
        print(f"best actions: {envfleet.evaluate(policy, envs, 40, seed=1).mean:.2f}")


if __name__ == "__main__":
    main()
