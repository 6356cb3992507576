"""Run: the training loop, in a folder; it can be stopped at any moment and continues exactly.

    collect a rollout ─► PPO.update ─► metrics ─► (evaluate) ─► checkpoint if due ─► again

At every checkpoint that is due, in a run that is never stopped too, all envs begin new episodes
with seeds drawn from the run's seed and the step. So a checkpoint needs no env's state, and what
follows it is the same whether the run was stopped there or not. Ctrl-C, SIGTERM and errors save one
besides: a run that continues from such a one is as good, but not the same.
"""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from operator import index
from pathlib import Path
from typing import Any, Self

import torch
from gymnasium import Space
from gymnasium.vector import VectorEnv

from envfleet.record.recorder import Recorder
from envfleet.record.rendering import check_video
from envfleet.rollout.buffer import Rollout
from envfleet.rollout.statistics import Episode
from envfleet.track.files import FileTracker, rows_until
from envfleet.track.tracker import Tracker, Trackers
from envfleet.training import checkpoint as checkpoints
from envfleet.training import command
from envfleet.training.build import (
    CollectorSetup,
    EnvSource,
    MakeCollector,
    make_collector,
    make_policy,
)
from envfleet.training.callbacks import Callbacks
from envfleet.training.checkpoint import Checkpoint
from envfleet.training.config import RunOptions, TrainConfig
from envfleet.training.env_options import EnvOptions
from envfleet.training.envs import of_a_run, one_rendered
from envfleet.training.evaluation import Evaluation
from envfleet.training.folder import CONFIG, RunFolder, RunRecord
from envfleet.training.learner import Learner
from envfleet.training.own_policy import PolicySource, find_policy, name_of
from envfleet.training.ppo import PPO
from envfleet.training.process import GentleSignals, TorchRandomness, kept_generators, one_thread
from envfleet.training.progress import Progress
from envfleet.training.trust import TO_TRAIN, check_trust, not_passed

MakeTrackers = Callable[[int], list[Tracker]]
"""Makes trackers once it is certain that there will be a run; is told the step it begins at."""


