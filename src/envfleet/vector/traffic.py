"""Traffic: how envs flow through ``send`` and ``recv``, counted."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class FlowCounts(NamedTuple):
    """What was received in a span of time; means are NaN where there was nothing.

    A ``step`` or ``reset`` of some envs (``env_ids``) is a ``send`` and a ``recv``; those of the
    whole fleet do not count.
    """

    batches: int
    mean_batch: float
    """Envs per batch."""
    partial: float
    """The share of batches that left an env outstanding."""
    ready_to_received: float
    """Seconds that an env waited from its answer to ``recv``, on average: what a larger
    ``min_envs`` costs."""
    received_to_sent: float
    """Seconds from ``recv`` to the next ``send``, on average: the policy's share. Envs that moved
    with the whole fleet in between, or were not received, do not count."""
    env_steps: NDArray[np.int64]
    """Answers received, per env; resets included."""

    def __str__(self) -> str:
        return (
            f"{self.batches} batches of {self.mean_batch:.1f} envs, {self.partial:.0%} partial; "
            f"{1e3 * self.ready_to_received:.2f} ms from ready to received, "
            f"{1e3 * self.received_to_sent:.2f} ms to sent on"
        )


class Traffic:
    """Counts batches, and how long envs wait on either side."""

    def __init__(self, num_envs: int) -> None:
        self._received_at = np.full(num_envs, np.nan)
        self._clear()

    def _clear(self) -> None:
        self._batches = self._partial = self._sent = 0
        self._steps = np.zeros(len(self._received_at), dtype=np.int64)
        self._waited = self._held = 0.0

    def sent(self, ids: NDArray[np.intp]) -> None:
        """These envs were sent."""
        now, received = time.perf_counter(), self._received_at[ids]
        total = float(np.add.reduce(received))
        if total != total:  # noqa: PLR0124 - NaN: there is nothing it follows on
            received = received[~np.isnan(received)]
            total = float(np.add.reduce(received))
        self._held += now * len(received) - total
        self._sent += len(received)

    def received(self, ids: NDArray[np.intp], ready: NDArray[np.float64], outstanding: int) -> None:
        """These of so many outstanding envs were received in one batch.

        ``ready`` has, for each env of the fleet, since when it was.
        """
        now = time.perf_counter()
        self._batches += 1
        self._partial += len(ids) < outstanding
        self._waited += now * len(ids) - float(np.add.reduce(ready[ids]))
        self._steps[ids] += 1
        self._received_at[ids] = now

    def forget(self, ids: NDArray[np.intp] | None = None) -> None:
        """What these envs, or all, are sent next does not follow on what was received last."""
        self._received_at[... if ids is None else ids] = np.nan

    def take(self) -> FlowCounts:
        """What was counted; begins anew."""
        steps = int(self._steps.sum())
        counts = FlowCounts(
            self._batches,
            _mean(steps, self._batches),
            _mean(self._partial, self._batches),
            _mean(self._waited, steps),
            _mean(self._held, self._sent),
            self._steps,
        )
        self._clear()
        return counts


def _mean(total: float, count: int) -> float:
    return total / count if count else float("nan")
