"""Rays of the suite's own: one of two CPUs, or several nodes on this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from waiting import gone, wait_until


@contextlib.contextmanager
def local_cluster(cpus: int = 2) -> Iterator[None]:
    """A Ray of one node."""
    import ray  # noqa: PLC0415 - only few tests need it, and it takes half a second

    with _own_folder() as folder, _nothing_left(ray.shutdown):
        ray.init(
            address="local",
            num_cpus=cpus,
            include_dashboard=False,
            object_store_memory=200_000_000,
            log_to_driver=False,
            logging_level="error",
            _temp_dir=folder,
        )
        yield


@contextlib.contextmanager
def several_nodes(cpus: tuple[int, ...]) -> Iterator[Any]:
    """A cluster of nodes on this machine; the first is the head, and this program's own.

    A node that is lost is noticed after about a second and a half.
    """
    import ray  # noqa: PLC0415 - same
    from ray.cluster_utils import Cluster  # noqa: PLC0415

    health = {
        "health_check_period_ms": 500,
        "health_check_failure_threshold": 3,
        "health_check_timeout_ms": 1000,
        "health_check_initial_delay_ms": 500,
    }
    cluster = Cluster()

    def end() -> None:
        ray.shutdown()
        for node in [*cluster.worker_nodes, cluster.head_node]:
            if node is not None:
                cluster.remove_node(node)

    with _own_folder() as folder, _nothing_left(end):
        words: dict[str, Any] = {
            "object_store_memory": 100_000_000,
            "include_dashboard": False,
            "temp_dir": folder,
        }
        cluster.add_node(num_cpus=cpus[0], _system_config=health, **words)
        for count in cpus[1:]:
            cluster.add_node(num_cpus=count, **words)
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        yield cluster


@contextlib.contextmanager
def _own_folder() -> Iterator[str]:
    """A folder for a Ray, away from those of others; its workers find what tests share."""
    folder = tempfile.mkdtemp(prefix="ef", dir="/tmp")  # short: names of sockets have a limit
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Where a cluster of several nodes writes its address for every ray.init() of the machine.
        patch.setenv("RAY_TMPDIR", folder)
        (Path(folder) / "ray").mkdir()
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _nothing_left(end: Callable[[], None]) -> Iterator[None]:
    """End a Ray, and see to it that nothing runs that it has started."""
    before = _descendants()
    try:
        yield
    finally:
        started = _descendants() - before
        end()
        wait_until(lambda: gone(started), 30)


def _descendants() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def stored_bytes() -> float:
    """What the object store holds, as the cluster has last been told."""
    import ray  # noqa: PLC0415 - same

    whole, free = ray.cluster_resources(), ray.available_resources()
    return float(whole["object_store_memory"] - free.get("object_store_memory", 0))
