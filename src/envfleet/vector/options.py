"""The process engine's options: what is refused before anything starts."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.error import CustomSpaceError

from envfleet.engine.pool.cores import usable_cores
from envfleet.engine.rules.spaces import Structure
from envfleet.engine.worker.host import EnvHost


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


def check_host_class(worker: Any) -> None:
    """Refuse what is not a kind of host."""
    if worker is not None and not (isinstance(worker, type) and issubclass(worker, EnvHost)):
        raise TypeError(
            f"`worker` must be a subclass of envfleet.EnvHost, got {worker!r}. A function as "
            "AsyncVectorEnv takes cannot run here, because a worker owns several envs: override "
            "make_env, reset_env or close_env of EnvHost instead."
        )


def check_failure_options(
    on_failure: Any, step_timeout: float | None, *, caller_steps: bool
) -> None:
    """Refuse what is unknown, and what cannot hold for envs in the calling process."""
    if on_failure not in ("raise", "restart"):
        raise ValueError(f"`on_failure` must be 'raise' or 'restart', got {on_failure!r}")
    if step_timeout is not None and not step_timeout > 0:
        raise ValueError(f"`step_timeout` must be above 0 or None, got {step_timeout!r}")
    if caller_steps and (on_failure == "restart" or step_timeout is not None):
        raise ValueError(
            "`caller_steps` runs envs in this process, which can be neither restarted nor "
            "timed out: leave out on_failure='restart' and step_timeout, or caller_steps"
        )


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


def check_threads(worker_threads: Any) -> None:
    """Refuse what is no number of threads; None leaves them alone."""
    if worker_threads is not None and (
        not isinstance(worker_threads, (int, np.integer)) or worker_threads < 1
    ):
        raise ValueError(
            f"`worker_threads` must be a positive integer or None, got {worker_threads!r}"
        )
