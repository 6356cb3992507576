"""Flags: what was meant by those that do not exist, and by one that says too little."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence

SYNONYMS = {
    "lr": "learning_rate",
    "n_envs": "num_envs",
    "n_steps": "rollout_steps",
    "num_steps": "rollout_steps",
    "steps": "rollout_steps",
    "n_epochs": "epochs",
    "update_epochs": "epochs",
    "n_timesteps": "total_steps",
    "timesteps": "total_steps",
    "total_timesteps": "total_steps",
    "clip": "clip_range",
    "clip_coef": "clip_range",
    "clip_vloss": "clip_values",
    "ent_coef": "entropy_coef",
    "entropy": "entropy_coef",
    "vf_coef": "value_coef",
    "value": "value_coef",
    "net_arch": "hidden",
    "minibatch_size": "batch_size",
    "lr_schedule": "learning_rate_schedule",
    "save_freq": "checkpoint_every",
    "eval_freq": "eval_every",
    "eval_interval": "eval_every",
    "n_eval_episodes": "eval_episodes",
    "output": "run_dir",
    "wandb": "track",
    "tensorboard": "track",
}
"""Names in Stable-Baselines3, rl-zoo and CleanRL, and ours."""


def with_address(words: Sequence[str]) -> list[str]:
    """The words, with an address behind a ``--ray`` that has none: the cluster that is there."""
    given: list[str] = []
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        given.append(word)
        if word == "--ray" and following.startswith("-"):
            given.append("auto")
    return given


def check_flags(command: str, unknown: Sequence[str], names: Sequence[str]) -> None:
    """End the program with exit code 2 if there are unknown flags, naming those like them."""
    flags = [word.partition("=")[0] for word in unknown if word.startswith("--")]
    if not flags:
        return
    for flag in flags:
        name = flag.removeprefix("--").removeprefix("no-").replace("-", "_")
        near = [SYNONYMS[name]] if SYNONYMS.get(name) in names else []
        near = near or difflib.get_close_matches(name, names, n=2)
        meant = " or ".join(f"--{other.replace('_', '-')}" for other in near)
        hint = f"did you mean {meant}?" if near else f"see envfleet {command} --help"
        print(f"envfleet {command} has no option {flag}: {hint}", file=sys.stderr)  # noqa: T201
    sys.exit(2)
