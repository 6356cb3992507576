"""train and resume: everything the commands do, from Python."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from gymnasium.vector import VectorEnv

from envfleet.rollout.progress import in_notebook, is_terminal
from envfleet.rollout.statistics import EpisodeStatistics
from envfleet.track.registry import make_trackers
from envfleet.training.build import EnvSource, MakeCollector, make_collector
from envfleet.training.command import base_config
from envfleet.training.config import RunOptions, TrainConfig
from envfleet.training.env_names import EnvName
from envfleet.training.env_options import EnvOptions, as_names, as_words
from envfleet.training.folder import RunFolder
from envfleet.training.loading import TrainedPolicy
from envfleet.training.own_policy import PolicySource
from envfleet.training.plot import write_pages
from envfleet.training.progress import Progress, make_progress
from envfleet.training.trainer import Run, why_solved

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainResult:
    """The result of a training run."""

    folder: Path
    """The run's folder: metrics, checkpoints, videos, ``report.html``, and ``curve.png`` if it was
    trained in the main thread."""
    statistics: EpisodeStatistics
    """Statistics of the last training episodes."""
    policy: TrainedPolicy
    """The policy at the end of training."""
    is_finished: bool
    """False if a callback ended the run early."""


def train(
    env: EnvSource,
    *,
    preset: str | None = None,
    total_steps: int | None = None,
    run_dir: Path | str = "runs",
    seed: int | None = None,
    callbacks: Iterable[Any] = (),
    name: str | None = None,
    track: Iterable[str] = (),
    progress: bool | None = None,
    make_collector: MakeCollector = make_collector,
    policy: PolicySource | None = None,
    **hyper_parameters: Any,
) -> TrainResult:
    """Train PPO, as ``envfleet train`` does, in the folder ``<run_dir>/<env>/<name>``.

    Ctrl-C finishes the current update, saves, and then raises KeyboardInterrupt; in a notebook it
    saves what was learnt before. ``resume``, or the command ``envfleet resume``, continues the run.

    Args:
        env: an id registered with Gymnasium or ``module:callable``, a spec, a function that builds
            an env, or a fleet, which stays open. What cannot be built again from ``config.json``
            (docs/training.md) has to be passed again to load or resume the run.
        preset: "zoo", "cleanrl" or "fast"; by default zoo's hyper-parameters if it has the env,
            else those of Stable-Baselines3.
        total_steps: steps of all envs together, rounded up to whole rollouts.
        run_dir: the parent folder of runs.
        seed: seed of the networks, envs, actions and minibatches.
        callbacks: see ``envfleet.training.callbacks.Callback``.
        name: name of the run; by default the seed and the time.
        track: additional trackers, "tensorboard" or "wandb".
        progress: whether to show progress; by default on a terminal and in a notebook.
        make_collector: the function that makes the collector; see ``envfleet.training.build``.
        policy: your own torch module, trained in place, or a function of (observation_space,
            action_space) that returns one; it needs ``act`` and ``evaluate_actions``, see
            docs/policies.md.
        **hyper_parameters: fields of ``TrainConfig`` and ``RunOptions``. ``--until-solved`` is
            ``stop_at=gymnasium.spec(env_id).reward_threshold``.

    Raises:
        TypeError: there is no such hyper-parameter.
        ValueError: a value is invalid, or the preset does not exist for the env.
    """
    of_env = EnvName.of(env)
    named = {"total_steps": total_steps, "seed": seed}
    chosen = hyper_parameters | {k: v for k, v in named.items() if v is not None}
    if isinstance(env, VectorEnv):
        if chosen.get("env_kwargs") or chosen.get("wrappers"):
            raise TypeError(
                "env_kwargs and wrappers are for envs that are built: this fleet is ready."
            )
        chosen["num_envs"] = env.num_envs
    texts = (("hidden", tuple), ("env_kwargs", as_words), ("wrappers", as_names))
    chosen |= {field: kept(chosen[field]) for field, kept in texts if field in chosen}
    # The spec's own arguments first: what the user passes besides changes them.
    chosen["env_kwargs"] = (*of_env.changes.env_kwargs, *chosen.get("env_kwargs", ()))
    chosen["wrappers"] = (*of_env.changes.wrappers, *chosen.get("wrappers", ()))
    changes = EnvOptions(chosen["env_kwargs"], chosen["wrappers"])
    config, options = _split(base_config(of_env.name, preset, changes, env), chosen)
    config = replace(config, env_id=of_env.env_id)
    place = RunFolder.of(Path(run_dir), of_env.name, name, config.seed)
    run = Run.start(
        place,
        config,
        options,
        env=env,
        callbacks=callbacks,
        trackers=partial(make_trackers, tuple(track), place.path),
        collector=make_collector,
        policy=policy,
    )
    return _carry_out(run, progress)


def resume(
    run: Path | str,
    *,
    checkpoint: str | None = None,
    total_steps: int | None = None,
    env: EnvSource | None = None,
    policy: PolicySource | None = None,
    trust: bool = False,
    callbacks: Iterable[Any] = (),
    track: Iterable[str] = (),
    progress: bool | None = None,
    make_collector: MakeCollector = make_collector,
) -> TrainResult:
    """Continue a run from its last checkpoint, as ``envfleet resume`` does.

    What has ended already is not trained further. Callbacks and trackers are not saved with a run:
    pass them again. Ctrl-C does what it does in ``train``.

    Args:
        run: the run's folder.
        checkpoint: the name of a folder in ``checkpoints/``, or "best"; what came later is removed.
        total_steps: make the run so long, with schedules as if it had been planned so.
        env: for a run whose env cannot be built from ``config.json``: the env, as for ``train``.
        policy: for a run with your own policy: a module like it, or a function that makes one; may
            be omitted with ``trust``, if it was a function or class of a module.
        trust: whether to import the modules that the run's folder names.
        callbacks: see ``envfleet.training.callbacks.Callback``.
        track: additional trackers, "tensorboard" or "wandb".
        progress: whether to show progress; by default on a terminal and in a notebook.
        make_collector: the function that makes the collector; see ``envfleet.training.build``.

    Raises:
        FileNotFoundError, ValueError: it is not a run folder, or its metrics were changed.
        UntrustedError: something would have to be imported from a module, and ``trust`` is False.
        CheckpointError: there is no such checkpoint, or it cannot be read.
        FolderInUseError: the run is still at work.
    """
    folder = Path(run).absolute()
    resumed = Run.resume(
        folder,
        checkpoint=checkpoint,
        trust=trust,
        total_steps=total_steps,
        env=env,
        callbacks=callbacks,
        trackers=partial(make_trackers, tuple(track), folder),
        collector=make_collector,
        policy=policy,
    )
    if resumed.is_solved:
        _log.warning("%s: %s", folder, why_solved(folder))
    return _carry_out(resumed, progress)


def _carry_out(run: Run, progress: bool | None) -> TrainResult:
    """Train to the end, and write the curve and the report; signals end it as they always do."""
    try:
        with run:
            is_finished = run.train(_shown(run, progress))
            statistics = run.collector.statistics
            trained = TrainedPolicy(run.policy, *run.spaces, run.config.mask_key)
    except Exception:
        if run.updates:
            write_pages(run.folder, _log.warning)
        raise
    write_pages(run.folder, _log.warning)
    if run.stopped_by == signal.SIGINT:
        raise KeyboardInterrupt
    if run.stopped_by is not None:
        sys.exit(128 + run.stopped_by)
    return TrainResult(run.folder, statistics, trained, is_finished)


def _shown(run: Run, wanted: bool | None) -> Progress:
    wanted = is_terminal() or in_notebook() if wanted is None else wanted
    title = f"{run.config.env_id} {run.folder.name}"
    return make_progress(title, run.config.last_step, run.steps) if wanted else Progress()


def _split(base: TrainConfig, chosen: dict[str, Any]) -> tuple[TrainConfig, RunOptions]:
    of_config = {field.name for field in fields(TrainConfig)} - {"env_id"}
    of_options = {field.name for field in fields(RunOptions)}
    unknown = chosen.keys() - of_config - of_options
    if unknown:
        known = ", ".join(sorted(of_config | of_options))
        raise TypeError(f"no hyper-parameters: {', '.join(sorted(unknown))}; there are: {known}.")
    config = replace(base, **{k: v for k, v in chosen.items() if k in of_config})
    return config, RunOptions(**{k: v for k, v in chosen.items() if k in of_options})
