"""Checkpoints: a folder per moment, complete or not there at all; no pickled code.

step_000102400/  policy.safetensors   parameters and normaliser
optimizer.pt         Adam's moments (loaded with weights_only=True)
state.json           step, counters, statistics, random states
"""

from __future__ import annotations

import base64
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from envfleet.errors import EnvfleetError


class CheckpointError(EnvfleetError):
    """A checkpoint cannot be read; the text says which one to take instead."""


@dataclass
class Checkpoint:
    """All that a run needs to go on as if nothing had happened."""

    step: int
    policy: dict[str, Tensor]
    optimizer: dict[str, Any]
    state: dict[str, Any] = field(default_factory=dict)
    """Anything that JSON knows; tensors of bytes by ``pack_bytes``."""


def save(folder: Path, checkpoint: Checkpoint, *, keep: int, best: bool) -> Path:
    """Write a checkpoint, remove all but the last ``keep`` and the best, which may be this one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = _place(folder, checkpoint.step)
    draft = folder / f".{path.name}.draft"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    save_file(
        {k: v.cpu().contiguous() for k, v in checkpoint.policy.items()},
        draft / "policy.safetensors",
    )
    torch.save(checkpoint.optimizer, draft / "optimizer.pt")
    (draft / "state.json").write_text(json.dumps({"step": checkpoint.step, **checkpoint.state}))
    shutil.rmtree(path, ignore_errors=True)
    draft.rename(path)
    if best:
        (folder / "best.new").write_text(path.name)
        (folder / "best.new").replace(folder / "best")
    named = best_of(folder)
    for old in everyone(folder)[:-keep]:
        if old != named:
            shutil.rmtree(old)
    return path


def forget_after(folder: Path, step: int) -> None:
    """Remove the checkpoints of later steps: a run goes on from there."""
    for path in everyone(folder):
        if path.name > _place(folder, step).name:
            shutil.rmtree(path)
    if best_of(folder) is None:
        (folder / "best").unlink(missing_ok=True)


def _place(folder: Path, step: int) -> Path:
    return folder / f"step_{step:012d}"


def everyone(folder: Path) -> list[Path]:
    """All checkpoints of a run, the oldest first."""
    return sorted(path for path in folder.glob("step_*") if path.is_dir())


def best_of(folder: Path) -> Path | None:
    """The checkpoint that was marked as the best, if it is still there."""
    mark = folder / "best"
    path = folder / mark.read_text().strip() if mark.exists() else None
    return path if path is not None and path.is_dir() else None


def find(folder: Path, name: str | None = None) -> Path | None:
    """The last checkpoint, "best", or one by its name; None if there is none yet.

    Raises:
        CheckpointError: there is none of this name.
    """
    found = everyone(folder)
    if name is None:
        return found[-1] if found else None
    path = best_of(folder) if name == "best" else folder / name
    if path not in found:
        known = ", ".join(other.name for other in found) or "none"
        raise CheckpointError(f"{folder} has no checkpoint {name!r}; there are: {known}.")
    return path


def load(path: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        CheckpointError: a file is missing or was cut short.
    """
    try:
        state = json.loads((path / "state.json").read_text())
        policy = load_file(path / "policy.safetensors")
        optimizer = torch.load(path / "optimizer.pt", map_location="cpu", weights_only=True)
        step = state.pop("step")
    except Exception as error:
        others = [other.name for other in everyone(path.parent) if other != path]
        hint = f"take {others[-1]} instead (--checkpoint)" if others else "there is no other"
        why = str(error).partition("\n")[0][:80]
        raise CheckpointError(
            f"the checkpoint {path} cannot be read ({type(error).__name__}: {why}); {hint}."
        ) from error
    return Checkpoint(step, policy, optimizer, state)


def pack_bytes(state: Tensor) -> str:
    """A tensor of bytes, such as a generator's state, as text."""
    return base64.b64encode(state.numpy().tobytes()).decode()


def unpack_bytes(text: str) -> Tensor:
    """What ``pack_bytes`` has packed."""
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
