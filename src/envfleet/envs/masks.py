"""SendMasks: an env's ``action_masks()`` travel with every reset and step, in its infos."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium

Env = gymnasium.Env[Any, Any]

_SENDER = "envfleet_mask_sender"


@dataclass(frozen=True)
class SendMasks:
    """Has an env send its action masks along with every reset and step: no message to ask for them.

    A wrapper for ``make``, as ``make("My-v0", 8, wrappers=[SendMasks()])``. The env stays the
    object that it is.

    Args:
        method: the env's method that returns its masks.
        key: of the info that they are sent as. An info that has this key already keeps its own.
        required: whether an env without such a method is refused; else it is left as it is.
    """

    method: str = "action_masks"
    key: str = "action_mask"
    required: bool = True

    def __call__(self, env: Env) -> Env:
        """Change how this env is reset and stepped.

        Raises:
            AttributeError: it has no such method, and ``required``.
        """
        try:
            masks = env.get_wrapper_attr(self.method)
        except AttributeError:
            if self.required:
                raise
            return env
        key, reset, step = self.key, env.reset, env.step

        def reset_with_masks(**kwargs: Any) -> tuple[Any, dict[str, Any]]:
            observation, info = reset(**kwargs)
            return observation, info if key in info else {**info, key: masks()}

        def step_with_masks(action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
            observation, reward, terminated, truncated, info = step(action)
            if key not in info:
                info = {**info, key: masks()}
            return observation, reward, terminated, truncated, info

        env.reset = reset_with_masks  # type: ignore[method-assign]
        env.step = step_with_masks  # type: ignore[method-assign]
        setattr(env, _SENDER, self)
        return env


def mask_sender(env: Env) -> SendMasks | None:
    """What has an env send its masks, under whatever wrappers; None where nothing does."""
    layer: Any = env
    while True:
        if _SENDER in vars(layer):
            found: SendMasks = vars(layer)[_SENDER]
            return found
        if not isinstance(layer, gymnasium.Wrapper):
            return None
        layer = layer.env
