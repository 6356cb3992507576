"""envfleet runs fleets of Gymnasium environments at the speed of the hardware.

    env ──► engine ──► vector ──► testing, bench ──► cli
     │        │          │          └─ FaultEnv, leak checks, conformance; engines side by side
     │        │          └─ SerialVectorEnv, ProcessVectorEnv: gymnasium.vector.VectorEnv classes
     │        └─ how a step crosses a process line: rules, arena, worker, pool
     └─ any gymnasium.Env

Imports follow the arrows only.
"""

from envfleet.engine.worker.host import EnvHost
from envfleet.errors import (
    EnvError,
    EnvfleetError,
    FleetBroken,
    ObservationMismatch,
    WaitTimeout,
    WorkerDied,
)
from envfleet.vector.make import make
from envfleet.vector.process import ProcessVectorEnv
from envfleet.vector.serial import SerialVectorEnv

__all__ = [
    "EnvError",
    "EnvHost",
    "EnvfleetError",
    "FleetBroken",
    "ObservationMismatch",
    "ProcessVectorEnv",
    "SerialVectorEnv",
    "WaitTimeout",
    "WorkerDied",
    "make",
]

__version__ = "0.1.0"
