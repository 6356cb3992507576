"""Command lines that users are told to paste: they work in any folder, whatever is in the names."""

from __future__ import annotations

import shlex
from dataclasses import fields
from pathlib import Path

from envfleet.training.build import EnvSource
from envfleet.training.config import TrainConfig
from envfleet.training.env_options import UNCHANGED, EnvOptions
from envfleet.training.envs import kind_of
from envfleet.training.folder import RunRecord
from envfleet.training.presets import preset
from envfleet.training.trust import TO_PLAY, TO_TRAIN, imports


def of_run(command: str, folder: Path, record: RunRecord) -> str:
    """``envfleet resume``, ``eval`` or ``record`` for a run of one's own."""
    trust = ["--trust"] if imports(record, TO_TRAIN if command == "resume" else TO_PLAY) else []
    return shlex.join(["envfleet", command, str(folder), *trust])


def anew(config: TrainConfig) -> str:
    """``envfleet train`` for a new run with the same hyper-parameters."""
    words = ["envfleet", "train", config.env_id]
    usual = base_config(config.env_id)
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name == "env_id" or value == getattr(usual, field.name):
            continue
        flag = field.name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
            continue
        if field.name == "wrappers":
            words += [word for wrapper in value for word in ("--wrapper", wrapper)]
            continue
        values = value if isinstance(value, tuple) else (value,)
        words += [f"--{flag}", *map(str, values)]
    return shlex.join(words)


def base_config(
    env_id: str,
    preset_name: str | None = None,
    changes: EnvOptions = UNCHANGED,
    env: EnvSource | None = None,
) -> TrainConfig:
    """The hyper-parameters of a preset; by default rl-zoo's, else Stable-Baselines3's.

    CleanRL's depend on the spaces of the env, as its arguments and wrappers make them; ``env`` is
    the env itself, where ``env_id`` is only a name for it.

    Raises:
        ValueError: there is no such preset, or none for this env.
    """
    if preset_name == "cleanrl":
        return preset(env_id, "cleanrl", **kind_of(env_id if env is None else env, changes))
    if preset_name is not None:
        return preset(env_id, preset_name)
    try:
        return preset(env_id, "zoo")
    except ValueError:
        return TrainConfig(env_id=env_id)
