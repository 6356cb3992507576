"""Survive crashes: kill a worker while a collector runs, and see the episode reported as truncated.

python examples/crash_proof.py
"""

from __future__ import annotations

import os
import signal

import torch

import envfleet


class RandomAgent:
    """Pushes left or right at random."""

    def act(
        self, observations: torch.Tensor, deterministic: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Actions, log-probabilities and values."""
        del deterministic
        actions = torch.randint(2, (len(observations),))
        return actions, torch.zeros(len(actions)), torch.zeros(len(actions))


def main() -> None:
    """Collect three rollouts; a worker is killed before the second."""
    envs = envfleet.ProcessVectorEnv(
        [lambda: envfleet.envs.gym_env("CartPole-v1")] * 8,
        workers=2,
        on_failure="restart",
        step_timeout=30.0,
    )
    with envfleet.Collector(envs, RandomAgent(), steps=64, seed=1) as collector:
        for number in range(3):
            if number == 1:
                os.kill(envs.processes[0].pid, signal.SIGKILL)  # as a crashing simulator would
            rollout = collector.collect()
            cut = int((~rollout.valid & rollout.truncated).sum())
            print(f"rollout {number}: {envs.restart_count} restarts, {cut} interrupted episodes")


if __name__ == "__main__":
    main()
