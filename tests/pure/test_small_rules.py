from __future__ import annotations

import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nested import PROPERTY

from envfleet.engine.cores import _cpu_quota, usable_cores
from envfleet.engine.process.starting import split_envs
from envfleet.engine.rules.waits import BUSY_SHARE, is_waiting

pytestmark = pytest.mark.pure


def test_envs_wait_if_they_use_little_cpu_and_give_it_up_freely():
    def verdict(cpu, switches):
        return is_waiting(wall=2.0, cpu=cpu, switches=switches, steps=100)

    assert verdict(cpu=0.01, switches=100)
    assert verdict(cpu=0.01, switches=50)
    assert not verdict(cpu=0.01, switches=49)
    assert verdict(cpu=BUSY_SHARE * 2 - 0.01, switches=100)
    assert not verdict(cpu=BUSY_SHARE * 2, switches=100)
    assert not verdict(cpu=2.0, switches=100)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, math.inf),
        ({"cpu.max": "max 100000\n"}, math.inf),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "50000 100000\n"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, math.inf),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "0\n"}, math.inf),
        ({"cpu/cpu.cfs_quota_us": "400000\n"}, math.inf),
        (
            {
                "cpu.max": "200000 100000\n",
                "cpu/cpu.cfs_quota_us": "400000\n",
                "cpu/cpu.cfs_period_us": "100000\n",
            },
            2,
        ),
        (
            {
                "cpu.max": "\n",
                "cpu/cpu.cfs_quota_us": "300000\n",
                "cpu/cpu.cfs_period_us": "100000\n",
            },
            3,
        ),
    ],
)
def test_the_cpu_quota_is_read_from_either_version_of_cgroups(tmp_path, files, cores):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert _cpu_quota(tmp_path) == cores


def test_usable_cores_are_at_least_one_and_no_more_than_the_affinity_allows():
    allowed = os.sched_getaffinity(0)
    assert 1 <= usable_cores() <= len(allowed)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


@PROPERTY
@given(st.integers(1, 200), st.data())
def test_shards_cover_the_envs_in_order_evenly_and_the_larger_ones_come_first(num_envs, data):
    workers = data.draw(st.integers(1, num_envs))
    shards = split_envs(num_envs, workers)
    sizes = [len(shard) for shard in shards]
    assert len(shards) == workers
    assert [env for shard in shards for env in shard] == list(range(num_envs))
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)
    assert min(sizes) >= 1
