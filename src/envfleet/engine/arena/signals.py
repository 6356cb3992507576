"""Signals: the numbers that caller and worker show each other in shared memory, without the kernel.

Each side writes the number of its last message, shifted by one; the lowest bit says that the
message itself is on the wire. Whoever finds nothing new for a while says that it sleeps and waits
on the wire; the other side, seeing that, sends something there to wake it.

Plain stores and loads are enough only where stores become visible in order (x86): there a number is
never seen before the rows that it announces. Between saying "I sleep" and looking once more, and
between announcing and looking whether the other side sleeps, a full barrier is needed also on x86;
taking a free lock is one (an atomic exchange, 50 ns from Python).
"""

from __future__ import annotations

import platform
import threading
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

CAN_SPIN = platform.machine().lower() in ("x86_64", "amd64")
"""Whether this processor keeps stores in order; elsewhere everything goes over the wire."""

LINE = 8
"""Words per cache line; every signal has a line of its own."""
WORDS = 6 * LINE
"""Words per worker."""
_POSTED, _ANSWERED, _WORKER_SLEEPS, _TAKEN = 0, LINE, 2 * LINE, 3 * LINE
_TOLD = _ANSWERED + 1
_ASKS, _REPORTED = 4 * LINE, 5 * LINE
_ASKS_ON_WIRE, _MESSAGES = _ASKS + 1, _REPORTED + 1
_SLEEPS, _TARGET, _HELD_UP = 0, 1, 2  # in the caller's row

# What an answer says that is on no wire; plain numbers, for combining flags of an enum takes 1 us.
INFOS_ON_BOARD = 1
EPISODE_ENDED = 2

_barrier = threading.Lock()


class Sleep(IntEnum):
    """Whether the caller sleeps, and when it wants to be woken."""

    NOT = 0
    FOR_ANY = 1
    FOR_ALL = 2
    FOR_SOME = 3
    """When envs have reported themselves so many times, over all workers."""


class Signals:
    """What the caller and one worker show each other; both sides hold one of these."""

    def __init__(self, words: NDArray[np.uint64], worker: int) -> None:
        """Use row ``worker + 1`` of the arena's words; row 0 is the caller's, for all workers."""
        self._words = memoryview(words[worker + 1])
        self._caller = memoryview(words[0])
        self._everybody = [memoryview(row) for row in words[1:]]

    def post(self, number: int, *, on_wire: bool) -> bool:
        """Announce a command; True if the worker sleeps and must be woken by wire."""
        self._words[_POSTED] = number << 1 | on_wire
        with _barrier:
            pass
        return bool(self._words[_WORKER_SLEEPS])

    def posted(self) -> int:
        """The last announced command: number and lowest bit."""
        return self._words[_POSTED]

    def take(self, number: int) -> None:
        """The worker begins to obey a command."""
        self._words[_TAKEN] = number

    def taken(self) -> int:
        """The last command that the worker has begun to obey."""
        return self._words[_TAKEN]

    def worker_sleeps(self, sleeps: bool) -> None:
        """The worker is about to wait on the wire, and must look once more; or has woken up."""
        self._words[_WORKER_SLEEPS] = sleeps
        with _barrier:
            pass

    def answer(self, number: int, *, on_wire: bool, told: int = 0) -> bool:
        """Announce an answer; True if the caller sleeps and must be woken by wire.

        ``told`` is what it says, in flags, where it is not on the wire.

        A caller that waits for all is woken by the last worker only: of several that finish at the
        same time, at least one sees that all have.
        """
        self._words[_TOLD] = told
        self._words[_ANSWERED] = number << 1 | on_wire
        with _barrier:
            pass
        sleeps = self._caller[_SLEEPS]
        if sleeps != Sleep.FOR_ALL:
            return sleeps == Sleep.FOR_ANY
        return all(words[_POSTED] >> 1 == words[_ANSWERED] >> 1 for words in self._everybody)

    def answered(self) -> int:
        """The last announced answer: number and lowest bit."""
        return self._words[_ANSWERED]

    def told(self) -> int:
        """What the last announced answer says, in flags."""
        return self._words[_TOLD]

    # Envs that are asked, and report themselves, one by one

    def ask(self, on_wire: int) -> bool:
        """Announce that envs are asked; True if the worker sleeps and must be woken by wire.

        ``on_wire`` is how many asks there have been on the wire.
        """
        self._words[_ASKS_ON_WIRE] = on_wire
        self._words[_ASKS] += 1
        with _barrier:
            pass
        return bool(self._words[_WORKER_SLEEPS])

    def asks(self) -> int:
        """How often envs were asked."""
        return self._words[_ASKS]

    def asks_on_wire(self) -> int:
        """How many of these asks are on the wire."""
        return self._words[_ASKS_ON_WIRE]

    def report(self, envs: int, messages: int) -> bool:
        """Announce that envs have reported; True if the caller sleeps and must be woken by wire.

        ``messages`` is how many of their reports there have been on the wire. A caller that waits
        for so many envs is woken when there are so many: of workers that report at the same time,
        at least one sees that.
        """
        self._words[_MESSAGES] = messages
        self._words[_REPORTED] += envs
        with _barrier:
            pass
        sleeps = self._caller[_SLEEPS]
        if sleeps == Sleep.FOR_SOME:
            return self.reported() >= self._caller[_TARGET]
        return sleeps == Sleep.FOR_ANY

    def reported(self) -> int:
        """How often envs have reported themselves, over all workers."""
        return sum([words[_REPORTED] for words in self._everybody])

    def messages(self) -> int:
        """How many messages of this worker's envs there have been on the wire."""
        return self._words[_MESSAGES]

    def caller_sleeps_until(self, reported: int) -> None:
        """The caller is about to wait for so many reports, and must look once more."""
        self._caller[_TARGET] = reported
        self.caller_sleeps(Sleep.FOR_SOME)

    def caller_sleeps(self, sleeps: Sleep) -> None:
        """The caller is about to wait, and must look once more; or has woken up."""
        self._caller[_SLEEPS] = sleeps
        with _barrier:
            pass

    def tell_held_up(self, held_up: bool) -> None:
        """The caller says whether others keep the fleet from its cores."""
        self._caller[_HELD_UP] = held_up

    def is_held_up(self) -> bool:
        """What the caller has said of that last."""
        return bool(self._caller[_HELD_UP])
