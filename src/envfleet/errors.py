"""Every error envfleet defines, and how they relate.

EnvfleetError
├── EnvError              an env raised, and its exception could not travel to the caller
├── WorkerDied            a worker process is gone; the fleet is broken from here on
├── FleetBroken           a call on a fleet that lost a worker earlier (``__cause__``: WorkerDied),
│                         or of which an interrupt has cut a message in two
├── NoRoom                a Ray cluster has no room for what was asked (also a RuntimeError)
├── ObservationMismatch   an observation does not fit its space (also a ValueError)
└── WaitTimeout           a ``*_wait(timeout)`` ran out (also both standard TimeoutErrors)

Three words for "not now": *closed* (you called ``close``) and *busy* (a call is pending) are
Gymnasium's own ``ClosedEnvironmentError`` and ``AlreadyPendingCallError``; *broken* is ours.

An env's exception keeps its own type whenever it can: the caller catches what the env raised, with
an ``EnvError`` that holds the worker's traceback as ``__cause__``. Each class pickles: its ``args``
are its constructor's arguments.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Sequence

__all__ = [
    "EnvError",
    "EnvfleetError",
    "FleetBroken",
    "NoRoom",
    "ObservationMismatch",
    "WaitTimeout",
    "WorkerDied",
]


class EnvfleetError(Exception):
    """The base of every error defined here."""


class EnvError(EnvfleetError):
    """An env raised an exception that could not travel, told as text.

    It is also the ``__cause__`` of an exception that could travel; its text then is the place where
    the worker's traceback is found.
    """

    def __init__(self, env: int, phase: str, type_name: str, text: str, traceback: str) -> None:
        super().__init__(env, phase, type_name, text, traceback)
        self.env, self.phase, self.type_name = env, phase, type_name
        self.text, self.traceback = text, traceback

    def __str__(self) -> str:
        told = f"env {self.env} raised {self.type_name} in {self.phase}: {self.text}"
        return f"{told}\n\n{self.traceback}" if self.traceback else told


class WorkerDied(EnvfleetError):  # noqa: N818 - the name says what happened
    """A worker process ended without being asked; only ``close`` is left to do.

    ``node`` is the machine of a Ray cluster that it ran on, empty without Ray.
    """

    def __init__(
        self,
        worker: int,
        pid: int | None,
        envs: Sequence[int],
        exitcode: int | None,
        command: str,
        node: str = "",
    ) -> None:
        super().__init__(worker, pid, envs, exitcode, command, node)
        self.worker, self.pid, self.envs = worker, pid, envs
        self.exitcode, self.command = exitcode, command
        self.node = node

    @property
    def what(self) -> str:
        """What happened, without what to do."""
        when = "while it was idle" if self.command == "idle" else f"during {self.command}"
        where = f" on node {self.node}" if self.node else ""
        return (
            f"worker {self.worker} (pid {self.pid}{where}, envs {name_envs(self.envs)}) "
            f"{name_exit(self.exitcode)} {when}."
        )

    def __str__(self) -> str:
        return (
            f"{self.what} The fleet is broken: close() it. on_failure='restart' replaces workers "
            "that die, within its budget restarts=."
        )


class FleetBroken(EnvfleetError):  # noqa: N818 - one of the three words
    """The fleet lost a worker, or the thread of a message, earlier; ``__cause__`` tells how."""


class NoRoom(EnvfleetError, RuntimeError):  # noqa: N818 - names the state, as WorkerDied
    """A Ray cluster has no room for the actors that were asked for."""


class ObservationMismatch(EnvfleetError, ValueError):  # noqa: N818 - names the state, as WorkerDied
    """An env returned an observation that does not fit its observation space."""

    def __init__(self, env: int, leaf: str, problem: str) -> None:
        super().__init__(env, leaf, problem)
        self.env, self.leaf, self.problem = env, leaf, problem

    def __str__(self) -> str:
        return f"env {self.env}: observation{self.leaf} {self.problem}"


class WaitTimeout(EnvfleetError, multiprocessing.TimeoutError, TimeoutError):  # noqa: N818
    """A wait ran out; the call stays pending and may be waited for again."""


def name_envs(envs: Sequence[int]) -> str:
    """Env indices as people write them: ``3``, ``4-7``, ``0, 2, 5-6``."""
    parts: list[str] = []
    ids = sorted(envs)
    start = 0
    for i, env in enumerate(ids):
        if i + 1 == len(ids) or ids[i + 1] != env + 1:
            parts.append(str(env) if start == i else f"{ids[start]}-{env}")
            start = i + 1
    return ", ".join(parts)


def name_exit(exitcode: int | None) -> str:
    """How a process ended, in words, with the usual suspect where there is one."""
    if exitcode is None:
        return "stopped answering"
    if exitcode >= 0:
        return f"exited with code {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    hint = " (often the out-of-memory killer)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"
