"""Callbacks: what a run tells its owner while it trains, and how its owner ends it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envfleet.rollout.buffer import Rollout

if TYPE_CHECKING:
    from envfleet.training.trainer import Run


class Callback:
    """Override what you need; any method that returns False ends the run after saving.

    An object that has some of these methods will do as well. What a method raises ends the run,
    too: the last update is saved, and the exception is the caller's.
    """

    def on_rollout(self, run: Run, rollout: Rollout) -> bool | None:
        """A rollout was collected, and the update follows; its tensors are reused afterwards."""

    def on_update(self, run: Run, metrics: dict[str, float]) -> bool | None:
        """The policy was updated; these are the numbers of the row in ``metrics.csv``."""

    def on_checkpoint(self, run: Run, path: Path) -> bool | None:
        """A checkpoint is complete in this folder."""


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
        """Call all that have the method, in their order; whether all want to go on."""
        methods = [getattr(callback, name, None) for callback in self._callbacks]
        answers = [method(*arguments) for method in methods if method is not None]
        return all(answer is not False for answer in answers)


_NAMES = ("on_rollout", "on_update", "on_checkpoint")
