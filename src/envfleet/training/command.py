"""Command lines that users are told to paste: they work in any folder, whatever is in the names."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from envfleet.training.config import TrainConfig
from envfleet.training.presets import preset
from envfleet.training.trust import imports_module


def of_run(command: str, folder: Path, env_id: str, wrappers: Sequence[str] = ()) -> str:
    """``envfleet resume``, ``eval`` or ``record`` for a run of one's own."""
    trust = ["--trust"] if imports_module(env_id, wrappers) else []
    return shlex.join(["envfleet", command, str(folder), *trust])


def anew(config: TrainConfig) -> str:
    """``envfleet train`` for a new run with the same hyper-parameters."""
    words = ["envfleet", "train", config.env_id]
    usual = base_config(config.env_id)
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name in _NO_FLAG or value == getattr(usual, field.name):
            continue
        if field.name == "wrappers":
            words += [word for wrapper in value for word in ("--wrapper", wrapper)]
            continue
        if field.name == "mask_key" and value is None:
            value = "none"
        values = value if isinstance(value, tuple) else (value,)
        words += [f"--{field.name.replace('_', '-')}", *map(str, values)]
    return shlex.join(words)


_NO_FLAG = ("env_id", "adam_epsilon", "log_std", "orthogonal")


def base_config(env_id: str) -> TrainConfig:
    """The hyper-parameters that ``envfleet train`` has when none are chosen."""
    try:
        return preset(env_id, "zoo")
    except ValueError:
        return TrainConfig(env_id=env_id)
