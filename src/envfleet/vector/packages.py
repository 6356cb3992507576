"""Which package an env needs: by its id, or by what an error says is missing."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys
from collections.abc import Iterator

import gymnasium

_EXTRAS = {
    "box2d": "box2d",
    "mujoco": "mujoco",
    "ale_py": "atari",
    "cv2": "atari",
    "opencv-python": "atari",
    "pygame": "train",
}
"""Our extras by the modules that they bring, in lower case, as errors name them."""

_FAMILIES: dict[tuple[str, ...], tuple[str, str]] = {
    ("ALE/",): ("ale_py", "envfleet[atari]"),
    ("MiniGrid-", "BabyAI-"): ("minigrid", "minigrid"),
    ("MiniWorld-",): ("miniworld", "miniworld"),
    ("PyFlyt/",): ("PyFlyt.gym_envs", "PyFlyt"),
    ("highway-", "merge-", "roundabout-", "parking-", "intersection-", "racetrack-"): (
        "highway_env",
        "highway-env",
    ),
    ("Fetch", "HandManipulate", "HandReach", "AntMaze", "PointMaze", "Adroit", "FrankaKitchen"): (
        "gymnasium_robotics",
        "gymnasium-robotics",
    ),
    ("Meta-World/",): ("metaworld", "metaworld"),
    ("Panda",): ("panda_gym", "panda-gym"),
    ("Vizdoom",): ("vizdoom.gymnasium_wrapper", "vizdoom"),
    ("FlappyBird-",): ("flappy_bird_gymnasium", "flappy-bird-gymnasium"),
}
"""What well-known ids begin with: the module that registers them, and what pip calls it."""


def package_hint(env_id: str) -> str | None:
    """Where to find an id that is not registered, if it is one of a well-known package."""
    module_name, _, name = env_id.rpartition(":")
    for beginnings, (module, package) in _FAMILIES.items():
        if not name.startswith(beginnings) or sys.modules.get(module) is not None:
            continue
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            then = "" if module_name else f", then {module}:{name}"
            return f"It needs: pip install '{package}'{then}"
        return f"Did you mean {module}:{name}?"
    return None


def install_hint(error: BaseException) -> str | None:
    """What to install, in one line, if an error is about a module that one of our extras brings."""
    told: BaseException | None = error
    while told is not None:
        module = _missing(told)
        extra = _EXTRAS.get(module.lower())
        if extra is not None:
            return f"{module} is not installed: pip install 'envfleet[{extra}]'"
        told = told.__cause__
    return None


@contextlib.contextmanager
def noting_packages(env_id: str = "") -> Iterator[None]:
    """Add to errors about what is missing which package brings it."""
    try:
        yield
    except (gymnasium.error.Error, ImportError) as error:
        hint = install_hint(error)
        if hint is None and isinstance(error, gymnasium.error.UnregisteredEnv):
            hint = package_hint(env_id)
        if hint is not None and hint not in str(error):
            error.add_note(hint)
        raise


def _missing(error: BaseException) -> str:
    """The module that an error says is missing, or nothing."""
    if isinstance(error, ModuleNotFoundError):
        return (error.name or "").partition(".")[0]
    if isinstance(error, gymnasium.error.DependencyNotInstalled):
        found = re.match(r"(\S+)(?: package)?(?: is)? not installed", str(error))
        return found[1] if found else ""
    return ""
