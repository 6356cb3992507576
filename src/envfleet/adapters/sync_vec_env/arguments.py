"""The two ways to call ``SyncVecEnv``, told apart: with videos while training, and without."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_WITH_VIDEOS = ("render_every", "render_fps", "agent")
_WITHOUT = ("agent",)


@dataclass(frozen=True, slots=True)
class Arguments:
    """What was passed after ``steps_per_env``."""

    agent: Any
    videos: tuple[int, float] | None
    """``render_every`` and ``render_fps``, where the call is the one that has them."""
    options: dict[str, Any]
    """Of the fleet."""


def told_apart(given: tuple[Any, ...], named: dict[str, Any]) -> Arguments:
    """Which of the two calls it was.

    Raises:
        TypeError: neither.
    """
    with_videos = len(given) > 1 or not named.keys().isdisjoint(_WITH_VIDEOS[:2])
    names = _WITH_VIDEOS if with_videos else _WITHOUT
    passed = dict(zip(names, given, strict=False))
    twice = sorted(passed.keys() & named.keys())
    options = {name: value for name, value in named.items() if name not in names}
    passed.update((name, value) for name, value in named.items() if name in names)
    missing = [name for name in names if name not in passed]
    if len(given) > len(names) or twice or missing:
        wrong = f"{', '.join(twice)} given twice" if twice else "too many arguments"
        if missing:
            wrong = f"{', '.join(missing)} missing"
        raise TypeError(
            f"SyncVecEnv: {wrong}. It takes (env_fn, num_envs, steps_per_env, agent), or with "
            "videos (env_fn, num_envs, steps_per_env, render_every, render_fps, agent)."
        )
    videos = (passed["render_every"], passed["render_fps"]) if with_videos else None
    return Arguments(passed["agent"], videos, options)
