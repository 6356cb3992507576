"""What a run borrows from its process and gives back: signals, threads, random generators."""

from __future__ import annotations

import contextlib
import random
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, Self

import numpy as np
import threadpoolctl
import torch

from envfleet.rollout.progress import in_notebook


class GentleSignals:
    """Ctrl-C and SIGTERM are noted; the second one ends the program, the third one by force.

    The second one is raised, so that nothing is left behind: as KeyboardInterrupt, which nobody
    takes for an error of an env, and beyond this context as SystemExit if it was SIGTERM. If it
    gets lost on its way, as in a ``__del__``, the third one is handled as if we were not here.

    In a notebook, whose kernel has handlers of its own, and outside the main thread nothing is
    taken over (``is_in_charge`` is False): an interrupt is a KeyboardInterrupt at once.
    """

    came: int | None = None
    _last: int | None = None

    def __init__(self) -> None:
        # Known from here on, for an interrupt may come before there is a handler.
        in_main_thread = threading.current_thread() is threading.main_thread()
        self.is_in_charge = in_main_thread and not in_notebook()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if self.is_in_charge:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.came is None:
            self.came = number
            return
        self._let_go()
        self._last = number
        raise KeyboardInterrupt

    def _let_go(self) -> None:
        for number, handler in self._before.items():
            if handler is not None:  # None was set by other code than Python's
                signal.signal(number, handler)

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._let_go()
        if isinstance(error, KeyboardInterrupt) and self._last == signal.SIGTERM:
            sys.exit(128 + signal.SIGTERM)


@contextlib.contextmanager
def kept_generators() -> Iterator[None]:
    """Give the caller its ``random`` and ``np.random`` back as they were."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002 - envs may use it
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


@contextlib.contextmanager
def one_thread() -> Iterator[int]:
    """Small networks are fastest with one, and the other cores are the workers'.

    Gives how many threads torch would have used.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpoolctl.threadpool_limits(1, user_api="blas"):
            yield threads
    finally:
        torch.set_num_threads(threads)


class TorchRandomness:
    """The states of torch's generators, as a part of a checkpoint."""

    def __init__(self, device: torch.device) -> None:
        self._has_gpus = device.type == "cuda"

    def state_dict(self) -> dict[str, Any]:
        """Of the CPU's generator, and of the GPUs' where one is used."""
        gpus = torch.cuda.get_rng_state_all() if self._has_gpus else []
        return {"cpu": torch.get_rng_state(), "gpus": gpus}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the numbers that would have come next."""
        torch.set_rng_state(state["cpu"])
        if self._has_gpus:
            torch.cuda.set_rng_state_all(state["gpus"])
