"""PPO on RayCollector: the run that it is without Ray, and resumed exactly."""

from __future__ import annotations

import csv
import math
from functools import partial

import pytest

import envfleet
from envfleet.testing import Fault, FaultEnv
from envfleet.training.checkpoint import CheckpointError
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


NO_PRESET = WORDS | {"preset": None}


def failing(kind, tmp_path):
    """Builds envs of which one fails, once, in its fiftieth step."""
    fault = Fault(kind, at=50, once=str(tmp_path / "has failed"))
    return partial(FaultEnv, {"step": fault}, length=10)


@pytest.mark.parametrize("kind", ["raise", "hang"])
def test_an_env_that_fails_in_an_actor_is_replaced(tmp_path, kind):
    result = envfleet.train(
        failing(kind, tmp_path),
        total_steps=768,
        run_dir=tmp_path,
        actors=2,
        on_failure="restart",
        step_timeout=3.0,
        **NO_PRESET,
    )
    rows = metrics(result.folder)
    assert result.is_finished
    assert (rows[0]["restarts"], rows[-1]["restarts"]) == ("0.0", "1.0")


def test_a_run_with_a_deadline_goes_on_without_an_actor_that_hangs(tmp_path):
    env = failing("hang", tmp_path)
    words = {"actors": 2, "actor_deadline": 3.0, "checkpoint_every": 1, "keep": 100}
    result = envfleet.train(env, total_steps=256, run_dir=tmp_path, **words, **NO_PRESET)
    assert result.is_finished
    dropped = [float(row["actors/dropped"]) for row in metrics(result.folder)]
    # The second and the third rollout have the other actor's 64 steps.
    assert dropped == [0.0, 1.0, 2.0]
    with pytest.raises(CheckpointError, match=r"cannot be used \(2 rollouts came too late"):
        envfleet.resume(result.folder, env=env, total_steps=1024)
    first = result.folder / "checkpoints/step_000000000128"
    with Run.resume(result.folder, env=env, checkpoint=first.name) as run:
        assert run.steps == 128


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"actors": 3}, "num_envs=4 must be a multiple of actors=3"),
        ({"ray": "auto"}, "say how many actors"),
        ({"actors": 2, "record_every": 100}, "records envs of this machine"),
        ({"actor_deadline": 1.0}, "actor_deadline is about Ray actors"),
        ({"actors": 2, "actor_deadline": 0}, "actor_deadline must be above 0, got 0"),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path, words, text):
    with pytest.raises(ValueError, match=text):
        envfleet.train("CartPole-v1", total_steps=128, run_dir=tmp_path, **WORDS, **words)
