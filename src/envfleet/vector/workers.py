"""WorkerFleet: what fleets have in common whose envs live elsewhere: restarts, and their end."""

from __future__ import annotations

import time
import warnings
from typing import Generic

from gymnasium.core import ActType, ObsType

from envfleet.engine.restart.history import History
from envfleet.engine.restart.mending import Mender
from envfleet.engine.restart.replacing import Replacement
from envfleet.vector.fleet import Fleet
from envfleet.vector.options import WorkerOptions
from envfleet.vector.spaces import Refusals


class WorkerFleet(Fleet[ObsType, ActType], Generic[ObsType, ActType]):
    """A fleet in workers: processes of this machine, or actors of a cluster."""

    isolates = True
    workers: int
    """How many workers share the envs."""
    _has_warned = False
    _refusals = Refusals(
        not_same=(
            "AsyncVectorEnv(..., observation_mode='same') however some of the sub-environments "
            "observation spaces are not equivalent. If this is intentional, use "
            "`observation_mode='different'` instead."
        ),
        not_alike=(
            "AsyncVectorEnv(..., observation_mode='different' or custom space) however the "
            "sub-environment's observation spaces do not share a common shape and dtype."
        ),
        other_action=(
            "Some environments have an action space different from `{single}`. In order to batch "
            "actions, the action spaces from all environments must be equal."
        ),
    )

    def _allow_restarts(self, options: WorkerOptions, begun: float, *, piped: bool) -> None:
        """Replace from now on what fails, if that is wanted.

        Args:
            options: say whether, and how often.
            begun: when the fleet began to start, by ``time.monotonic``.
            piped: whether observations travel by wire.
        """
        if options.on_failure != "restart":
            return
        history = History(self.num_envs, piped=piped)
        history.follow(self._results.views, self._results.loose)
        # A start that takes so much longer than the first one hangs.
        patience = 60.0 + 10 * (time.monotonic() - begun)
        replacement = Replacement(
            self._pool, options.budget, history, options.step_timeout, patience
        )
        self._call.mender = Mender(self._pool, replacement)

    @property
    def restart_count(self) -> int:
        """How many workers and envs have been replaced so far."""
        return 0 if self._call.mender is None else self._call.mender.count

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Stop the workers: each is asked to close its envs, then told to end, then ended.

        Args:
            timeout: seconds for a pending call and ``env.close()`` together; None means 30.
            terminate: do not ask, and do not close the envs.
        """
        self._close_shards(timeout, terminate=terminate)

    def _warn_waiting(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"the envs spend most of a step waiting, not computing, and {self.num_envs} envs "
                f"share {self.workers} workers: each waits for its neighbours too. With "
                f"workers=num_envs (workers={self.num_envs}) they wait at the same time.",
                stacklevel=4,
            )
