"""Collectors whose agent acts while envs step: the same rollouts, whoever is ready first."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import envfleet
from rollout_envs import ENGINES, MODES, SCRIPTS, Chooser, Formula, ScriptedEnv, fleet
from waiting import wait_until

WAYS = [{"overlap": True}, {"overlap": 3}, {"min_envs": 1}, {"min_envs": 3}]
OURS = [name for name in ENGINES if name != "gymnasium"]


def same_rollouts(a, b):
    for field in dataclasses.fields(a):
        one, other = getattr(a, field.name), getattr(b, field.name)
        if isinstance(one, torch.Tensor):
            assert torch.equal(one, other), field.name
        elif field.name == "episodes":
            assert repr(one) == repr(other)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("engine", OURS)
@pytest.mark.parametrize("name", ["both", "one-step", "at-the-horizon"])
def test_rollouts_are_those_of_a_fleet_in_step(engine, name, mode, way):
    with (
        envfleet.Collector(fleet(script=SCRIPTS[name], count=5, mode=mode), Formula(), 7) as plain,
        envfleet.Collector(
            fleet(engine, SCRIPTS[name], count=5, mode=mode), Formula(), 7, **way
        ) as flowing,
    ):
        for _ in range(3):
            same_rollouts(flowing.collect(), plain.collect())
        assert flowing.total_steps == plain.total_steps
        ours, theirs = flowing.statistics.window, plain.statistics.window
        assert ours.returns.mean == pytest.approx(theirs.returns.mean)
        assert ours.n == theirs.n


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_agents_may_choose_first_and_evaluate_later(way):
    with (
        envfleet.Collector(fleet(count=4), Formula(), 6) as plain,
        envfleet.Collector(fleet("process", count=4), Chooser(), 6, **way) as flowing,
    ):
        same_rollouts(flowing.collect(), plain.collect())


def reporting(index):
    return gym.wrappers.RecordEpisodeStatistics(ScriptedEnv(SCRIPTS["both"], index))


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_reports_of_episodes_are_those_of_their_envs(mode, way):
    fns = [partial(reporting, index) for index in range(4)]
    found = []
    for options in ({}, way):
        envs = envfleet.SerialVectorEnv(fns, autoreset_mode=mode)
        with envfleet.Collector(envs, Formula(), 9, episodes="info", **options) as collector:
            collector.collect()
            found.append(sorted(collector.statistics.rollout_episodes))
    assert found[0] == found[1]
    assert found[0]


class Uneven(ScriptedEnv):
    """Env 0 takes its time; another one does not step before that, which a fleet in step shows."""

    def step(self, action):
        if self.index == 0:
            time.sleep(0.02)
        return super().step(action)


def test_slow_envs_hold_nobody_up_and_contribute_as_much():
    fns = [partial(Uneven, SCRIPTS["truncated"], index) for index in range(4)]
    with envfleet.Collector(
        envfleet.ProcessVectorEnv(fns, context="fork", workers=4), Formula(), 10, min_envs=1
    ) as flowing:
        rollout = flowing.collect()
        counts = flowing.envs.flow()
    assert counts.env_steps.tolist() == [10] * 4
    assert counts.partial > 0
    with envfleet.Collector(fleet(script=SCRIPTS["truncated"], count=4), Formula(), 10) as plain:
        same_rollouts(rollout, plain.collect())


class Noting(ScriptedEnv):
    """Leaves a file for every step."""

    def __init__(self, folder, index):
        super().__init__(SCRIPTS["never"], index)
        self.folder = folder

    def step(self, action):
        answer = super().step(action)
        (self.folder / f"{self.index}-{self.t}").touch()
        return answer


class Watching(Formula):
    """Acts for one env once the other has made the step that it was sent before."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.waits = folder, 0

    def act(self, observations, deterministic=False):
        ((index, _, t),) = observations.int().tolist()
        other, steps = (0, t + 1) if index == 1 else (1, t)
        if steps:
            wait_until((self.folder / f"{other}-{steps}").exists)
            self.waits += 1
        return super().act(observations)


def test_one_group_steps_while_the_agent_acts_for_the_other(tmp_path):
    fns = [partial(Noting, tmp_path, index) for index in range(2)]
    envs = envfleet.ProcessVectorEnv(fns, context="fork", workers=2)
    agent = Watching(tmp_path)
    with envfleet.Collector(envs, agent, 5, overlap=True) as collector:
        collector.collect()
    assert agent.waits == 9  # all but the first


