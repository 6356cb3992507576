"""Metrics and videos in Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self


class WandbTracker:
    """One run of Weights & Biases; ``mode="offline"`` needs neither an account nor a network.

    Further arguments go to ``wandb.init``. The run's project and name name the folder of videos,
    which are uploaded explicitly when they are complete.

    Raises:
        ImportError: wandb is not installed.
    """

    def __init__(self, project: str = "envfleet", name: str | None = None, **options: Any) -> None:
        try:
            import wandb  # noqa: PLC0415 - an extra
        except ImportError:
            raise ImportError("WandbTracker needs wandb: pip install 'envfleet[track]'") from None
        self._wandb: Any = wandb
        self._run: Any = wandb.init(project=project, name=name, **options)
        self.project: str | None = self._run.project or project
        self.run: str | None = self._run.name or name or self._run.id
        self._step = int(getattr(self._run, "step", 0) or 0)  # a resumed run has some

    @classmethod
    def of_run(cls, folder: Path, _: int) -> Self:
        """For a run in ``<env>/<name>``."""
        return cls(folder.parent.name, folder.name, dir=str(folder))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """All numbers at an explicit step."""
        self._step = max(self._step, step)
        self._run.log(dict(metrics), step=step)

    def video(self, path: Path, step: int) -> None:
        """Upload a video; ``video_step`` says which step it shows."""
        # What is logged for an earlier step than the last one is dropped, and a video comes late.
        video = self._wandb.Video(str(path), format=path.suffix[1:])
        self._run.log({"video": video, "video_step": step}, step=self._step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
