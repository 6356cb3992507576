"""Finished episodes: who has finished, a ring of the last ones over the whole fleet, a CSV file."""

from __future__ import annotations

import csv
import math
import warnings
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

EpisodeSource = Literal["own", "info", "auto"]


class Episode(NamedTuple):
    """One that has ended."""

    env: int
    episode_return: float
    length: int


@dataclass(frozen=True, slots=True)
class Spread:
    """How a quantity of several episodes is spread; all NaN where there are none."""

    mean: float
    p5: float
    p50: float
    p95: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of these values."""
        if not len(values):
            return cls(*[math.nan] * 5)
        array = np.asarray(values, dtype=np.float64)
        low, median, high = np.percentile(array, [5.0, 50.0, 95.0])
        return cls(float(array.mean()), float(low), float(median), float(high), float(array.max()))


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    """Some finished episodes: how many, and the spread of their returns and lengths."""

    n: int
    returns: Spread
    lengths: Spread

    @classmethod
    def of(cls, episodes: Sequence[Episode]) -> EpisodeSummary:
        """The summary of these episodes."""
        return cls(
            len(episodes),
            Spread.of([episode.episode_return for episode in episodes]),
            Spread.of([episode.length for episode in episodes]),
        )

    def flat(self, prefix: str = "") -> dict[str, float]:
        """The numbers under one name each: ``n``, ``return_mean``, ``length_p95`` and so on."""
        named = {f"{prefix}n": float(self.n)}
        for name, spread in (("return", self.returns), ("length", self.lengths)):
            named |= {f"{prefix}{name}_{key}": value for key, value in asdict(spread).items()}
        return named


class EpisodeStatistics:
    """The last finished episodes of the whole fleet, in the order in which they finished."""

    def __init__(self, window: int = 100) -> None:
        if window < 1:
            raise ValueError(f"window must be at least 1, got {window}")
        self._ring: deque[Episode] = deque(maxlen=window)
        self._current: list[Episode] = []
        self.count = 0
        """How many have finished so far."""
        self.best_return = math.nan
        """The highest return so far, also of episodes that have left the window."""

    def begin_rollout(self) -> None:
        """Count anew for ``rollout``."""
        self._current = []

    def add(self, episodes: Iterable[Episode]) -> None:
        """Take up episodes that have finished."""
        for episode in episodes:
            self._ring.append(episode)
            self._current.append(episode)
            self.count += 1
            self.best_return = float(np.fmax(self.best_return, episode.episode_return))

    @property
    def episodes(self) -> list[Episode]:
        """Those of the window, the latest last."""
        return list(self._ring)

    @property
    def window(self) -> EpisodeSummary:
        """The summary of the window."""
        return EpisodeSummary.of(self.episodes)

    @property
    def rollout(self) -> EpisodeSummary:
        """The summary of what finished in the current or last rollout."""
        return EpisodeSummary.of(self._current)

    def state_dict(self) -> dict[str, Any]:
        """The window and the totals, for a checkpoint."""
        episodes = [list(episode) for episode in self._ring]
        return {"episodes": episodes, "count": self.count, "best_return": self.best_return}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with a state of ``state_dict``."""
        self._ring.clear()
        self._ring.extend(Episode(*episode) for episode in state["episodes"])
        self.count = int(state["count"])
        self.best_return = float(state["best_return"])

    @property
    def rollout_episodes(self) -> list[Episode]:
        """The episodes that finished in the current or last rollout."""
        return list(self._current)


SILENT_ENDS = 50
"""Ends of episodes without any report after which an env is no longer believed to report."""


