"""Where metrics and films go: files always, TensorBoard and Weights & Biases where wanted."""

from envfleet.track.files import FileTracker
from envfleet.track.tensorboard import TensorBoardTracker
from envfleet.track.tracker import Tracker, Trackers
from envfleet.track.wandb import WandbTracker

__all__ = ["FileTracker", "TensorBoardTracker", "Tracker", "Trackers", "WandbTracker"]
