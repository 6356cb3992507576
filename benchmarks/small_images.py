"""Small images: CNNs beside a flattened row, the same hyper-parameters, steps and seeds.

pip install minatar minigrid         # nothing else here needs them
python benchmarks/small_images.py    # 8 minutes on 1 core; writes docs/data/small_images.json
python benchmarks/small_images.py --speed    # steps per second alone, interleaved: 2 minutes
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import envfleet

DATA = Path(__file__).parent.parent / "docs" / "data" / "small_images.json"
ENVS: dict[str, dict[str, Any]] = {
    "MinAtar Breakout": {"env": "minatar.gym:BaseEnv", "env_kwargs": {"game": "breakout"}},
    "MiniGrid DoorKey-5x5": {
        "env": "minigrid:MiniGrid-DoorKey-5x5-v0",
        "wrappers": ["minigrid.wrappers:ImgObsWrapper"],
    },
}
CHANNELS: dict[str, tuple[int, ...]] = {
    "flattened": (),
    "one layer": (16,),
    "two layers": (16, 32),
}
"""Channels of 3x3 convolutions; one layer of 16 and 128 features are MinAtar's own network."""


class SmallCNN(nn.Module):
    """Convolutions without pooling, 128 features, and linear heads on them."""

    def __init__(self, channels: tuple[int, ...], shape: tuple[int, ...], actions: int) -> None:
        super().__init__()
        depth, height, width = shape[2], shape[0], shape[1]
        layers: list[nn.Module] = []
        for wanted in channels:
            layers += [nn.Conv2d(depth, wanted, 3), nn.ReLU()]
            depth, height, width = wanted, height - 2, width - 2
        layers += [nn.Flatten(), nn.Linear(depth * height * width, 128), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.actor, self.critic = nn.Linear(128, actions), nn.Linear(128, 1)
        for layer in self.modules():
            if isinstance(layer, (nn.Linear, nn.Conv2d)):
                nn.init.orthogonal_(layer.weight, math.sqrt(2))
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        nn.init.orthogonal_(self.actor.weight, 0.01)
        nn.init.orthogonal_(self.critic.weight, 1.0)

    def _look(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of all actions, and values."""
        features = self.body(images.float())
        return self.actor(features).log_softmax(1), self.critic(features)[:, 0]

    def act(
        self, observations: Tensor, deterministic: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Actions, their log-probabilities, and values."""
        every, values = self._look(observations)
        actions = every.argmax(1) if deterministic else every.exp().multinomial(1)[:, 0]
        return actions, every.gather(1, actions[:, None])[:, 0], values

    def evaluate_actions(
        self, observations: Tensor, actions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The log-probabilities of actions, values, and entropies."""
        every, values = self._look(observations)
        chosen = every.gather(1, actions.long()[:, None])[:, 0]
        return chosen, values, -(every.exp() * every).sum(1)


def learn(env: str, network: str, seed: int, steps: int) -> tuple[float, float]:
    """The mean return of the last 100 episodes, and the median of steps per second."""
    speeds: list[float] = []
    last = [0.0]

    class Note:
        """Keeps what every update tells."""

        def on_update(self, _run: Any, metrics: dict[str, float]) -> None:
            speeds.append(metrics["time/steps_per_second"])
            last[0] = metrics.get("return_mean", 0.0)

    def make_cnn(observation_space: Any, action_space: Any) -> nn.Module:
        return SmallCNN(CHANNELS[network], observation_space.shape, int(action_space.n))

    options = dict(ENVS[env])
    with tempfile.TemporaryDirectory() as folder:
        envfleet.train(
            options.pop("env"),
            total_steps=steps,
            run_dir=folder,
            seed=seed,
            callbacks=[Note()],
            progress=False,
            backend="serial",
            policy=make_cnn if CHANNELS[network] else None,
            num_envs=16,
            rollout_steps=128,
            batch_size=256,
            epochs=4,
            learning_rate=1e-3,
            entropy_coef=0.01,
            **options,
        )
    return round(last[0], 3), round(statistics.median(speeds))


def main() -> None:
    """Train what was not trained yet, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", nargs="+", default=list(ENVS), choices=list(ENVS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--speed", action="store_true", help="measure steps per second alone")
    parser.add_argument("--data", type=Path, default=DATA)
    words = parser.parse_args()
    torch.set_num_threads(1)  # two are slower on such networks
    found: dict[str, Any] = json.loads(words.data.read_text()) if words.data.exists() else {}
    kind = "steps_per_second" if words.speed else "returns"
    steps = 10 * 16 * 128 if words.speed else words.steps
    for seed in range(words.seeds):
        for env in words.envs:
            for network in CHANNELS:
                known = found.setdefault(kind, {}).setdefault(env, {}).setdefault(network, [])
                if len(known) > seed:
                    continue
                mean, speed = learn(env, network, seed, steps)
                known.append(speed if words.speed else mean)
                words.data.write_text(json.dumps(found, indent=1) + "\n")
    print(f"| env | network | {kind.replace('_', ' ')} |\n|---|---|---|")
    for env, of_env in found[kind].items():
        for network, values in of_env.items():
            each = ", ".join(f"{value:,}" for value in values)
            print(f"| {env} | {network} | {statistics.median(values):,} ({each}) |")


if __name__ == "__main__":
    main()
