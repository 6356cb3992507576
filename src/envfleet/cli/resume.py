"""``envfleet resume``: continue a run, or make it longer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from envfleet.cli.shared import REFUSALS, carry_out, how_it_ended, refuse
from envfleet.track.registry import make_trackers
from envfleet.training.progress import say
from envfleet.training.trainer import Run, finished, why_solved


@dataclass
class Resume:
    """Continue a run that was stopped, from its last checkpoint, exactly."""

    folder: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""
    total_steps: int | None = None
    """Make the run so long, with schedules as if it had been planned so."""
    checkpoint: str | None = None
    """A folder's name in checkpoints/, or "best"; what came later is removed."""
    track: tuple[str, ...] = ()
    """Trackers besides the files in the run's folder: tensorboard, wandb."""
    trust: bool = False
    """Import the modules that the run's folder names for its env and wrappers."""
    quiet: bool = False
    """Show no progress and no summary; problems are still said."""

    def run(self) -> int:
        """Train on; the exit code."""
        try:
            folder = self.folder.absolute()
            over = finished(folder, self.checkpoint, self.total_steps)
            if over is not None:
                step, reached = over
                say(f"{self.folder}: already {how_it_ended(reached)}, {step:,} steps")
                if reached is not None:
                    say(why_solved(self.folder))
                return 0
            run = Run.resume(
                folder,
                checkpoint=self.checkpoint,
                trust=self.trust,
                total_steps=self.total_steps,
                trackers=partial(make_trackers, self.track, folder),
            )
        except REFUSALS as error:
            return refuse(error)
        return carry_out(run, quiet=self.quiet)
