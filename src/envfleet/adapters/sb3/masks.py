"""Action masks that come along with each step, for SB3VecEnv."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from envfleet.engine.worker.hooks import EnvFactory
from envfleet.envs.masks import Env, SendMasks, mask_sender
from envfleet.vector.fleet import Fleet

_OURS = "envfleet.masks"
"""The key of an info under which masks travel that are for us alone."""


@dataclass(frozen=True)
class _MaskedFactory:
    """Builds one env that sends its masks."""

    build: EnvFactory
    send: SendMasks

    def __call__(self) -> Env:
        """Build it."""
        return self.send(self.build())


def with_masks(env_fns: Sequence[Callable[[], Any]], masks: str) -> list[Callable[[], Any]]:
    """Functions that build the same envs, which send along what their method ``masks`` returns."""
    return [_MaskedFactory(env_fn, SendMasks(masks, _OURS)) for env_fn in env_fns]


def key_of_masks(fleet: Fleet[Any, Any], masks: str) -> str:
    """The key of the infos that masks come along in, with every step.

    Raises:
        ValueError: they do not.
    """
    if fleet.infos != "all":
        raise ValueError(
            f"masks={masks!r} travel with the infos of every step: leave out infos={fleet.infos!r}."
        )
    senders = set(fleet.call(mask_sender))
    sender = senders.pop()
    if senders or sender is None or sender.method != masks:
        raise ValueError(
            f"masks={masks!r}, but the envs of this fleet do not send them: build it with "
            f"wrappers=[envfleet.envs.SendMasks({masks!r})], or pass SB3VecEnv the functions "
            "that build the envs."
        )
    return str(sender.key)
