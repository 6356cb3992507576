"""The wrappers of the published Atari results, one by one, as oracles for AtariEnv."""

from __future__ import annotations

from typing import Any

import ale_py
import cv2
import gymnasium as gym
import numpy as np
from gymnasium.wrappers import FrameStackObservation, RecordEpisodeStatistics

gym.register_envs(ale_py)


Reset = tuple[Any, dict[str, Any]]
Step = tuple[Any, Any, bool, bool, dict[str, Any]]


class Wrapper(gym.Wrapper[Any, Any, Any, Any]):
    """Any wrapper of an Atari game."""

    @property
    def game(self) -> Any:
        """The game itself."""
        return self.unwrapped


class Noops(Wrapper):
    """1 to 30 no-ops of one raw frame after every reset."""

    def reset(self, **kwargs: Any) -> Reset:
        observation, info = self.env.reset(**kwargs)
        for _ in range(self.unwrapped.np_random.integers(1, 31)):
            observation, _, terminated, truncated, info = self.env.step(0)
            if terminated or truncated:
                observation, info = self.env.reset()
        return observation, info


class MaxAndSkip(Wrapper):
    """Four raw frames per step; the brighter of the last two that were played."""

    def step(self, action: Any) -> Step:
        frames, total = [], 0.0
        for _ in range(4):
            frame, reward, terminated, truncated, info = self.env.step(action)
            frames.append(frame)
            total += float(reward)
            if terminated or truncated:
                break
        return np.max(frames[-2:], axis=0), total, terminated, truncated, info


class EpisodicLife(Wrapper):
    """A lost life is an end; only game over starts a new game."""

    lives, is_over = 0, True

    def step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.is_over = terminated or truncated
        lives = self.game.ale.lives()
        if 0 < lives < self.lives:
            terminated = True
        self.lives = lives
        return observation, reward, terminated, truncated, info

    def reset(self, **kwargs: Any) -> Reset:
        if self.is_over or kwargs.get("seed") is not None:
            observation, info = self.env.reset(**kwargs)
        else:
            observation, _, terminated, truncated, info = self.env.step(0)
            if terminated or truncated:
                observation, info = self.env.reset()
        self.lives = self.game.ale.lives()
        return observation, info


class FireReset(Wrapper):
    """FIRE, then the action after it, at every beginning."""

    def reset(self, **kwargs: Any) -> Reset:
        self.env.reset(**kwargs)
        for action in (1, 2):
            observation, _, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                observation, info = self.env.reset()
        return observation, info


def resize(frame: Any) -> Any:
    """A frame of 84 x 84."""
    return cv2.resize(frame, (84, 84), interpolation=cv2.INTER_AREA)


def baseline(env_id: str, **kwargs: Any) -> gym.Env[Any, Any]:
    """The whole stack, scores under everything that changes them; (4, 84, 84), true rewards."""
    env = gym.make(env_id, frameskip=1, obs_type="grayscale", **kwargs)
    stack: Wrapper = EpisodicLife(MaxAndSkip(Noops(RecordEpisodeStatistics(env))))
    if "FIRE" in stack.game.get_action_meanings():
        stack = FireReset(stack)
    space = gym.spaces.Box(0, 255, (84, 84), np.uint8)
    return FrameStackObservation(gym.wrappers.TransformObservation(stack, resize, space), 4)
