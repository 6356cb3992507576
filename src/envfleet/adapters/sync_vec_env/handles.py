"""EnvHandle: one env of a fleet, used like the env itself, wherever it lives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium

from envfleet.vector.fleet import Fleet

_INSTEAD = {
    "reset": "env_reset({env}), or vec_reset() for all envs",
    "step": "vec_step(actions), which steps all envs",
    "close": "close() of the whole",
}


class EnvHandle:
    """Reads, sets and calls what one env and its wrappers have.

    What comes from an env in another process is a copy. ``reset``, ``step`` and ``close`` would go
    past the fleet, which counts episodes; they raise AttributeError and name what to use.
    """

    _fleet: Fleet[Any, Any]
    _env: int

    def __init__(self, fleet: Fleet[Any, Any], env: int) -> None:
        object.__setattr__(self, "_fleet", fleet)
        object.__setattr__(self, "_env", env)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # those that copy or pickle ask for many
            raise AttributeError(f"a handle of an env has no {name}")
        if name in _INSTEAD:
            raise AttributeError(
                f"envs[{self._env}].{name} would go past the fleet: use "
                f"{_INSTEAD[name].format(env=self._env)}."
            )
        is_method, value = self._fleet.call_on([self._env], _look, name)[0]
        return self._method(name) if is_method else value

    def __setattr__(self, name: str, value: Any) -> None:
        self._fleet.set_attr(name, [value], env_ids=[self._env])

    def __repr__(self) -> str:
        return f"<env {self._env} of {type(self._fleet).__name__}>"

    def _method(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._fleet.call_on([self._env], name, *args, **kwargs)[0]

        return call


def _look(env: gymnasium.Env[Any, Any], name: str) -> tuple[bool, Any]:
    """Whether an attribute is a method, which stays where it is; else its value."""
    value = env.get_wrapper_attr(name)
    return (True, None) if callable(value) else (False, value)
