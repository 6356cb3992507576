"""Recorder: films whole episodes of chosen envs while a collector steps the fleet."""

from __future__ import annotations

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

from envfleet.record.encoder import Begin, End, Show
from envfleet.record.feed import Feed
from envfleet.record.writers import Frame

log = logging.getLogger("envfleet")

Flags = NDArray[np.bool_]


class FilmTracker(Protocol):
    """What a recorder wants of a tracker: names for its folder, and somebody to show films to."""

    project: str | None
    run: str | None

    def film(self, path: Path, step: int) -> None:
        """A film is complete."""


@dataclass
class _Film:
    """One that is being made."""

    film: int
    path: Path
    step: int
    frames: int = 0
    dropped: int = 0
    number: int = 0
    episode_return: float = 0.0


class Recorder:
    """Films the first episode of the chosen envs, and then one now and again.

    A film is a whole episode: the frame after the reset, one after every step, the last one
    included, each with the return so far. Frames go to an encoder in a process of its own; training
    never waits for it: frames that it cannot take are dropped and counted in the log, and an
    encoder that fails is one warning.

    Args:
        folder: where films go; by default ``renders/<project>/<run>`` with the tracker's names, or
            ``renders/misc``.
        env_ids: the envs to film.
        every_steps: film the next episode after so many steps of the whole fleet; 0 films nothing.
        every_episodes: film every so many episodes of each chosen env.
        max_frames: where a film ends, also in the middle of an episode; None is the episode's end.
        fps: frames per second; by default the envs' ``metadata["render_fps"]``.
        format: "gif" or "mp4".
        overlay: whether to draw the return on each frame.
        scale: factor for width and height.
        frame_skip: show every so many frames only (at the right time).
        tracker: is told of complete films.

    Raises:
        ValueError: an option means nothing.
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
        tracker: FilmTracker | None = None,
    ) -> None:
        _check(every_steps is None or every_steps >= 0, "every_steps", every_steps, "0 or more")
        _check(every_episodes is None or every_episodes >= 1, "every_episodes", every_episodes)
        _check(max_frames is None or max_frames >= 1, "max_frames", max_frames)
        _check(fps is None or fps > 0, "fps", fps, "above 0")
        _check(scale > 0, "scale", scale, "above 0")
        _check(frame_skip >= 1, "frame_skip", frame_skip)
        _check(format in ("gif", "mp4"), "format", format, "'gif' or 'mp4'")
        _check(bool(env_ids), "env_ids", env_ids, "at least one env")
        self.folder = Path(folder) if folder is not None else _folder(tracker)
        self.env_ids = tuple(env_ids)
        self.is_on = every_steps != 0
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
        self._films: dict[int, _Film] = {}
        self._ended: dict[Path, _Film] = {}
        self._next_film = 0
        self._steps = 0
        self._due = dict.fromkeys(self.env_ids, True)
        self._episodes = dict.fromkeys(self.env_ids, 0)
        self._envs: VectorEnv[Any, Any, Any] | None = None

    def attach(self, envs: VectorEnv[Any, Any, Any], autoreset_mode: AutoresetMode) -> None:
        """Film this fleet from now on.

        Raises:
            ValueError: its envs do not render pictures, or there is no such env.
        """
        check_renders(envs)
        wrong = [env for env in self.env_ids if not 0 <= env < envs.num_envs]
        if wrong:
            raise ValueError(
                f"env_ids {wrong} are not among the envs 0 to {envs.num_envs - 1} of this fleet."
            )
        self._envs = envs
        self._fps = self._fps or float(envs.metadata.get("render_fps") or 30)
        hidden = autoreset_mode == AutoresetMode.SAME_STEP
        if self.is_on and hidden and hasattr(envs, "keep_final_frames"):
            envs.keep_final_frames(self.env_ids)

    def begin(self, which: Flags | None = None) -> None:
        """All envs, or some, have just begun an episode."""
        for env in self.env_ids if self.is_on else ():
            if which is None or which[env]:
                self._end(env)  # a reset in the middle of one
                if self._is_wanted(env):
                    self._start(env)

    def _is_wanted(self, env: int) -> bool:
        episode = self._episodes[env]
        self._episodes[env] += 1
        wanted = self._due[env]
        if self._every_episodes is not None:
            wanted = wanted or episode % self._every_episodes == 0
        self._due[env] = False
        return wanted

    def _start(self, env: int) -> None:
        if self._feed is None:
            self._feed = Feed()
            self._next_film = next_number(self.folder, "render_")
        path = self.folder / f"render_{self._next_film}.{self._format}"
        film = self._films[env] = _Film(self._next_film, path, self._steps)
        self._next_film += 1
        assert self._fps is not None  # noqa: S101 - attach has set it
        self._feed.send(Begin(film.film, str(path), self._fps, self._scale))
        self._show(film, self._render(env))

    def step(self, rewards: NDArray[Any], done: Flags, valid: Flags, infos: dict[str, Any]) -> None:
        """The fleet was stepped; where an episode ended, ``begin`` is called next, if it is reset.

        Rows that are not ``valid`` belong to no episode: a reset, or a worker that was replaced.
        """
        before = self._steps
        self._steps += int(np.count_nonzero(valid))
        every = self._every_steps
        if every and before // every != self._steps // every:
            self._due = dict.fromkeys(self.env_ids, True)
        for env in list(self._films):
            film = self._films[env]
            if valid[env]:
                film.number += 1
                film.episode_return += float(rewards[env])
                if done[env]:
                    frame = self._final_frame(env, infos)
                    if frame is not None:
                        self._show(film, frame)
                elif film.number % self._skip == 0:
                    self._show(film, self._render(env))
            full = self._max_frames is not None and film.frames >= self._max_frames
            if done[env] or full:
                self._end(env)
        if self._feed is not None:
            self._hear(self._feed)

    def _final_frame(self, env: int, infos: dict[str, Any]) -> Frame | None:
        """The frame that an episode ended with.

        Under same-step autoreset other engines than ours have lost it: the env is reset already.
        """
        assert self._envs is not None  # noqa: S101 - attach has set it
        if self._envs.metadata.get("autoreset_mode") != AutoresetMode.SAME_STEP:
            return self._render(env)
        kept = infos.get("final_frame")
        return None if kept is None else kept[env]

    def _render(self, env: int) -> Frame:
        envs: Any = self._envs
        frame = envs.render_on([env])[0] if hasattr(envs, "render_on") else envs.render()[env]
        return np.asarray(frame, dtype=np.uint8)

    def _show(self, film: _Film, frame: Frame) -> None:
        text = f"Return: {film.episode_return:.2f}" if self._overlay else ""
        if self._feed is not None:
            film.frames += 1
            if not self._feed.send(Show(film.film, film.number, frame, text)):
                film.dropped += 1

    def _end(self, env: int) -> None:
        film = self._films.pop(env, None)
        if film is None or self._feed is None:
            return
        self._feed.send(End(film.film))
        self._ended[film.path] = film
        if film.dropped:
            log.warning(
                "%s: the encoder was too slow for %d of %d frames, which were dropped",
                film.path,
                film.dropped,
                film.frames,
            )

    def _hear(self, feed: Feed) -> None:
        """Pass on what the encoder has told."""
        for path, _ in feed.finished():
            film = self._ended.pop(path, None)
            if self._tracker is not None and film is not None:
                self._tracker.film(path, film.step)
        if feed.problem and self.is_on:
            self.is_on = False
            self._films.clear()
            warnings.warn(
                f"recording has stopped, and training goes on: {feed.problem}", stacklevel=2
            )

    def close(self, timeout: float = 60.0) -> None:
        """Complete all films, those of running episodes too; once.

        An encoder that does not finish within ``timeout`` seconds is killed.
        """
        for env in list(self._films):
            self._end(env)
        if self._feed is not None:
            feed, self._feed = self._feed, None
            feed.close(timeout)
            self._hear(feed)
        self.is_on = False


def check_renders(envs: VectorEnv[Any, Any, Any]) -> None:
    """Refuse a fleet whose envs do not render pictures."""
    if envs.render_mode != "rgb_array":
        raise ValueError(
            f"the envs have render_mode={envs.render_mode!r} and give no pictures: build them with "
            "render_mode='rgb_array'."
        )


def next_number(folder: Path, prefix: str) -> int:
    """The first number that no film in a folder has reached, so that none is overwritten."""
    names = [path.name for path in folder.glob(f"{prefix}*")]
    found = [re.match(rf"{prefix}(\d+)\.", name) for name in names]
    return max((int(match[1]) + 1 for match in found if match), default=0)


def _folder(tracker: FilmTracker | None) -> Path:
    if tracker is not None and tracker.project and tracker.run:
        return Path("renders") / tracker.project / tracker.run
    return Path("renders") / "misc"


def _check(fine: bool, name: str, value: Any, allowed: str = "at least 1") -> None:
    if not fine:
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
