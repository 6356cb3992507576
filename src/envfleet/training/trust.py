"""Trust: a run's folder may come from a stranger, and must not import modules unasked."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gymnasium.vector import VectorEnv

from envfleet.errors import EnvfleetError
from envfleet.training.folder import RunRecord
from envfleet.training.own_policy import is_importable

TO_TRAIN = ("env", "wrapper", "engine", "policy")
TO_PLAY = ("env", "wrapper", "policy")
"""What a run's policy needs to be trained, or only to act: which of it comes from modules?"""


class UntrustedError(EnvfleetError, ValueError):
    """A run's folder names a module to import, and nobody has said that it may."""


def imports(record: RunRecord, uses: Iterable[str]) -> list[tuple[str, str]]:
    """What a run imports from modules, each with what it is: ``("env", "module:callable")``."""
    config, backend = record.config, record.options.backend
    named = {
        "env": [config.env_id] if ":" in config.env_id else [],
        "wrapper": list(config.wrappers),
        "engine": [backend] if ":" in backend else [],
        "policy": [record.policy] if record.policy and is_importable(record.policy) else [],
    }
    return [(what, name) for what in uses for name in named[what]]


def not_passed(uses: Iterable[str], *, env: object = None, policy: object = None) -> list[str]:
    """What of it is imported by its name, because nobody has passed it.

    Of an env that is still to be built, the folder's wrappers and engine are imported nevertheless.
    """
    passed = [] if env is None else ["env"]
    if isinstance(env, VectorEnv):
        passed += ["wrapper", "engine"]
    if policy is not None:
        passed.append("policy")
    return [use for use in uses if use not in passed]


def check_trust(folder: Path, record: RunRecord, uses: Iterable[str], *, trust: bool) -> None:
    """Refuse to import what a folder asks for, unless it is trusted.

    Raises:
        UntrustedError: saying what would be imported, and how to allow it.
    """
    named = imports(record, uses)
    if named and not trust:
        what, name = named[0]
        module = name.partition(":")[0]
        raise UntrustedError(
            f"{folder} would import the module {module!r} for its {what} {name!r}, and importing "
            "runs whatever code is in it. If you trust both, add --trust (in Python: trust=True)."
        )
