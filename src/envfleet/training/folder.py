"""A run's folder: locked before anything else happens, removed if the run never began.

runs/<env>/<name>/  config.json   what is trained, and how (RunRecord)
                    metrics.csv, metrics.jsonl, videos.jsonl (track/files.py)
                    plan.json     how the envs run, and why, since the run was last begun
                    checkpoints/  the last ones and the best (checkpoint.py)
                    renders/      videos, if any were asked for
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import shutil
import stat
import time
from dataclasses import asdict, dataclass, fields
from operator import index
from pathlib import Path
from typing import Any, Self

from envfleet.track import durable
from envfleet.track.lock import FolderInUseError, FolderLock
from envfleet.training.config import RunOptions, TrainConfig

CONFIG, PLAN, CHECKPOINTS = "config.json", "plan.json", "checkpoints"
_TRIES = 100


@dataclass(frozen=True)
class RunRecord:
    """What ``config.json`` says of a run."""

    config: TrainConfig
    options: RunOptions
    first_checkpoint: int | None = None
    """The step of the first checkpoint that the run has ever written."""
    extended: tuple[dict[str, int], ...] = ()
    """How often it was made longer: at which step, from how many total steps to how many."""
    policy: str | None = None
    """``module:name`` of the user's own policy; None is ours."""

    def write(self, folder: Path) -> None:
        """Replace the file; raises WriteError, and the old one stays then."""
        durable.replace(folder / CONFIG, (json.dumps(asdict(self), indent=2) + "\n").encode())

    @classmethod
    def read(cls, folder: Path) -> Self:
        """What a run's folder says.

        Raises:
            FileNotFoundError, ValueError: it is not a run's folder, or cannot be used.
        """
        check_is_run(folder)
        path = folder / CONFIG
        try:
            found = json.loads(path.read_text("utf-8"))
            config, options = (
                {f.name: found[key][f.name] for f in fields(kind)} | found[key]
                for key, kind in (("config", TrainConfig), ("options", RunOptions))
            )
            first = found["first_checkpoint"]
            first = None if first is None else index(first)
            for name in ("hidden", "env_kwargs", "wrappers"):
                config[name] = tuple(config[name])
            extended = tuple(
                {key: index(value) for key, value in each.items()} for each in found["extended"]
            )
            policy = found.get("policy")
            policy = None if policy is None else str(policy)
            return cls(TrainConfig(**config), RunOptions(**options), first, extended, policy)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            missing = isinstance(error, KeyError)
            why = f"{error} is missing" if missing else f"{type(error).__name__}: {error}"
            raise ValueError(f"{path} cannot be used ({why}).") from error


class RunFolder:
    """A folder that no other run can write to until ``close`` or ``discard``.

    ``of``, ``claim``, ``claim_new`` and ``open`` make one; its ``path`` is absolute.
    """

    def __init__(self, path: Path, lock: FolderLock, made: list[Path]) -> None:
        self.path = path
        self.lock = lock
        self._made = made

    @classmethod
    def of(cls, run_dir: Path, env_id: str, name: str | None, seed: int) -> Self:
        """The folder of a run that begins: the one of this name, else named by seed and time.

        Raises:
            ValueError: the name is no folder's name.
            FileExistsError, FolderInUseError: as for ``claim``.
        """
        if name is not None and (name in ("", ".", "..") or Path(name).name != name):
            raise ValueError(f"name must be a folder's name without slashes, got {name!r}")
        parent = run_dir.absolute() / env_id.replace("/", "_").replace(":", "_")
        if name is None:
            return cls.claim_new(parent, f"seed{seed}_{time.strftime('%Y%m%d-%H%M%S')}")
        return cls.claim(parent / name)

    @classmethod
    def claim(cls, path: Path, *, new: bool = False) -> Self:
        """A folder for a run that begins: made here, or one without a run unless it must be new.

        Raises:
            FileExistsError: it has a run already, or it must be new and is not.
            FolderInUseError: another run has claimed it.
        """
        path = path.absolute()
        made: list[Path] = []
        for attempt in itertools.count(1):
            try:
                _make(path, made, new=new)
                lock = FolderLock(path)
                break
            except FileNotFoundError:
                # Another run that has failed to begin removes what it has made.
                if attempt == _TRIES:
                    raise
            except FolderInUseError:
                raise  # whoever has it relies on the folders
            except BaseException:
                _remove_empty(made)
                raise
        claimed = cls(path, lock, made)
        if (path / CONFIG).exists():
            claimed.discard()
            raise FileExistsError(
                f"{path} has a run already: resume it, or choose another name or folder."
            )
        return claimed

    @classmethod
    def claim_new(cls, parent: Path, name: str) -> Self:
        """A new folder of this name; with a number behind it if the name is taken."""
        parent = parent.absolute()
        for number in itertools.count(1):
            path = parent / (name if number == 1 else f"{name}_{number}")
            try:
                return cls.claim(path, new=True)
            except FolderInUseError:
                continue
            except FileExistsError as error:
                if error.filename is not None and Path(error.filename) != path:
                    raise  # a file stands where a parent should be: no number helps
        raise AssertionError  # numbers do not end

    @classmethod
    def open(cls, path: Path) -> Self:
        """The folder of a run that continues.

        Raises:
            FileNotFoundError: it is not a run's.
            FolderInUseError: the run is still at work.
        """
        path = path.absolute()
        check_is_run(path)
        return cls(path, FolderLock(path), [])

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are."""
        return self.path / CHECKPOINTS

    def write_plan(self, plan: dict[str, Any]) -> None:
        """Write how the envs run."""
        durable.replace(self.path / PLAN, (json.dumps(plan, indent=2) + "\n").encode())

    def close(self) -> None:
        """Let somebody else have the folder."""
        self.lock.release()

    def discard(self) -> None:
        """Remove what was made here, and nothing else; a folder that was there before stays."""
        is_own = self.path in self._made and not (self.path / CONFIG).exists()
        if is_own:
            for entry in self.path.iterdir():
                if entry == self.lock.path:
                    continue  # the last one: without it another run may begin here
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    with contextlib.suppress(OSError):
                        entry.unlink()
        self.lock.release(remove=True)
        if is_own:
            _remove_empty(self._made)


def check_is_run(path: Path) -> None:
    """Refuse a folder that is not a run's."""
    if not (path / CONFIG).exists():
        raise FileNotFoundError(f"{path} is not a run folder (no {CONFIG}).")


def _make(path: Path, made: list[Path], *, new: bool) -> None:
    """Make a folder and its parents, and note which ones are new."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        try:
            folder.mkdir()
        except FileExistsError:
            # Either another run was quicker, or a file has this name. Asking once, and not
            # "is it there" and then "is it a folder", leaves no gap for a run that removes it.
            try:
                is_folder = stat.S_ISDIR(folder.stat().st_mode)
            except FileNotFoundError:
                if folder.is_symlink():
                    raise FileExistsError(
                        errno.EEXIST, "a link that leads nowhere has this name", str(folder)
                    ) from None
                raise
            if not is_folder:
                raise
        else:
            made.append(folder)
    if new and path not in made:
        raise FileExistsError(f"{path} is there already: choose another name.")


def _remove_empty(made: list[Path]) -> None:
    """Remove folders, the innermost first, up to the first one that somebody else uses."""
    with contextlib.suppress(OSError):
        for folder in sorted(set(made), key=lambda folder: len(folder.parts), reverse=True):
            folder.rmdir()