class EpisodeMeter:
    """Finds finished episodes in what ``step`` returns, under every autoreset mode.

    ``own`` sums up rewards and counts steps here. ``info`` takes the envs' own report, the info
    ``episode`` of Gymnasium's RecordEpisodeStatistics, which may know better: an end without a
    report, such as a lost life, is none. ``auto`` is ``info`` if the envs have such a report.
    """

    def __init__(
        self, envs: VectorEnv[Any, Any, Any], source: EpisodeSource, mode: AutoresetMode
    ) -> None:
        if source not in ("own", "info", "auto"):
            raise ValueError(f"episodes must be 'own', 'info' or 'auto', got {source!r}")
        self.source: EpisodeSource = source
        if source == "auto":
            self.source = "info" if reports_episodes(envs, mode) else "own"
        self.running_returns = np.zeros(envs.num_envs)
        """Per env the rewards of its running episode so far, summed up here."""
        self._lengths = np.zeros(envs.num_envs, dtype=np.int64)
        self._silent = np.zeros(envs.num_envs, dtype=np.int64)

    def restart(self, which: NDArray[np.bool_] | None = None) -> None:
        """All envs, or some, begin a new episode."""
        self.running_returns[... if which is None else which] = 0.0
        self._lengths[... if which is None else which] = 0

    def reports(self, t: int, infos: dict[str, Any]) -> list[tuple[int, Episode]]:
        """What the infos of step ``t`` report, to be given to ``observe``.

        To be asked at once: some wrappers change what they have reported at the next reset.
        """
        return [(t, episode) for episode in _reported(infos)] if self.source == "info" else []

    def observe(
        self,
        rewards: NDArray[Any],
        done: NDArray[np.bool_],
        valid: NDArray[np.bool_],
        reports: Sequence[tuple[int, Episode]],
    ) -> list[tuple[int, Episode]]:
        """The episodes that ended in some steps, each with its step, in their order.

        Args:
            rewards: (T, N).
            done: which rows end an episode.
            valid: which rows belong to one. What is done but not valid was cut off by a restart,
                and is dropped.
            reports: what ``reports`` has found in these steps.
        """
        earned = np.where(valid, rewards, 0.0)
        found: list[tuple[int, Episode]] = []
        begun: dict[int, int] = {}  # the row in which an env's running episode begins
        for t, env in np.argwhere(done).tolist():
            first = begun.get(env, 0)
            begun[env] = t + 1
            total = float(self.running_returns[env] + earned[first : t + 1, env].sum())
            count = int(self._lengths[env]) + int(np.count_nonzero(valid[first : t + 1, env]))
            self.running_returns[env], self._lengths[env] = 0.0, 0
            if valid[t, env]:
                found.append((t, Episode(env, total, count)))
        for env, first in begun.items():
            earned[:first, env] = 0.0
        self.running_returns += earned.sum(axis=0)
        rows = np.arange(len(valid))[:, None]
        starts = np.array([begun.get(env, 0) for env in range(valid.shape[1])])
        self._lengths += np.count_nonzero(valid & (rows >= starts), axis=0)
        if self.source != "info":
            return found
        # A row that ends nothing may be a reset's: an env tells there of what ended within it.
        told = [(t, e) for t, e in reports if valid[t, e.env] or not done[t, e.env]]
        self._listen(found, told)
        return told

    def _listen(
        self, ends: Sequence[tuple[int, Episode]], told: Sequence[tuple[int, Episode]]
    ) -> None:
        """Stop waiting for reports of envs that never give any."""
        for _, episode in ends:
            self._silent[episode.env] += 1
        for _, episode in told:
            self._silent[episode.env] = -(10**9)
        if self._silent.max() >= SILENT_ENDS:
            self.source = "own"
            warnings.warn(
                f"an env has ended {SILENT_ENDS} episodes and reported none in "
                "info['episode'] (a wrapper that ends episodes may be outside of "
                "RecordEpisodeStatistics): from now on rewards are summed up here, "
                "as with episodes='own'.",
                stacklevel=2,
            )


def _reported(infos: dict[str, Any]) -> list[Episode]:
    """What the envs report of episodes that ended; under same-step autoreset in ``final_info``.

    There the infos themselves are the resets', which may report an episode that ended within them.
    """
    found: dict[int, Episode] = {}
    for source in (infos, infos.get("final_info")):
        if not isinstance(source, dict) or "episode" not in source:
            continue
        report, mask = source["episode"], source.get("_episode")
        returns, lengths = np.asarray(report["r"]), np.asarray(report["l"])
        envs = np.arange(len(returns)) if mask is None else np.flatnonzero(mask)
        for env in envs.tolist():
            found[env] = Episode(env, float(returns[env]), int(lengths[env]))
    return list(found.values())


def reports_episodes(envs: VectorEnv[Any, Any, Any], mode: AutoresetMode) -> bool:
    """Whether infos tell of finished episodes: a vector wrapper's, or every env's own.

    Gymnasium's vector wrapper loses count under masked resets, which it may not be told of.
    """
    wrapper: Any = envs
    while wrapper is not None:
        if hasattr(wrapper, "return_queue"):
            return mode != AutoresetMode.DISABLED
        wrapper = getattr(wrapper, "env", None)
    if getattr(envs, "infos", "all") == "none":
        return False
    try:
        return all(cast("Any", envs).call("has_wrapper_attr", "return_queue"))
    except Exception:  # noqa: BLE001 - an engine without single envs has nobody to ask
        return False


class EpisodeFile:
    """Every finished episode as a row of a CSV file, written at once."""

    def __init__(self, path: Path | str) -> None:
        """Append to this file; it gets its head if it is new."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", newline="")
        self._rows = csv.writer(self._file)
        if self._file.tell() == 0:
            self._rows.writerow(["total_steps", "env", "return", "length"])

    def add(self, episodes: Iterable[tuple[int, Episode]]) -> None:
        """Write episodes, each with the number of steps the fleet had made when it ended."""
        for total_steps, episode in episodes:
            row = [total_steps, episode.env, repr(episode.episode_return), episode.length]
            self._rows.writerow(row)
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
