"""The returns and lengths of finished episodes, under the names that a ``SyncVecEnv`` has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from envfleet.rollout.statistics import Episode

KEPT = 10
"""Episodes per env."""
_NAN = np.float32(np.nan)


class EpisodeNames:
    """Numbers of the episodes that finished so far; NaN until one has.

    Args:
        num_envs: how many envs there are.
    """

    def __init__(self, num_envs: int) -> None:
        self.rolling_ep_returns: list[list[float]] = [[] for _ in range(num_envs)]
        """Of each env the returns of its last ten episodes, the latest last."""
        self.rolling_ep_lengths: list[list[int]] = [[] for _ in range(num_envs)]
        """Their lengths."""
        self.max_ep_return: np.floating = _NAN
        """The highest so far."""
        self.mean_ep_return: np.floating = _NAN
        self.lower_ep_return: np.floating = _NAN
        self.median_ep_return: np.floating = _NAN
        self.upper_ep_return: np.floating = _NAN
        self.mean_ep_length: np.floating = _NAN
        self.median_ep_length: np.floating = _NAN

    def _roll(self, episodes: Iterable[Episode]) -> None:
        """Take up episodes that have finished."""
        for env, episode_return, length in episodes:
            for kept, value in (
                (self.rolling_ep_returns[env], episode_return),
                (self.rolling_ep_lengths[env], length),
            ):
                kept.append(value)  # type: ignore[arg-type] # a length is a number too
                del kept[:-KEPT]

    def _summarise(self, window: Sequence[Episode] | None, best_return: float) -> None:
        """Work the numbers out anew, from these episodes or else from the last ten of each env.

        Without any they stay what they were.
        """
        returns, lengths = self.rolling_ep_returns, self.rolling_ep_lengths
        if window is not None:
            returns = [[episode.episode_return for episode in window]]
            lengths = [[episode.length for episode in window]]
        all_returns, all_lengths = np.concatenate(returns), np.concatenate(lengths)
        if not len(all_returns):
            return
        self.max_ep_return = np.float64(best_return)
        self.mean_ep_return = np.mean(all_returns, dtype=np.float32)
        self.lower_ep_return, self.median_ep_return, self.upper_ep_return = np.percentile(
            all_returns, [5.0, 50.0, 95.0]
        )
        self.mean_ep_length = np.mean(all_lengths, dtype=np.float32)
        self.median_ep_length = np.percentile(all_lengths, 50.0)
