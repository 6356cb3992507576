"""Trust: a run's folder may come from a stranger, and must not import modules unasked."""

from __future__ import annotations

from pathlib import Path

from envfleet.errors import EnvfleetError


class UntrustedError(EnvfleetError, ValueError):
    """A run's folder names a module to import, and nobody has said that it may."""


def imports_module(env_id: str) -> bool:
    """Whether an env id names a module; ids that Gymnasium knows by itself do not."""
    return ":" in env_id


def check_trust(folder: Path, env_id: str, *, trust: bool) -> None:
    """Refuse to import what a folder asks for, unless it is trusted.

    Raises:
        UntrustedError: saying what would be imported, and how to allow it.
    """
    if imports_module(env_id) and not trust:
        module = env_id.partition(":")[0]
        raise UntrustedError(
            f"{folder} would import the module {module!r} for its env {env_id!r}, and importing "
            "runs whatever code is in it. If you trust both, add --trust (in Python: trust=True)."
        )
