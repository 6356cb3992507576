"""Scripted episodes, agents by formula, and all engines: what the tests of rollouts share."""

from __future__ import annotations

from functools import partial

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import envfleet

# Once torch has started threads, every fork is warned of, here and in all tests that follow.
torch.set_num_threads(1)

MODES = list(AutoresetMode)


class ScriptedEnv(gym.Env):
    """Episodes of given lengths and kinds of ends; the observation says where one is."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, script, index=0, reuse_array=False):
        self.script, self.index = script, index
        self.episode, self.t = -1, 0
        self.shared = np.zeros(3, dtype=np.float32) if reuse_array else None

    def _observe(self):
        now = np.array([self.index, self.episode, self.t], dtype=np.float32)
        if self.shared is None:
            return now
        self.shared[:] = now
        return self.shared

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.t = 0
        return self._observe(), {}

    def step(self, action):
        self.t += 1
        length, kind = self.script[self.episode % len(self.script)]
        over = self.t >= length
        reward = self.t + 10.0 * self.episode + 0.1 * float(action)
        terminated, truncated = over and "term" in kind, over and "trunc" in kind
        return self._observe(), reward, terminated, truncated, {}


class Formula:
    """An agent whose answers depend on the observation alone."""

    def __init__(self):
        self.value_calls = 0

    def act(self, observations, deterministic=False):
        actions = (observations.sum(1) % 2).long()
        return actions, -0.1 * observations.sum(1), self._value(observations)

    def get_values(self, observations):
        self.value_calls += 1
        return self._value(observations)

    def _value(self, observations):
        return observations @ torch.tensor([0.5, 0.25, 1.0])


class Chooser(Formula):
    """The same, but asked for actions alone, in NumPy, and for the rest at the end."""

    act = None

    def choose(self, observations):
        return (observations.sum(1) % 2).astype(np.int64)

    def get_actions_and_values(self, observations, actions=None):
        assert torch.equal(actions, (observations.sum(1) % 2).long())
        return *Formula().act(observations), torch.zeros(len(observations))


class SeedAgent:
    """As the seeds': one method, entropy included."""

    device = torch.device("cpu")

    def get_actions_and_values(self, observations, actions=None):
        return *Formula().act(observations), torch.zeros(len(observations))


SCRIPTS = {
    "terminated": [(3, "term"), (2, "term")],
    "truncated": [(3, "trunc")],
    "both": [(4, "term trunc"), (2, "trunc")],
    "one-step": [(1, "term"), (1, "trunc"), (2, "term trunc")],
    "never": [(10**9, "term")],
    "at-the-horizon": [(7, "trunc"), (7, "term")],
}
ENGINES = {
    "serial": envfleet.SerialVectorEnv,
    "process": partial(envfleet.ProcessVectorEnv, context="fork", workers=2),
    "caller": partial(envfleet.ProcessVectorEnv, context="fork", workers=2, caller_steps=True),
    "gymnasium": SyncVectorEnv,
}


def fleet(engine="serial", script=SCRIPTS["terminated"], count=3, mode="NextStep", **kwargs):
    fns = [partial(ScriptedEnv, script, index, **kwargs) for index in range(count)]
    return ENGINES[engine](fns, autoreset_mode=mode)
