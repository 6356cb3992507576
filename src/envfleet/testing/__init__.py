"""Tools to test your own envs and engines with: planned faults, leak checks, conformance.

The leak checks need psutil: ``pip install envfleet[testing]``.
"""

from envfleet.testing.conformance import SpaceEnv, assert_same, check_vector_env, compare
from envfleet.testing.faults import FAULTS, PHASES, Fault, FaultEnv
from envfleet.testing.leaks import assert_no_leaks

__all__ = [
    "FAULTS",
    "PHASES",
    "Fault",
    "FaultEnv",
    "SpaceEnv",
    "assert_no_leaks",
    "assert_same",
    "check_vector_env",
    "compare",
]
