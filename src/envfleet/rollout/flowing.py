"""Rollouts of a fleet whose envs step while the agent acts for others, env by env.

Every env has a row of its own to fill next, and contributes as many rows as every other. None is
outstanding when a rollout is complete.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet.rollout.engine import restarted
from envfleet.rollout.masks import ActionMasks
from envfleet.rollout.memory import Buffers
from envfleet.rollout.nested import ObservationFormat, Tree, tree_map
from envfleet.rollout.statistics import Episode, EpisodeMeter

Ids = NDArray[np.intp]
Place = tuple[Any, Any]
"""Of some envs in the buffers: their rows, or the one of all, and their columns."""
Ask = Callable[[Place, int], NDArray[Any]]
"""Asks the agent for so many envs, keeps its answer at that place, and returns actions."""


class PartialFleet(Protocol):
    """What of a fleet is used here: ``SerialVectorEnv`` and ``ProcessVectorEnv`` have it."""

    num_envs: int

    @property
    def outstanding(self) -> Ids:
        """The envs that were sent and not received."""

    def send(self, actions: Any, env_ids: Any = None) -> None:
        """Have envs step."""

    def send_reset(self, env_ids: Any = None) -> None:
        """Have envs reset."""

    def recv(self, min_envs: int | None = None, *, env_ids: Any = None) -> Any:
        """Envs that are ready."""

    def reset(self, *, env_ids: Any) -> tuple[Any, Any]:
        """Reset envs."""


def check_flowing(
    envs: Any, *, overlap: bool | int, min_envs: int | None, recorder: object | None
) -> int | None:
    """In how many groups envs flow, by the options of a collector; None if they step as one.

    0 is in no groups: whoever is ready.

    Raises:
        TypeError: the fleet has no partial batches.
        ValueError: the options do not go together, or not with these envs.
    """
    groups = 2 if overlap is True else int(overlap)
    if not groups and min_envs is None:
        return None
    asked = f"overlap={overlap}" if groups else f"min_envs={min_envs}"
    if groups and min_envs is not None:
        raise ValueError(f"{asked} asks for groups of envs: leave out min_envs={min_envs}.")
    if not (hasattr(envs, "send") and hasattr(envs, "recv")):
        raise TypeError(
            f"{asked} needs a fleet with send() and recv(), which {type(envs).__name__} has not: "
            "take one of envfleet.make's, without Gymnasium's wrappers around it."
        )
    if recorder is not None:
        raise ValueError(
            f"{asked} and a recorder do not go together: it records between steps of the whole "
            "fleet. Record in an evaluation (record_agent), or collect step by step."
        )
    if groups and not 2 <= groups <= envs.num_envs:
        raise ValueError(
            f"{asked} needs {max(groups, 2)} envs or more, in 2 groups or more, and there are "
            f"{envs.num_envs}: one group steps while the agent acts for another."
        )
    if min_envs is not None and not 1 <= min_envs <= envs.num_envs:
        raise ValueError(f"min_envs must be between 1 and {envs.num_envs}, got {min_envs}")
    return groups


def drain(envs: PartialFleet) -> None:
    """Receive, and forget, whatever a rollout that was broken off has left outstanding."""
    while len(envs.outstanding):
        try:
            envs.recv()
        except Exception:  # noqa: BLE001, S112 - whoever failed is not outstanding any more
            continue


class FlowingRows:
    """Fills buffers once.

    Args:
        envs: the fleet; none of its envs is outstanding.
        buffers: to be filled; row 0 of the observations is there.
        form: of the observations.
        mode: what happens at the ends of episodes.
        meter: knows what envs report of episodes.
        masks: reads their action masks, if they send any.
    """

    def __init__(
        self,
        envs: PartialFleet,
        buffers: Buffers,
        form: ObservationFormat,
        mode: AutoresetMode,
        meter: EpisodeMeter,
        masks: ActionMasks | None = None,
    ) -> None:
        self._envs = envs
        self._buffers = buffers
        self._form = form
        self._mode = mode
        self._meter = meter
        self._masks = masks
        self._allowed: Any = None if masks is None else np.asarray(buffers.action_masks)
        self._steps = len(buffers.rows)
        self._observations = tree_map(torch.Tensor.numpy, buffers.observations)
        self._flags = [
            flags.numpy() for flags in (buffers.terminated, buffers.truncated, buffers.valid)
        ]
        self._finals: list[tuple[int, int, Tree]] = []
        self.reports: list[tuple[int, Episode]] = []
        self.infos: dict[str, Any] = {}
        """What steps have told, the last value by key."""
        self.asking = 0.0
        """Seconds that the agent took."""

    def finals(self) -> list[Tree]:
        """What episodes ended with, ordered by step and env, as one batch; empty if none did."""
        ordered = [final for *_, final in sorted(self._finals, key=lambda entry: entry[:2])]
        return [self._form.stack(ordered)] if ordered else []

    def in_groups(self, ask: Ask, count: int) -> None:
        """Act for one group of envs while the others step; always the same groups."""
        # Every other env: neighbours share a worker, which then has some of all groups.
        groups = [
            (np.arange(first, self._envs.num_envs, count), slice(first, None, count))
            for first in range(count)
        ]
        for ids, columns in groups:
            self._send(ask, (0, columns), ids)
        for t in range(self._steps):
            for ids, columns in groups:
                batch = self._envs.recv(env_ids=ids)
                observations = batch.observations
                ended = self._keep((t, columns), np.full(len(ids), t), ids, batch)
                self._read_masks((t + 1, columns), ids, batch, ended)
                if len(ended) and self._mode == AutoresetMode.DISABLED:
                    fresh, infos = self._envs.reset(env_ids=ids[ended])
                    self._read_fresh_masks((t + 1, ids[ended]), infos)
                    observations = tree_map(np.copy, observations)
                    tree_map(lambda leaf, new, k=ended: _put(leaf, k, new), observations, fresh)
                self._form.write(self._at((t + 1, columns)), observations)
                if t + 1 < self._steps:
                    self._send(ask, (t + 1, columns), ids)

    def as_ready(self, ask: Ask, least: int) -> None:
        """Act for whoever is ready, ``least`` envs or more at a time."""
        count = self._envs.num_envs
        following = np.zeros(count, dtype=np.intp)
        """Per env the row that its next step fills."""
        resetting = np.zeros(count, dtype=np.bool_)
        outstanding = count
        self._send(ask, (0, slice(None)), np.arange(count))
        while outstanding:
            batch = self._envs.recv(min(least, outstanding))
            ids = batch.env_ids
            stepped = np.flatnonzero(~resetting[ids])
            waits = np.zeros(len(ids), dtype=np.bool_)
            ended = stepped[:0]
            if len(stepped):
                rows = following[ids]
                ended = self._keep((rows[stepped], ids[stepped]), rows, ids, batch, stepped)
                following[ids[stepped]] += 1
                if self._mode == AutoresetMode.DISABLED:
                    waits[ended] = True
            resetting[ids] = waits
            self._write((following[ids], ids), batch.observations)
            self._read_masks((following[ids], ids), ids, batch, ended)
            if waits.any():
                self._envs.send_reset(ids[waits])
            going = ids[~waits & (following[ids] < self._steps)]
            outstanding += int(np.count_nonzero(waits)) + len(going) - len(ids)
            if len(going):
                self._send(ask, (following[going], going), going)

    def _send(self, ask: Ask, place: Place, ids: Ids) -> None:
        begin = time.perf_counter()
        actions = ask(place, len(ids))
        self.asking += time.perf_counter() - begin
        self._envs.send(actions, ids)

    def _keep(
        self, place: Place, rows: Ids, ids: Ids, batch: Any, which: Ids | slice = slice(None)
    ) -> Ids:
        """Keep a batch, but for its observations; returns which of its envs have ended."""
        infos = batch.infos
        if not isinstance(infos, dict):
            raise TypeError(
                f"infos of a step are a dict, got a {type(infos).__name__}: build the fleet with "
                "info_format='columns'."
            )
        self.infos.update(infos)
        terminated, truncated, valid = self._flags
        self._buffers.rewards[place] = batch.rewards[which]
        terminated[place] = batch.terminations[which]
        truncated[place] = batch.truncations[which]
        ended = batch.terminations | batch.truncations
        cut = restarted(infos, ended)
        if cut.any():
            valid[rows[cut], ids[cut]] = False
        if infos and self._meter.source == "info":
            for _, episode in self._meter.reports(0, infos):
                k = episode.env
                self.reports.append((int(rows[k]), episode._replace(env=int(ids[k]))))
        if self._mode != AutoresetMode.NEXT_STEP:
            for k in np.flatnonzero(ended & ~cut).tolist():
                if self._mode == AutoresetMode.SAME_STEP:
                    final = infos["final_obs"][k]
                else:
                    final = tree_map(lambda leaf, k=k: leaf[k], batch.observations)
                self._finals.append((int(rows[k]), int(ids[k]), final))
        return np.flatnonzero(ended)

    def _read_masks(self, place: Place, ids: Ids, batch: Any, ended: Ids) -> None:
        """Keep what a batch allows next; ``ended`` are those of its envs that have."""
        if self._masks is None:
            return
        rows = np.ones((len(ids), self._masks.width), dtype=np.bool_)
        over = np.zeros(len(ids), dtype=np.bool_)
        over[ended] = True
        self._masks.after_step(rows, batch.infos, over, self._mode, ids)
        self._allowed[place] = rows

    def _read_fresh_masks(self, place: Place, infos: Any) -> None:
        if self._masks is not None:
            rows = np.ones((len(place[1]), self._masks.width), dtype=np.bool_)
            self._masks.read(rows, infos, when="reset", ids=place[1])
            self._allowed[place] = rows

    def _at(self, place: Place) -> Tree:
        return tree_map(lambda leaf: leaf[place], self._observations)

    def _write(self, place: Place, observations: Tree) -> None:
        """Write observations to scattered rows."""
        arranged = tree_map(torch.Tensor.numpy, self._form.allocate(len(place[1])))
        self._form.write(arranged, observations)
        tree_map(lambda leaf, values: _put(leaf, place, values), self._observations, arranged)


def _put(leaf: NDArray[Any], place: Any, values: NDArray[Any]) -> None:
    leaf[place] = values
