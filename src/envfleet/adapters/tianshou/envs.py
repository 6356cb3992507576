"""How TianshouVectorEnv handles single envs, where they live; nothing here imports Tianshou."""

from __future__ import annotations

from typing import Any

import gymnasium

from envfleet.engine.worker.hooks import EnvHost


class TianshouHost(EnvHost):
    """Resets envs as Tianshou does: with a seed or options only if there are any."""

    def reset_env(self, i: int, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Reset env ``i``, whose ``reset`` need not take what nobody gives."""
        given = {key: value for key, value in kwargs.items() if value is not None}
        return super().reset_env(i, **given)


def seed_by_method(env: gymnasium.Env[Any, Any], seed: int | None) -> list[Any]:
    """Seed the action space, and the env if it has a ``seed`` method, as those of the old Gym have.

    Returns:
        In a list what that method has returned; an empty one means that a reset has to do it.
    """
    env.action_space.seed(seed)
    try:
        return [env.seed(seed)]  # type: ignore[attr-defined]
    except (AttributeError, NotImplementedError):
        return []
