"""Videos of env 0, and the names that a ``SyncVecEnv`` has for how far they are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from envfleet.record.recorder import Recorder


class _Run:
    """The names of the current run of Weights & Biases, if there is one; videos stay here."""

    def __init__(self) -> None:
        run: Any = getattr(sys.modules.get("wandb"), "run", None)
        self.project: str | None = getattr(run, "project", None)
        self.run: str | None = getattr(run, "name", None)

    def video(self, path: Path, step: int) -> None:
        """A video is complete."""


class FirstEnvRecorder(Recorder):
    """Records the first episode of env 0, and the next one every so many steps of the fleet."""

    def __init__(self, every_steps: int, fps: float) -> None:
        super().__init__(
            env_ids=(0,), every_steps=every_steps, max_frames=None, fps=fps, tracker=_Run()
        )
        self._next = 0
        self._last_return = 0.0

    @property
    def is_recording(self) -> bool:
        """Whether the running episode is recorded."""
        return 0 in self._videos

    @property
    def is_due(self) -> bool:
        """Whether the next episode will be."""
        return self._due[0]

    @property
    def number(self) -> int:
        """Of the video that is being made, or of the next one."""
        return self._videos[0].video if 0 in self._videos else self._next

    @property
    def episode_return(self) -> float:
        """Of the episode that is recorded, or was the last to be."""
        return self._videos[0].episode_return if 0 in self._videos else self._last_return

    def _end(self, env: int) -> None:
        if (video := self._videos.get(env)) is not None:
            self._next, self._last_return = video.video + 1, video.episode_return
        super()._end(env)


class RecordingNames:
    """What a ``SyncVecEnv`` says of its videos; where there are none, that there are none."""

    _recorder: FirstEnvRecorder | None = None

    @property
    def can_record(self) -> bool:
        """Whether there are videos."""
        return self._recorder is not None

    @property
    def is_recording(self) -> bool:
        """Whether the running episode of env 0 is recorded."""
        return self._recorder is not None and self._recorder.is_recording

    @property
    def ready_to_record(self) -> bool:
        """Whether the next episode of env 0 will be recorded."""
        return self._recorder is not None and self._recorder.is_due

    @property
    def record_episode(self) -> int:
        """The number of the video that is being made, or of the next one."""
        return 0 if self._recorder is None else self._recorder.number

    @property
    def record_total_reward(self) -> float:
        """The return so far of the episode that is recorded, or that of the last one."""
        return 0.0 if self._recorder is None else self._recorder.episode_return

    @property
    def render_folder(self) -> str:
        """Where videos go."""
        folder = Path("renders/misc") if self._recorder is None else self._recorder.folder
        return str(folder)

    @render_folder.setter
    def render_folder(self, folder: Path | str) -> None:
        if self._recorder is not None:
            self._recorder.folder = Path(folder).absolute()
