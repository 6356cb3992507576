"""``envfleet train``, ``resume``, ``eval`` and ``record``: runs from the command line."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import gymnasium
import tyro

from envfleet.record.film import record_agent
from envfleet.record.rendering import check_video
from envfleet.report import write_report
from envfleet.rollout.evaluate import evaluate
from envfleet.rollout.numbers import three_digits
from envfleet.rollout.progress import is_terminal, progress_bar
from envfleet.track import TensorBoardTracker, Tracker, WandbTracker
from envfleet.track.durable import WriteError
from envfleet.track.lock import FolderInUseError
from envfleet.training import checkpoint as checkpoints
from envfleet.training import command
from envfleet.training.config import Schedule, TrainConfig
from envfleet.training.env_options import EnvOptions
from envfleet.training.envs import build_fleet, find_env, kind_of, one_filmed
from envfleet.training.failures import describe
from envfleet.training.folder import RunFolder
from envfleet.training.plot import draw_curve
from envfleet.training.policy import Activation
from envfleet.training.presets import preset
from envfleet.training.run import Run, RunOptions, finished, make_policy, read_config
from envfleet.training.trust import check_trust

REFUSALS = (
    ValueError,
    TypeError,
    OSError,
    ImportError,
    FolderInUseError,
    checkpoints.CheckpointError,
    gymnasium.error.Error,
)
"""What is wrong with what was asked for: told without a traceback, exit code 2."""


@dataclass
class Train:
    """Train PPO on an env; what it learns, and how, is in the run's folder.

    Hyper-parameters that are left out are the preset's.
    """

    env_id: Annotated[str, tyro.conf.Positional]
    """An id that Gymnasium knows, or module:callable."""
    preset: Literal["zoo", "cleanrl", "fast"] | None = None
    """Whose hyper-parameters; by default zoo's where it has the env, else Stable-Baselines3's."""
    total_steps: int | None = None
    """Steps of all envs together, rounded up to whole rollouts."""
    num_envs: int | None = None
    seed: int | None = None
    steps: int | None = None
    """Steps of each env per rollout."""
    batch_size: int | None = None
    epochs: int | None = None
    learning_rate: float | None = None
    learning_rate_schedule: Schedule | None = None
    """linear: down to 0 at the end of the run."""
    gamma: float | None = None
    gae_lambda: float | None = None
    clip: float | None = None
    clip_schedule: Schedule | None = None
    clip_values: bool | None = None
    """Whether new values stay within the clip of the old ones in the loss."""
    entropy: float | None = None
    """Weight of the entropy bonus."""
    value: float | None = None
    """Weight of the value loss."""
    max_grad_norm: float | None = None
    target_kl: float | None = None
    """Stop an update where the policy has moved further than 1.5 times this."""
    normalize_observations: bool | None = None
    normalize_rewards: bool | None = None
    hidden: tuple[int, ...] | None = None
    """Widths of the hidden layers."""
    activation: Activation | None = None
    mask_key: str | None = None
    """The info in which envs say what actions they allow (action_mask); "none" ignores it."""
    env_kwargs: tuple[str, ...] | None = None
    """Arguments of the env as key=value, of the types in its signature; JSON for what is nested."""
    wrappers: Annotated[
        tuple[str, ...], tyro.conf.arg(name="wrapper"), tyro.conf.UseAppendAction
    ] = ()
    """A wrapper of the env as module:callable; may be given several times, the innermost first."""
    backend: Literal["auto", "serial", "process"] = "auto"
    """Where envs run."""
    on_failure: Literal["raise", "restart"] = "raise"
    """What to do when an env raises or a worker dies."""
    device: str = "auto"
    """cpu, cuda, or auto: the GPU for pictures, if there is one, else the CPU."""
    until_solved: bool = False
    """End the run when the last 100 episodes reach the env's reward threshold."""
    checkpoint_every: int | None = None
    """Updates between checkpoints, where all envs begin new episodes; by default about 50 times per
    run, but at least 10,000 steps of each env apart."""
    record_every: int = 0
    """Steps between films; 0 films nothing."""
    track: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Trackers besides the files in the run's folder."""
    run_dir: Path = Path("runs")
    """Runs are <run-dir>/<env>/<name>."""
    name: str | None = None
    """Of the run; by default the seed and the time."""

    def run(self) -> int:
        """Train; the exit code."""
        try:
            runs = self.run_dir.absolute()  # now: an env may change the current folder
            config = self._config()
            options = self._options()
            if self.name in (".", "..") or (self.name and Path(self.name).name != self.name):
                raise ValueError(f"name must be a folder's name without slashes, got {self.name!r}")
            parent = runs / self.env_id.replace("/", "_").replace(":", "_")
            if self.name:
                place = RunFolder.claim(parent / self.name)
            else:
                name = f"seed{config.seed}_{time.strftime('%Y%m%d-%H%M%S')}"
                place = RunFolder.claim_new(parent, name)
            run = Run.start(place, config, options, partial(_trackers, self.track, place.path))
        except REFUSALS as error:
            return _refuse(error)
        return _carry_out(run)

    def _config(self) -> TrainConfig:
        words = {field.name: getattr(self, field.name, None) for field in fields(TrainConfig)}
        chosen = {name: value for name, value in words.items() if value is not None}
        if self.mask_key == "none":
            chosen["mask_key"] = None
        return replace(self._base(), **chosen)

    def _base(self) -> TrainConfig:
        if self.preset == "cleanrl":
            return preset(self.env_id, "cleanrl", **kind_of(self.env_id))
        if self.preset is not None:
            return preset(self.env_id, self.preset)
        return command.base_config(self.env_id)

    def _options(self) -> RunOptions:
        stop_at = None
        if self.until_solved:
            stop_at = getattr(find_env(self.env_id), "reward_threshold", None)
            if stop_at is None:
                raise ValueError(
                    f"{self.env_id} has no reward threshold: leave --until-solved out."
                )
        return RunOptions(
            backend=self.backend,
            on_failure=self.on_failure,
            device=self.device,
            checkpoint_every=self.checkpoint_every,
            record_every=self.record_every,
            stop_at=stop_at,
        )


