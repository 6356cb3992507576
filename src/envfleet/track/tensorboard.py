"""Metrics and videos in TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self


class TensorBoardTracker:
    """Writes what TensorBoard shows: numbers, GIF videos that play, and the paths of others.

    Raises:
        ImportError: tensorboard is not installed.
    """

    project: str | None = None
    run: str | None = None

    def __init__(self, folder: Path | str, *, first_step: int = 0) -> None:
        """Write to a folder; what it has of ``first_step`` and later is shown no more."""
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - an extra
        except ImportError:
            raise ImportError(
                "TensorBoardTracker needs tensorboard: pip install 'envfleet[track]'"
            ) from None
        self._writer: Any = SummaryWriter(
            str(Path(folder).absolute()), purge_step=first_step or None
        )

    @classmethod
    def of_run(cls, folder: Path, step: int) -> Self:
        """For a run that begins, or continues, at a step."""
        return cls(folder / "tensorboard", first_step=step + 1)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """A point per number; names with a slash are grouped."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def video(self, path: Path, step: int) -> None:
        """A GIF as an image that moves; of other videos the path."""
        if path.suffix != ".gif":
            self._writer.add_text("video", str(path), step)
            return
        from PIL import Image  # noqa: PLC0415 - an extra
        from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415 - an extra

        with Image.open(path) as video:
            width, height = video.size
        image = Summary.Image(
            height=height, width=width, colorspace=3, encoded_image_string=path.read_bytes()
        )
        summary = Summary(value=[Summary.Value(tag="video", image=image)])
        self._writer.file_writer.add_summary(summary, step)

    def close(self) -> None:
        """Write what is left and close the file."""
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
