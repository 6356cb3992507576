"""Envs that are slow in one way each, for docs/slow.md.

envfleet bench benchmarks.slow_envs:Words --num-envs 64 --why
"""

from __future__ import annotations

import time
from typing import Any

from gymnasium.envs.classic_control import CartPoleEnv


class Words(CartPoleEnv):
    """Tells texts and lists in the infos of every step."""

    def step(self, action: Any) -> Any:
        """Step, and tell."""
        observation, reward, terminated, truncated, _ = super().step(action)  # type: ignore[no-untyped-call]
        info = {"event": "balanced", "cells": [1, 2, 3], "nested": {"left": 1, "right": "none"}}
        return observation, reward, terminated, truncated, info


class LongResets(CartPoleEnv):
    """Computes for 2 ms in each reset, as an env that generates a level."""

    def reset(self, **kwargs: Any) -> Any:
        """Compute, and reset."""
        end = time.perf_counter() + 0.002
        while time.perf_counter() < end:
            pass
        return super().reset(**kwargs)
