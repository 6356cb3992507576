"""PPO on RayCollector: the run that it is without Ray, and resumed exactly."""

from __future__ import annotations

import csv
import math

import pytest

import envfleet
from envfleet.training.trainer import Run

pytestmark = [pytest.mark.ray, pytest.mark.full, pytest.mark.usefixtures("local_ray")]
WORDS = {"preset": "fast", "seed": 3, "num_envs": 4, "rollout_steps": 32, "progress": False}


def metrics(folder):
    """All rows but for what the clock says."""
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows
    return [{k: v for k, v in row.items() if not k.startswith("time")} for row in rows]


@pytest.mark.parametrize("hidden", [(16, 16), (300, 300)], ids=["by hand", "torch"])
def test_one_actor_learns_what_a_run_without_ray_learns(tmp_path, hidden):
    here, there = (
        envfleet.train(
            "CartPole-v1",
            total_steps=384,
            run_dir=tmp_path,
            name=f"with {actors}",
            actors=actors,
            hidden=hidden,
            **WORDS,
        )
        for actors in (0, 1)
    )
    assert metrics(here.folder) == metrics(there.folder)


def test_a_run_with_two_actors_resumes_exactly(tmp_path):
    def train(name, **words):
        given = {"checkpoint_every": 2, "actors": 2, "total_steps": 768, **WORDS, **words}
        return envfleet.train("CartPole-v1", run_dir=tmp_path, name=name, **given)

    whole = train("whole")

    class Stop(envfleet.Callback):
        def on_update(self, run, metrics):
            return run.updates < 4  # where a checkpoint is due, and all envs begin anew

    broken = train("broken", callbacks=[Stop()])
    assert not broken.is_finished
    with Run.resume(broken.folder, checkpoint=None) as run:
        assert run.train()
    assert metrics(broken.folder)[-1] == metrics(whole.folder)[-1]
    assert math.isfinite(float(metrics(whole.folder)[-1]["loss/policy_loss"]))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"actors": 3}, "num_envs=4 must be a multiple of actors=3"),
        ({"ray": "auto"}, "say how many actors"),
        ({"actors": 2, "record_every": 100}, "records envs of this machine"),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path, words, text):
    with pytest.raises(ValueError, match=text):
        envfleet.train("CartPole-v1", total_steps=128, run_dir=tmp_path, **WORDS, **words)
