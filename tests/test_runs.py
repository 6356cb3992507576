"""Runs: presets, envs, exact resumption, checkpoints, and training under fire."""

from __future__ import annotations

import csv
import json
import math
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

import envfleet
from envfleet.envs import AtariEnv
from envfleet.training import checkpoint as checkpoints
from envfleet.training.config import RunOptions, TrainConfig
from envfleet.training.envs import UnknownEnvError, build_fleet, find_env
from envfleet.training.folder import RunRecord
from envfleet.training.presets import preset
from envfleet.training.trainer import Run
from train_envs import QUICK, OnUpdate

# Configurations


def test_presets_are_known_for_some_envs_only():
    assert preset("CartPole-v1", "zoo", continuous=False, image=False).batch_size == 256
    assert preset("HalfCheetah-v5", "zoo", continuous=True, image=False).hidden == (256, 256)
    assert preset("ALE/Pong-v5", "zoo", continuous=False, image=True).clip_range == 0.1
    assert preset("Any-v0", "cleanrl", continuous=True, image=False).normalize_rewards
    for name in ("zoo", "fast"):
        with pytest.raises(ValueError, match=f"no preset '{name}' for Any-v0"):
            preset("Any-v0", name, continuous=False, image=False)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"gamma": 1.5}, "gamma must be between 0 and 1, got 1.5"),
        ({"num_envs": 0}, "num_envs must be at least 1"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"clip_range_schedule": "square"}, "clip_range_schedule must be constant or linear"),
    ],
)
def test_values_that_mean_nothing_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        TrainConfig(**options)


# Envs


@pytest.mark.parametrize("env_id", ["ALE/Pong-v5", "PongNoFrameskip-v4", "ale_py:ALE/Pong-v5"])
def test_atari_is_preprocessed_as_in_the_published_results(env_id):
    config = preset(env_id, "zoo", continuous=False, image=True)
    assert config.clip_range == 0.1
    with build_fleet(env_id, 2, backend="serial") as envs:
        assert envs.single_observation_space == spaces.Box(0, 255, (4, 84, 84), np.uint8)
        sticky = [env.ale.getFloat("repeat_action_probability") for env in envs.envs]
        assert sticky == [0.0 if "NoFrameskip" in env_id else 0.25] * 2


@pytest.mark.parametrize("env_id", ["CartPole-v1", "train_envs:Crashing"])
def test_only_the_recorded_env_is_built_to_render(env_id):
    with build_fleet(env_id, 3, backend="process", rendered=1) as envs:
        assert envs.get_attr("render_mode") == ("rgb_array", None, None)
        assert envs.render_mode == "rgb_array"


class Sampler:
    device = torch.device("cpu")

    def act(self, observations, *, deterministic=False):
        actions = torch.randint(9, (len(observations),))
        return actions, torch.zeros(len(actions)), torch.zeros(len(actions))


def test_scores_of_atari_are_of_games_although_rewards_are_signs_and_episodes_lives():
    # It pays 50 for each thing that is caught, and has three lives.
    torch.manual_seed(0)
    with build_fleet("ALE/Asterix-v5", 2, backend="serial") as envs:
        collector = envfleet.Collector(envs, Sampler(), steps=400, seed=0)
        rollout = collector.collect()
        games = collector.statistics.rollout_episodes
        ends = int(rollout.terminated.sum())
        assert set(rollout.rewards.unique().tolist()) == {0.0, 1.0}
        assert games
        assert ends >= 3 * len(games)
        earned = rollout.rewards.sum(0).tolist()
        for env in range(2):
            scores = [game.episode_return for game in games if game.env == env]
            assert 0 < sum(scores) <= 50 * earned[env]
        result = envfleet.evaluate(Sampler(), envs, 2, seed=3)
    assert result.returns.min() >= 50
    assert (result.returns % 50 == 0).all()


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_a_game_that_ends_in_the_no_op_after_a_lost_life_counts(mode):
    env = AtariEnv("BreakoutNoFrameskip-v4", seed=0)
    env.reset()
    while True:
        _, _, terminated, _, info = env.step(0)
        if terminated:
            break
    limit = info["episode_frame_number"] + 2  # in the middle of that no-op
    game = dict(gym.spec("BreakoutNoFrameskip-v4").kwargs, max_num_frames_per_episode=limit)
    gym.register("CutBreakout-v0", "ale_py.env:AtariEnv", kwargs=game)
    envs = envfleet.SerialVectorEnv([partial(AtariEnv, "CutBreakout-v0")], autoreset_mode=mode)
    del gym.registry["CutBreakout-v0"]
    with envs:
        collector = envfleet.Collector(envs, Still(), steps=info["episode_step"] + 2, seed=0)
        collector.collect()
        assert [e.length for e in collector.statistics.episodes] == [info["episode_step"]]


