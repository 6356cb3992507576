"""train: everything the command does, from Python."""

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
from envfleet.training.trainer import Run

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
    saves what was learnt before. ``envfleet resume``, or ``Run.resume``, continues the run.

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
        **hyper_parameters: fields of ``TrainConfig`` and ``RunOptions``.

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
    with Run.start(
        place,
        config,
        options,
        env=env,
        callbacks=callbacks,
        trackers=partial(make_trackers, tuple(track), place.path),
        collector=make_collector,
        policy=policy,
    ) as run:
        title = f"{of_env.name} {run.folder.name}"
        is_finished = run.train(_shown(title, config.last_step, progress))
        statistics = run.collector.statistics
        trained = TrainedPolicy(run.policy, *run.spaces, config.mask_key)
    write_pages(run.folder, _log.warning)
    if run.stopped_by == signal.SIGINT:
        raise KeyboardInterrupt
    if run.stopped_by is not None:
        sys.exit(128 + run.stopped_by)
    return TrainResult(run.folder, statistics, trained, is_finished)


def _shown(title: str, total: int, wanted: bool | None) -> Progress:
    wanted = is_terminal() or in_notebook() if wanted is None else wanted
    return make_progress(title, total, 0) if wanted else Progress()


def _split(base: TrainConfig, chosen: dict[str, Any]) -> tuple[TrainConfig, RunOptions]:
    of_config = {field.name for field in fields(TrainConfig)} - {"env_id"}
    of_options = {field.name for field in fields(RunOptions)}
    unknown = chosen.keys() - of_config - of_options
    if unknown:
        known = ", ".join(sorted(of_config | of_options))
        raise TypeError(f"no hyper-parameters: {', '.join(sorted(unknown))}; there are: {known}.")
    config = replace(base, **{k: v for k, v in chosen.items() if k in of_config})
    return config, RunOptions(**{k: v for k, v in chosen.items() if k in of_options})