class Run:
    """Trains a policy in a folder; ``start`` and ``resume`` make one."""

    def __init__(
        self,
        place: RunFolder,
        record: RunRecord,
        *,
        env: EnvSource | None = None,
        trackers: MakeTrackers | None = None,
        callbacks: Iterable[Any] = (),
        collector: MakeCollector = make_collector,
        saved: tuple[Path, Checkpoint] | None = None,
        policy: PolicySource | None = None,
    ) -> None:
        config, options = record.config, record.options
        self.folder = place.path
        """Absolute: an env may change the current folder."""
        self.config, self.options = config, options
        self.updates = 0
        self.seconds: dict[str, float] = {}
        """Of ``train`` so far: env, policy, videos, collector, update, evaluation, other."""
        self.stopped_by: int | None = None
        """The signal that has ended ``train``, if one did."""
        self.record = record
        """What ``config.json`` says."""
        self._place = place
        self._own_policy = policy
        self._callbacks = Callbacks(callbacks)
        self._best, self._score = -math.inf, math.nan
        self._saved = self._ended = -1
        self._is_abandoned = False
        self._tracker = Trackers([])
        env = config.env_id if env is None else env
        torch.manual_seed(config.seed)
        self._recorder = None
        if options.record_every:
            if not isinstance(env, VectorEnv):
                check_video(partial(one_rendered, env, EnvOptions.of(config)))
            self._recorder = Recorder(
                self.folder / "renders",
                every_steps=options.record_every,
                max_frames=options.video_length,
                scale=options.video_scale,
                frame_skip=options.video_skip,
                tracker=self._tracker,
            )
        self._recorded = None if self._recorder is None else self._recorder.state_dict()
        self._evaluation = Evaluation(env, config, options) if options.eval_every else None
        with one_thread(), contextlib.ExitStack() as stack:
            stack.callback(self._tracker.close)
            setup = CollectorSetup(env, config, options, self._make_learner, self._recorder)
            self.collector = collector(setup)
            stack.callback(self.collector.close)
            if self._evaluation is not None:
                stack.callback(self._evaluation.close)
            self._randomness = TorchRandomness(self.policy.device)
            if saved is not None:
                with checkpoints.usable(saved[0]):
                    self._load(saved[1])
            # Nothing was written until here: what cannot be trained changes nothing.
            for tracker in trackers(self.steps) if trackers else ():
                self._tracker.add(tracker)
            self._files = FileTracker(self.folder, lock=place.lock)
            self._tracker.add(self._files)
            place.write_plan(self.collector.plan)
            self._stack = stack.pop_all()

    def _make_learner(
        self, observation_space: Space[Any], action_space: Space[Any]
    ) -> Learner[Any]:
        self.policy = make_policy(
            self.config, observation_space, action_space, self.options.device, self._own_policy
        )
        self.spaces = observation_space, action_space
        self.ppo = PPO(self.policy, self.config)
        return self.ppo.learner

    @classmethod
    def start(
        cls,
        folder: Path | RunFolder,
        config: TrainConfig,
        options: RunOptions | None = None,
        **parts: Any,
    ) -> Self:
        """Begin a new run; if that fails, a folder that was made for it is removed.

        Args:
            folder: where; made if it is not there.
            config: what is trained.
            options: how it is carried out.
            **parts: ``env``, instead of the one that ``config.env_id`` names; ``trackers``,
                ``callbacks``; ``collector``: what makes the collector, see ``build``; ``policy``:
                one of the user's own, see ``own_policy``.

        Raises:
            FileExistsError: there is one in this folder.
            FolderInUseError: another run is about to begin there.
        """
        place = folder if isinstance(folder, RunFolder) else RunFolder.claim(folder)
        try:
            record = RunRecord(config, options or RunOptions(), policy=name_of(parts.get("policy")))
            run = cls(place, record, **parts)
            try:
                record.write(place.path)
            except BaseException:
                run._stack.close()
                raise
        except BaseException:
            place.discard()
            raise
        return run

    @classmethod
    def resume(
        cls,
        folder: Path,
        *,
        checkpoint: str | None = None,
        trust: bool = False,
        total_steps: int | None = None,
        **parts: Any,
    ) -> Self:
        """Continue from the last checkpoint or a named one; from the start if there was none yet.

        Metrics and checkpoints of later steps are removed, once all that is needed has been read
        and fits. Whatever the folder names as ``module:name`` (env, wrappers, engine, a policy of
        the user's own) and nobody has passed is imported only with ``trust``. With ``total_steps``
        the run becomes longer or shorter, its schedules as if it had been planned
        so; ``config.json`` keeps a note.

        Raises:
            FileNotFoundError, ValueError: the folder is not a run's, or its metrics were changed.
            UntrustedError: something would have to be imported from a module.
            CheckpointError: the checkpoint is not there any more, or cannot be read.
            FolderInUseError: the run is still at work.
        """
        place = RunFolder.open(folder)
        try:
            record = RunRecord.read(place.path)
            policy = parts.pop("policy", None)
            uses = not_passed(TO_TRAIN, env=parts.get("env"), policy=policy)
            check_trust(place.path, record, uses, trust=trust)
            if policy is None and record.policy is not None:
                policy = find_policy(record.policy)
            path = checkpoints.find(place.checkpoints, checkpoint)
            if path is None:
                _check_never_saved(place.path, record)
            saved = None if path is None else (path, checkpoints.load(path))
            longer = _extended(record, total_steps, 0 if saved is None else saved[1].step)
            rows_until(place.path)
            with of_a_run():
                run = cls(place, longer, saved=saved, policy=policy, **parts)
            try:
                if longer != record:
                    longer.write(place.path)
                run._files.forget_after(run.steps)
                checkpoints.forget_after(place.checkpoints, run.steps)
                if checkpoints.best_of(place.checkpoints) is None:
                    run._best = -math.inf
            except BaseException:
                run._stack.close()
                raise
        except BaseException:
            place.discard()
            raise
        return run

    @property
    def steps(self) -> int:
        """Transitions so far, over all envs."""
        return self.collector.total_steps

    def train(self, progress: Progress | None = None) -> bool:
        """Train to the end; False if a signal or a callback came first.

        The current update is still finished, and a checkpoint saved; so it is before an error is
        raised. Where signals are not ours to take (see ``GentleSignals``), an interrupt does the
        same, and is raised then.
        """
        progress = progress or Progress()
        start = time.perf_counter() - sum(self.seconds.values())
        signals = GentleSignals()
        try:
            with one_thread() as threads, kept_generators(), progress, signals:
                if self.policy.body is not None:
                    torch.set_num_threads(threads)  # workers rest during an update
                return self._train(progress, signals)
        except Exception as error:
            self._save_after(error)
            raise
        except (KeyboardInterrupt, SystemExit) as error:
            if signals.is_in_charge or isinstance(error, SystemExit):
                self._is_abandoned = True  # the second, or one before the start: no waiting
            else:
                self._save_after(error)
            raise
        finally:
            known = sum(self.seconds.values())
            other = self.seconds.pop("other", 0.0)
            self.seconds["other"] = other + time.perf_counter() - start - known

    def _train(self, progress: Progress, signals: GentleSignals) -> bool:
        if self._is_over():
            return True
        self._begin_episodes()
        while True:
            begin, before = time.perf_counter(), dict(self.collector.seconds)
            rollout = self._collect()
            collected = time.perf_counter()
            goes_on = self._callbacks.tell("on_rollout", self, rollout)
            losses = self.ppo.update(rollout, self._progress(rollout.steps))
            self.updates += 1
            self._check_policy()
            seconds = time.perf_counter() - begin
            split = {k: s - before[k] for k, s in self.collector.seconds.items() if s > before[k]}
            split["collector"] = collected - begin - sum(split.values())
            split["update"] = begin + seconds - collected
            metrics = {
                "updates": float(self.updates),
                "restarts": float(self.collector.restart_count),
                **self.collector.statistics.window.flat(),
                **{f"loss/{name}": value for name, value in losses.items()},
                "time/steps_per_second": rollout.steps / seconds,
                **self.collector.metrics(),
            }
            over = self._is_over()
            metrics |= self._evaluate_if_due(split, over=over)
            for part, taken in split.items():
                metrics[f"time/{part}"] = taken
                self.seconds[part] = self.seconds.get(part, 0.0) + taken
            self._tracker.log(metrics, self.steps)
            progress.update(self.steps, metrics)
            goes_on &= self._callbacks.tell("on_update", self, metrics)
            self.stopped_by = signals.came
            is_due, is_last = self._is_due(), over or not goes_on or self.stopped_by is not None
            if is_due or is_last:
                path = self._save()
                is_last |= not self._callbacks.tell("on_checkpoint", self, path)
            if is_last:
                return over
            if is_due:
                self._begin_episodes()

    def _collect(self) -> Rollout:
        """A rollout to learn from.

        Raises:
            ValueError: there are rewards that nothing can be learnt from.
        """
        rollout = self.collector.collect()
        broken = ~torch.isfinite(rollout.rewards).all(0)
        if broken.any():
            envs = torch.nonzero(broken).flatten().tolist()
            raise ValueError(f"rewards of envs {envs} are NaN or infinite: fix or wrap the envs.")
        if self._recorder is not None:
            self._recorded = self._recorder.state_dict()
        return rollout

    def _is_finite(self) -> bool:
        """Whether the policy can be used."""
        return all(bool(torch.isfinite(p).all()) for p in self.policy.parameters())

    def _check_policy(self) -> None:
        if not self._is_finite():
            raise ArithmeticError(
                f"the policy has become NaN or infinite in update {self.updates}: resume from the "
                "last checkpoint, and choose a smaller learning rate if it does so again."
            )

    def _progress(self, new: int) -> float:
        """The part of the run that was over before these steps."""
        return (self.steps - new) / self.config.last_step

    def _is_over(self) -> bool:
        return self.steps >= self.config.last_step or self.is_solved

    @property
    def is_solved(self) -> bool:
        """Whether the last 100 episodes reach the return that ends the run."""
        return _is_solved(self.options, self.collector.statistics.episodes)

    @property
    def checkpoint_interval(self) -> int:
        """Updates between two checkpoints that are due."""
        config = self.config
        if self.options.checkpoint_every is not None:
            return self.options.checkpoint_every
        steps = max(10_000, config.total_steps / config.num_envs / 50)
        return math.ceil(steps / config.rollout_steps)

    def _is_due(self) -> bool:
        every = self.options.eval_every
        return self.updates % self.checkpoint_interval == 0 or self._is_multiple(every)

    def _is_multiple(self, every: int | None) -> bool:
        return every is not None and self.updates % every == 0

    def _evaluate_if_due(self, split: dict[str, float], *, over: bool) -> dict[str, float]:
        """The metrics of an evaluation; at the end of a run one is always due."""
        every = self.options.eval_every
        if self._evaluation is None or not (over or self._is_multiple(every)):
            return {}
        start = time.perf_counter()
        metrics = self._evaluation.of(self.policy, self.steps)
        self._score = metrics["eval/return_mean"]
        split["evaluation"] = time.perf_counter() - start
        return metrics

    def _begin_episodes(self) -> None:
        """All envs begin new episodes, with seeds that only the run's seed and the step decide."""
        ended = self.collector.statistics.count
        if self._ended == ended:
            warnings.warn(
                f"no episode has ended between two checkpoints, {self.checkpoint_interval} updates "
                "apart: returns are not known. Raise checkpoint_every: at a checkpoint all envs "
                "begin new episodes.",
                stacklevel=2,
            )
        self._ended = ended
        self.collector.begin_episodes([self.config.seed, self.steps])
        self.ppo.begin_episodes()

    def _save(self) -> Path:
        """Save a checkpoint; the best one has the best evaluation, or training return if none."""
        score = self._score
        if self._evaluation is None:
            score = self.collector.statistics.window.returns.mean
        best = score >= self._best
        if not math.isnan(score):
            self._best = max(self._best, score)
        self._score = math.nan
        state = {
            "updates": self.updates,
            "best": self._best,
            "collector": self.collector.state_dict(),
            "ppo": self.ppo.state_dict(),
            "randomness": self._randomness.state_dict(),
            "recorder": self._recorded,
        }
        self._files.sync()  # a checkpoint is never ahead of the metrics
        saved = Checkpoint(self.steps, self.policy.state_dict(), state)
        path = checkpoints.save(self._place.checkpoints, saved, keep=self.options.keep, best=best)
        self._saved = self.updates
        if self.record.first_checkpoint is None:
            self.record = replace(self.record, first_checkpoint=self.steps)
            self.record.write(self.folder)
        return path

    def _save_after(self, error: BaseException) -> None:
        """Save what was learnt before an error."""
        if self.updates > self._saved and self._is_finite():
            try:
                self._save()
            except OSError as problem:
                error.add_note(f"the last update is not saved: {problem}")

    def _load(self, saved: Checkpoint) -> None:
        """Continue from a checkpoint; raises anything if it does not fit."""
        state = saved.state
        checkpoints.load_policy(self.policy, saved.policy)
        self.updates, self._best = index(state["updates"]), float(state["best"])
        self._saved = self.updates
        self.collector.load_state_dict(state["collector"])
        self.ppo.load_state_dict(state["ppo"])
        self._randomness.load_state_dict(state["randomness"])
        if self._recorder is not None and state["recorder"] is not None:
            self._recorder.load_state_dict(state["recorder"])
            self._recorded = state["recorder"]

    def close(self) -> None:
        """Close the fleet, videos and metrics; after the second signal without waiting for envs."""
        try:
            with self._stack:
                if self._is_abandoned:
                    self._is_abandoned = False
                    self.collector.abandon()
        finally:
            self._place.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def finished(
    folder: Path, checkpoint: str | None = None, total_steps: int | None = None
) -> tuple[int, float | None] | None:
    """The step a run has ended at, and the return it was to reach if it did; None if it goes on.

    Raises:
        FileNotFoundError, ValueError, CheckpointError: as ``Run.resume``.
    """
    record = RunRecord.read(folder)
    path = checkpoints.find(folder / "checkpoints", checkpoint)
    if path is None:
        return None
    saved = checkpoints.load(path)
    record = _extended(record, total_steps, saved.step)
    with checkpoints.usable(path):
        episodes = [Episode(*each) for each in saved.state["collector"]["statistics"]["episodes"]]
    solved = _is_solved(record.options, episodes)
    if saved.step < record.config.last_step and not solved:
        return None
    return saved.step, record.options.stop_at if solved else None


