"""record_agent: an agent in a fleet, as one film or as frames, without a trace in training."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from envfleet.record.frames import Frame, as_frame
from envfleet.record.grid import tile
from envfleet.record.overlay import prepare
from envfleet.record.recorder import check_renders, claim, engine_of
from envfleet.record.writers import Writer, open_writer
from envfleet.rollout.agent import Agent, standing_still, untouched
from envfleet.rollout.player import Player
from envfleet.rollout.progress import progress_bar
from envfleet.rollout.statistics import Episode


def record_agent(
    agent: Agent,
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
) -> Path | list[list[Frame]]:
    """Film every env of a fleet while the agent plays.

    The fleet, which should not be the one that is trained on, is reset first and stays open. Random
    states, gradients and a module's training mode are as before afterwards.

    Args:
        agent: see ``envfleet.rollout.agent.Agent``.
        envs: a fleet with ``render_mode="rgb_array"``.
        steps: how many steps to film.
        episodes: film until every env has finished so many episodes instead; envs that have keep
            showing their last frame.
        render_every: film every so many steps only.
        grid: whether to write one film of all envs side by side, or to return the frames per env.
        path: the film's file, .gif or .mp4; by default ``renders/misc/agent_<n>.gif``.
        deterministic: whether to take the agent's best actions instead of sampling.
        seed: of the envs (env ``i`` gets ``seed + i``) and of the sampling.
        fps: steps per second of the film; by default the envs' own.
        overlay: whether to draw each env's return so far on its frames.
        scale: factor for width and height.
        device: as for ``Collector``.
        autoreset_mode: as for ``Collector``.
        progress: whether to show a progress bar; by default on a terminal.

    Returns:
        The film's path, or per env the list of its frames.

    Raises:
        ValueError: the envs render no pictures, or neither or both of ``steps`` and ``episodes``.
    """
    check_renders(envs)
    numbers = [number for number in (steps, episodes, render_every) if number is not None]
    if len(numbers) != 2 or min(numbers) < 1:
        raise ValueError(
            "pass either steps or episodes, at least 1, and render_every of at least 1; got "
            f"steps={steps}, episodes={episodes}, render_every={render_every}."
        )
    player = Player(agent, envs, deterministic, device, autoreset_mode)
    # Frames are numbered by steps, so that a film shows them at the right time.
    speed = fps or float(envs.metadata.get("render_fps") or 30)
    film = _Film(path, speed) if grid else None
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
                    if film is not None:
                        film.add(step, tile(frames))
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
        if film is not None:
            film.close()
        raise
    except BaseException:
        if film is not None:
            film.discard()
        raise
    return kept if film is None else film.close()


class _Camera:
    """Takes a picture of every env; of one that has played enough, always the last one."""

    def __init__(
        self, envs: VectorEnv[Any, Any, Any], player: Player, *, overlay: bool, scale: float
    ) -> None:
        self._envs: Any = envs
        self._player = player
        self._overlay = overlay
        self._scale = scale
        self._held: dict[int, Frame] = {}
        # Elsewhere same-step autoreset has hidden an episode's last frame before it can be shot.
        hidden = player.mode == AutoresetMode.SAME_STEP
        self._engine = engine_of(envs) if hidden else None

    def __enter__(self) -> Self:
        if self._engine is not None:
            self._engine.keep_final_frames(range(self._envs.num_envs))
        return self

    def __exit__(self, *_: object) -> None:
        if self._engine is not None and not self._engine.closed:
            self._engine.keep_final_frames([])

    def hold(self, finished: list[Episode], over: NDArray[np.bool_]) -> None:
        """Of envs that have now played enough, keep the picture of the end."""
        if any(over[episode.env] and episode.env not in self._held for episode in finished):
            frames = self.shoot(finished)
            for episode in finished:
                if over[episode.env]:
                    self._held.setdefault(episode.env, frames[episode.env])

    def shoot(self, finished: list[Episode]) -> list[Frame]:
        """The pictures after a step in which some episodes finished."""
        returns = self._player.returns.copy()
        raw = list(self._envs.render())
        ends = self._player.infos.get("final_frame")
        for episode in finished:
            returns[episode.env] = episode.episode_return
            if ends is not None and ends[episode.env] is not None:
                raw[episode.env] = ends[episode.env]
        frames = []
        for env, rendered in enumerate(raw):
            if env in self._held:
                frames.append(self._held[env])
                continue
            text = f"Return: {returns[env]:.2f}" if self._overlay else ""
            frames.append(prepare(as_frame(rendered), text, self._scale))
        return frames


class _Film:
    """A film whose writer is opened with the first frame."""

    def __init__(self, path: Path | str | None, fps: float) -> None:
        if path is None:
            folder = Path("renders") / "misc"
            _, path = claim(folder, "agent_", "gif")
        self._path = Path(path)
        if self._path.suffix not in (".gif", ".mp4"):
            raise ValueError(f"a film is a .gif or .mp4 file, got {self._path.name!r}")
        self._fps = fps
        self._writer: Writer | None = None

    def add(self, number: int, frame: Frame) -> None:
        if self._writer is None:
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
