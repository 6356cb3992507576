"""EnvHost: what a user may change about how a shard's envs are built, reset and closed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode

EnvFactory = Callable[[], gymnasium.Env[Any, Any]]


class EnvHost:
    """Holds the envs of one shard, in the shard's process; the engine asks it to handle them.

    Subclass it and pass the class as ``worker=``: override ``make_env`` (wrap the env here to
    change its steps), ``reset_env`` or ``close_env``. Each gets the env's place in this shard,
    ``self.envs[i]``, whose index in the fleet is ``self.first + i``. What they raise is the env's
    failure and does not affect the other envs.
    """

    def __init__(self, first: int, autoreset_mode: AutoresetMode) -> None:
        self.first = first
        """The fleet's index of this shard's first env."""
        self.autoreset_mode = autoreset_mode
        self.envs: list[gymnasium.Env[Any, Any]] = []

    def make_env(self, i: int, env_fn: EnvFactory) -> gymnasium.Env[Any, Any]:  # noqa: ARG002
        """Build env ``i`` of the shard."""
        return env_fn()

    def reset_env(self, i: int, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Reset env ``i``; without ``options`` its episode ended, or was cut off (autoreset)."""
        return self.envs[i].reset(**kwargs)

    def close_env(self, i: int) -> None:
        """Close env ``i``."""
        self.envs[i].close()