def why_solved(folder: Path) -> str:
    """Why a run that has reached ``stop_at`` does not go on, however long it is, and what helps."""
    return (
        "the mean return of its last 100 episodes has reached stop_at, which ends the run. To go "
        f'on, set "stop_at" in {folder / CONFIG} higher, or to null, and resume it again.'
    )


def _extended(record: RunRecord, total_steps: int | None, step: int) -> RunRecord:
    """The record of a run that is to be so long, with a note of it."""
    before = record.config.total_steps
    if total_steps is None or total_steps == before:
        return record
    if total_steps < step:
        raise ValueError(
            f"total_steps must be at least the {step:,} already taken, got {total_steps}"
        )
    note = {"at_step": step, "total_steps_before": before, "total_steps": total_steps}
    config = replace(record.config, total_steps=total_steps)
    return replace(record, config=config, extended=(*record.extended, note))


def _check_never_saved(folder: Path, record: RunRecord) -> None:
    """Refuse to start over where there were checkpoints: the metrics would be replaced."""
    if record.first_checkpoint is not None:
        raise checkpoints.CheckpointError(
            f"{folder} cannot be resumed: its checkpoints are gone (the first one was saved at "
            f"step {record.first_checkpoint:,}). To start a new run with the same "
            f"hyper-parameters: {command.anew(record.config)}"
        )


def _is_solved(options: RunOptions, episodes: Iterable[Episode]) -> bool:
    returns = [episode.episode_return for episode in episodes]
    stop_at = options.stop_at
    return stop_at is not None and len(returns) >= 100 and sum(returns) / len(returns) >= stop_at
