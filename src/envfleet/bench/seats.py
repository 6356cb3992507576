"""Seat: something that is measured, in a process of its own, asked by pipe within a deadline."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from envfleet.bench.memory import family_memory

PATIENCE = 60.0
"""Seconds for one question; who takes longer hangs."""
START_PATIENCE = 180.0
"""Seconds for starting: some engines import torch in every worker."""


class Closable(Protocol):
    """What sits in a seat; questions are calls of its methods."""

    def close(self) -> None:
        """Let go of everything."""


class Started(NamedTuple):
    """What is told of a start."""

    seconds: float
    memory: int | None
    """Bytes of the process and all that it has started; see ``family_memory``."""
    plan: str


class Seat:
    """A process that builds something and is then asked about it.

    Args:
        build: builds it, in that process; it and all answers are pickled on their way.
    """

    def __init__(self, build: Callable[[], Closable]) -> None:
        context = multiprocessing.get_context("spawn")
        self.problem = ""
        """Why there are no more answers; empty while there are."""
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_sit, args=(theirs, build))
        self._process.start()
        theirs.close()
        self.started: Started | None = self._answer(START_PATIENCE)

    def ask(self, method: str, *arguments: Any, patience: float = PATIENCE) -> Any:
        """What a method returns; None, and a ``problem``, if it raises, dies or hangs."""
        if self.problem:
            return None
        # What ended in between is found out by reading: there may be a last word.
        with contextlib.suppress(OSError):
            self._pipe.send((method, arguments))
        return self._answer(patience)

    def _answer(self, patience: float) -> Any:
        if not self._pipe.poll(patience):
            self.problem = f"hung for {patience:.0f} s"
            return None
        try:
            answer = self._pipe.recv()
        except (EOFError, OSError):
            self.problem = "its process ended"
            return None
        if isinstance(answer, Exception):
            self.problem = f"{type(answer).__name__}: {answer}"[:200]
            return None
        return answer

    def close(self) -> None:
        """Let it close what it has built, and end it with all that it has started."""
        with contextlib.suppress(OSError):
            self._pipe.send(None)
            self._process.join(10)
        if self._process.is_alive() and self._process.pid is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.join()
        self._pipe.close()


def _sit(pipe: Any, build: Callable[[], Any]) -> None:
    """The life in a seat's process."""
    os.setpgid(0, 0)
    # As in a program of its own: a spawned process would have its children spawned too.
    multiprocessing.set_start_method(None, force=True)
    built = None
    try:
        start = time.perf_counter()
        built = build()
        seconds = time.perf_counter() - start
        pipe.send(Started(seconds, family_memory(os.getpid()), getattr(built, "plan", "")))
        while (question := pipe.recv()) is not None:
            method, arguments = question
            pipe.send(getattr(built, method)(*arguments))
    except (EOFError, BrokenPipeError):
        pass  # the benchmark was interrupted
    except Exception as error:  # noqa: BLE001 - told in its row
        with contextlib.suppress(OSError):
            try:
                pipe.send(error)
            except Exception:  # noqa: BLE001 - it does not pickle
                pipe.send(RuntimeError(f"{type(error).__name__}: {error}"))
    finally:
        if built is not None:
            built.close()
