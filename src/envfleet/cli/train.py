"""``envfleet train``: its options are the fields of the run's config, with the preset's values."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tyro

from envfleet.cli.flags import check_flags, with_address
from envfleet.cli.shared import REFUSALS, carry_out, refuse
from envfleet.track.registry import TRACKERS, make_trackers
from envfleet.training.command import base_config
from envfleet.training.config import RunOptions, TrainConfig
from envfleet.training.env_options import EnvOptions
from envfleet.training.envs import find_env
from envfleet.training.folder import RunFolder
from envfleet.training.trainer import Run
from envfleet.vector.registry import backend_names


@dataclass(frozen=True)
class Train(RunOptions, TrainConfig):
    """Train PPO on an environment. Everything about a run is in its folder.

    The defaults below are the values that will be used: the preset's, if it knows the environment.
    """

    env_id: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV_ID")] = ""
    """An id that Gymnasium knows, or module:callable."""
    wrappers: Annotated[
        tuple[str, ...], tyro.conf.arg(name="wrapper"), tyro.conf.UseAppendAction
    ] = ()
    """A wrapper of the env as module:callable; may be given several times, the innermost first."""
    backend: Annotated[str, tyro.conf.arg(metavar="|".join(backend_names()))] = "auto"
    """Where envs run; auto measures one env and chooses. Or module:callable, your own engine."""
    preset: Literal["zoo", "cleanrl", "fast"] | None = None
    """Where the defaults come from: rl-zoo if it knows the env, else Stable-Baselines3."""
    until_solved: bool = False
    """End the run when the last 100 episodes reach the env's reward threshold."""
    track: tuple[str, ...] = ()
    """Trackers besides the files in the run's folder: tensorboard, wandb."""
    run_dir: Path = Path("runs")
    """Runs are <run-dir>/<env>/<name>."""
    name: str | None = None
    """Name of the run; by default the seed and the time."""
    quiet: bool = False
    """Show no progress and no summary; problems are still reported."""
    show_config: bool = False
    """Print the configuration as JSON, and train nothing."""

    def __post_init__(self) -> None:
        """Values are checked when the run begins, so that help can be shown for any."""

    @classmethod
    def of(cls, env_id: str, preset: str | None = None, **options: Any) -> Self:
        """The command for an env: what the options do not say, the preset does.

        Raises:
            ValueError: there is no such preset for it.
        """
        changes = EnvOptions(options.get("env_kwargs", ()), options.get("wrappers", ()))
        base = base_config(env_id, preset, changes)
        found: Any = {field.name: getattr(base, field.name) for field in fields(base)}
        return cls(**found | {"preset": preset} | options)

    @classmethod
    def parse(cls, words: Sequence[str]) -> Self:
        """The command that these words give; ends the program where they mean nothing."""
        words = with_address(words)
        asked, unknown = _glance([word for word in words if word not in ("-h", "--help")])
        check_flags("train", unknown, [field.name for field in fields(cls)])
        default = cls()
        if asked is not None and asked.env_id:
            with contextlib.suppress(ValueError):  # said when it is run
                given = {"env_kwargs": asked.env_kwargs, "wrappers": asked.wrappers}
                default = cls.of(asked.env_id, asked.preset, **given)
                default = replace(default, env_kwargs=(), wrappers=())
        return tyro.cli(cls, args=words, default=default, prog="envfleet train")

    def run(self) -> int:
        """Train; the exit code."""
        try:
            runs = self.run_dir.absolute()  # now: an env may change the current folder
            if not self.env_id:
                raise ValueError("which env? As in: envfleet train CartPole-v1")
            base_config(self.env_id, self.preset, EnvOptions(self.env_kwargs, self.wrappers))
            config, options = self.split()
            if self.show_config:
                told = {"config": asdict(config), "options": asdict(options)}
                print(json.dumps(told, indent=2), flush=True)  # noqa: T201 - it was asked for
                return 0
            for tracker in self.track:
                if tracker not in TRACKERS:
                    known = ", ".join(TRACKERS)
                    raise ValueError(f"there is no tracker {tracker!r}; there are: {known}.")
            place = RunFolder.of(runs, self.env_id, self.name, config.seed)
            trackers = partial(make_trackers, self.track, place.path)
            run = Run.start(place, config, options, trackers=trackers)
        except REFUSALS as error:
            return refuse(error)
        return carry_out(run, quiet=self.quiet)

    def split(self) -> tuple[TrainConfig, RunOptions]:
        """What is trained, and how it is carried out.

        Raises:
            ValueError: an option means nothing.
        """
        values: Any = {field.name: getattr(self, field.name) for field in fields(self)}
        config = TrainConfig(**{field.name: values[field.name] for field in fields(TrainConfig)})
        options = RunOptions(**{field.name: values[field.name] for field in fields(RunOptions)})
        if self.until_solved:
            stop_at = getattr(find_env(self.env_id), "reward_threshold", None)
            if stop_at is None:
                raise ValueError(
                    f"{self.env_id} has no reward threshold: leave --until-solved out."
                )
            options = replace(options, stop_at=stop_at)
        return config, options


def _glance(words: list[str]) -> tuple[Train | None, list[str]]:
    """What the words say without a preset, and those that mean nothing."""
    try:
        with contextlib.redirect_stderr(None):  # what is wrong is said by the second look
            return tyro.cli(
                Train, args=words, default=Train(), return_unknown_args=True, console_outputs=False
            )
    except SystemExit:
        return None, []
