"""Where metrics and videos go: files always, TensorBoard and Weights & Biases where wanted."""

from envfleet.track.files import FileTracker
from envfleet.track.registry import TRACKERS, make_trackers
from envfleet.track.tensorboard import TensorBoardTracker
from envfleet.track.tracker import Tracker, Trackers
from envfleet.track.wandb import WandbTracker

__all__ = [
    "TRACKERS",
    "FileTracker",
    "TensorBoardTracker",
    "Tracker",
    "Trackers",
    "WandbTracker",
    "make_trackers",
]
