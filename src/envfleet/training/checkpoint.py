"""Checkpoints: a folder per moment, complete or not there at all; no pickled code.

step_000000102400/  policy.safetensors   parameters and normaliser
                    state.pt             what every part of the run says in its state_dict
                                         (read with weights_only=True)
                    SHA256SUMS           of the others, as sha256sum -c reads them
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from envfleet.errors import EnvfleetError
from envfleet.track.durable import flush_folder, replace, write, writing

POLICY, STATE, SUMS = "policy.safetensors", "state.pt", "SHA256SUMS"


class CheckpointError(EnvfleetError):
    """A checkpoint cannot be used; the text says which one to take instead."""


@dataclass
class Checkpoint:
    """All that a run needs to go on as if nothing had happened."""

    step: int
    policy: dict[str, Tensor]
    state: dict[str, Any] = field(default_factory=dict)
    """Per part its ``state_dict``: tensors, numbers, texts, and lists and dicts of such."""


def save(folder: Path, checkpoint: Checkpoint, *, keep: int, best: bool) -> Path:
    """Write a checkpoint, remove all but the last ``keep`` and the best, which may be this one.

    It is on disk before it has its name. Only one program may save to a folder at a time.

    Raises:
        WriteError: it cannot be written; the folder is as before then.
    """
    state = io.BytesIO()
    torch.save({"step": checkpoint.step, **checkpoint.state}, state)
    files = {
        POLICY: safetensors.torch.save(
            {k: v.cpu().contiguous() for k, v in checkpoint.policy.items()}
        ),
        STATE: state.getvalue(),
    }
    files[SUMS] = _sums(files)
    with writing(folder):
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        if is_new:
            flush_folder(folder.parent)
    path = _place(folder, checkpoint.step)
    draft, old = folder / f".{path.name}.draft", folder / f".{path.name}.old"
    _remove_drafts(folder)
    try:
        with writing(path):
            draft.mkdir()
            for name, data in files.items():
                write(draft / name, data)
            flush_folder(draft)
            if path.exists():
                path.rename(old)
            draft.rename(path)
            flush_folder(folder)
    except BaseException:
        if old.exists() and not path.exists():
            old.rename(path)
        _remove_drafts(folder)
        if is_new:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    _remove_drafts(folder)
    if best:
        replace(folder / "best", path.name.encode())
    named = best_of(folder)
    for stale in list_checkpoints(folder)[:-keep]:
        if stale != named:
            shutil.rmtree(stale)
    return path


def _sums(files: Mapping[str, bytes]) -> bytes:
    """The checksums of files, in the form of sha256sum."""
    names = sorted(name for name in files if name != SUMS)
    return "".join(f"{hashlib.sha256(files[n]).hexdigest()}  {n}\n" for n in names).encode()


def _remove_drafts(folder: Path) -> None:
    """Remove what a save that did not come to its end has left."""
    for draft in folder.glob(".step_*"):
        shutil.rmtree(draft, ignore_errors=True)


def forget_after(folder: Path, step: int) -> None:
    """Remove the checkpoints of later steps: the run continues from there."""
    _remove_drafts(folder)
    for path in list_checkpoints(folder):
        if path.name > _place(folder, step).name:
            shutil.rmtree(path)
    if best_of(folder) is None:
        (folder / "best").unlink(missing_ok=True)


def _place(folder: Path, step: int) -> Path:
    return folder / f"step_{step:012d}"


def list_checkpoints(folder: Path) -> list[Path]:
    """All checkpoints of a run, the oldest first."""
    return sorted(path for path in folder.glob("step_*") if path.is_dir())


def best_of(folder: Path) -> Path | None:
    """The checkpoint that was marked as the best, if it is still there."""
    mark = folder / "best"
    name = mark.read_text("utf-8", "replace").strip() if mark.exists() else None
    return next((path for path in list_checkpoints(folder) if path.name == name), None)


def find(folder: Path, name: str | None = None) -> Path | None:
    """The last checkpoint, "best", or one by its name; None if there is none yet.

    Raises:
        CheckpointError: there is none of this name.
    """
    found = list_checkpoints(folder)
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
        CheckpointError: a file is missing, or is not what was written.
    """
    with usable(path):
        missing = [name for name in (POLICY, STATE, SUMS) if not (path / name).exists()]
        if missing:
            raise ValueError(f"it has no {' and no '.join(missing)}")
        files = {name: (path / name).read_bytes() for name in (POLICY, STATE, SUMS)}
        if files[SUMS] != _sums(files):
            raise ValueError(f"its files do not match {SUMS}, they were damaged or changed")
        policy = safetensors.torch.load(files[POLICY])
        state = torch.load(io.BytesIO(files[STATE]), map_location="cpu", weights_only=True)
        step = state.pop("step")
        if type(step) is not int or _place(path.parent, step).name != path.name:
            raise ValueError(f"it is of step {step!r}")
    return Checkpoint(step, policy, state)


@contextlib.contextmanager
def usable(path: Path) -> Iterator[None]:
    """Turn any error into a ``CheckpointError`` that names another checkpoint to take."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        others = [other.name for other in list_checkpoints(path.parent) if other != path]
        hint = f"take {others[-1]} instead (--checkpoint)" if others else "there is no other"
        why = str(error).partition("\n")[0][:200]
        if isinstance(error, KeyError):
            why = f"it has no {error}"
        elif not isinstance(error, ValueError):
            why = f"{type(error).__name__}: {why}"
        raise CheckpointError(f"the checkpoint {path} cannot be used ({why}); {hint}.") from error


def load_policy(policy: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """Give a policy the parameters of a checkpoint.

    Raises:
        ValueError: they are of a policy of another shape.
    """
    here = {name: tuple(value.shape) for name, value in policy.state_dict().items()}
    there = {name: tuple(value.shape) for name, value in saved.items()}
    for name in [*here, *there]:
        if here.get(name) != there.get(name):
            shapes = [_shape(shapes.get(name)) for shapes in (there, here)]
            raise ValueError(
                f"its policy has another shape than the run's: {name} is {shapes[0]} there and "
                f"{shapes[1]} here, so config.json or the env was changed"
            )
    policy.load_state_dict(saved)


def _shape(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else "x".join(map(str, shape)) or "a number"
