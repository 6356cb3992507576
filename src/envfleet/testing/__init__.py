"""Tools to test your own envs and engines with: planned faults, leak checks, conformance."""

from envfleet.testing.faults import FAULTS, PHASES, Fault, FaultEnv

__all__ = ["FAULTS", "PHASES", "Fault", "FaultEnv"]
