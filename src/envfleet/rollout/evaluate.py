"""Evaluate an agent: whole episodes, the same number from every env, without side effects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from envfleet.rollout.agent import AnyAgent, standing_still, untouched
from envfleet.rollout.masks import AUTO_KEY
from envfleet.rollout.nested import ChannelsFirst
from envfleet.rollout.numbers import three_digits
from envfleet.rollout.player import Player
from envfleet.rollout.progress import progress_bar
from envfleet.rollout.statistics import Episode, EpisodeSource, EpisodeSummary


@dataclass(frozen=True)
class EvaluationResult:
    """The episodes of an evaluation, ordered by env and, for each env, by time."""

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
            f"{three_digits(self.mean)} +- {three_digits(self.std)} over {len(self.returns)} "
            f"episodes (median {three_digits(self.percentiles[1])}, mean length "
            f"{three_digits(float(self.lengths.mean()))})"
        )


def evaluate(
    agent: AnyAgent,
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
    mask_key: str | None = AUTO_KEY,
) -> EvaluationResult:
    """Play ``episodes`` whole episodes and return their returns and lengths.

    Every env plays the same number of episodes (the first envs one more if the number cannot be
    divided evenly), so that short episodes are not over-represented. Random states, gradients and
    a module's training mode are restored afterwards. The fleet, which should not be the one used
    for training, is reset at the beginning and stays open.

    Args:
        agent: needs ``act(observations, deterministic=True)``, or ``deterministic=False``.
        envs: any ``gymnasium.vector.VectorEnv``.
        episodes: total number of episodes.
        deterministic: whether to take the agent's best actions instead of sampling.
        seed: seed of the envs (env ``i`` gets ``seed + i``) and of the sampling.
        device: as for ``Collector``.
        autoreset_mode: as for ``Collector``.
        source: where returns and lengths come from, as ``Collector``'s ``episodes``.
        channels_first: as for ``Collector``.
        progress: whether to show a progress bar; by default on a terminal.
        mask_key: as for ``Collector``.

    Raises:
        TypeError: the agent cannot act deterministically.
        ValueError: ``episodes`` is below 1.
    """
    if episodes < 1:
        raise ValueError(f"episodes must be at least 1, got {episodes}")
    player = Player(
        agent,
        envs,
        deterministic,
        device,
        autoreset_mode,
        source,
        channels_first,
        mask_key=mask_key,
    )
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