@dataclass
class Resume:
    """Go on with a run that was stopped, from its last checkpoint, exactly."""

    folder: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""
    checkpoint: str | None = None
    """A folder's name in checkpoints/, or "best"; what came later is removed."""
    track: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Trackers besides the files in the run's folder."""
    trust: bool = False
    """Import the modules that the run's folder names for its env and wrappers."""

    def run(self) -> int:
        """Train on; the exit code."""
        try:
            folder = self.folder.absolute()
            over = finished(folder, self.checkpoint)
            if over is not None:
                step, reached = over
                _say(f"{self.folder}: already {_how_it_ended(reached)}, {step:,} steps")
                return 0
            make = partial(_trackers, self.track, folder)
            run = Run.resume(folder, make, checkpoint=self.checkpoint, trust=self.trust)
        except REFUSALS as error:
            return _refuse(error)
        return _carry_out(run)


@dataclass
class Eval:
    """Play whole episodes with a run's policy, deterministically, and say how they went."""

    folder: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""
    episodes: int = 100
    seed: int = 0
    num_envs: int = 8
    checkpoint: str | None = None
    """By default the last one; "best", or a folder's name in checkpoints/."""
    sample: bool = False
    """Sample actions instead of taking the likeliest."""
    json: bool = False
    """Print one JSON object."""
    trust: bool = False
    """Import the modules that the run's folder names for its env and wrappers."""

    def run(self) -> int:
        """Evaluate; the exit code."""
        try:
            _check_at_least(1, episodes=self.episodes, num_envs=self.num_envs)
            _check_at_least(0, seed=self.seed)
            policy, envs, step, mask_key = _trained(
                self.folder, self.num_envs, self.checkpoint, trust=self.trust
            )
        except REFUSALS as error:
            return _refuse(error)
        with envs:
            result = evaluate(
                policy, envs, self.episodes, not self.sample, self.seed, mask_key=mask_key
            )
        if self.json:
            told = {"step": step, "mean": result.mean, "std": result.std}
            told |= {"returns": result.returns.tolist(), "lengths": result.lengths.tolist()}
            print(json.dumps(told), flush=True)  # noqa: T201 - it is what was asked for
        else:
            print(f"step {step:,}: {result}", flush=True)  # noqa: T201 - same
        return 0


@dataclass
class Record:
    """Film a run's policy in a fleet, side by side."""

    folder: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""
    path: Path | None = None
    """The film, .gif or .mp4; by default in the run's folder."""
    episodes: int = 1
    num_envs: int = 4
    seed: int = 0
    checkpoint: str | None = None
    """By default the last one; "best", or a folder's name in checkpoints/."""
    scale: float = 0.5
    trust: bool = False
    """Import the modules that the run's folder names for its env and wrappers."""

    def run(self) -> int:
        """Film; the exit code."""
        try:
            folder = self.folder.absolute()
            path = None if self.path is None else self.path.absolute()
            _check_at_least(1, episodes=self.episodes, num_envs=self.num_envs)
            _check_at_least(0, seed=self.seed)
            if not self.scale > 0:
                raise ValueError(f"scale must be above 0, got {self.scale}")
            policy, envs, step, mask_key = _trained(
                folder, self.num_envs, self.checkpoint, trust=self.trust, films=True
            )
        except REFUSALS as error:
            return _refuse(error)
        path = path or folder / "renders" / f"policy_{step}.gif"
        with envs:
            try:
                record_agent(
                    policy,
                    envs,
                    episodes=self.episodes,
                    path=path,
                    deterministic=True,
                    seed=self.seed,
                    scale=self.scale,
                    mask_key=mask_key,
                )
            except (ValueError, OSError) as error:
                return _refuse(error)
        print(self.path or path, flush=True)  # noqa: T201 - it is what was asked for
        return 0