class Still:
    device = torch.device("cpu")

    def act(self, observations, *, deterministic=False):
        zeros = torch.zeros(len(observations))
        return zeros.long(), zeros, zeros


def test_a_game_is_trained_from_its_screen(tmp_path):
    config = preset("ALE/Pong-v5", "zoo", continuous=False, image=True)
    config = replace(config, num_envs=2, rollout_steps=8, batch_size=8, epochs=1, total_steps=16)
    with Run.start(tmp_path, config, RunOptions(backend="serial")) as run:
        before = [p.detach().clone() for p in run.policy.parameters()]
        assert run.train()
        assert run.policy.is_image
        after = list(run.policy.parameters())
    assert not any(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_envs_that_cannot_be_found_are_named_with_what_is_like_them(tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    for env_id, text in {
        "CartPol-v1": "Did you mean CartPole-v1",
        "ALE/Pongg-v5": "Did you mean ALE/Pong-v5",
        "no_module:thing": "No module named 'no_module'",
        "broken_module:thing": "importing broken_module failed with ZeroDivisionError",
        "math:nothing": "nothing",
    }.items():
        with pytest.raises(UnknownEnvError, match=text):
            find_env(env_id)


# Runs

PROGRAM = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from train_envs import QUICK, OnUpdate
from envfleet.training.config import RunOptions
from envfleet.training.trainer import Run
folder = Path({folder!r})
options = RunOptions(backend="process", checkpoint_every=7)
def show(run, metrics):
    print(run.steps, flush=True)
    if not {resume} and run.steps > 2200:  # checkpoints are at 1792 and 2688
        os.kill(os.getpid(), signal.SIGKILL)

shown = {{"callbacks": [OnUpdate(show)]}}
if {resume}:
    run = Run.resume(folder, **shown)
else:
    run = Run.start(folder, QUICK[{name!r}], options, **shown)
with run:
    run.train()
"""


def program(folder, name, *, resume):
    text = PROGRAM.format(
        tests=str(Path(__file__).parent), folder=str(folder), name=name, resume=resume
    )
    return subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)


def told(folder):
    """The metrics of a run as they were written, without what depends on the clock."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    rows = [{k: v for k, v in json.loads(line).items() if "time" not in k} for line in lines]
    return [json.dumps(row) for row in rows]


@pytest.mark.parametrize("name", QUICK)
def test_a_run_that_was_killed_goes_on_as_if_it_had_not_been(tmp_path, name):
    killed = program(tmp_path / "killed", name, resume=False)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    options = RunOptions(backend="process", checkpoint_every=7)
    with Run.start(tmp_path / "whole", QUICK[name], options) as run:
        assert run.train()
    assert len(told(tmp_path / "killed")) < len(told(tmp_path / "whole"))
    resumed = program(tmp_path / "killed", name, resume=True)
    steps = [int(line) for line in resumed.communicate()[0].split()]
    assert steps[0] == 1792 + 128
    assert told(tmp_path / "killed") == told(tmp_path / "whole")
    assert table(tmp_path / "killed") == table(tmp_path / "whole")


def table(folder):
    """The same from the CSV file."""
    with (folder / "metrics.csv").open(newline="") as file:
        return [{k: v for k, v in r.items() if "time" not in k} for r in csv.DictReader(file)]


class StopError(BaseException):
    """Ends a run as SIGKILL would: nothing is saved."""


def stop_after(steps):
    def stop(run, metrics):
        if run.steps > steps:
            raise StopError

    return {"callbacks": [OnUpdate(stop)]}


def test_videos_of_a_resumed_run_are_those_of_a_whole_one(tmp_path):
    options = RunOptions(backend="serial", checkpoint_every=7, record_every=1000)
    config = replace(QUICK["cartpole"], total_steps=4000)
    with Run.start(tmp_path / "whole", config, options) as run:
        assert run.train()
    stopped = Run.start(tmp_path / "cut", config, options, **stop_after(2500))
    with stopped as run, pytest.raises(StopError):
        run.train()
    with Run.resume(tmp_path / "cut") as run:
        assert run.train()

    def videos(name):
        lines = (tmp_path / name / "videos.jsonl").read_text().splitlines()
        return sorted(json.loads(line)["step"] for line in lines)

    assert videos("cut") == videos("whole")
    assert len(videos("whole")) == 5


@pytest.mark.parametrize("schedule", ["learning_rate_schedule", "clip_range_schedule"])
def test_a_run_made_longer_has_the_schedules_of_one_planned_so(tmp_path, schedule):
    options = RunOptions(backend="serial", checkpoint_every=1, keep=20)
    short = replace(QUICK["cartpole"], total_steps=640, clip_range=1e-3, **{schedule: "linear"})
    for name, config in (("short", short), ("planned", replace(short, total_steps=1280))):
        with Run.start(tmp_path / name, config, options) as run:
            assert run.train()
    planned, before = told(tmp_path / "planned"), told(tmp_path / "short")
    # Schedules leave the first update alone: until there, all plans are the same.
    assert before[0] == planned[0]
    assert before[1] != planned[1]
    first = checkpoints.list_checkpoints(tmp_path / "short/checkpoints")[0].name
    with Run.resume(tmp_path / "short", checkpoint=first, total_steps=1280) as run:
        assert run.train()
    assert told(tmp_path / "short") == planned


def test_every_backend_learns_the_same(tmp_path):
    config = replace(QUICK["pendulum"], total_steps=1500)
    for backend in ("serial", "process"):
        with Run.start(tmp_path / backend, config, RunOptions(backend=backend)) as run:
            assert run.train()
    assert told(tmp_path / "serial") == told(tmp_path / "process")


def test_an_error_of_an_env_loses_nothing_that_was_learnt(tmp_path):
    config = TrainConfig(
        env_id="train_envs:Failing", num_envs=1, rollout_steps=64, total_steps=1000
    )
    with Run.start(tmp_path, config, RunOptions(backend="serial")) as run:
        with pytest.raises(ArithmeticError, match="too many steps"):
            run.train()
        learnt = run.policy.state_dict()
    with Run.resume(tmp_path, trust=True) as run:
        assert run.collector.total_steps == 256
        assert all(torch.equal(learnt[k], v) for k, v in run.policy.state_dict().items())
    assert len(told(tmp_path)) == 4


@pytest.mark.parametrize("moment", ["reward", "callback"])
def test_what_was_learnt_before_nonsense_and_errors_of_others_is_kept(tmp_path, moment):
    def fail(run, metrics):
        if moment == "callback" and run.steps == 256:
            raise ArithmeticError("no more")

    config = TrainConfig(
        env_id="train_envs:NoReward", num_envs=1, rollout_steps=64, total_steps=1000
    )
    with (
        Run.start(
            tmp_path, config, RunOptions(backend="serial"), callbacks=[OnUpdate(fail)]
        ) as run,
        pytest.raises((ValueError, ArithmeticError), match=r"envs \[0\] are NaN|no more"),
    ):
        run.train()
    saved = checkpoints.load(checkpoints.find(tmp_path / "checkpoints"))
    assert saved.state["updates"] == 4
    assert all(torch.isfinite(value).all() for value in saved.policy.values())


def test_a_policy_that_is_nan_is_not_saved(tmp_path):
    def poison(run, metrics):
        run.policy.actor[0].weight.data.fill_(math.nan)

    config = TrainConfig(
        env_id="train_envs:Failing", num_envs=1, rollout_steps=64, total_steps=1000
    )
    with (
        Run.start(
            tmp_path, config, RunOptions(backend="serial"), callbacks=[OnUpdate(poison)]
        ) as run,
        pytest.raises((ArithmeticError, ValueError), match="NaN"),
    ):
        run.train()
    assert not checkpoints.list_checkpoints(tmp_path / "checkpoints")


def test_the_best_checkpoint_is_among_those_that_exist(tmp_path):
    options = RunOptions(backend="serial", checkpoint_every=5, keep=20)
    config = replace(QUICK["cartpole"], total_steps=2000)
    with Run.start(tmp_path, config, options) as run:
        assert run.train()
    folder = tmp_path / "checkpoints"
    first, *_, last = checkpoints.list_checkpoints(folder)
    (folder / "best").write_text(last.name)
    with Run.resume(tmp_path, checkpoint=first.name) as run:
        assert checkpoints.best_of(folder) is None
        assert run.train()
    assert checkpoints.best_of(folder) in checkpoints.list_checkpoints(folder)


def test_the_policy_of_a_run_can_be_copied(tmp_path):
    config = replace(QUICK["cartpole"], env_id="train_envs:bits")
    with Run.start(tmp_path, config, RunOptions(backend="serial")) as run:
        copied = pickle.loads(pickle.dumps(run.policy))
        for parameter in copied.parameters():
            parameter.data.fill_(5.0)
        with torch.no_grad():
            ours, theirs = (policy.get_values(torch.ones(1, 2)) for policy in (run.policy, copied))
        assert float(theirs) > 100 > float(ours)


def test_threads_are_few_only_while_a_run_is_at_work(tmp_path):
    torch.set_num_threads(2)
    try:
        runs = [
            Run.start(tmp_path / name, QUICK["cartpole"], RunOptions(backend="serial"))
            for name in "ab"
        ]
        for run in runs:
            run.close()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_episodes_that_never_end_between_checkpoints_are_warned_of(tmp_path):
    config = replace(QUICK["pendulum"], total_steps=1000)
    options = RunOptions(backend="serial", checkpoint_every=3)
    with (
        Run.start(tmp_path, config, options) as run,
        pytest.warns(UserWarning, match="no episode has ended between two checkpoints, 3 updates"),
    ):
        run.train()


def test_a_solved_run_is_over_when_it_is_resumed(tmp_path):
    options = RunOptions(backend="serial", stop_at=5.0)
    with Run.start(tmp_path, QUICK["cartpole"], options) as run:
        assert run.train()
        steps = run.collector.total_steps
    assert steps < 6000
    with Run.resume(tmp_path) as run:
        assert run.train()
        assert run.collector.total_steps == steps
    assert len(told(tmp_path)) == steps // 128


@pytest.mark.parametrize(
    ("config", "updates"),
    [
        (
            TrainConfig(num_envs=8, rollout_steps=32, total_steps=100_000),
            313,
        ),  # 10,000 steps of each env
        (TrainConfig(num_envs=8, rollout_steps=128, total_steps=10_000_000), 196),  # 50 in all
    ],
)
def test_checkpoints_are_far_enough_apart_for_episodes_to_end(tmp_path, config, updates):
    with Run.start(tmp_path, config, RunOptions(backend="serial")) as run:
        assert run.checkpoint_interval == updates


def test_training_goes_on_while_workers_are_killed(tmp_path):
    config = preset("CartPole-v1", "fast", continuous=False, image=False)
    config = replace(config, total_steps=250_000)  # to be on the safe side
    options = RunOptions(on_failure="restart", stop_at=475.0)
    kills, over = [], threading.Event()

    def kill(collector):
        """Every worker once in 10,000 steps; 100 episodes of 475 are more than four times that."""
        due = 10_000
        while not over.wait(0.01):
            if collector.total_steps >= due:
                due += 10_000
                for process in collector.envs.processes:
                    if process.pid not in kills:
                        os.kill(process.pid, signal.SIGKILL)
                        kills.append(process.pid)

    with Run.start(tmp_path, config, options) as run:
        killer = threading.Thread(target=kill, args=(run.collector,))
        killer.start()
        try:
            assert run.train()
        finally:
            over.set()
            killer.join()
        steps = run.collector.total_steps
        run.collector.collect()  # what was killed at last is noticed by the next step
        restarts = run.collector.envs.restart_count
        assert run.collector.statistics.window.returns.mean >= 475
    assert restarts == len(kills) >= 4
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == steps
    assert rows[-1]["restarts"] > 0


def test_a_checkpoint_that_was_cut_short_is_named_and_the_one_before_can_be_used(tmp_path):
    options = RunOptions(backend="serial", checkpoint_every=10, keep=2)
    with Run.start(tmp_path, QUICK["cartpole"], options) as run:
        assert run.train()
    found = checkpoints.list_checkpoints(tmp_path / "checkpoints")
    assert 2 <= len(found) <= 3  # the last two, and the best
    broken = found[-1] / "policy.safetensors"
    broken.write_bytes(broken.read_bytes()[:100])
    with pytest.raises(checkpoints.CheckpointError, match=f"take {found[-2].name} instead"):
        checkpoints.load(found[-1])
    assert checkpoints.load(found[-2]).step > 0
    with pytest.raises(checkpoints.CheckpointError, match="cannot be used"):
        Run.resume(tmp_path)
    with Run.resume(tmp_path, checkpoint=found[-2].name) as run:
        assert checkpoints.list_checkpoints(tmp_path / "checkpoints")[-1] == found[-2]
        assert run.train()
    assert checkpoints.load(found[-1]).step == 6016  # whole again
    (found[-1] / "state.pt").write_text("{}")
    with pytest.raises(checkpoints.CheckpointError, match="cannot be used"):
        checkpoints.load(found[-1])
    with pytest.raises(checkpoints.CheckpointError, match="has no checkpoint 'step_1'; there are"):
        Run.resume(tmp_path, checkpoint="step_1")
    with pytest.raises(FileExistsError, match="has a run already"):
        Run.start(tmp_path, QUICK["cartpole"], options)
    record = RunRecord.read(tmp_path)
    assert (record.config, record.options) == (QUICK["cartpole"], options)


# Generators that a whole process shares


def returns(folder):
    with (folder / "metrics.csv").open() as file:
        return [
            [v for k, v in row.items() if not k.startswith("time/")] for row in csv.DictReader(file)
        ]


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_envs_that_use_global_generators_give_the_same_metrics_twice(tmp_path, backend):
    config = replace(QUICK["cartpole"], env_id="train_envs:Global", total_steps=1000)
    before = random.getstate(), np.random.get_state()[1].tolist()
    for name in "ab":
        random.random()  # what the program did before must not matter
        np.random.random()
        now = random.getstate(), np.random.get_state()[1].tolist()
        with Run.start(tmp_path / name, config, RunOptions(backend=backend)) as run:
            run.train()
        assert (random.getstate(), np.random.get_state()[1].tolist()) == now
    assert before != now
    assert returns(tmp_path / "a") == returns(tmp_path / "b")


def test_reset_leaves_the_callers_generators_alone():
    for backend in ("serial", "process"):
        with envfleet.make("CartPole-v1", 2, backend=backend) as fleet:
            before = random.getstate(), np.random.get_state()[1].tolist()
            fleet.reset(seed=1)
            fleet.step([1, 1])
            assert (random.getstate(), np.random.get_state()[1].tolist()) == before
