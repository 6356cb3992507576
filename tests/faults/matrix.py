"""The fault matrix: which fault in which phase under which start method."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from envfleet.testing import PHASES

SAME_TYPE = {"raise": ValueError, "raise-key-error": KeyError, "raise-empty": RuntimeError}
TOLD_AS_TEXT = {
    "raise-two-arguments": "TwoArguments",
    "raise-unreducible": "Unreducible",
    "raise-huge": "RuntimeError",
    "raise-system-exit": "SystemExit",
    "raise-stop-iteration": "StopIteration",
    "raise-keyboard-interrupt": "KeyboardInterrupt",
}
DEATHS = {
    "exit": "exited with code 3",
    "sigkill": "SIGKILL",
    "sigsegv": "SIGSEGV",
    "sigbus": "SIGBUS",
    "sigterm": "SIGTERM",
}
HANGS = ("hang", "hang-stubbornly", "sigstop")
VICTIMS = ("first", "middle", "last")


@dataclass(frozen=True)
class Cell:
    """One run: the fault, where it fires, how workers start, and who is hit."""

    kind: str
    phase: str
    context: str
    victim: str
    shard: int
    through_make: bool
    quick: bool

    @property
    def id(self) -> str:
        door = "make" if self.through_make else "class"
        return f"{self.kind}/{self.phase}/{self.context}/{self.victim}/{self.shard}/{door}"


def _pairs() -> Iterator[tuple[str, str]]:
    for kind in (*SAME_TYPE, *TOLD_AS_TEXT, *DEATHS):
        for phase in PHASES:
            yield kind, phase
    yield from ((kind, "idle") for kind in ("sigkill", "sigsegv", "sigterm"))
    # A constructor that hangs is waited for, as any slow one; there is no time-out to hit.
    yield from ((kind, phase) for kind in HANGS for phase in PHASES if phase != "construct")


def _cells() -> Iterator[Cell]:
    number = 0
    seen: set[str] = set()
    for kind, phase in _pairs():
        contexts = ["fork"]
        if kind not in seen and phase in ("step", "idle"):
            seen.add(kind)
            contexts += ["forkserver", "spawn"]
        for context in contexts:
            for through_make in (False, True):
                # Victims and shard sizes take turns, at different paces.
                victim = VICTIMS[number % 3]
                shard = (1, 3)[number % 2]
                quick = context == "fork" and number % 2 == 0
                yield Cell(kind, phase, context, victim, shard, through_make, quick)
                number += 1
            number += 1


def _serial_cells() -> Iterator[Cell]:
    """The serial engine: what makes sense without processes. Ctrl-C is the user's there."""
    for number, kind in enumerate((*SAME_TYPE, *TOLD_AS_TEXT)):
        if kind != "raise-keyboard-interrupt":
            for phase in PHASES:
                door = bool(number % 2)
                yield Cell(kind, phase, "serial", VICTIMS[number % 3], 3, door, quick=True)


def _caller_cells() -> Iterator[Cell]:
    """A worker beside a caller that steps a share itself; its own envs are the serial case."""
    for kind, phase in _pairs():
        yield Cell(kind, phase, "caller", "first", 3, through_make=False, quick=phase == "step")


CELLS = (*_cells(), *_serial_cells(), *_caller_cells())
