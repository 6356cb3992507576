"""``envfleet train``, ``resume``, ``eval`` and ``record``: runs from the command line."""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import gymnasium
import tyro

from envfleet.record.film import record_agent
from envfleet.rollout.evaluate import evaluate
from envfleet.rollout.progress import progress_bar
from envfleet.track import TensorBoardTracker, Tracker, WandbTracker
from envfleet.train import checkpoint as checkpoints
from envfleet.train.config import Schedule, TrainConfig
from envfleet.train.envs import build_fleet, find_env
from envfleet.train.plot import draw_curve
from envfleet.train.policy import Activation
from envfleet.train.presets import preset
from envfleet.train.run import Run, RunOptions, make_policy, read_config


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
    """Steps of all envs together."""
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
    backend: Literal["auto", "serial", "process"] = "auto"
    """Where envs run."""
    on_failure: Literal["raise", "restart"] = "raise"
    """What to do when an env raises or a worker dies."""
    until_solved: bool = False
    """End the run when the last 100 episodes reach the env's reward threshold."""
    checkpoint_every: int = 50
    """Updates between checkpoints."""
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
            config = self._config()
            options = self._options()
            name = self.name or f"seed{config.seed}_{time.strftime('%Y%m%d-%H%M%S')}"
            folder = self.run_dir / self.env_id.replace("/", "_").replace(":", "_") / name
            run = Run.start(folder, config, options, lambda: _trackers(self.track, folder))
        except (ValueError, TypeError, FileExistsError, ImportError) as error:
            return _refuse(str(error))
        return _carry_out(run)

    def _config(self) -> TrainConfig:
        words = {field.name: getattr(self, field.name, None) for field in fields(TrainConfig)}
        chosen = {name: value for name, value in words.items() if value is not None}
        return replace(self._base(), **chosen)

    def _base(self) -> TrainConfig:
        if self.preset == "cleanrl":
            with build_fleet(self.env_id, 1, backend="serial", on_failure="raise") as envs:
                continuous = isinstance(envs.single_action_space, gymnasium.spaces.Box)
                image = len(envs.single_observation_space.shape or ()) == 3
            return preset(self.env_id, "cleanrl", continuous=continuous, image=image)
        if self.preset is not None:
            return preset(self.env_id, self.preset, continuous=False, image=False)
        try:
            return preset(self.env_id, "zoo", continuous=False, image=False)
        except ValueError:
            return TrainConfig(env_id=self.env_id)

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
            checkpoint_every=self.checkpoint_every,
            record_every=self.record_every,
            stop_at=stop_at,
        )


@dataclass
class Resume:
    """Go on with a run that was stopped, from its last checkpoint, exactly."""

    folder: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""
    track: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Trackers besides the files in the run's folder."""

    def run(self) -> int:
        """Train on; the exit code."""
        try:
            run = Run.resume(self.folder, lambda: _trackers(self.track, self.folder))
        except (OSError, ValueError, ImportError, checkpoints.CheckpointError) as error:
            return _refuse(str(error))
        return _carry_out(run)


@dataclass
class Eval:
    """Play whole episodes with a run's policy, deterministically, and say how they went."""

    folder: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""
    episodes: int = 100
    seed: int = 0
    num_envs: int = 8
    best: bool = False
    """Take the best checkpoint and not the last one."""
    sample: bool = False
    """Sample actions instead of taking the likeliest."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Evaluate; the exit code."""
        if self.episodes < 1 or self.num_envs < 1:
            return _refuse("episodes and num-envs must be 1 or more")
        try:
            policy, envs, step = _trained(self.folder, self.num_envs, best=self.best, films=False)
        except (OSError, ValueError, checkpoints.CheckpointError) as error:
            return _refuse(str(error))
        with envs:
            result = evaluate(policy, envs, self.episodes, not self.sample, self.seed)
        if self.json:
            told = {"step": step, "mean": result.mean, "std": result.std}
            told |= {"returns": result.returns.tolist(), "lengths": result.lengths.tolist()}
            print(json.dumps(told))  # noqa: T201 - it is what was asked for
        else:
            print(f"step {step:,}: {result}")  # noqa: T201 - same
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
    best: bool = False
    """Take the best checkpoint and not the last one."""
    scale: float = 0.5

    def run(self) -> int:
        """Film; the exit code."""
        if self.episodes < 1 or self.num_envs < 1 or not self.scale > 0:
            return _refuse("episodes and num-envs must be 1 or more, scale above 0")
        try:
            policy, envs, step = _trained(self.folder, self.num_envs, best=self.best, films=True)
        except (OSError, ValueError, checkpoints.CheckpointError) as error:
            return _refuse(str(error))
        path = self.path or self.folder / "renders" / f"policy_{step}.gif"
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
                )
            except ValueError as error:
                return _refuse(str(error))
        print(path)  # noqa: T201 - it is what was asked for
        return 0


