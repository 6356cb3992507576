"""How many cores this process may really use."""

from __future__ import annotations

import math
import os
from pathlib import Path


def usable_cores() -> int:
    """Cores by affinity and by the container's CPU quota, whichever is less; at least 1."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        cores = os.cpu_count() or 1
    return max(1, math.ceil(min(cores, _cpu_quota(Path("/sys/fs/cgroup")))))


def _cpu_quota(root: Path) -> float:
    """The cgroup's quota in cores (version 2, then 1); infinite if there is none."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (root / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return math.inf
    if not quota.isdecimal() or int(period) <= 0:  # "max" and -1 mean no limit
        return math.inf
    return int(quota) / int(period)
