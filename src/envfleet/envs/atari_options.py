"""What AtariEnv is asked for: the game behind an id, and options that mean something."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Sequence
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

OBS_TYPES = ("grayscale", "rgb", "ram")
RENDER_MODES = ("human", "rgb_array")
CONSOLE_FPS = 60.0
"""Raw frames per second of the game."""


def import_extra(name: str) -> Any:
    """A module that our extra ``atari`` brings.

    Raises:
        gymnasium.error.DependencyNotInstalled: it is missing.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise gymnasium.error.DependencyNotInstalled(
            f"{name} is not installed: pip install 'envfleet[atari]'"
        ) from error


def find_game(env_id: str) -> EnvSpec:
    """The spec of an Atari id; ``module:id`` imports the module first, as in ``gymnasium.make``.

    Raises:
        ValueError: it is none.
    """
    gymnasium.register_envs(import_extra("ale_py"))
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    spec = gymnasium.registry.get(name)
    if spec is not None and _is_game(spec):
        return spec
    games = sorted(known for known, spec in gymnasium.registry.items() if _is_game(spec))
    near = difflib.get_close_matches(name, games, n=3)
    near_ids = ", ".join(near)
    names = sorted({known.removeprefix("ALE/")[:-3] for known in games if known.endswith("-v5")})
    raise ValueError(
        f"there is no Atari game {env_id!r}"
        f"{f'; did you mean {near_ids}?' if near else '.'}"
        f" The ids are ALE/<game>-v5 and <game>NoFrameskip-v4, and the games: {', '.join(names)}."
    )


def _is_game(spec: EnvSpec) -> bool:
    return str(spec.entry_point).startswith("ale_py.env:") and not spec.kwargs.get("continuous")


def check_options(
    *,
    render_mode: str | None,
    obs_type: str,
    frame_skip: int | tuple[int, int],
    num_stack: int,
    image_size: Sequence[int] | None,
    noop_max: int,
    repeat_action_probability: float | None,
) -> None:
    """Refuse what means nothing.

    Raises:
        ValueError: says which option, what was given and what may be.
    """
    if render_mode is not None and render_mode not in RENDER_MODES:
        raise ValueError(
            f"render_mode must be one of {', '.join(RENDER_MODES)} or None, got {render_mode!r}"
        )
    if obs_type not in OBS_TYPES:
        raise ValueError(f"obs_type must be one of {', '.join(OBS_TYPES)}, got {obs_type!r}")
    if not _is_skip(frame_skip):
        raise ValueError(
            "frame_skip must be 1 or more, or a pair (low, high) with 1 <= low < high, of which "
            f"one below high is drawn at each step; got {frame_skip!r}"
        )
    if not _is_whole(num_stack, 1):
        raise ValueError(f"num_stack must be 1 or more, got {num_stack!r}")
    if image_size is not None and not _is_size(image_size):
        raise ValueError(
            "image_size must be (height, width), both 1 or more, or None for the console's 210 x "
            f"160; got {image_size!r}"
        )
    if not _is_whole(noop_max, 0):
        raise ValueError(f"noop_max must be 0 (no no-ops) or more, got {noop_max!r}")
    if repeat_action_probability is not None and not 0.0 <= repeat_action_probability <= 1.0:
        raise ValueError(
            "repeat_action_probability must be between 0 and 1, or None for what the id says; got "
            f"{repeat_action_probability!r}"
        )


def mean_skip(frame_skip: int | tuple[int, int]) -> float:
    """The raw frames of a step on average."""
    return frame_skip if isinstance(frame_skip, int) else (frame_skip[0] + frame_skip[1] - 1) / 2


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_skip(skip: object) -> bool:
    if isinstance(skip, tuple):
        return len(skip) == 2 and all(_is_whole(part, 1) for part in skip) and skip[0] < skip[1]
    return _is_whole(skip, 1)


def _is_size(size: Sequence[int]) -> bool:
    return (
        isinstance(size, (tuple, list))
        and len(size) == 2
        and all(_is_whole(length, 1) for length in size)
    )
