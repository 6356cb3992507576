"""A hold on Ray: joined or started for the first that needs it, given back after the last.

A Ray that this program had joined before is used and left as it is.
"""

from __future__ import annotations

import logging
import threading
import warnings
from typing import Any

_lock = threading.Lock()
_holds = 0
_ours: str | None = None
"""The session that the first hold has begun by ``ray.init``; the last one ends it, and no other."""


def import_ray(who: str) -> Any:
    """The ray module.

    Raises:
        ImportError: it is not installed; the text names the extra.
    """
    try:
        import ray  # noqa: PLC0415 - takes half a second, and may be missing
    except ImportError as error:
        raise ImportError(f"{who} needs Ray: pip install 'envfleet[ray]'.") from error
    return ray


class RaySession:
    """Keeps this program connected to Ray until ``close``.

    Args:
        who: needs it, for messages.
        address: of a cluster; None is the one this program has joined, else what ``ray.init()``
            finds (``RAY_ADDRESS``, a cluster on this machine), else a new one on this machine.
            "local" starts a new one, "auto" refuses to.

    Raises:
        ImportError: Ray is not installed.
        ValueError: this program has joined another cluster.
        ConnectionError: there is no cluster at the address.
    """

    def __init__(self, who: str, address: str | None = None) -> None:
        global _holds, _ours  # noqa: PLW0603 - a program has one Ray
        ray = import_ray(who)
        if address is not None and address.startswith("ray://"):
            warnings.warn(
                f"{address} is a Ray Client address: every message takes a detour through a proxy "
                "that manages some hundred calls a second, for the whole fleet. Run the program on "
                "a node of the cluster and pass that node's own address, or address='auto'.",
                stacklevel=4,
            )
        with _lock:
            if ray.is_initialized():
                _refuse_another(ray, address)
            else:
                ray.init(address=address, logging_level=logging.WARNING)
                _ours = _session_of(ray)
            _holds += 1
            self._joined = _session_of(ray)
        self._ray = ray
        self._is_closed = False

    @property
    def is_connected(self) -> bool:
        """Whether the same Ray can still be asked; the program may have shut it down."""
        if self._is_closed or not self._ray.is_initialized():
            return False
        return _session_of(self._ray) == self._joined

    def close(self) -> None:
        """Give the hold back; once."""
        global _holds, _ours  # noqa: PLW0603 - same
        with _lock:
            if self._is_closed:
                return
            is_connected, self._is_closed = self.is_connected, True
            _holds -= 1
            if _holds == 0 and _ours is not None:
                # The program may have shut it down, and begun another one, by itself.
                if is_connected and self._joined == _ours:
                    self._ray.shutdown()
                _ours = None


def _session_of(ray: Any) -> str:
    """What tells this program's connection from an earlier or later one."""
    if ray.util.client.ray.is_connected():
        return "client"  # which asks the cluster for each of these
    context = ray.get_runtime_context()
    return f"{context.gcs_address} {context.get_job_id()}"


def _refuse_another(ray: Any, address: str | None) -> None:
    if address in (None, "auto") or ray.util.client.ray.is_connected():
        return
    joined = ray.get_runtime_context().gcs_address
    if address != joined:
        raise ValueError(
            f"this program has joined the Ray cluster at {joined} and cannot join {address!r} as "
            "well: leave out address=, or call ray.shutdown() first."
        )
