"""The spaces of a fleet from those of its envs, as Gymnasium batches them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gymnasium import Space
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector.utils import batch_differing_spaces, batch_space

from envfleet.engine.rules.spaces import same_space
from envfleet.engine.worker.description import Description, ShardSpaces

ObservationMode = str | tuple[Space[Any], Space[Any]]


@dataclass(frozen=True)
class Refusals:
    """Gymnasium's words for spaces that do not go together, its class names included.

    People match on them. Filled with ``single`` (the fleet's space) and ``space`` (the env's).
    """

    not_same: str
    not_alike: str
    other_action: str


@dataclass(frozen=True)
class FleetSpaces:
    """The spaces of one env and of all of them."""

    single_observation: Space[Any]
    observation: Space[Any]
    single_action: Space[Any]
    action: Space[Any]


def agree(
    descriptions: Sequence[Description], mode: ObservationMode, num_envs: int, texts: Refusals
) -> FleetSpaces:
    """The spaces of a fleet of these shards.

    Raises:
        RuntimeError, TypeError, ValueError: spaces that cannot be batched, as Gymnasium says.
    """
    single_action = descriptions[0].action_spaces.distinct[0]
    action = batch_space(single_action, num_envs)
    shards = [description.observation_spaces for description in descriptions]
    single, batched = _observation_spaces(shards, mode, num_envs)
    for spaces in shards:
        for space in spaces.distinct:
            if mode == "same":
                if not same_space(space, single):
                    raise RuntimeError(texts.not_same.format(single=single, space=space))
            elif not is_space_dtype_shape_equiv(space, single):
                raise RuntimeError(texts.not_alike.format(single=single, space=space))
    for description in descriptions:
        for space in description.action_spaces.distinct:
            if not same_space(space, single_action):
                raise RuntimeError(texts.other_action.format(single=single_action, space=space))
    return FleetSpaces(single, batched, single_action, action)


def _observation_spaces(
    shards: Sequence[ShardSpaces], mode: ObservationMode, num_envs: int
) -> tuple[Space[Any], Space[Any]]:
    """The single and the batched observation space."""
    first = shards[0].distinct[0]
    if isinstance(mode, tuple) and len(mode) == 2:
        if not isinstance(mode[0], Space) or not isinstance(mode[1], Space):
            raise TypeError(
                "Expected both elements of observation_mode to be Spaces, "
                f"got {type(mode[0])} and {type(mode[1])}"
            )
        return mode[1], mode[0]
    if mode == "same":
        return first, batch_space(first, num_envs)
    if mode == "different":
        each = [space for spaces in shards for space in spaces.each()]
        return first, batch_differing_spaces(each)
    raise ValueError(
        "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single "
        f"and batch observation space, actual got {mode}"
    )
