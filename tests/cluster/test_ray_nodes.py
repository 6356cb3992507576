"""Three nodes on this machine, one of which is lost: fleets and rollouts go on."""

from __future__ import annotations

import csv
import subprocess
import sys
import time
from functools import partial

import cloudpickle
import numpy as np
import pytest
import ray

import envfleet
from clusters import several_nodes
from fleet_envs import CounterEnv, EchoEnv
from rollout_envs import WeightAgent
from waiting import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.full]


@pytest.fixture(scope="module")
def machine():
    with several_nodes((3, 1, 1)) as cluster:
        yield cluster


@pytest.fixture
def cluster(machine):
    """The cluster, with a new node for each that an earlier test has lost."""
    while len(machine.worker_nodes) < 2:
        machine.add_node(num_cpus=1, object_store_memory=100_000_000)
    machine.wait_for_nodes()
    wait_until(lambda: ray.available_resources().get("CPU") == 5.0, 60)
    return machine


def lose_one(cluster, nodes):
    """End the node of one of these actors, never the head, as a power cut does."""
    here = ray.get_runtime_context().get_node_id()[:8]
    index = next(i for i, node in enumerate(nodes) if here not in node)
    (lost,) = (node for node in cluster.worker_nodes if node.node_id[:8] in nodes[index])
    cluster.remove_node(lost, allow_graceful=False)
    return index


def test_a_fleet_says_which_node_it_lost_and_goes_on_elsewhere(cluster, caplog):
    with envfleet.RayVectorEnv(
        [EchoEnv] * 6, workers=3, start_timeout=60, on_failure="restart"
    ) as fleet:
        assert len(set(fleet.nodes)) == 3
        fleet.reset(seed=1)
        index = lose_one(cluster, fleet.nodes)
        lost, cut = fleet.nodes[index], np.zeros(6, dtype=bool)

        def step():
            nonlocal cut
            observations, _, _, truncated, _ = fleet.step(np.full(6, 5.0))
            cut |= truncated
            assert ((observations[:, 2] == 5.0) | truncated | (observations[:, 2] == -1.0)).all()
            return fleet.restart_count

        wait_until(step, 60)
        assert np.flatnonzero(cut).tolist() == [2 * index, 2 * index + 1]
        assert lost not in fleet.nodes
        assert f"on node {lost}, envs {2 * index}-{2 * index + 1}) stopped answering" in caplog.text


def test_training_loses_no_more_than_the_rollout_of_the_lost_node(cluster):
    agent = WeightAgent()
    with envfleet.RayCollector(
        "Pendulum-v1", agent, actors=3, envs_per_actor=2, steps=20, start_timeout=60, seed=1
    ) as collector:
        collector.collect()
        lost = collector.nodes[lose_one(cluster, collector.nodes)]
        rounds = []

        def train():
            rounds.append(collector.collect())
            agent.learn()
            return collector.health().restarted

        wait_until(train, 60)
        rounds += [collector.collect() for _ in range(3)]
        assert all(rollout.env_ids.tolist() == [0, 1, 2, 3, 4, 5] for rollout in rounds)
        assert collector.total_steps == sum(rollout.steps for rollout in rounds) + 120
        assert collector.health()[:2] == (3, 1)
        assert lost not in collector.nodes


def test_a_rollout_that_is_lost_with_its_node_ends_nothing(cluster, tmp_path):
    """It came late, and lay complete in the memory of its node when that was lost."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors cannot import it
    collector = envfleet.RayCollector(
        partial(Gate, tmp_path),
        WeightAgent(noise=0.0, discrete=True),
        actors=3,
        envs_per_actor=1,
        steps=20_000,
        start_timeout=60,
        on_late="drop",
        deadline=3.0,
    )
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    with collector:
        assert len(collector.collect().env_ids) == 1
        late = [seat.pending for seat in collector._seats if seat.pending is not None]
        (tmp_path / "go").touch()
        wait_until(lambda: not ray.wait(late, num_returns=2, timeout=0, fetch_local=False)[1], 60)
        lose_one(cluster, collector.nodes)
        wait_until(lambda: collector.collect() and collector.health().restarted == 1, 60)
        wait_until(lambda: len(collector.collect().env_ids) == 3, 60)


class Gate(CounterEnv):
    """Anywhere but on the head node, a step waits until the folder has a file ``go``."""

    def __init__(self, folder):
        super().__init__()
        resources = {node["NodeID"]: node["Resources"] for node in ray.nodes()}
        own = resources[ray.get_runtime_context().get_node_id()]
        self._waits = "node:__internal_head__" not in own
        self._folder = folder

    def step(self, action):
        while self._waits and not (self._folder / "go").exists():
            time.sleep(0.01)
        return super().step(action)


def test_the_command_trains_on_a_running_cluster_and_leaves_it(cluster, tmp_path):
    def train(name, **options):
        words = {"ray": cluster.address, "run-dir": tmp_path, "name": name, **options}
        flags = [f"--{word}={value}" for word, value in words.items()]
        command = [sys.executable, "-m", "envfleet", "train", "CartPole-v1", *flags]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    sizes = {"num-envs": 4, "rollout-steps": 32, "total-steps": 256}
    done = train("there", actors=2, **sizes)
    assert done.returncode == 0, done.stderr
    report = (tmp_path / "CartPole-v1" / "there" / "report.html").read_text()
    assert "<td>ray</td>" in report
    assert "actors=2 was asked for; on " in report
    assert sum(node["Alive"] for node in ray.nodes()) == 3
    wait_until(lambda: ray.available_resources().get("CPU") == 5.0, 60)

    full = train("full", actors=64, **{"num-envs": 64})
    assert full.returncode == 2
    assert "no room for 64 actors with 1 CPU each" in full.stderr
    assert "Traceback" not in full.stderr


def test_a_training_goes_on_after_the_loss_of_a_node(cluster, tmp_path):
    class LosesANode(envfleet.Callback):
        def on_update(self, run, metrics):
            if run.updates == 2:
                lose_one(cluster, run.collector.nodes)

    result = envfleet.train(
        "CartPole-v1",
        preset="fast",
        actors=3,
        num_envs=6,
        rollout_steps=256,
        total_steps=40 * 6 * 256,
        run_dir=tmp_path,
        seed=1,
        callbacks=[LosesANode()],
    )
    assert result.is_finished
    with (result.folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(float(row["updates"])) for row in rows] == list(range(1, 41))
    assert float(rows[1]["restarts"]) == 0
    assert float(rows[-1]["restarts"]) == 1
