"""Single environments and wrappers: Atari, a stacked MountainCar, frame stacks, masks.

Each is a ``gymnasium.Env`` or ``Wrapper`` that works alone, in our fleets and in anybody else's.
Importing this package imports neither torch nor OpenCV nor ALE.
"""

from envfleet.envs.atari import AtariEnv
from envfleet.envs.episodes import EpisodeInfo, gym_env
from envfleet.envs.frames import LazyFrames
from envfleet.envs.masks import SendMasks
from envfleet.envs.mountain_car import StackedMountainCar
from envfleet.envs.stack import FrameStack

__all__ = [
    "AtariEnv",
    "EpisodeInfo",
    "FrameStack",
    "LazyFrames",
    "SendMasks",
    "StackedMountainCar",
    "gym_env",
]
