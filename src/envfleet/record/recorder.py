"""Recorder: records whole episodes of chosen envs while a collector steps the fleet."""

from __future__ import annotations

import contextlib
import logging
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from envfleet.errors import WorkerDied
from envfleet.record.encoder import Begin, End, Show
from envfleet.record.endings import FinalFrames
from envfleet.record.feed import Feed
from envfleet.record.frames import Frame
from envfleet.record.overlay import return_texts
from envfleet.record.rendering import (
    can_go_on,
    check_renders,
    engine_of,
    fps_of,
    refusal,
    take_frame,
)
from envfleet.record.writers import unfinished

log = logging.getLogger("envfleet")

Flags = NDArray[np.bool_]


class VideoTracker(Protocol):
    """What a recorder needs from a tracker: names for its folder, and a receiver of videos."""

    project: str | None
    run: str | None

    def video(self, path: Path, step: int) -> None:
        """Called when a video is complete."""


@dataclass
class _Video:
    """One that is being made."""

    video: int
    path: Path
    step: int
    frames: int = 0
    dropped: int = 0
    number: int = 0
    episode_return: float = 0.0


class Recorder:
    """Records the first episode of the chosen envs, and then another from time to time.

    A video is a whole episode: the frame after the reset and one after every step, including the
    last, each with the return so far. Frames go to an encoder in a separate process, and training
    never waits for it: frames that it cannot accept are dropped and counted in the log, and if the
    encoder fails, there is one warning. If an env cannot render at the first reset, a ValueError
    says what to do; if ``render`` fails later, recording ends with a warning.

    Args:
        folder: where to save videos; by default ``renders/<project>/<run>`` with the tracker's
            names, or ``renders/misc``.
        env_ids: the envs to record.
        every_steps: record the next episode after every N steps of the whole fleet; with 0 and
            without ``every_episodes``, nothing is recorded.
        every_episodes: record every Nth episode of each chosen env.
        max_frames: maximum length of a video, which may end in the middle of an episode; None
            records to the end of the episode.
        fps: steps per second of the video; by default those of the game: the envs'
            ``metadata["render_fps"]``, and for Atari 60 frames of the console.
        format: "gif" or "mp4".
        overlay: whether to draw the return on each frame.
        scale: scale factor for width and height.
        frame_skip: keep every Nth frame only (videos keep their speed).
        tracker: receives complete videos.

    Raises:
        ValueError: an option is invalid.
    """

    def __init__(
        self,
        folder: Path | str | None = None,
        env_ids: Sequence[int] = (0,),
        every_steps: int | None = None,
        every_episodes: int | None = None,
        max_frames: int | None = 10_000,
        fps: float | None = None,
        format: Literal["gif", "mp4"] = "gif",  # noqa: A002 - the word users look for
        overlay: bool = True,
        scale: float = 1.0,
        frame_skip: int = 1,
        *,
        tracker: VideoTracker | None = None,
    ) -> None:
        _check(every_steps is None or every_steps >= 0, "every_steps", every_steps, "0 or more")
        _check(every_episodes is None or every_episodes >= 1, "every_episodes", every_episodes)
        _check(max_frames is None or max_frames >= 1, "max_frames", max_frames)
        _check(fps is None or fps > 0, "fps", fps, "above 0")
        _check(scale > 0, "scale", scale, "above 0")
        _check(frame_skip >= 1, "frame_skip", frame_skip)
        _check(format in ("gif", "mp4"), "format", format, "'gif' or 'mp4'")
        self.env_ids = tuple(int(env) for env in env_ids)
        single = len(set(self.env_ids)) == len(self.env_ids) > 0
        _check(single, "env_ids", env_ids, "at least one env, and none twice")
        self.folder = (Path(folder) if folder is not None else _folder(tracker)).absolute()
        self.is_on = every_steps != 0 or every_episodes is not None
        self._every_steps = every_steps
        self._every_episodes = every_episodes
        self._max_frames = max_frames
        self._fps = fps
        self._format = format
        self._overlay = overlay
        self._scale = scale
        self._skip = frame_skip
        self._tracker = tracker
        self._feed: Feed | None = None
        self._videos: dict[int, _Video] = {}
        self._ended: dict[Path, _Video] = {}
        self._steps = 0
        self._due = dict.fromkeys(self.env_ids, True)
        self._episodes = dict.fromkeys(self.env_ids, 0)
        self._envs: VectorEnv[Any, Any, Any] | None = None
        self._engine: Any = None
        self._hides_ends = False
        self._ends = FinalFrames(None)
        self._has_begun = False

    def attach(self, envs: VectorEnv[Any, Any, Any], autoreset_mode: AutoresetMode) -> None:
        """Record this fleet from now on.

        Raises:
            ValueError: its envs do not render images, or there is no such env.
        """
        if self._envs is not None:
            raise ValueError("a recorder records one fleet, once: build another one.")
        check_renders(envs)
        wrong = [env for env in self.env_ids if not 0 <= env < envs.num_envs]
        if wrong:
            raise ValueError(
                f"env_ids {wrong} are not among the envs 0 to {envs.num_envs - 1} of this fleet."
            )
        self._envs = envs
        self._engine = engine_of(envs)
        self._hides_ends = autoreset_mode == AutoresetMode.SAME_STEP
        self._ends = FinalFrames(self._engine if self._hides_ends else None)
        self._fps = self._fps or fps_of(envs)

    def state_dict(self) -> dict[str, Any]:
        """The current state, for ``load_state_dict`` of another recorder with the same options."""
        due = [self._due[env] for env in self.env_ids]
        return {"steps": self._steps, "due": due, "episodes": list(self._episodes.values())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where the recorder with this ``state_dict`` left off."""
        self._steps = state["steps"]
        self._due = dict(zip(self.env_ids, state["due"], strict=True))
        self._episodes = dict(zip(self.env_ids, state["episodes"], strict=True))

    def begin(self, which: Flags | None = None) -> None:
        """Called when all envs, or some, have just begun an episode.

        Raises:
            ValueError: the first time, if an env returns no frame; says what to do.
            OSError: the first time, if the folder cannot be written to.
            WorkerDied: ``render`` ended a worker, and the fleet does not replace it.
        """
        is_first, self._has_begun = not self._has_begun, True
        for env in self.env_ids:
            if self.is_on and (which is None or which[env]):
                self._end(env)  # a reset in the middle of one
                if self._is_wanted(env):
                    self._start(env, is_first=is_first)

    def _is_wanted(self, env: int) -> bool:
        episode = self._episodes[env]
        self._episodes[env] += 1
        wanted = self._due[env]
        if self._every_episodes is not None:
            wanted = wanted or episode % self._every_episodes == 0
        self._due[env] = False
        return wanted

    def _start(self, env: int, *, is_first: bool) -> None:
        try:
            frame = take_frame(self._envs, self._engine, env)
        except Exception as error:
            # A worker that was replaced may have died of anything.
            if is_first and not (isinstance(error, WorkerDied) and can_go_on(self._engine)):
                self.cut()
                raise refusal(error) from error
            self._give_up(env, error)
            return
        try:
            if self._feed is None:
                self._feed = Feed()
            number, path = claim(self.folder, "render_", self._format)
            video = self._videos[env] = _Video(number, path, self._steps)
            assert self._fps is not None  # noqa: S101 - attach has set it
            self._feed.send(Begin(video.video, str(path), self._fps, self._scale))
            self._show(video, frame)
            self._ends.keep(self._videos)
        except Exception as error:
            if is_first:
                self.cut()
                raise
            self._give_up(env, error)
        self._end_if_full(env)

    def step(self, rewards: NDArray[Any], done: Flags, valid: Flags, infos: dict[str, Any]) -> None:
        """Called after a step; if an ended episode is followed by a reset, ``begin`` comes next.

        Rows that are not ``valid`` belong to no episode: a reset, or a worker that was replaced.
        """
        before = self._steps
        self._steps += int(np.count_nonzero(valid))
        every = self._every_steps
        if every and before // every != self._steps // every:
            self._due = dict.fromkeys(self.env_ids, True)
        for env, video in list(self._videos.items()):
            if env not in self._videos:
                break  # another one's frame has ended recording
            if valid[env]:
                video.number += 1
                video.episode_return += float(rewards[env])
                if done[env] and self._hides_ends:
                    self._look_at_end(env, video, infos)
                elif done[env] or video.number % self._skip == 0:
                    self._look(env, video)
            if done[env]:
                self._end(env)
            else:
                self._end_if_full(env)
        if self._feed is not None:
            self._hear(self._feed)

    def _end_if_full(self, env: int) -> None:
        video = self._videos.get(env)
        if video is not None and self._max_frames is not None and video.frames >= self._max_frames:
            self._end(env)

    def _look(self, env: int, video: _Video) -> None:
        """Take a frame of an env; if that fails, recording is over and training goes on."""
        try:
            self._show(video, take_frame(self._envs, self._engine, env))
        except Exception as error:  # noqa: BLE001 - an env may raise anything, or render it
            self._give_up(env, error)

    def _look_at_end(self, env: int, video: _Video, infos: dict[str, Any]) -> None:
        """Take the frame that same-step autoreset has hidden, where the engine has kept it."""
        try:
            frame = self._ends.of(env, infos)
            if frame is not None:
                self._show(video, frame)
        except ValueError as error:
            self._give_up(env, error)

    def _give_up(self, env: int, error: Exception) -> None:
        """Stop after an error.

        Raises:
            WorkerDied: it has broken the fleet, so that nothing goes on.
        """
        if isinstance(error, WorkerDied) and not can_go_on(self._engine):
            self.cut()
            raise error
        text = error.what if isinstance(error, WorkerDied) else error
        self._stop(f"env {env}: {type(error).__name__}: {text}")

    def _stop(self, why: str) -> None:
        """Record nothing more; what there is of videos is completed."""
        if self.is_on:
            self.is_on = False
            self.cut()
            warnings.warn(f"recording has stopped, and training goes on: {why}", stacklevel=2)

    def cut(self) -> None:
        """Complete the videos in progress; their episodes are over, or no longer recorded."""
        for env in list(self._videos):
            self._end(env)
        self._ends.release()

    def _show(self, video: _Video, frame: Frame) -> None:
        texts = return_texts(video.episode_return) if self._overlay else ()
        if self._feed is not None:
            video.frames += 1
            if not self._feed.send(Show(video.video, video.number, frame, texts)):
                video.dropped += 1

    def _end(self, env: int) -> None:
        video = self._videos.pop(env, None)
        if video is None or self._feed is None:
            return
        self._feed.send(End(video.video))
        self._ended[video.path] = video
        with contextlib.suppress(Exception):  # told again with the next change
            self._ends.keep(self._videos)
        if video.dropped:
            log.warning(
                "%s: the encoder was too slow for %d of %d frames, which were dropped",
                video.path,
                video.dropped,
                video.frames,
            )

    def _hear(self, feed: Feed) -> None:
        """Pass on what the encoder has told."""
        for path, _ in feed.finished():
            video = self._ended.pop(path, None)
            if self._tracker is not None and video is not None:
                try:
                    self._tracker.video(path, video.step)
                except Exception as error:  # noqa: BLE001 - its own troubles must not stop training
                    self._tracker = None
                    warnings.warn(
                        f"the tracker did not take the video {path}, and is shown no more: "
                        f"{type(error).__name__}: {error}",
                        stacklevel=2,
                    )
        if feed.problem:
            for video in (*self._videos.values(), *self._ended.values()):
                unfinished(video.path).unlink(missing_ok=True)
            self._videos.clear()
            self._stop(feed.problem)

    def close(self, timeout: float = 60.0) -> None:
        """Complete all videos, including those of running episodes. Further calls do nothing.

        An encoder that does not finish within ``timeout`` seconds is killed.
        """
        self.is_on = False
        self.cut()
        if self._feed is not None:
            feed, self._feed = self._feed, None
            feed.close(timeout)
            self._hear(feed)
            if feed.problem:
                log.warning("videos may be missing: %s", feed.problem)


def claim(folder: Path, prefix: str, suffix: str) -> tuple[int, Path]:
    """Reserve the next free video number in a folder; returns it and the path."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [path.name for path in folder.iterdir()]
    found = [re.match(rf"\.?{prefix}(\d+)\.", name) for name in names]
    number = max((int(match[1]) + 1 for match in found if match), default=0)
    while True:
        path = folder / f"{prefix}{number}.{suffix}"
        try:
            unfinished(path).open("x").close()
        except FileExistsError:
            number += 1
        else:
            return number, path


def _folder(tracker: VideoTracker | None) -> Path:
    if tracker is not None and tracker.project and tracker.run:
        return Path("renders") / _as_name(tracker.project) / _as_name(tracker.run)
    return Path("renders") / "misc"


def _as_name(text: str) -> str:
    """A text as the name of one folder, which is not another one's."""
    return re.sub(r"[^\w.-]", "_", text).lstrip(".") or "_"


def _check(fine: bool, name: str, value: Any, allowed: str = "at least 1") -> None:
    if not fine:
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