def _trackers(names: tuple[str, ...], folder: Path, step: int) -> list[Tracker]:
    made: list[Tracker] = []
    try:
        for name in names:
            if name == "tensorboard":
                made.append(TensorBoardTracker(folder / "tensorboard", first_step=step + 1))
            else:
                made.append(WandbTracker(folder.parent.name, folder.name, dir=str(folder)))
    except Exception as error:
        for tracker in made:
            tracker.close()
        if isinstance(error, ImportError):
            raise
        # wandb's own, without an account or a network
        raise ValueError(f"--track {' '.join(names)}: {error}") from error
    return made


def _trained(
    folder: Path, num_envs: int, checkpoint: str | None, *, trust: bool, films: bool = False
) -> tuple[Any, Any, int, str | None]:
    """A run's policy, a fleet for it, the step it was trained to, and the key of its masks."""
    folder = folder.absolute()
    config, options = read_config(folder)
    check_trust(folder, config.env_id, config.wrappers, trust=trust)
    path = checkpoints.find(folder / "checkpoints", checkpoint)
    if path is None:
        raise ValueError(f"{folder} has no checkpoint.")
    saved = checkpoints.load(path)
    if films:
        check_video(partial(one_filmed, config.env_id, EnvOptions.of(config)))
    backend = "process" if options.on_failure == "restart" else "serial"
    envs = build_fleet(
        config.env_id,
        num_envs,
        backend=backend,
        on_failure=options.on_failure,
        films=films,
        changes=EnvOptions.of(config),
    )
    try:
        policy = make_policy(config, envs)
        with checkpoints.usable(path):
            checkpoints.load_policy(policy, saved.policy)
    except BaseException:
        envs.close()
        raise
    return policy.eval(), envs, saved.step, config.mask_key


def _carry_out(run: Run) -> int:
    """Train, tell how it goes, write curve and report; 128 and the signal's number if one came."""
    start = time.perf_counter()
    told = _Progress(run.config.last_step, run.collector.total_steps)
    go_on = command.of_run("resume", run.folder, run.config.env_id, run.config.wrappers)
    try:
        with run:
            with told:
                is_over = run.train(told.tell)
            steps = run.collector.total_steps
            window = run.collector.statistics.window
    except WriteError as error:  # a full disk
        return _refuse(f"{error}; the run has stopped. With room on the disk: {go_on}")
    except Exception as error:
        if run.updates:
            error.add_note(f"what was learnt is saved; go on with:\n{go_on}")
        raise
    try:
        draw_curve(run.folder)
        write_report(run.folder)
    except OSError as error:
        _say(f"no curve or report was written: {error}")
    how = _how_it_ended(run.options.stop_at if run.is_solved else None) if is_over else "stopped"
    seconds = time.perf_counter() - start
    trained = sum(run.seconds.values())
    split = ", ".join(f"{name} {part / trained:.0%}" for name, part in run.seconds.items())
    result = "no episode has ended yet"
    if window.n:
        mean = three_digits(window.returns.mean)
        result = f"return {mean} over the last {window.n} episodes"
    _say(
        f"{run.folder}: {how}, {steps:,} steps in {three_digits(seconds)} s, {result}\n"
        f"{three_digits(trained)} s of training: {split}"
    )
    if is_over:
        return 0
    _say(f"go on with:\n{go_on}")  # a line of its own, to be pasted
    return 128 + (run.stopped_by or 0)


def _how_it_ended(reached: float | None) -> str:
    return "finished" if reached is None else f"finished, solved (≥ {three_digits(reached)})"


class _Progress:
    """A bar on a terminal, a line every few seconds elsewhere."""

    def __init__(self, total: int, begun: int) -> None:
        self._is_bar = is_terminal()
        self._bar = progress_bar(total, None, "Training", "step", begun)
        self._total, self._step = total, begun
        self._first = begun
        self._start = self._last = time.perf_counter()

    def __enter__(self) -> _Progress:  # noqa: PYI034 - nobody inherits from it
        self._bar.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.__exit__(None, None, None)

    def tell(self, metrics: dict[str, float], step: int) -> None:
        """The metrics of an update."""
        self._bar.update(step - self._step)
        self._step = step
        returns = [metrics[f"return_{name}"] for name in ("p5", "p50", "p95")]
        text = "return " + "/".join("-" if math.isnan(r) else three_digits(r) for r in returns)
        now = time.perf_counter()
        if self._is_bar:
            self._bar.set_postfix_str(text, refresh=False)
        elif now - self._last > 5.0 or step >= self._total:
            self._last = now
            rate = (step - self._first) / (now - self._start)
            left = max(0, self._total - step) / rate  # restarts may take a rollout more
            _say(
                f"{step:,} of {self._total:,} steps, {three_digits(rate)}/s, {text} (5/50/95 %), "
                f"{three_digits(left)} s left"
            )


def _say(text: str) -> None:
    """Print to whoever listens; if nobody does any more, training goes on all the same."""
    try:
        print(text, flush=True)  # noqa: T201
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _check_at_least(least: int, **values: int) -> None:
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name} must be {least} or more, got {value}")


def _refuse(error: Exception | str) -> int:
    """Say why it cannot be done; the exit code."""
    known = None if isinstance(error, str) else describe(error)
    text, code = known or (str(error), 2)
    print(text, file=sys.stderr)  # noqa: T201
    return code
