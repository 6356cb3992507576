"""Action masks: an env says what it allows, and PPO never tries anything else.

python examples/action_masks.py
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import gymnasium as gym
import numpy as np

import envfleet

CARDS = 6


class Sorting(gym.Env[Any, Any]):
    """Put cards down from the lowest to the highest: 1 for each that is in its turn.

    A card that is gone cannot be put down again: trying that ends the game.
    """

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (CARDS,))
        self.action_space = gym.spaces.Discrete(CARDS)

    def action_masks(self) -> Any:
        """1 for every card that is still there; travels with each step."""
        return self.cards >= 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002
        """Deal."""
        super().reset(seed=seed)
        self.cards = self.np_random.permutation(CARDS).astype(np.float32) / CARDS
        return self.cards.copy(), {}

    def step(self, action: Any) -> Any:
        """Put a card down."""
        if self.cards[action] < 0:
            return self.cards.copy(), -1.0, True, False, {}
        is_next = self.cards[action] == self.cards[self.cards >= 0].min()
        self.cards[action] = -1.0
        over = bool((self.cards < 0).all())
        return self.cards.copy(), float(is_next), over, False, {}


def main() -> None:
    """Train with and without masks, and print how it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40_000)
    steps = parser.parse_args().steps
    for name, mask_key in (("with masks", "action_mask"), ("without", None)):
        with tempfile.TemporaryDirectory() as folder:
            result = envfleet.train(
                Sorting,
                total_steps=steps,
                run_dir=folder,
                seed=0,
                backend="serial",
                rollout_steps=128,
                learning_rate=1e-3,
                mask_key=mask_key,  # None: the masks are ignored
            )
        returns = result.statistics.window.returns
        print(f"{name}: {returns.mean:.2f} of {CARDS} cards in their turn")
    mask = np.array([1, 0, 1, 1, 0, 1])
    hand = np.where(mask, 0.5, -1.0).astype(np.float32)
    print("a card that is there:", result.policy.act(hand, action_masks=mask))


if __name__ == "__main__":
    main()
