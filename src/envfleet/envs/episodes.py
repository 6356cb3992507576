"""EpisodeInfo: how long an episode has lasted and what it has earned, told at every step."""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium
from gymnasium.utils import RecordConstructorArgs


class EpisodeInfo(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Adds ``episode_step`` and ``episode_score`` to the infos of ``reset`` and ``step``.

    They are the steps and the sum of rewards since the last reset: 0 and 0.0 after it.

    Args:
        env: any env.
        seed: of the first ``reset`` that is given none, so that ``reset()`` is ``reset(seed=seed)``
            once; and, at once, of the action space.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], seed: int | None = None) -> None:
        RecordConstructorArgs.__init__(self, seed=seed)
        gymnasium.Wrapper.__init__(self, env)
        self.max_episode_steps = None if env.spec is None else env.spec.max_episode_steps
        """Where the env's time limit cuts an episode; None if its spec has no limit."""
        self._seed = seed
        self._step = 0
        self._score = 0.0
        if seed is not None:
            env.action_space.seed(seed)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the env, and count anew."""
        seed, self._seed = self._seed if seed is None else seed, None
        observation, info = self.env.reset(seed=seed, options=options)
        self._step, self._score = 0, 0.0
        return observation, {**info, "episode_step": 0, "episode_score": 0.0}

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """The env's step, counted."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._step += 1
        self._score += float(reward)
        counted = {**info, "episode_step": self._step, "episode_score": self._score}
        return observation, reward, terminated, truncated, counted


def gym_env(
    env_id: str, seed: int | None = None, render_mode: str | None = None, **kwargs: Any
) -> EpisodeInfo:
    """``gymnasium.make`` with ``EpisodeInfo`` around it, env and action space seeded.

    Args:
        env_id: a registered id.
        seed: see ``EpisodeInfo``.
        render_mode: see ``gymnasium.make``.
        **kwargs: the env's own arguments.

    Raises:
        gymnasium.error.Error: there is no such id.
    """
    return EpisodeInfo(gymnasium.make(env_id, render_mode=render_mode, **kwargs), seed)