class Doubtful(Formula):
    """Raises once, at its fourth question."""

    def __init__(self):
        super().__init__()
        self.asked = 0

    def act(self, observations, deterministic=False):
        self.asked += 1
        if self.asked == 4:
            raise RuntimeError("not now")
        return super().act(observations)


@pytest.mark.parametrize("way", WAYS[:2], ids=str)
@pytest.mark.parametrize("engine", OURS)
def test_after_an_error_of_the_agent_everything_begins_anew(engine, way):
    with envfleet.Collector(fleet(engine, count=4), Doubtful(), 5, **way) as collector:
        with pytest.raises(RuntimeError, match="not now"):
            collector.collect()
        rollout = collector.collect()
        assert rollout.observations[0, :, 2].tolist() == [0.0] * 4  # just reset


@pytest.mark.parametrize("way", WAYS[:2], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_a_worker_that_dies_costs_its_rows_only(mode, way):
    fns = [partial(ScriptedEnv, SCRIPTS["never"], index) for index in range(4)]
    envs = envfleet.ProcessVectorEnv(
        fns, context="fork", workers=2, on_failure="restart", autoreset_mode=mode
    )
    with envfleet.Collector(envs, Formula(), 6, **way) as collector:
        assert collector.collect().valid.all()
        os.kill(envs.processes[1].pid, signal.SIGKILL)
        rollout = collector.collect()
        assert rollout.valid[:, :2].all()
        assert not rollout.valid[:, 2:].all()
        # What is valid is a true transition: from one count of steps to the next.
        seen = torch.cat([rollout.observations, rollout.last_observations[None]])
        follows = seen[1:, :, 2] == seen[:-1, :, 2] + 1
        assert follows[rollout.valid].all()
        assert collector.collect().valid[1:].all()


def vector_of(count):
    return SyncVectorEnv([partial(ScriptedEnv, SCRIPTS["both"])] * count)


class Video:
    """A recorder that nobody asks."""


@pytest.mark.parametrize(
    ("envs", "options", "error", "text"),
    [
        (partial(vector_of, 2), {"overlap": True}, TypeError, "needs a fleet with send"),
        (fleet, {"overlap": True, "min_envs": 2}, ValueError, "leave out min_envs"),
        (fleet, {"min_envs": 0}, ValueError, "between 1 and 3"),
        (fleet, {"min_envs": 4}, ValueError, "between 1 and 3"),
        (partial(fleet, count=1), {"overlap": True}, ValueError, "2 envs or more"),
        (fleet, {"overlap": 4}, ValueError, "4 envs or more"),
        (fleet, {"overlap": -1}, ValueError, "2 groups or more"),
        (fleet, {"min_envs": 1, "recorder": Video()}, ValueError, "do not go together"),
    ],
)
def test_what_does_not_go_together_is_refused(envs, options, error, text):
    built = envs()
    with pytest.raises(error, match=text):
        envfleet.Collector(built, Formula(), 5, **options)
    built.close()


# Receiving certain envs


@pytest.mark.parametrize("engine", OURS)
def test_certain_envs_are_received_in_their_order(engine):
    with fleet(engine, SCRIPTS["never"], count=4) as envs:
        envs.reset()
        envs.send([0] * 4)
        batch = envs.recv(env_ids=[3, 1])
        assert batch.env_ids.tolist() == [3, 1]
        assert batch.observations[:, 0].tolist() == [3, 1]
        assert envs.outstanding.tolist() == [0, 2]
        with pytest.raises(ValueError, match="1 was not: `send` first"):
            envs.recv(env_ids=[0, 1])
        with pytest.raises(ValueError, match="leave out min_envs"):
            envs.recv(1, env_ids=[0])
        assert envs.recv().env_ids.tolist() == [0, 2]


class Failing(ScriptedEnv):
    def step(self, action):
        if self.index == 1:
            raise ArithmeticError("env 1 never steps")
        return super().step(action)


@pytest.mark.parametrize("engine", OURS)
def test_an_env_that_raises_loses_none_of_the_others(engine):
    fns = [partial(Failing, SCRIPTS["never"], index) for index in range(4)]
    with ENGINES[engine](fns, autoreset_mode=AutoresetMode.NEXT_STEP) as envs:
        envs.reset()
        envs.send([0] * 4)
        with pytest.raises(ArithmeticError):
            envs.recv(env_ids=[0, 1, 2])
        assert envs.recv(env_ids=[2, 0]).observations[:, 2].tolist() == [1, 1]
        assert np.array_equal(envs.outstanding, [3])
        envs.recv()
