"""Trust: a run's folder may come from a stranger, and must not import modules unasked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from envfleet.errors import EnvfleetError


class UntrustedError(EnvfleetError, ValueError):
    """A run's folder names a module to import, and nobody has said that it may."""


def imports_module(env_id: str, wrappers: Sequence[str] = ()) -> bool:
    """Whether modules are imported: for an id that Gymnasium does not know, or for wrappers."""
    return ":" in env_id or bool(wrappers)


def check_trust(folder: Path, env_id: str, wrappers: Sequence[str] = (), *, trust: bool) -> None:
    """Refuse to import what a folder asks for, unless it is trusted.

    Raises:
        UntrustedError: saying what would be imported, and how to allow it.
    """
    named = [("env", env_id)] if ":" in env_id else []
    named += [("wrapper", wrapper) for wrapper in wrappers]
    if named and not trust:
        what, name = named[0]
        module = name.partition(":")[0]
        raise UntrustedError(
            f"{folder} would import the module {module!r} for its {what} {name!r}, and importing "
            "runs whatever code is in it. If you trust both, add --trust (in Python: trust=True)."
        )
