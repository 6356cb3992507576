"""Partial batches: envs that are sent and received one by one, on every engine."""

from __future__ import annotations

import random
import time
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import envfleet

Process = partial(envfleet.ProcessVectorEnv, context="fork")
ENGINES = {
    "serial": envfleet.SerialVectorEnv,
    "process": partial(Process, workers=2),
    "caller": partial(Process, workers=2, caller_steps=True),
    "each": partial(Process, workers=4),
    "piped": partial(Process, workers=2, shared_memory=False),
}
TWO_PLACES = ["serial", "process", "caller"]
MODES = list(AutoresetMode)


@pytest.fixture(params=ENGINES)
def engine(request):
    return ENGINES[request.param]


@pytest.fixture(params=TWO_PLACES)
def place(request):
    return ENGINES[request.param]


class Walk(gym.Env):
    """Draws everything it tells from its own generator and the actions it got."""

    def __init__(self, kind="box", naps=False):
        self.kind, self.naps = kind, naps
        box = spaces.Box(-9, 9, (3,), np.float32)
        self.observation_space = {
            "box": box,
            "nested": spaces.Dict({"a": box, "b": spaces.Tuple((spaces.Discrete(9), box))}),
            "loose": spaces.Dict({"text": spaces.Text(8, min_length=0), "box": box}),
            "actions": box,
        }[kind]
        self.action_space = spaces.Discrete(5)
        if kind == "actions":
            self.action_space = spaces.Dict({"n": spaces.Discrete(5), "say": spaces.Text(4)})

    def _observe(self):
        numbers = self.np_random.uniform(-9, 9, 3).astype(np.float32)
        numbers[0] = self.memory
        if self.kind == "nested":
            return {"a": numbers, "b": (int(self.np_random.integers(9)), numbers + 1)}
        if self.kind == "loose":
            return {"text": "x" * int(self.np_random.integers(8)), "box": numbers}
        return numbers

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.memory = 0.0 if options is None else options["memory"]
        self.left = int(self.np_random.integers(1, 6))
        return self._observe(), {"began": self.left}

    def step(self, action):
        if self.naps and self.np_random.random() < 0.2:
            time.sleep(0.002)
        if self.kind == "actions":
            action = action["n"] + len(action["say"])
        self.memory = (self.memory * 3 + float(action)) % 7
        self.left -= 1
        info = {"left": self.left} if self.left % 2 else {}
        ended, cut = self.left == 0, self.left == 0 and self.memory > 3
        return self._observe(), self.memory, ended and not cut, cut, info


def pieces(value):
    """A nested value as a list of numbers and strings."""
    if isinstance(value, dict):
        return [piece for key in sorted(value) for piece in pieces(value[key])]
    if isinstance(value, (tuple, list)):
        return [piece for part in value for piece in pieces(part)]
    if isinstance(value, np.ndarray):
        return value.tolist() if value.dtype != object else pieces(list(value))
    return [value]


def row_of(space, observations, k):
    if isinstance(space, spaces.Dict):
        return {key: row_of(sub, observations[key], k) for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(row_of(sub, observations[i], k) for i, sub in enumerate(space.spaces))
    return observations[k]


def story(space, result, k, infos):
    """All that one row of a step or batch says, as plain values."""
    observations, rewards, terminations, truncations = result
    told = {key: value for key, value in infos[k].items() if key != "final_obs"}
    final = pieces(infos[k]["final_obs"]) if "final_obs" in infos[k] else None
    row = pieces(row_of(space, observations, k))
    return row, float(rewards[k]), bool(terminations[k]), bool(truncations[k]), str(told), final


def action_for(space, env, turn):
    """The action of an env's so-many-th step, whoever asks."""
    rng = np.random.default_rng([env, turn])
    if isinstance(space, spaces.Dict):
        return {"n": int(rng.integers(5)), "say": "abcd"[: int(rng.integers(1, 5))]}
    return int(rng.integers(5))


def batched(space, actions):
    if isinstance(space, spaces.Dict):
        return {"n": [a["n"] for a in actions], "say": [a["say"] for a in actions]}
    return actions


def lockstep_stories(make, num_envs, turns, mode):
    """What each env says when all are stepped together."""
    with make() as envs:
        single = envs.single_observation_space
        observations, infos = envs.reset(seed=5)
        nothing = np.zeros(num_envs), np.zeros(num_envs, bool), np.zeros(num_envs, bool)
        told = [[story(single, (observations, *nothing), e, infos)] for e in range(num_envs)]
        done = np.zeros(num_envs, dtype=bool)
        for turn in range(turns):
            if mode is AutoresetMode.DISABLED and done.any():
                (ids,) = np.nonzero(done)
                observations, infos = envs.reset(env_ids=ids)
                for k, env in enumerate(ids):
                    told[env].append(story(single, (observations, *nothing), k, infos))
            actions = [action_for(envs.single_action_space, e, turn) for e in range(num_envs)]
            *result, infos = envs.step(batched(envs.single_action_space, actions))
            for env in range(num_envs):
                told[env].append(story(single, result, env, infos))
            done = result[2] | result[3]
    return told


def flowing_stories(make, num_envs, turns, mode, rng):
    """What each env says when whoever is ready goes on."""
    with make() as envs:
        single, told, turn = envs.single_observation_space, [[] for _ in range(num_envs)], {}
        envs.send_reset(seed=5)
        while len(envs.outstanding):
            least = rng.randint(0, len(envs.outstanding))
            most = rng.choice([None, max(1, least), max(1, least) + 1])
            batch = envs.recv(least, most, timeout=30)
            assert batch.env_ids.tolist() == sorted(set(batch.env_ids.tolist()))
            assert least <= len(batch.env_ids) <= (most or num_envs)
            again, reset = [], []
            for k, env in enumerate(batch.env_ids.tolist()):
                told[env].append(story(single, batch[1:5], k, batch.infos))
                ended = batch.terminations[k] or batch.truncations[k]
                waits = mode is AutoresetMode.DISABLED and ended
                if turn.get(env, 0) < turns:
                    (reset if waits else again).append(env)
            rng.shuffle(again)
            for part in (again[: len(again) // 2], again[len(again) // 2 :]):
                space = envs.single_action_space
                actions = [action_for(space, env, turn.get(env, 0)) for env in part]
                envs.send(batched(space, actions), part)
                for env in part:
                    turn[env] = turn.get(env, 0) + 1
            if reset:
                envs.send_reset(reset)
        counts = envs.flow()
        assert counts.env_steps.tolist() == [len(each) for each in told]
    return told


@given(
    kind=st.sampled_from(["box", "nested", "loose", "actions"]),
    mode=st.sampled_from(MODES),
    workers=st.integers(1, 4),
    options=st.sampled_from([{}, {"caller_steps": True}, {"shared_memory": False}, None]),
    seed=st.integers(0, 2**32),
)
@settings(
    max_examples=25,
    deadline=None,
    derandomize=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_each_env_tells_the_same_story_whoever_goes_first(kind, mode, workers, options, seed):
    num_envs, turns = 4, 12
    env_fns = [partial(Walk, kind, naps=env == 1) for env in range(num_envs)]
    common = {"autoreset_mode": mode, "info_format": "list"}
    serial = partial(envfleet.SerialVectorEnv, env_fns, **common)
    make = serial
    if options is not None:
        make = partial(Process, env_fns, workers=workers, **options, **common)
    expected = lockstep_stories(serial, num_envs, turns, mode)
    assert flowing_stories(make, num_envs, turns, mode, random.Random(seed)) == expected
