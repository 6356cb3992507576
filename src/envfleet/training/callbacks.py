"""Callbacks: called by a run while it trains; they can also end it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from envfleet.rollout.buffer import Rollout

if TYPE_CHECKING:
    from envfleet.training.trainer import Run


class Callback:
    """Override what you need; any method that returns False ends the run after saving.

    Any object that has some of these methods works as well. An exception in a method also ends the
    run: the last update is saved, and the exception is raised to the caller.
    """

    def on_rollout(self, run: Run, rollout: Rollout) -> bool | None:
        """Called after a rollout, before the update; its tensors are reused afterwards."""

    def on_update(self, run: Run, metrics: dict[str, float]) -> bool | None:
        """Called after an update, with the metrics of its row in ``metrics.csv``."""

    def on_checkpoint(self, run: Run, path: Path) -> bool | None:
        """Called when a checkpoint is complete in the folder ``path``."""


class Callbacks:
    """Several callbacks as one."""

    def __init__(self, callbacks: Iterable[Any]) -> None:
        self._callbacks = list(callbacks)
        for callback in self._callbacks:
            if not any(hasattr(callback, name) for name in _NAMES):
                raise TypeError(
                    f"{callback!r} is not a callback: it has none of {', '.join(_NAMES)}."
                )

    def tell(self, name: str, *arguments: Any) -> bool:
        """Call the method on all callbacks that have it, in order; return whether to continue."""
        methods = [getattr(callback, name, None) for callback in self._callbacks]
        answers = [method(*arguments) for method in methods if method is not None]
        return not any(_is_false(answer) for answer in answers)


def _is_false(answer: Any) -> bool:
    """Whether it is False, Python's or NumPy's: comparisons of metrics give either."""
    return isinstance(answer, (bool, np.bool_)) and not answer


_NAMES = ("on_rollout", "on_update", "on_checkpoint")
