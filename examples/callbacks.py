"""Callbacks: look at rollouts, stop when returns no longer rise, keep a note of checkpoints.

python examples/callbacks.py                                # needs the extra train
"""

from __future__ import annotations

from pathlib import Path

import envfleet
from envfleet.training.trainer import Run


class Patience(envfleet.Callback):
    """Ends a run, which is saved, after so many updates without a better mean return."""

    def __init__(self, updates: int) -> None:
        self.updates = updates
        self.best, self.waited = float("-inf"), 0

    def on_update(self, run: Run, metrics: dict[str, float]) -> bool:
        """False ends the run."""
        mean = metrics["return_mean"]
        self.waited = 0 if mean > self.best else self.waited + 1
        self.best = max(self.best, mean)
        if self.waited >= self.updates:
            print(f"step {run.steps:,}: no better than {self.best:.0f} for {self.waited} updates")
        return self.waited < self.updates


class Notes(envfleet.Callback):
    """Prints what was seen and saved."""

    def on_rollout(self, run: Run, rollout: envfleet.Rollout) -> None:
        """Before the update; the rollout's tensors are reused afterwards."""
        if run.updates % 20 == 0:
            print(f"step {run.steps:,}: {rollout.episodes.n} episodes ended in this rollout")

    def on_checkpoint(self, run: Run, path: Path) -> None:
        """After a checkpoint is complete."""
        print(f"step {run.steps:,}: saved {path.name}")


def main() -> None:
    """Train with both."""
    result = envfleet.train(
        "CartPole-v1", total_steps=20_000, backend="serial", callbacks=[Notes(), Patience(10)]
    )
    print(f"{'finished' if result.is_finished else 'stopped early'}: {result.folder}")


if __name__ == "__main__":
    main()
