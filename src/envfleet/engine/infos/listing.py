"""The infos of a fleet as one dict per env: ``info_format="list"``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from envfleet.engine.infos.packing import Block, Entry, unpack_infos

FORMATS = ("columns", "list")


def list_infos(
    entries: Iterable[Entry], blocks: Iterable[Block], num_envs: int
) -> list[dict[str, Any]]:
    """One dict per env with the env's own values, empty where it told nothing.

    Later blocks add to what earlier ones and the entries say of an env. The dicts are the caller's;
    the envs' own are not changed.
    """
    listed: list[dict[str, Any]] = [{} for _ in range(num_envs)]
    for env, info in entries:
        listed[env].update(info)
    for env, info in unpack_infos(list(blocks)):
        if listed[env]:
            listed[env].update(info)
        else:
            listed[env] = info  # unpacked just now, so nobody else's
    return listed
