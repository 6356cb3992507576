"""``envfleet eval``: how good a run's policy is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from envfleet.cli.shared import REFUSALS, check_at_least, refuse, trained
from envfleet.rollout.evaluate import evaluate


@dataclass
class Eval:
    """Play whole episodes with a run's policy, deterministically, and say how they went."""

    folder: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""
    episodes: int = 100
    seed: int = 0
    num_envs: int = 8
    checkpoint: str | None = None
    """By default the last one; "best", or a folder's name in checkpoints/."""
    sample: bool = False
    """Sample actions instead of taking the likeliest."""
    json: bool = False
    """Print one JSON object."""
    trust: bool = False
    """Import the modules that the run's folder names for its env and wrappers."""

    def run(self) -> int:
        """Evaluate; the exit code."""
        try:
            check_at_least(1, episodes=self.episodes, num_envs=self.num_envs)
            check_at_least(0, seed=self.seed)
            policy, envs, step = trained(
                self.folder, self.num_envs, self.checkpoint, trust=self.trust
            )
        except REFUSALS as error:
            return refuse(error)
        with envs:
            result = evaluate(
                policy,
                envs,
                self.episodes,
                not self.sample,
                self.seed,
                mask_key=policy.mask_key,
            )
        if self.json:
            told = {"step": step, "mean": result.mean, "std": result.std}
            told |= {"returns": result.returns.tolist(), "lengths": result.lengths.tolist()}
            print(json.dumps(told), flush=True)  # noqa: T201 - it is what was asked for
        else:
            print(f"step {step:,}: {result}", flush=True)  # noqa: T201 - same
        return 0
