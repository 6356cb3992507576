"""`make results`: its steps, when a threshold counts as reached, and what the page shows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from envfleet.training.presets import FAST, preset

ROOT = Path(__file__).parent.parent


@pytest.fixture
def results(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import results  # noqa: PLC0415 - of the folder above

    monkeypatch.setattr(results, "KEPT", tmp_path)
    return results


@pytest.fixture
def threshold(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import threshold  # noqa: PLC0415

    return threshold


def test_every_env_and_seed_is_a_step_of_its_own(results, threshold):
    names = [step.name for step in results.steps()]
    assert len(names) == len(set(names))
    assert set(results.FAST) == set(threshold.GOALS) == set(FAST)
    for group, envs in (("zoo", results.ZOO), ("fast", FAST), ("sb3", FAST)):
        assert {f"{group}/{env}/{seed}" for env in envs for seed in (0, 1, 2)} <= set(names)


def test_the_steps_are_listed_with_the_time_that_they_take():
    words = [sys.executable, "benchmarks/results.py", "--list", "fast/Pendulum", "taxi"]
    shown = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert "fast/Pendulum-v1/2" in shown
    assert "--mask-key None" in shown
    assert "9 steps" in shown
    assert "on 2 cores" in shown
    assert "zoo/" not in shown


def test_a_step_keeps_what_it_found(results):
    words = ("python", "benchmarks/threshold.py", "CartPole-v1", "--limit", "0.5")
    step = results.Step("fast", "CartPole-v1", 1, 0.1, words)
    assert not step.is_done
    results.run(step)
    assert step.is_done
    found = json.loads(step.kept.read_text())
    assert found["command"] == "python benchmarks/threshold.py CartPole-v1 --limit 0.5 --seed 1"
    assert found["reached"] is None
    assert found["curve"][-1][1] >= 0.5  # rounded
    assert found["date"]


def test_a_training_step_that_was_interrupted_is_resumed_and_evaluated(results):
    words = ("envfleet", "train", "CartPole-v1", "--total-steps", "1024", "--backend", "serial")
    step = results.Step("zoo", "CartPole-v1", 0, 0.1, words)
    results.run(step)
    step.kept.unlink()
    (checkpoints,) = results.KEPT.glob("runs/zoo/CartPole-v1/CartPole-v1/0/checkpoints")
    before = sorted(checkpoints.iterdir())
    results.run(step)
    assert sorted(checkpoints.iterdir()) == before
    found = json.loads(step.kept.read_text())
    assert len(found["evaluation"]["returns"]) == 100
    assert [point[0] for point in found["curve"]] == [256, 512, 768, 1024]


def test_the_page_shows_what_was_recorded(results):
    page = (ROOT / "docs" / "results.md").read_text()
    rows = json.loads((ROOT / "docs" / "data" / "results.json").read_text())
    writer = results.results_page
    for name in ("zoo", "fast", "taxi", "dates"):
        shown = page.split(f"<!-- {name} -->\n")[1].split("\n<!-- end -->")[0]
        assert shown == getattr(writer, name)(rows)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def watch(threshold, limit=100.0):
    clock = Clock()
    return threshold.Watch(threshold.Goal(10.0, 1_000), limit, clock), clock


def playing(clock, *means):
    """Episodes that take 50 s, and what they return; how many were asked for."""
    asked = []

    def play(episodes, _):
        asked.append(episodes)
        clock.now += 50.0
        return means[len(asked) - 1]

    return play, asked


def test_a_threshold_is_reached_when_100_other_episodes_confirm_it(threshold):
    kept, clock = watch(threshold)
    clock.now = 1.0
    play, asked = playing(clock, 11.0, 9.0, 12.0, 10.5)
    assert kept.goes_on(999, play)
    assert asked == []
    assert kept.goes_on(1_000, play)  # 20 episodes were lucky
    assert asked == [20, 100]
    assert kept.reached is None
    clock.now += 2.0
    assert not kept.goes_on(2_000, play)
    assert kept.reached == (2_000, 3.0, 10.5)  # the 200 s of episodes are not training
    assert kept.curve == [(1_000, 1.0, 11.0), (2_000, 3.0, 12.0)]


def test_training_ends_at_the_limit(threshold):
    kept, clock = watch(threshold, limit=5.0)
    clock.now = 6.0
    play, asked = playing(clock, 3.0)
    assert not kept.goes_on(10, play)
    assert asked == [20]
    assert kept.reached is None


def test_the_last_policy_is_always_evaluated(threshold):
    kept, clock = watch(threshold)
    play, asked = playing(clock, 3.0, 11.0, 10.5)
    assert kept.goes_on(1_000, play)
    assert kept.goes_on(1_100, play)
    assert asked == [20]
    assert not kept.goes_on(1_200, play, is_last=True)
    assert asked == [20, 20, 100]
    assert kept.reached == (1_200, 0.0, 10.5)


def test_the_page_says_what_was_not_reached(results):
    page = results.results_page
    rows = [
        {
            "group": side,
            "subject": "Hopper-v5",
            "seed": seed,
            "threshold": 2000.0,
            "seconds": 300.4,
            "curve": [(500, 200.0, 90.0), (1000, 300.4, 100.0)],
            "reached": (100, seconds, 2100.0) if seconds else None,
        }
        for side, times in (("fast", (31.0, 29.0, None)), ("sb3", (None, None, 280.0)))
        for seed, seconds in enumerate(times)
    ]
    (line,) = page.fast(rows).splitlines()[2:]
    assert line == (
        "| Hopper-v5 | 2,000 | 31, 29, > 300 (1,000 steps) | 31 | 100 "
        "| > 300 (1,000 steps), > 300 (1,000 steps), 280 | > 300 |"
    )


@pytest.mark.parametrize("env_id", [name for name in FAST if name != "CartPole-v1"])
def test_fast_presets_use_fleets(env_id):
    assert 16 <= preset(env_id, "fast").num_envs <= 64
