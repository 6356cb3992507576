"""How good an agent is: whole episodes, the same number from every env, without a trace."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from envfleet.rollout.actions import ActionPort
from envfleet.rollout.agent import (
    Agent,
    acting,
    acting_best,
    check_actions,
    device_of,
    standing_still,
    untouched,
)
from envfleet.rollout.collector import autoreset_mode_of
from envfleet.rollout.nested import ChannelsFirst, ObservationFormat, tree_map
from envfleet.rollout.statistics import Episode, EpisodeMeter, EpisodeSource, EpisodeSummary


@dataclass(frozen=True)
class EvaluationResult:
    """The episodes of an evaluation, env by env in their order."""

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    summary: EpisodeSummary

    @property
    def mean(self) -> float:
        """The mean return."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """The standard deviation of the returns."""
        return float(self.returns.std())

    @property
    def percentiles(self) -> tuple[float, float, float]:
        """The 5th, 50th and 95th percentile of the returns."""
        spread = self.summary.returns
        return spread.p5, spread.p50, spread.p95

    def __str__(self) -> str:
        return (
            f"{self.mean:.2f} +- {self.std:.2f} over {len(self.returns)} episodes "
            f"(median {self.percentiles[1]:.2f}, mean length {self.lengths.mean():.0f})"
        )


def evaluate(
    agent: Agent,
    envs: VectorEnv[Any, Any, Any],
    episodes: int,
    deterministic: bool = True,
    seed: int | None = None,
    *,
    device: torch.device | str | None = None,
    autoreset_mode: AutoresetMode | str | None = None,
    source: EpisodeSource = "auto",
    channels_first: ChannelsFirst = "auto",
    progress: bool | None = None,
) -> EvaluationResult:
    """Play ``episodes`` whole episodes and say how they went.

    Every env plays the same number of them (the first ones one more where that does not come out
    even), so that short episodes are not preferred. Random states, gradients and a module's
    training mode are as before afterwards; the fleet, which should not be the one that is trained
    on, is reset at the beginning and stays open.

    Args:
        agent: needs ``act(observations, deterministic=True)``, or ``deterministic=False``.
        envs: any ``gymnasium.vector.VectorEnv``.
        episodes: how many in all.
        deterministic: whether to take the agent's best actions instead of sampling.
        seed: of the envs (env ``i`` gets ``seed + i``) and of the sampling.
        device: as for ``Collector``.
        autoreset_mode: as for ``Collector``.
        source: where returns and lengths are learnt from, as ``Collector``'s ``episodes``.
        channels_first: as for ``Collector``.
        progress: whether to show a progress bar; by default on a terminal.

    Raises:
        TypeError: the agent cannot act deterministically.
        ValueError: ``episodes`` is below 1.
    """
    if episodes < 1:
        raise ValueError(f"episodes must be at least 1, got {episodes}")
    player = Player(agent, envs, deterministic, device, autoreset_mode, source, channels_first)
    count = envs.num_envs
    quota = [episodes // count + (env < episodes % count) for env in range(count)]
    played: list[list[Episode]] = [[] for _ in range(count)]
    with (
        untouched(agent, seed),
        standing_still(envs),
        progress_bar(episodes, progress, "Evaluating", "episode") as bar,
    ):
        player.reset(seed)
        while any(len(done) < wanted for done, wanted in zip(played, quota, strict=True)):
            for episode in player.step():
                if len(played[episode.env]) < quota[episode.env]:
                    played[episode.env].append(episode)
                    bar.update(1)
    flat = [episode for each in played for episode in each]
    return EvaluationResult(
        np.array([episode.episode_return for episode in flat]),
        np.array([episode.length for episode in flat], dtype=np.int64),
        EpisodeSummary.of(flat),
    )


class Player:
    """An agent that plays in a fleet without being trained: a step at a time, nothing kept."""

    def __init__(
        self,
        agent: Agent,
        envs: VectorEnv[Any, Any, Any],
        deterministic: bool,
        device: torch.device | str | None = None,
        autoreset_mode: AutoresetMode | str | None = None,
        source: EpisodeSource = "auto",
        channels_first: ChannelsFirst = "auto",
    ) -> None:
        self._best = acting_best(agent) if deterministic else None
        self._sample = acting(agent)
        self._envs = envs
        self.mode = autoreset_mode_of(envs, autoreset_mode)
        self.infos: dict[str, Any] = {}
        """Of the last step."""
        self._form = ObservationFormat(envs.single_observation_space, channels_first)
        self._port = ActionPort(envs.single_action_space)
        self._meter = EpisodeMeter(envs, source, self.mode)
        self._is_checked = False
        self._device = device_of(agent, device)
        self._was_done = np.zeros(envs.num_envs, dtype=np.bool_)

    @property
    def returns(self) -> NDArray[np.float64]:
        """The returns of the running episodes so far."""
        return self._meter.running_returns

    def reset(self, seed: int | None = None) -> None:
        """Begin new episodes everywhere."""
        self._observations, _ = self._envs.reset(seed=seed)
        self._was_done[:] = False
        self._meter.restart()

    def step(self) -> list[Episode]:
        """Let the agent act once in every env; the episodes that ended.

        Envs that do not reset themselves are reset by the next step, so that the end can be seen.
        """
        if self.mode == AutoresetMode.DISABLED and self._was_done.any():
            self._observations, _ = self._envs.reset(options={"reset_mask": self._was_done})
        seen = tree_map(lambda leaf: leaf.to(self._device), self._form.tensors(self._observations))
        actions = self._best(seen) if self._best is not None else self._sample(seen)[0]
        if not self._is_checked:
            check_actions(actions, self._envs.num_envs, self._port, self._device)
            self._is_checked = True
        answer = self._envs.step(self._port.to_env(actions))
        self._observations, rewards, terminated, truncated, infos = answer
        self.infos = infos
        done = np.logical_or(terminated, truncated)
        valid = ~self._was_done if self.mode == AutoresetMode.NEXT_STEP else np.ones_like(done)
        if "worker_restarted" in infos:
            valid &= ~np.asarray(infos["worker_restarted"], dtype=np.bool_)
        reports = self._meter.reports(0, infos)
        episodes = self._meter.observe(rewards[None], done[None], valid[None], reports)
        self._was_done = done
        return [episode for _, episode in episodes]


class _NoBar:
    """Where nothing is to be shown."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, count: int) -> None:
        """So many more."""


def progress_bar(total: int | None, wanted: bool | None, title: str, unit: str) -> Any:
    """A progress bar, where one is wanted (by default on a terminal) and tqdm is installed."""
    if sys.stderr.isatty() if wanted is None else wanted:
        try:
            from tqdm import tqdm  # noqa: PLC0415 - an extra
        except ImportError:
            return _NoBar()
        # Without the thread that tqdm keeps to redraw bars that stand still.
        quiet = type("Bar", (tqdm,), {"monitor_interval": 0})
        return quiet(total=total, desc=title, unit=unit)
    return _NoBar()