def _trackers(names: tuple[str, ...], folder: Path) -> list[Tracker]:
    made: list[Tracker] = []
    for name in names:
        if name == "tensorboard":
            made.append(TensorBoardTracker(folder / "tensorboard"))
        else:
            made.append(WandbTracker(folder.parent.name, folder.name, dir=str(folder)))
    return made


def _trained(folder: Path, num_envs: int, *, best: bool, films: bool) -> tuple[Any, Any, int]:
    """A run's policy, a fleet for it, and the step it was trained to."""
    config, options = read_config(folder)
    found = checkpoints.everyone(folder / "checkpoints")
    if not found:
        raise ValueError(f"{folder} has no checkpoint yet.")
    path = (checkpoints.best_of(folder / "checkpoints") if best else None) or found[-1]
    saved = checkpoints.load(path)
    envs = build_fleet(
        config.env_id, num_envs, backend="serial", on_failure=options.on_failure, films=films
    )
    policy = make_policy(config, envs)
    policy.load_state_dict(saved.policy)
    return policy.eval(), envs, saved.step


def _carry_out(run: Run) -> int:
    """Train, tell how it goes, and draw the curve; 130 after Ctrl-C."""
    start = time.perf_counter()
    told = _Progress(run.config.total_steps, run.collector.total_steps)
    with run:
        with told:
            finished = run.train(told.tell)
        steps = run.collector.total_steps
        window = run.collector.statistics.window
    draw_curve(run.folder)
    how = "finished" if finished else "stopped; go on with: envfleet resume"
    seconds = time.perf_counter() - start
    trained = sum(run.seconds.values())
    split = ", ".join(f"{name} {part / trained:.0%}" for name, part in run.seconds.items())
    print(  # noqa: T201 - it is what was asked for
        f"{run.folder}: {how}, {steps:,} steps in {seconds:.1f} s, return "
        f"{window.returns.mean:.1f} over the last {window.n} episodes\n"
        f"{trained:.1f} s of training: {split}"
    )
    return 0 if finished else 130


class _Progress:
    """A bar on a terminal, a line every few seconds elsewhere."""

    def __init__(self, total: int, begun: int) -> None:
        self._is_bar = sys.stderr.isatty()
        self._bar = progress_bar(total, None, "Training", "step")
        self._total, self._step = total, begun
        self._first = begun
        self._start = self._last = time.perf_counter()

    def __enter__(self) -> _Progress:  # noqa: PYI034 - nobody inherits from it
        self._bar.__enter__()
        self._bar.update(self._step)
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.__exit__(None, None, None)

    def tell(self, metrics: dict[str, float], step: int) -> None:
        """The metrics of an update."""
        self._bar.update(step - self._step)
        self._step = step
        returns = [metrics[f"return_{name}"] for name in ("p5", "p50", "p95")]
        text = "return " + "/".join("-" if math.isnan(r) else f"{r:.0f}" for r in returns)
        now = time.perf_counter()
        if self._is_bar:
            self._bar.set_postfix_str(text, refresh=False)
        elif now - self._last > 5.0 or step >= self._total:
            self._last = now
            rate = (step - self._first) / (now - self._start)
            left = max(0, self._total - step) / rate
            print(  # noqa: T201 - there is no bar
                f"{step:,} of {self._total:,} steps, {rate:,.0f}/s, {text} (5/50/95 %), "
                f"{left:.0f} s left",
                flush=True,
            )


def _refuse(text: str) -> int:
    print(text, file=sys.stderr)  # noqa: T201
    return 2
