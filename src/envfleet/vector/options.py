"""The engines' options, checked and resolved in one place before anything starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.error import CustomSpaceError
from gymnasium.vector import AutoresetMode

from envfleet.engine.cores import usable_cores
from envfleet.engine.infos.keeping import WHICH
from envfleet.engine.infos.listing import FORMATS
from envfleet.engine.restart.budget import RestartBudget
from envfleet.engine.rules.spaces import Structure
from envfleet.engine.worker.hooks import EnvHost
from envfleet.vector.spaces import ObservationMode


@dataclass(frozen=True, kw_only=True)
class FleetOptions:
    """The options of every engine."""

    copy: bool
    observation_mode: ObservationMode
    autoreset_mode: AutoresetMode
    infos: str
    info_format: str
    worker: type[EnvHost] | None

    def __post_init__(self) -> None:
        _check_word("infos", self.infos, WHICH)
        check_info_format(self.info_format)
        if self.worker is not None and not (
            isinstance(self.worker, type) and issubclass(self.worker, EnvHost)
        ):
            raise TypeError(
                f"`worker` must be a subclass of envfleet.EnvHost, got {self.worker!r}. A function "
                "as AsyncVectorEnv takes cannot run here, because a worker owns several envs: "
                "override make_env, reset_env or close_env of EnvHost instead."
            )


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """The options of engines with workers; ``workers`` is how many shards there will be."""

    workers: int
    on_failure: str
    budget: RestartBudget
    step_timeout: float | None
    worker_threads: int | None

    def __post_init__(self) -> None:
        _check_word("on_failure", self.on_failure, ("raise", "restart"))
        if self.step_timeout is not None and not self.step_timeout > 0:
            raise ValueError(f"`step_timeout` must be above 0 or None, got {self.step_timeout!r}")
        threads = self.worker_threads
        if threads is not None and (not isinstance(threads, (int, np.integer)) or threads < 1):
            raise ValueError(
                f"`worker_threads` must be a positive integer or None, got {threads!r}"
            )


@dataclass(frozen=True, kw_only=True)
class ProcessOptions(WorkerOptions):
    """The options of the process engine alone."""

    shared_memory: bool
    """Whether observations lie in shared memory, as far as they can."""
    refuses_custom_spaces: bool
    caller_steps: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.caller_steps and (self.on_failure == "restart" or self.step_timeout is not None):
            raise ValueError(
                "`caller_steps` runs envs in this process, which can be neither restarted nor "
                "timed out: leave out on_failure='restart' and step_timeout, or caller_steps"
            )


def check_info_format(info_format: Any) -> None:
    """Refuse a format of infos that there is not.

    Raises:
        ValueError: it names those that there are.
    """
    _check_word("info_format", info_format, FORMATS)


def _check_word(name: str, word: Any, words: tuple[str, ...]) -> None:
    if word not in words:
        known = " or ".join([", ".join(map(repr, words[:-1])), repr(words[-1])])
        raise ValueError(f"`{name}` must be {known}, got {word!r}")


def number_of_workers(workers: Any, max_concurrency: Any, num_envs: int) -> int:
    """How many workers to start; the texts about ``max_concurrency`` are Gymnasium's."""
    if max_concurrency is not None:
        if not isinstance(max_concurrency, (int, np.integer)):
            raise ValueError(
                f"`max_concurrency` must be an integer or None, got {type(max_concurrency)}."
            )
        if max_concurrency < 1:
            raise ValueError(
                f"`max_concurrency` must be a positive or None, got {max_concurrency}."
            )
    if workers is None:
        workers = usable_cores()
    elif not isinstance(workers, (int, np.integer)) or workers < 1:
        raise ValueError(f"`workers` must be a positive integer or None, got {workers!r}.")
    bounds = [int(workers), num_envs]
    return min(bounds if max_concurrency is None else [*bounds, int(max_concurrency)])


def check_shared_memory(shared_memory: Any) -> Any:
    """Refuse a word that is not "auto": it would count as True."""
    if isinstance(shared_memory, str) and shared_memory != "auto":
        raise ValueError(f"`shared_memory` must be True, False or 'auto', got {shared_memory!r}")
    return shared_memory


def refuse_custom_spaces(observations: Structure) -> None:
    """Refuse what cannot lie in shared memory, where it was asked that everything does.

    Raises:
        ValueError: as in Gymnasium; it names the leaf and its space.
    """
    for leaf in observations.loose:
        if leaf.custom:
            text = f"observation{leaf.path} has the custom space {type(leaf.space).__name__}"
            raise ValueError(
                f"shared_memory=True: {text}, which has no fixed place in memory. Pass "
                "shared_memory='auto' to send it by pipe and the rest in shared memory (make() "
                "does), or shared_memory=False to send everything by pipe."
            ) from CustomSpaceError(f"{text}: {leaf.space!r}")
