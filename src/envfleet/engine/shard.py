"""Shard: some envs of a fleet, wherever they live; the one seam between fleets and places.

``LocalShard`` has its envs in this process, ``WorkerShard`` in another one, ``RayShard`` in a Ray
actor. A fleet is a list of shards; what it does with them (``Pool``) is the same for every kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container
from contextlib import AbstractContextManager
from typing import Any, Protocol

from envfleet.engine.arena.arena import Arena
from envfleet.engine.arrivals import Arrivals
from envfleet.engine.messages import Ask, Command, Outcome
from envfleet.errors import WorkerDied


class Shard(ABC):
    """Obeys one command at a time, and answers it with one outcome.

    The first answer is owed from the beginning: that the envs are built. After that ``post`` has a
    command obeyed, and ``outcome`` is None until its answer has come. Posting again before that is
    allowed once the answer was given up (``abandon``): the shard drops it when it comes, and no
    answer is ever taken for that to another command.

    Beside that its envs may be asked one by one (``ask``), whatever command there is; each reports
    itself (``Arrivals``) when it is done, and a command is obeyed between two such turns.

    Methods that talk to another process raise ``WorkerDied`` where it is gone.
    """

    index: int
    """Its place in the fleet's list of shards."""
    env_ids: range
    """Its envs, by their index in the fleet."""
    outcome: Outcome | None = None
    """The answer to the last command, once it has come."""
    place: str = ""
    """Where the envs are, for notes on exceptions; empty in this process."""
    has_work: bool = False
    """Whether the command has to be obeyed here, by ``work``."""
    descriptor: int | None = None
    """Becomes readable when the shard has something to say; None if it never waits for anybody."""

    # Asking

    @abstractmethod
    def prepare(self, command: Command) -> Any:
        """What ``post`` needs beside the command; all that can be wrong with it is raised here."""

    @abstractmethod
    def post(self, command: Command, prepared: Any = None) -> None:
        """Have a command obeyed, unless it is over; ``PLAIN_STEP`` need not be prepared."""

    @abstractmethod
    def attach(self, arena: Arena, arrivals: Arrivals) -> None:
        """Post the command to use this arena from now on; reports go to these arrivals."""

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """Whether a ``PLAIN_STEP`` may be posted without being prepared."""

    @property
    def queued(self) -> Command | None:
        """The command that waits for the answer to an earlier one, which was given up."""
        return None

    # Answering

    @property
    @abstractmethod
    def owes_answer(self) -> bool:
        """Whether an answer, wanted or given up, has yet to come."""

    def work(self) -> None:
        """Obey what was posted, if it has to be obeyed here; ``outcome`` is set afterwards."""

    @abstractmethod
    def take(self) -> bool:
        """Whether the answer is here, or none is owed; takes it if that costs no system call."""

    def has_answered(self) -> bool:
        """Whether memory shows that the answer has come; ``progress`` takes it."""
        return False

    def progress(self, *, rung: bool) -> None:
        """Send and receive what is possible without waiting; ``rung`` if the descriptor rang."""

    @property
    def is_sending(self) -> bool:
        """Whether a part of a command waits for the other side to take it."""
        return False

    @property
    def is_stepping(self) -> bool:
        """Whether the command that is being obeyed elsewhere is a step."""
        return False

    @abstractmethod
    def abandon(self) -> None:
        """Give up the answer: nobody waits for it any more."""

    @abstractmethod
    def settle(self) -> None:
        """Find a known state after an exception from a signal handler; the answer is given up."""

    # Envs that are asked one by one, beside commands, and report themselves to the arrivals

    takes_rows: bool = False
    """Whether it sees in the arena which envs are asked, where actions' rows are all there is."""

    @abstractmethod
    def prepare_ask(self, ask: Ask) -> Any:
        """What ``ask`` needs; all that can be wrong with it is raised here."""

    @abstractmethod
    def ask(self, prepared: Any = None) -> None:
        """Have envs take their turn: those of an ask, or those whose rows say so (None).

        To ask the same again, after an interrupt, does no harm.
        """

    @property
    @abstractmethod
    def owes_reports(self) -> bool:
        """Whether an env that was asked has yet to report itself."""

    def has_reports(self) -> bool:
        """Whether memory shows that reports are on the way; ``progress`` takes them."""
        return False

    def reports(self) -> int:
        """A number that grows with every report that has come or can be seen to be coming."""
        return 0

    def take_turn(self, most: int, among: Container[int] | None) -> bool:  # noqa: ARG002
        """Let some of the envs that live here move, if any of them waits for its turn.

        Args:
            most: how many may move.
            among: the envs that may; None is all.
        """
        return False

    def torn_turns(self) -> list[int]:
        """The envs whose turn an interrupt has torn here, each told once."""
        return []

    # Ending

    @property
    def is_over(self) -> bool:
        """Whether nothing more can come from it."""
        return False

    @property
    def is_garbled(self) -> bool:
        """Whether an interrupt has cut something in two that was said, either way."""
        return False

    @property
    def is_deaf(self) -> bool:
        """Whether it has not even taken what it was sent."""
        return False

    def has_ended(self, timeout: float | None = 0.0) -> bool:  # noqa: ARG002
        """Whether what the envs live in has ended, within so many seconds."""
        return False

    def died(self) -> WorkerDied:
        """The error that tells of its end: ``WorkerDied``."""
        raise AssertionError("a shard in this process cannot die")

    def kill(self, reason: str) -> WorkerDied:
        """End it because it does not answer; returns the error that tells why."""
        raise AssertionError(f"a shard in this process cannot be killed: {reason}")

    def terminate(self) -> None:
        """Have the process that the envs live in end; in this one the envs are closed instead."""

    def reap(self) -> None:
        """End it for certain, and collect what is left of it."""

    @abstractmethod
    def release(self) -> None:
        """Let go of the arena and of descriptors; the last thing that is done to a shard."""


class Starter(Protocol):
    """Starts the shards of one fleet, at first and again."""

    count: int
    """How many there are."""
    survives_fork: bool
    """Whether a forked child of this process has shards of its own by being forked."""

    def limits(self) -> AbstractContextManager[None]:
        """What must hold around ``start``, once for any number of them."""

    def start(self, index: int, adopt: Callable[[Shard], None], generation: int = 0) -> None:
        """Start shard ``index``, for the so-many-th time, and hand it over before any interrupt."""
