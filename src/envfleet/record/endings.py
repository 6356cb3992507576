"""FinalFrames: one recording's say in which last frames a fleet keeps; others have theirs."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from envfleet.errors import WorkerDied
from envfleet.record.frames import Frame, as_frame


class _Kept:
    """What the recordings of one fleet want, and what the fleet was told last."""

    def __init__(self) -> None:
        self.wanted: WeakKeyDictionary[FinalFrames, frozenset[int]] = WeakKeyDictionary()
        self.told: frozenset[int] = frozenset()


_KEPT: WeakKeyDictionary[Any, _Kept] = WeakKeyDictionary()


class FinalFrames:
    """Has a fleet keep the frames that same-step autoreset hides, as long as somebody wants them.

    A fleet renders the last frames of all envs that any recording wants, and none once the last
    recording has released them.

    Args:
        engine: a fleet of ours; with None nothing happens.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._has_warned = False
        if engine is not None:
            self._kept = _KEPT.setdefault(engine, _Kept())

    def keep(self, env_ids: Iterable[int]) -> None:
        """Want the last frames of these envs, and no others.

        Raises:
            Exception: what the fleet raises; what is wanted is told with the next change.
        """
        if self._engine is None:
            return
        kept = self._kept
        kept.wanted[self] = frozenset(env_ids)
        union: frozenset[int] = frozenset().union(*kept.wanted.values())
        if union == kept.told:
            return
        try:
            self._engine.keep_final_frames(sorted(union))
        except WorkerDied:  # one that was replaced has been told what was wanted before
            self._engine.keep_final_frames(sorted(union))
        kept.told = union

    def release(self) -> None:
        """Want none any more; a fleet that cannot be told is closed, broken, or told later."""
        if self._engine is not None and not self._engine.closed:
            with contextlib.suppress(Exception):
                self.keep(())

    def of(self, env: int, infos: Mapping[str, Any]) -> Frame | None:
        """The frame that an env's episode ended with, from a step's infos; None if it was not kept.

        Warns, the first time, of a ``render`` that raised.

        Raises:
            ValueError: the env rendered something else than an image.
        """
        if "final_frame" in infos and infos["_final_frame"][env]:
            return as_frame(infos["final_frame"][env])
        if "final_frame_error" in infos and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"the video of env {env} lacks its last frame: render() raised "
                f"{infos['final_frame_error'][env]} (told once; the steps are not affected)",
                stacklevel=2,
            )
        return None
