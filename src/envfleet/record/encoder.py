"""The encoder's process: reads frames from standard input, writes videos, says what it has done.

It outlives an interrupted program by as long as it takes to complete its videos: Ctrl-C does not
reach it, and the end of its input, for whatever reason, is the end of the videos it has.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TextIO

from envfleet.record.frames import Frame
from envfleet.record.overlay import prepare
from envfleet.record.writers import Writer, open_writer


@dataclass(frozen=True)
class Begin:
    """A video begins; further messages name it by its number."""

    video: int
    path: str
    fps: float
    scale: float


@dataclass(frozen=True)
class Show:
    """A frame of a video, at the time of its number."""

    video: int
    number: int
    frame: Frame
    texts: tuple[str, ...]
    """The first that fits is drawn on it."""


@dataclass(frozen=True)
class End:
    """A video is complete."""

    video: int


Message = Begin | Show | End | None
"""None is the last one."""


def serve(frames: BinaryIO, answers: TextIO) -> int:
    """Write videos until there is nothing more to read; returns an exit code."""
    videos: dict[int, tuple[Writer, Begin]] = {}

    def tell(**told: object) -> None:
        with contextlib.suppress(OSError):  # the program may have ended before its videos
            print(json.dumps(told), file=answers, flush=True)

    def finish(video: int) -> None:
        writer, begin = videos[video]
        if writer.frames:
            writer.close()
            tell(video=video, path=begin.path, frames=writer.frames)
        else:
            writer.discard()
        del videos[video]

    try:
        while (message := _read(frames)) is not None:
            match message:
                case Begin():
                    videos[message.video] = open_writer(Path(message.path), message.fps), message
                case Show():
                    writer, begin = videos[message.video]
                    writer.add(message.number, prepare(message.frame, message.texts, begin.scale))
                case End():
                    finish(message.video)
        for video in list(videos):
            finish(video)
    except Exception as error:  # noqa: BLE001 - a full disk, a codec: told, and recording is over
        for writer, _ in videos.values():
            with contextlib.suppress(Exception):  # it is broken already
                writer.discard()
        tell(problem=f"{type(error).__name__}: {error}")
        return 1
    return 0


def _read(frames: BinaryIO) -> Message:
    """The next message; None also where the program has ended in the middle of one."""
    try:
        message: Message = pickle.load(frames)
    except (EOFError, pickle.UnpicklingError, OSError):
        return None
    return message


def main() -> int:
    """Serve the program that started this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the input ends with the program
    return serve(sys.stdin.buffer, sys.stdout)


if __name__ == "__main__":
    sys.exit(main())
