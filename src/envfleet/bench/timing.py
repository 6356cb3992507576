"""Clocks around the envs of a fleet, where they live; for a fleet that is built to be looked at."""

from __future__ import annotations

import pickle
import time
from array import array
from typing import Any, NamedTuple

import gymnasium
from gymnasium.vector import AutoresetMode

from envfleet.engine.infos.board import ROOM
from envfleet.engine.infos.packing import InfoBlock, pack_infos
from envfleet.engine.worker.hooks import EnvFactory, EnvHost


class Times(NamedTuple):
    """What one env has recorded since the fleet was reset: seconds, an entry per fleet step."""

    steps: array[float]
    """0 where the env was only reset."""
    resets: array[float]
    """0 where it was only stepped."""
    infos: InfoSize


class InfoSize(NamedTuple):
    """How the infos of one step travel."""

    size: int | None
    """Bytes, per env; None where they cannot be pickled."""
    pickled: tuple[str, ...]
    """The keys whose values are no numbers."""


class TimedHost(EnvHost):
    """Times ``step`` and ``reset`` of every env; ``call("envfleet_times")`` returns ``Times``."""

    def make_env(self, i: int, env_fn: EnvFactory) -> gymnasium.Env[Any, Any]:
        """Build the env with a clock around it."""
        return _Timed(super().make_env(i, env_fn), self)


class _Timed(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: gymnasium.Env[Any, Any], host: EnvHost) -> None:
        super().__init__(env)
        self._host = host
        self._steps, self._resets = array("d"), array("d")
        self._info: dict[str, Any] = {}

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        start = time.perf_counter()
        answer = self.env.reset(**kwargs)
        passed = time.perf_counter() - start
        if "options" in kwargs:  # the caller's reset, not the end of an episode
            self._steps, self._resets = array("d"), array("d")
        elif self._host.autoreset_mode == AutoresetMode.SAME_STEP:
            self._resets[-1] = passed
        else:
            self._steps.append(0.0)
            self._resets.append(passed)
        return answer

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        start = time.perf_counter()
        answer = self.env.step(action)
        self._steps.append(time.perf_counter() - start)
        self._resets.append(0.0)
        self._info = answer[-1]
        return answer

    def envfleet_times(self) -> Times:
        """What was recorded."""
        return Times(self._steps, self._resets, size_of(self._info))


def size_of(info: dict[str, Any]) -> InfoSize:
    """How an info travels where all envs of a shard have such infos."""
    if not info:
        return InfoSize(0, ())
    (block,) = pack_infos([(0, info)])
    pickled: tuple[str, ...] = ()
    if isinstance(block, InfoBlock):
        pickled = tuple(key for key, column in block.columns.items() if isinstance(column, list))
    elif len(block.keys) <= ROOM:
        return InfoSize(8 * len(block.keys), ())  # in shared memory
    try:
        return InfoSize(len(pickle.dumps(block)), pickled)
    except Exception:  # noqa: BLE001 - envs of the calling process may tell anything
        return InfoSize(None, pickled)
