"""Finds out, over the first steps, whether envs wait (sleep, talk to a server) or compute."""

from __future__ import annotations

import resource
import time

from envfleet.engine.rules.waits import is_waiting
from envfleet.engine.scheduler import turns_of

WARM_UP = 0.1
"""Seconds of stepping that are not counted: libraries start, and spin, in threads of their own."""
ENOUGH = 0.2
"""Seconds of stepping after which the verdict falls."""
ENOUGH_STEPS = 1000
"""Steps of the shard after which it falls anyway: an env that waits for so short is no matter."""


def usage() -> tuple[float, float, int]:
    """Seconds passed, seconds computed and times the core was given up, by this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return time.perf_counter(), used.ru_utime + used.ru_stime, used.ru_nvcsw


def run_delay() -> float | None:
    """Seconds in which this process could have run but others had the cores, so far.

    Its main thread's; None where the system does not tell: elsewhere than on Linux.
    """
    turns = turns_of("self")
    return None if turns is None else turns.waited


class WaitMeter:
    """Measures ``step`` of a shard until there is enough to tell, then never again."""

    def __init__(self, shard_size: int) -> None:
        # Alone in its worker an env may wait as long as it likes.
        self.measuring = shard_size > 1
        self._wall = self._cpu = 0.0
        self._warm_up = 0.0
        self._switches = self._steps = self._calls = 0
        self._shard_size = shard_size
        self._started = (0.0, 0.0, 0)
        self._delayed: float | None = None

    def start(self) -> None:
        """Call before a step."""
        self._started = usage()

    def stop(self) -> bool:
        """Call after a step; True once, when the envs turned out to wait."""
        wall, cpu, switches = (b - a for a, b in zip(self._started, usage(), strict=True))
        self._calls += 1
        if self._calls > ENOUGH_STEPS:
            self.measuring = False
            return False
        if self._warm_up < WARM_UP:
            self._warm_up += wall
            if self._warm_up >= WARM_UP:
                self._delayed = run_delay()
            return False
        self._wall += wall
        self._cpu += cpu
        self._switches += int(switches)
        self._steps += self._shard_size
        if self._wall < ENOUGH:
            return False
        self.measuring = False
        late = run_delay()
        # Some of it between the steps, which makes the verdict only more careful.
        delay = 0.0 if late is None or self._delayed is None else late - self._delayed
        return is_waiting(self._wall - delay, self._cpu, self._switches, self._steps)
