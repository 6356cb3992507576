"""Whether what a factory returned is an env that a fleet can use, and what to say if it is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium import Space
from gymnasium.vector import VectorEnv

from envfleet.errors import name_envs

SHARED = "are one and the same object"
"""In the text about envs that are no two."""


def check_env(env: Any, number: int) -> None:
    """Refuse what cannot be env ``number`` of a fleet; any class with an env's methods may be one.

    Raises:
        TypeError: it is no env, or its spaces or metadata are not what Gymnasium says.
    """
    if problem := _problem(env):
        raise TypeError(f"env {number}: its factory returned {problem}")
    for name in ("observation_space", "action_space"):
        space = getattr(env, name)
        if not isinstance(space, Space):
            raise TypeError(f"env {number}: {name} {_no_space(space)}")
    metadata = getattr(env, "metadata", {})
    if not isinstance(metadata, Mapping):
        raise TypeError(
            f"env {number}: metadata is {metadata!r}; expected a dict such as "
            "{'render_modes': ['rgb_array'], 'render_fps': 30}, or {}"
        )


def envs_that_are_one(envs: Sequence[Any], first: int) -> list[int]:
    """The numbers of envs that are the same object, under whatever wrappers; empty if none are.

    The first of ``envs`` is env ``first`` of the fleet.
    """
    sharers: dict[int, list[int]] = {}
    for number, env in enumerate(envs, first):
        sharers.setdefault(id(getattr(env, "unwrapped", env)), []).append(number)
    return next((numbers for numbers in sharers.values() if len(numbers) > 1), [])


def text_about_sharers(numbers: Sequence[int]) -> str:
    """Why such envs are refused: a step of one would step the others."""
    return (
        f"envs {name_envs(numbers)} {SHARED}: their factories return an env "
        "that exists already. Each call of a factory must build a new env, as "
        'lambda: gymnasium.make("CartPole-v1") does'
    )


def _problem(env: Any) -> str | None:
    """What a factory returned, if that is no env."""
    expected = "expected a gymnasium.Env"
    if isinstance(env, gymnasium.Env):
        return None
    if env is None:
        return f"None; {expected}. Does it lack a return?"
    if isinstance(env, type):
        return f"the class {env.__name__}; {expected}, an object: call the class"
    kind = type(env).__name__
    if isinstance(env, VectorEnv):
        return (
            f"a vector env ({kind}); {expected}. A fleet is made of single envs: pass more "
            "factories instead"
        )
    if hasattr(env, "possible_agents") or hasattr(env, "agents"):
        return (
            f"a PettingZoo env of several agents ({kind}); {expected}. Wrap it in a gymnasium.Env "
            "that acts for all agents or for one of them, or train its agents as the envs of "
            "SuperSuit's pettingzoo_env_to_vec_env_v1"
        )
    missing = [
        name
        for name in ("reset", "step", "observation_space", "action_space")
        if not hasattr(env, name)
    ]
    if missing:
        return f"an object ({kind}) without {', '.join(missing)}; {expected}"
    return None


def _no_space(space: Any) -> str:
    """What stands in the place of a space."""
    kind = f"{type(space).__module__}.{type(space).__qualname__}"
    if kind.startswith("gym."):
        return (
            f"is a {kind} of the old Gym; expected a gymnasium.Space. Wrap the env with shimmy "
            "(GymV21CompatibilityV0, GymV26CompatibilityV0)"
        )
    return f"is {space!r} ({kind}); expected a gymnasium.Space"
