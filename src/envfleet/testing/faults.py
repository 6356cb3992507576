"""FaultEnv: an env that counts its calls into its observation and fails where it is told to.

    FaultEnv({"step": Fault("sigkill", at=3)})     # kills its worker in its third step

Whoever holds a fleet of these can tell from any observation whether it is new, old or invented.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

PHASES = ("construct", "reset", "step", "call", "render", "close")
"""Where a fault may be planned."""


@dataclass(frozen=True)
class Fault:
    """One planned fault: what happens, and at which call of its phase."""

    kind: str
    """A key of ``FAULTS``."""
    at: int = 1
    once: str | None = None
    """A file: where it exists the fault does not fire, and firing creates it. So a fault can be
    planned that does not come again in an env that was rebuilt."""

    def __post_init__(self) -> None:
        if self.kind not in FAULTS:
            raise ValueError(f"unknown fault {self.kind!r}, known are {', '.join(FAULTS)}")

    def fire(self) -> None:
        """Fail, if this fault has not fired before."""
        if self.once is not None:
            try:
                Path(self.once).touch(exist_ok=False)  # of several envs at the same time, one fires
            except FileExistsError:
                return
        FAULTS[self.kind]()


class FaultEnv(gymnasium.Env[NDArray[np.int64], np.int64]):
    """Counts its calls into its observation, and fails as planned.

    An observation is (resets, steps in this episode, steps in all), as far as this instance knows.

    Args:
        plan: a fault per phase; a phase without one works.
        length: steps until an episode terminates.
        tag: any value, for ``get_attr`` and ``set_attr``.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - Gymnasium's form
    observation_space = spaces.Box(0, 2**62, (3,), np.int64)
    action_space = spaces.Discrete(2)

    def __init__(
        self, plan: Mapping[str, Fault] | None = None, length: int = 10**9, tag: Any = None
    ) -> None:
        self.plan = dict(plan or {})
        if unknown := sorted(self.plan.keys() - set(PHASES)):
            raise ValueError(f"unknown phases {unknown}, known are {', '.join(PHASES)}")
        self.length = length
        self.tag = tag
        self.render_mode = "rgb_array"
        self.calls = dict.fromkeys(PHASES, 0)
        self.episode_steps = 0
        self._maybe("construct")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.int64], dict[str, Any]]:
        """Start an episode, or fail."""
        super().reset(seed=seed, options=options)
        self._maybe("reset")
        self.episode_steps = 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.int64], float, bool, bool, dict[str, Any]]:
        """Count a step, or fail."""
        self._maybe("step")
        self.episode_steps += 1
        ended = self.episode_steps >= self.length
        return self._observe(), float(action), ended, False, {}

    def ping(self) -> int:
        """The pid of the process that the env lives in, or fail (phase "call")."""
        self._maybe("call")
        return os.getpid()

    def render(self) -> NDArray[np.uint8]:
        """A frame in the colour of the step count, or fail."""
        self._maybe("render")
        return np.full((8, 8, 3), self.episode_steps % 256, dtype=np.uint8)

    def close(self) -> None:
        """Do nothing, or fail."""
        self._maybe("close")

    def _observe(self) -> NDArray[np.int64]:
        return np.array([self.calls["reset"], self.episode_steps, self.calls["step"]])

    def _maybe(self, phase: str) -> None:
        self.calls[phase] += 1
        fault = self.plan.get(phase)
        if fault is not None and fault.at == self.calls[phase]:
            fault.fire()


class TwoArguments(Exception):  # noqa: N818 - a specimen, not an error of ours
    """Cannot be rebuilt from its args."""

    def __init__(self, left: str, right: str) -> None:
        super().__init__(f"{left} and {right}")


class Unreducible(Exception):  # noqa: N818
    """Cannot be pickled."""

    def __reduce__(self) -> str:
        raise TypeError("this exception does not pickle")


def _raiser(error: Callable[[], BaseException]) -> Callable[[], None]:
    def fire() -> None:
        raise error()

    return fire


def _signal(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def _hang() -> None:
    time.sleep(3600)


def _hang_stubbornly() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _hang()


def _segfault() -> None:
    faulthandler._sigsegv()  # type: ignore[attr-defined] # noqa: SLF001 - a real one


FAULTS: dict[str, Callable[[], None]] = {
    "raise": _raiser(lambda: ValueError("planned")),
    "raise-key-error": _raiser(lambda: KeyError("planned", 7)),
    "raise-empty": _raiser(RuntimeError),
    "raise-two-arguments": _raiser(lambda: TwoArguments("one", "two")),
    "raise-unreducible": _raiser(lambda: Unreducible("planned")),
    "raise-huge": _raiser(lambda: RuntimeError("x" * 50_000_000)),
    "raise-system-exit": _raiser(lambda: SystemExit(3)),
    "raise-stop-iteration": _raiser(StopIteration),
    "raise-keyboard-interrupt": _raiser(KeyboardInterrupt),
    "exit": lambda: os._exit(3),
    "sigkill": _signal(signal.SIGKILL),
    "sigsegv": _segfault,
    "sigbus": _signal(signal.SIGBUS),
    "sigterm": _signal(signal.SIGTERM),
    "sigstop": _signal(signal.SIGSTOP),
    "hang": _hang,
    "hang-stubbornly": _hang_stubbornly,
}
"""Every kind of fault, by name: what happens in the env's process when it fires."""
