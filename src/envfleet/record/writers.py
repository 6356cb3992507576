"""Video files, written frame by frame: GIF by Pillow, MP4 by PyAV; named only when complete."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import GifImagePlugin, Image

from envfleet.record.frames import Frame, fit
from envfleet.record.timing import GifClock, gif_stride, held_frames


class Writer(Protocol):
    """Writes one video."""

    frames: int
    """How many frames are in the file, or will be."""

    def add(self, number: int, frame: Frame) -> None:
        """Show a frame at the time of its number; numbers rise, and some may be missing."""

    def close(self) -> None:
        """Complete the file and give it its name."""

    def discard(self) -> None:
        """Remove what there is of it."""


def open_writer(path: Path, fps: float) -> Writer:
    """The writer for a file's ending.

    Raises:
        ValueError: it is neither .gif nor .mp4.
    """
    if path.suffix == ".gif":
        return GifWriter(path, fps)
    if path.suffix == ".mp4":
        return Mp4Writer(path, fps)
    raise ValueError(f"a video is a .gif or .mp4 file, got {path.name!r}")


def unfinished(path: Path) -> Path:
    """Where a video is written until it is complete."""
    return path.with_name(f".{path.stem}.unfinished{path.suffix}")


class GifWriter:
    """A GIF that loops, one palette per frame, and no more than two frames in memory."""

    def __init__(self, path: Path, fps: float) -> None:
        self._path = path
        self._clock = GifClock(fps)
        self._held = held_frames(fps)
        self._stride = gif_stride(fps)
        self._file = unfinished(path).open("wb")
        self._waiting: Image.Image | None = None  # its delay is known when the next one comes
        self._skipped: tuple[int, Frame] | None = None
        self._shape: tuple[int, ...] = ()
        self._next = 0
        self._last = 0
        self.frames = 0

    def add(self, number: int, frame: Frame) -> None:
        """Show a frame at the time of its number, or skip it where a GIF cannot be as fast."""
        self._shape = self._shape or frame.shape
        frame = fit(frame, self._shape)
        self._last = number
        if number < self._next:
            self._skipped = number, frame
            return
        self._skipped = None
        self._next = number + self._stride
        self._show(number, frame)

    def _show(self, number: int, frame: Frame) -> None:
        self._flush(number)
        image = Image.fromarray(frame)
        self._waiting = image.quantize(256, method=Image.Quantize.FASTOCTREE)
        self.frames += 1

    def _flush(self, next_number: int) -> None:
        """Write the frame whose delay is now known."""
        if self._waiting is None:
            return
        milliseconds = 10 * self._clock.delay(next_number)
        if self._file.tell() == 0:
            head, _ = GifImagePlugin.getheader(
                self._waiting.copy(), info={"loop": 0, "duration": 1}
            )
            self._file.writelines(head)
        data = GifImagePlugin.getdata(
            self._waiting, duration=milliseconds, include_color_table=True
        )
        self._file.writelines(data)

    def close(self) -> None:
        """Complete the file; the last frame is never skipped, and held for a second."""
        if self._skipped is not None:
            self._show(*self._skipped)
        self._flush(self._last + self._held)
        self._file.write(b";")
        self._file.close()
        unfinished(self._path).replace(self._path)

    def discard(self) -> None:
        """Remove what there is of it."""
        try:
            self._file.close()
        finally:
            unfinished(self._path).unlink(missing_ok=True)


class Mp4Writer:
    """H.264 in an MP4 that browsers play; odd sizes are padded by a pixel."""

    def __init__(self, path: Path, fps: float) -> None:
        try:
            import av  # noqa: PLC0415 - an extra
        except ImportError:
            raise ImportError("MP4 videos need PyAV: pip install 'envfleet[train]'") from None
        self._av = av
        self._path = path
        self._rate = Fraction(fps).limit_denominator(1001)
        self._held = held_frames(fps)
        self._last: tuple[int, Frame] | None = None
        self._container: Any = av.open(str(unfinished(path)), "w", format="mp4")
        self._stream: Any = None
        self._shape: tuple[int, ...] = ()
        self.frames = 0

    def add(self, number: int, frame: Frame) -> None:
        """Show a frame at the time of its number."""
        self._encode(number, frame)
        self._last = number, frame
        self.frames += 1

    def _encode(self, number: int, frame: Frame) -> None:
        self._shape = self._shape or frame.shape
        frame = fit(frame, self._shape)
        height, width = self._shape[:2]
        even = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        if self._stream is None:
            self._stream = self._container.add_stream("libx264", rate=self._rate)
            self._stream.height, self._stream.width = even.shape[:2]
            self._stream.pix_fmt = "yuv420p"
            self._stream.options = {"preset": "veryfast", "crf": "20"}
            self._stream.codec_context.time_base = 1 / self._rate
        image = self._av.VideoFrame.from_ndarray(np.ascontiguousarray(even), format="rgb24")
        image.pts = number
        image.time_base = 1 / self._rate
        self._container.mux(self._stream.encode(image))

    def close(self) -> None:
        """Complete the file; the last frame is held for a second."""
        if self._last is not None:
            number, frame = self._last
            # Again and again: players differ in how long they show one that comes last.
            for later in range(1, self._held):
                self._encode(number + later, frame)
            self._container.mux(self._stream.encode())
        self._container.close()
        unfinished(self._path).replace(self._path)

    def discard(self) -> None:
        """Remove what there is of it."""
        try:
            self._container.close()
        finally:
            unfinished(self._path).unlink(missing_ok=True)
