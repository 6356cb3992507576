"""``envfleet record``: a video of a run's policy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from envfleet.cli.shared import REFUSALS, check_at_least, refuse, trained
from envfleet.record.agent import record_agent


@dataclass
class Record:
    """Record a video of a run's policy in a fleet, side by side."""

    folder: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""
    path: Path | None = None
    """The video, .gif or .mp4; by default in the run's folder."""
    episodes: int = 1
    num_envs: int = 4
    seed: int = 0
    checkpoint: str | None = None
    """By default the last one; "best", or a folder's name in checkpoints/."""
    scale: float = 0.5
    """Factor for width and height."""
    trust: bool = False
    """Import the modules that the run's folder names for its env and wrappers."""

    def run(self) -> int:
        """Record; the exit code."""
        try:
            folder = self.folder.absolute()
            path = None if self.path is None else self.path.absolute()
            check_at_least(1, episodes=self.episodes, num_envs=self.num_envs)
            check_at_least(0, seed=self.seed)
            if not self.scale > 0:
                raise ValueError(f"scale must be above 0, got {self.scale}")
            policy, envs, step = trained(
                folder, self.num_envs, self.checkpoint, trust=self.trust, render=True
            )
        except REFUSALS as error:
            return refuse(error)
        path = path or folder / "renders" / f"policy_{step}.gif"
        with envs:
            try:
                record_agent(
                    policy,
                    envs,
                    episodes=self.episodes,
                    path=path,
                    deterministic=True,
                    seed=self.seed,
                    scale=self.scale,
                    mask_key=policy.mask_key,
                )
            except (ValueError, OSError) as error:
                return refuse(error)
        print(self.path or path, flush=True)  # noqa: T201 - it is what was asked for
        return 0
