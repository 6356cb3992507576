"""record_agent: an agent in a fleet, as one video or as frames, without a trace in training."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from envfleet.record.endings import FinalFrames
from envfleet.record.frames import Frame, as_frame
from envfleet.record.grid import tile
from envfleet.record.overlay import prepare, return_texts
from envfleet.record.recorder import claim
from envfleet.record.rendering import check_renders, engine_of, fps_of, refusal
from envfleet.record.writers import Writer, open_writer
from envfleet.rollout.agent import AnyAgent, standing_still, untouched
from envfleet.rollout.masks import AUTO_KEY
from envfleet.rollout.player import Player
from envfleet.rollout.progress import progress_bar
from envfleet.rollout.statistics import Episode


def record_agent(
    agent: AnyAgent,
    envs: VectorEnv[Any, Any, Any],
    *,
    steps: int | None = None,
    episodes: int | None = None,
    render_every: int = 1,
    grid: bool = True,
    path: Path | str | None = None,
    deterministic: bool = False,
    seed: int | None = None,
    fps: float | None = None,
    overlay: bool = True,
    scale: float = 1.0,
    device: torch.device | str | None = None,
    autoreset_mode: AutoresetMode | str | None = None,
    progress: bool | None = None,
    mask_key: str | None = AUTO_KEY,
) -> Path | list[list[Frame]]:
    """Record every env of a fleet while the agent plays.

    The fleet, which should not be the one that is trained on, is reset first and stays open. Random
    states, gradients and a module's training mode are as before afterwards.

    Args:
        agent: see ``envfleet.rollout.agent.Agent``.
        envs: a fleet with ``render_mode="rgb_array"``.
        steps: how many steps to record.
        episodes: record until every env has finished so many episodes instead; envs that have keep
            showing their last frame.
        render_every: record every so many steps only.
        grid: whether to write one video of all envs side by side, or to return the frames per env.
        path: the video's file, .gif or .mp4; by default ``renders/misc/agent_<n>.gif``.
        deterministic: whether to take the agent's best actions instead of sampling.
        seed: of the envs (env ``i`` gets ``seed + i``) and of the sampling.
        fps: steps per second of the video; by default the game's, as for ``Recorder``.
        overlay: whether to draw each env's return so far on its frames.
        scale: factor for width and height.
        device: as for ``Collector``.
        autoreset_mode: as for ``Collector``.
        progress: whether to show a progress bar; by default on a terminal.
        mask_key: as for ``Collector``.

    Returns:
        The video's path, or per env the list of its frames.

    Raises:
        ValueError: the envs render no images (says what to do), or neither or both of ``steps``
            and ``episodes``.
    """
    check_renders(envs)
    numbers = [number for number in (steps, episodes, render_every) if number is not None]
    if len(numbers) != 2 or min(numbers) < 1:
        raise ValueError(
            "pass either steps or episodes, at least 1, and render_every of at least 1; got "
            f"steps={steps}, episodes={episodes}, render_every={render_every}."
        )
    player = Player(agent, envs, deterministic, device, autoreset_mode, mask_key=mask_key)
    # Frames are numbered by steps, so that a video shows them at the right time.
    speed = fps or fps_of(envs)
    video = _Video(path, speed) if grid else None
    camera = _Camera(envs, player, overlay=overlay, scale=scale)
    kept: list[list[Frame]] = [[] for _ in range(envs.num_envs)]
    played = np.zeros(envs.num_envs, dtype=np.int64)
    total, unit = (steps, "step") if steps is not None else (episodes, "episode")
    enough = np.inf if episodes is None else episodes
    try:
        with (
            untouched(agent, seed),
            standing_still(envs),
            progress_bar(total, progress, "Recording", unit) as bar,
            camera,
        ):
            player.reset(seed)
            finished: list[Episode] = []
            for step in itertools.count():
                last = step == steps or played.min() >= enough
                if step % render_every == 0 or last:
                    frames = camera.shoot(finished)
                    if video is not None:
                        video.add(step, tile(frames))
                    else:
                        for mine, frame in zip(kept, frames, strict=True):
                            mine.append(frame)
                if last:
                    break
                before = int(played.min())
                finished = player.step()
                for episode in finished:
                    played[episode.env] += 1
                camera.hold(finished, played >= enough)
                bar.update(1 if steps is not None else int(played.min()) - before)
    except KeyboardInterrupt:
        if video is not None:
            video.close()
        raise
    except BaseException:
        if video is not None:
            video.discard()
        raise
    return kept if video is None else video.close()


class _Camera:
    """Takes an image of every env; of one that has played enough, always the last one."""

    def __init__(
        self, envs: VectorEnv[Any, Any, Any], player: Player, *, overlay: bool, scale: float
    ) -> None:
        self._envs: Any = envs
        self._player = player
        self._overlay = overlay
        self._scale = scale
        self._held: dict[int, Frame] = {}
        self._shot: list[Frame] = []
        # Same-step autoreset hides an episode's last frame before it can be shot.
        self._hides_ends = player.mode == AutoresetMode.SAME_STEP
        self._ends = FinalFrames(engine_of(envs) if self._hides_ends else None)

    def __enter__(self) -> Self:
        self._ends.keep(range(self._envs.num_envs))
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.release()

    def hold(self, finished: list[Episode], over: NDArray[np.bool_]) -> None:
        """Of envs that have now played enough, keep the image of the end."""
        if any(over[episode.env] and episode.env not in self._held for episode in finished):
            frames = self.shoot(finished)
            for episode in finished:
                if over[episode.env]:
                    self._held.setdefault(episode.env, frames[episode.env])

    def shoot(self, finished: list[Episode]) -> list[Frame]:
        """The images after a step in which some episodes finished."""
        returns = self._player.returns.copy()
        shot = self._render()
        for episode in finished:
            returns[episode.env] = episode.episode_return
            if self._hides_ends:
                shot[episode.env] = self._end_of(episode.env)
        self._shot = shot
        frames = []
        for env, frame in enumerate(shot):
            if env in self._held:
                frames.append(self._held[env])
                continue
            texts = return_texts(returns[env]) if self._overlay else ()
            frames.append(prepare(frame, texts, self._scale))
        return frames

    def _render(self) -> list[Frame]:
        try:
            return [as_frame(rendered) for rendered in self._envs.render()]
        except Exception as error:
            if self._shot:
                raise
            raise refusal(error) from error

    def _end_of(self, env: int) -> Frame:
        """What an episode ended with; what was shot before, where nobody has kept that."""
        frame = self._ends.of(env, self._player.infos)
        return self._shot[env] if frame is None else frame


class _Video:
    """A video whose writer is opened with the first frame."""

    def __init__(self, path: Path | str | None, fps: float) -> None:
        if path is not None and Path(path).suffix not in (".gif", ".mp4"):
            raise ValueError(f"a video is a .gif or .mp4 file, got {Path(path).name!r}")
        self._wanted = path
        self._path = Path()
        self._fps = fps
        self._writer: Writer | None = None

    def add(self, number: int, frame: Frame) -> None:
        if self._writer is None:
            self._path = Path(self._wanted or claim(Path("renders") / "misc", "agent_", "gif")[1])
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = open_writer(self._path, self._fps)
        self._writer.add(number, frame)

    def discard(self) -> None:
        if self._writer is not None:
            self._writer.discard()

    def close(self) -> Path:
        if self._writer is not None:
            self._writer.close()
        return self._path
