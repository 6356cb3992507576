"""envfleet runs fleets of Gymnasium environments at the speed of the hardware.

    env ──► engine ──► vector ──► rollout ──► record, track ──► training ─► cli
     │        │          │           │           │                └─ PPO, runs, checkpoints
     │        │          │           │           └─ Recorder, record_agent; metrics
     │        │          │           └─ Collector, Rollout, evaluate: torch begins here
     │        │          └─ Serial-, Process-, Ray- and NativeVectorEnv: gymnasium.vector.VectorEnvs
     │        └─ how a command reaches envs, wherever they live: shards, arena, workers
     └─ any gymnasium.Env; some of our own in envs  beside them: adapters, testing, bench

Imports follow the arrows only. What needs torch is imported when it is first asked for.
"""

import typing as _typing

import envfleet.adapters as _adapters  # noqa: F401 - so that envfleet.adapters is there
import envfleet.envs as _envs  # noqa: F401 - so that envfleet.envs is there
from envfleet.engine.worker.hooks import EnvHost
from envfleet.errors import (
    EnvError,
    EnvfleetError,
    FleetBroken,
    NoRoom,
    ObservationMismatch,
    WaitTimeout,
    WorkerDied,
)
from envfleet.vector.atari import make_atari
from envfleet.vector.make import make
from envfleet.vector.native.engine import NativeVectorEnv
from envfleet.vector.partial import Batch
from envfleet.vector.process import ProcessVectorEnv
from envfleet.vector.ray import RayVectorEnv
from envfleet.vector.registry import ENGINES
from envfleet.vector.serial import SerialVectorEnv

if _typing.TYPE_CHECKING:
    from envfleet.record.agent import record_agent
    from envfleet.record.recorder import Recorder
    from envfleet.rollout.buffer import Rollout
    from envfleet.rollout.collector import Collector
    from envfleet.rollout.evaluate import EvaluationResult, evaluate
    from envfleet.rollout.ray.collector import RayCollector
    from envfleet.training.api import TrainResult, resume, train
    from envfleet.training.callbacks import Callback
    from envfleet.training.loading import TrainedPolicy, load

__all__ = [
    "ENGINES",
    "Batch",
    "Callback",
    "Collector",
    "EnvError",
    "EnvHost",
    "EnvfleetError",
    "EvaluationResult",
    "FleetBroken",
    "NativeVectorEnv",
    "NoRoom",
    "ObservationMismatch",
    "ProcessVectorEnv",
    "RayCollector",
    "RayVectorEnv",
    "Recorder",
    "Rollout",
    "SerialVectorEnv",
    "TrainResult",
    "TrainedPolicy",
    "WaitTimeout",
    "WorkerDied",
    "evaluate",
    "load",
    "make",
    "make_atari",
    "record_agent",
    "resume",
    "train",
]

__version__ = "0.1.0"

_WITH_TORCH = {
    "Callback": "envfleet.training.callbacks",
    "Collector": "envfleet.rollout.collector",
    "EvaluationResult": "envfleet.rollout.evaluate",
    "RayCollector": "envfleet.rollout.ray.collector",
    "Recorder": "envfleet.record.recorder",
    "Rollout": "envfleet.rollout.buffer",
    "TrainResult": "envfleet.training.api",
    "TrainedPolicy": "envfleet.training.loading",
    "evaluate": "envfleet.rollout.evaluate",
    "load": "envfleet.training.loading",
    "record_agent": "envfleet.record.agent",
    "resume": "envfleet.training.api",
    "train": "envfleet.training.api",
}


def __getattr__(name: str) -> _typing.Any:
    if name not in _WITH_TORCH:
        raise AttributeError(f"module 'envfleet' has no attribute {name!r}")
    import importlib  # noqa: PLC0415 - where nothing lazy is used, nothing is imported

    try:
        module = importlib.import_module(_WITH_TORCH[name])
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "PIL", "safetensors"):
            raise
        raise ImportError(
            f"envfleet.{name} needs {error.name}: pip install 'envfleet[train]'."
        ) from error
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_WITH_TORCH})
