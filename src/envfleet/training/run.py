"""Run: a training run in its folder; it can be stopped at any moment and goes on exactly.

    runs/<env>/<name>/  config.json   what is trained, and how; the step of the first checkpoint
                        metrics.csv, metrics.jsonl, films.jsonl
                        plan.json     how the envs run, and why, since the run was last begun
                        checkpoints/  the last ones and the best
                        renders/      films, if any were asked for

At every checkpoint that is due, in a run that is never stopped too, all envs begin new episodes
with seeds drawn from the run's seed and the step. So a checkpoint needs no env's state, and what
follows it is the same whether the run was stopped there or not. Ctrl-C, SIGTERM and errors save one
besides: a run that goes on from such a one is as good, but not the same.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from functools import partial
from operator import index
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import threadpoolctl
import torch

from envfleet.record.recorder import Recorder
from envfleet.record.rendering import check_video
from envfleet.rollout.buffer import Rollout
from envfleet.rollout.collector import Collector
from envfleet.rollout.statistics import Episode
from envfleet.track import durable
from envfleet.track.files import FileTracker, rows_until
from envfleet.track.tracker import Tracker, Trackers
from envfleet.training import checkpoint as checkpoints
from envfleet.training import command
from envfleet.training.checkpoint import Checkpoint, pack_bytes, unpack_bytes
from envfleet.training.clock import Clock
from envfleet.training.config import TrainConfig, check_types
from envfleet.training.env_options import EnvOptions
from envfleet.training.envs import build_fleet, one_filmed
from envfleet.training.folder import CONFIG, PLAN, RunFolder, check_is_run
from envfleet.training.policy import Policy
from envfleet.training.ppo import PPO
from envfleet.training.signals import GentleSignals
from envfleet.training.trust import check_trust


@dataclass(frozen=True)
class RunOptions:
    """How a run is carried out; it learns the same with any of these but ``checkpoint_every``."""

    backend: str = "auto"
    """auto, serial or process."""
    on_failure: str = "raise"
    """raise, or restart workers that die."""
    device: str = "auto"
    """Where the policy is trained: auto is the GPU for pictures, if there is one, else the CPU."""
    checkpoint_every: int | None = None
    """Updates; None is about 50 times per run, but at least 10,000 steps of each env apart, so that
    few episodes are cut."""
    keep: int = 3
    """Checkpoints, besides the best one."""
    record_every: int = 0
    """Steps between films of env 0; 0 films nothing."""
    stop_at: float | None = None
    """End the run when the mean return of the last 100 episodes reaches this."""

    def __post_init__(self) -> None:
        """Refuse what means nothing."""
        check_types(self)
        for name, known in (
            ("backend", ("auto", "serial", "process")),
            ("on_failure", ("raise", "restart")),
        ):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} must be {' or '.join(known)}, got {getattr(self, name)!r}"
                )
        for name in ("checkpoint_every", "keep"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.record_every < 0:
            raise ValueError(f"record_every must be 0 or more, got {self.record_every}")


TrackerMaker = Callable[[int], list[Tracker]]
"""Makes trackers once it is certain that there will be a run; is told the step it begins at."""

Listener = Callable[[dict[str, float], int], None]
"""Is told the metrics of every update, and the step."""


class Run:
    """Trains a policy in a folder; ``start`` and ``resume`` make one."""

    def __init__(
        self,
        place: RunFolder,
        config: TrainConfig,
        options: RunOptions,
        trackers: TrackerMaker | None = None,
        begun: tuple[Path, Checkpoint] | None = None,
    ) -> None:
        self.folder = place.path
        """Absolute: an env may change the current folder."""
        self.config = config
        self.options = options
        self._place = place
        torch.manual_seed(config.seed)
        if options.record_every:
            check_video(partial(one_filmed, config.env_id, EnvOptions.of(config)))
        with _one_thread(), contextlib.ExitStack() as stack:
            envs = stack.enter_context(
                build_fleet(
                    config.env_id,
                    config.num_envs,
                    backend=options.backend,
                    on_failure=options.on_failure,
                    films=options.record_every > 0,
                    changes=EnvOptions.of(config),
                )
            )
            self._envs = envs
            self.policy = make_policy(config, envs)
            self.policy.to(_device(options.device, self.policy))
            self.ppo = PPO(self.policy, config)
            self._clocks = {"env": Clock(), "policy": Clock()}
            envs.step = self._clocks["env"].timed(envs.step)
            agent = _on_clock(self.ppo.agent, self._clocks["policy"])
            self._tracker = Trackers([])
            stack.callback(self._tracker.close)
            self._recorder = None
            self._filmed: dict[str, Any] | None = None
            if options.record_every:
                self._recorder = Recorder(
                    self.folder / "renders", every_steps=options.record_every, tracker=self._tracker
                )
                clock = self._clocks["films"] = Clock()
                self._recorder.begin = clock.timed(self._recorder.begin)  # type: ignore[method-assign]
                self._recorder.step = clock.timed(self._recorder.step)  # type: ignore[method-assign]
                self._filmed = self._recorder.state()
            self.collector = Collector(
                envs, agent, config.steps, recorder=self._recorder, mask_key=config.mask_key
            )
            self.updates = 0
            self._best = -math.inf
            self._saved = self._ended = -1
            self._first_checkpoint: int | None = None
            if begun is not None:
                with checkpoints.usable(begun[0]):
                    self._restore(begun[1])
            # Nothing was written until here: what cannot be trained changes nothing.
            for tracker in trackers(self.collector.total_steps) if trackers else ():
                self._tracker.add(tracker)
            self._files = FileTracker(self.folder, lock=place.lock)
            self._tracker.add(self._files)
            plan = json.dumps(asdict(envs.plan), indent=2) + "\n"
            durable.replace(self.folder / PLAN, plan.encode())
            stack.enter_context(self.collector)
            self._stack = stack.pop_all()
        self._is_abandoned = False
        self.seconds: dict[str, float] = {}
        """Of ``train`` so far: env, policy, films, collector, update, other."""
        self.stopped_by: int | None = None
        """The signal that has ended ``train``, if one did."""

    @classmethod
    def start(
        cls,
        folder: Path | RunFolder,
        config: TrainConfig,
        options: RunOptions,
        trackers: TrackerMaker | None = None,
    ) -> Self:
        """Begin a new run; if that fails, a folder that was made for it is removed.

        Raises:
            FileExistsError: there is one in this folder.
            FolderInUseError: another run is about to begin there.
        """
        place = folder if isinstance(folder, RunFolder) else RunFolder.claim(folder)
        try:
            run = cls(place, config, options, trackers)
            try:
                _write_config(place.path, config, options, first_checkpoint=None)
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
        trackers: TrackerMaker | None = None,
        *,
        checkpoint: str | None = None,
        trust: bool = False,
    ) -> Self:
        """Go on from the last checkpoint or a named one; from the beginning if there was none yet.

        Metrics and checkpoints of later steps are removed, once all that is needed has been read
        and fits. An env that is ``module:name`` is imported only with ``trust``.

        Raises:
            FileNotFoundError, ValueError: the folder is no run's, or its metrics were changed.
            UntrustedError: the env would have to be imported from a module.
            CheckpointError: the checkpoint is not there any more, or cannot be read.
            FolderInUseError: the run is still at work.
        """
        place = RunFolder.open(folder)
        try:
            folder = place.path
            config, options, first = _read(folder)
            check_trust(folder, config.env_id, config.wrappers, trust=trust)
            path = checkpoints.find(folder / "checkpoints", checkpoint)
            if path is None:
                _check_never_saved(folder, first, config)
            begun = None if path is None else (path, checkpoints.load(path))
            rows_until(folder)
            run = cls(place, config, options, trackers, begun)
            try:
                run._first_checkpoint = first
                run._files.forget_after(run.collector.total_steps)
                checkpoints.forget_after(folder / "checkpoints", run.collector.total_steps)
                if checkpoints.best_of(folder / "checkpoints") is None:
                    run._best = -math.inf
            except BaseException:
                run._stack.close()
                raise
        except BaseException:
            place.discard()
            raise
        return run

    def train(self, listener: Listener | None = None) -> bool:
        """Train to the end; False if a signal came first: the current update is still finished.

        Ctrl-C and SIGTERM save a checkpoint, and so does an error, before it is raised.
        """
        start = time.perf_counter() - sum(self.seconds.values())
        try:
            with _one_thread() as threads, _kept_generators():
                if self.policy.body is not None:
                    torch.set_num_threads(threads)  # workers rest during an update
                return self._train(listener)
        except Exception as error:
            if self.updates > self._saved and self._is_whole():
                try:
                    self._checkpoint()
                except OSError as problem:
                    error.add_note(f"the last update is not saved: {problem}")
            raise
        except (KeyboardInterrupt, SystemExit):
            self._is_abandoned = True
            raise
        finally:
            known = sum(self.seconds.values())
            other = self.seconds.pop("other", 0.0)
            self.seconds["other"] = other + time.perf_counter() - start - known

    def _train(self, listener: Listener | None) -> bool:
        with GentleSignals() as signals:
            over = self._is_over()
            if not over:
                self._cut()
            while not over:
                for clock in self._clocks.values():
                    clock.stop()
                begin = time.perf_counter()
                rollout = self._collect()
                collected = time.perf_counter()
                told = self.ppo.update(rollout, self._progress(rollout.steps))
                self.updates += 1
                if not self._is_whole():
                    raise ArithmeticError(
                        f"the policy has become NaN or infinite in update {self.updates}: resume "
                        "from the last checkpoint, and choose a smaller learning rate if it does "
                        "so again."
                    )
                end = time.perf_counter()
                step = self.collector.total_steps
                metrics = {
                    "updates": float(self.updates),
                    "restarts": float(getattr(self.collector.envs, "restart_count", 0)),
                    **self.collector.statistics.window.flat(),
                    **{f"loss/{name}": value for name, value in told.items()},
                    "time/steps_per_second": rollout.steps / (end - begin),
                    **self._time_split(collected - begin, end - collected),
                }
                self._tracker.log(metrics, step)
                if listener is not None:
                    listener(metrics, step)
                self.stopped_by, over = signals.came, self._is_over()
                if over or self.stopped_by:
                    self._checkpoint()
                    return over
                if self.updates % self._interval == 0:
                    self._checkpoint()
                    self._cut()
        return True

    def _collect(self) -> Rollout:
        """A rollout to learn from.

        Raises:
            ValueError: there are rewards that nothing can be learnt from.
        """
        rollout = self.collector.collect()
        broken = ~torch.isfinite(rollout.rewards).all(0)
        if broken.any():
            envs = torch.nonzero(broken).flatten().tolist()
            raise ValueError(f"rewards of envs {envs} are NaN or infinite: mend or wrap the envs.")
        if self._recorder is not None:
            self._filmed = self._recorder.state()
        return rollout

    def _is_whole(self) -> bool:
        """Whether the policy can be used."""
        return all(bool(torch.isfinite(p).all()) for p in self.policy.parameters())

    def _progress(self, new: int) -> float:
        """The part of the run that was over before these steps."""
        return (self.collector.total_steps - new) / self.config.last_step

    def _is_over(self) -> bool:
        return self.collector.total_steps >= self.config.last_step or self.is_solved

    @property
    def is_solved(self) -> bool:
        """Whether the last 100 episodes reach the return that ends the run."""
        return _is_solved(self.options, self.collector.statistics.episodes)

    @property
    def _interval(self) -> int:
        """Updates between two checkpoints that are due."""
        config = self.config
        if self.options.checkpoint_every is not None:
            return self.options.checkpoint_every
        return math.ceil(max(10_000, config.total_steps / config.num_envs / 50) / config.steps)

    def _time_split(self, collect: float, update: float) -> dict[str, float]:
        """Seconds of the last update, by what they went into."""
        split = {name: clock.stop() for name, clock in self._clocks.items()}
        split |= {"collector": collect - sum(split.values()), "update": update}
        for name, seconds in split.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        return {f"time/{name}": seconds for name, seconds in split.items()}

    def _cut(self) -> None:
        """All envs begin new episodes, with seeds that only the run's seed and the step decide."""
        ended = self.collector.statistics.count
        if self._ended == ended:
            warnings.warn(
                f"no episode has ended between two checkpoints, {self._interval} updates apart: "
                "returns are not known. Raise checkpoint_every: at a checkpoint all envs begin "
                "new episodes.",
                stacklevel=2,
            )
        self._ended = ended
        entropy = [self.config.seed, self.collector.total_steps]
        seed, for_globals = (int(s) >> 1 for s in np.random.SeedSequence(entropy).generate_state(2))
        self._envs.seed_globals(for_globals)
        self.collector.reset(seed=seed)
        if self.ppo.rewards is not None:
            self.ppo.rewards.begin_anew()

    def _checkpoint(self) -> None:
        statistics = self.collector.statistics
        mean = statistics.window.returns.mean
        best = mean >= self._best
        self._best = max(self._best, mean) if not math.isnan(mean) else self._best
        rewards = self.ppo.rewards
        state = {
            "updates": self.updates,
            "best": self._best,
            "episodes": [list(episode) for episode in statistics.episodes],
            "episode_count": statistics.count,
            "best_return": statistics.best_return,
            "random": pack_bytes(torch.get_rng_state()),
            "random_of_gpus": [pack_bytes(state) for state in _states_of_gpus(self.policy)],
            "order": self.ppo.generator.bit_generator.state,
            "films": self._filmed,
            "rewards": None
            if rewards is None
            else {k: v.tolist() for k, v in rewards.scale.state_dict().items()},
        }
        self._files.sync()  # a checkpoint is never ahead of the metrics
        checkpoints.save(
            self.folder / "checkpoints",
            Checkpoint(
                self.collector.total_steps,
                self.policy.state_dict(),
                self.ppo.optimizer.state_dict(),
                state,
            ),
            keep=self.options.keep,
            best=best,
        )
        self._saved = self.updates
        if self._first_checkpoint is None:
            self._first_checkpoint = self.collector.total_steps
            _write_config(self.folder, self.config, self.options, self._first_checkpoint)

    def _restore(self, found: Checkpoint) -> None:
        """Go on from a checkpoint; raises anything if it does not fit."""
        checkpoints.load_policy(self.policy, found.policy)
        self._restore_optimizer(found.optimizer)
        state = found.state
        self.updates, self._best = index(state["updates"]), float(state["best"])
        self._saved = self.updates
        self.collector.total_steps = found.step
        statistics = self.collector.statistics
        statistics.add(Episode(*episode) for episode in state["episodes"])
        statistics.count = index(state["episode_count"])
        statistics.best_return = float(state["best_return"])
        torch.set_rng_state(unpack_bytes(state["random"]))
        if _states_of_gpus(self.policy):
            torch.cuda.set_rng_state_all([unpack_bytes(t) for t in state["random_of_gpus"]])
        self.ppo.generator.bit_generator.state = state["order"]
        if self._recorder is not None and state["films"] is not None:
            self._recorder.go_on(state["films"])
            self._filmed = state["films"]
        if self.ppo.rewards is not None:
            kept = {k: torch.tensor(v, dtype=torch.float64) for k, v in state["rewards"].items()}
            self.ppo.rewards.scale.load_state_dict(kept)

    def _restore_optimizer(self, saved: dict[str, Any]) -> None:
        optimizer = self.ppo.optimizer
        optimizer.load_state_dict(saved)
        for parameter, moments in getattr(optimizer, "state", {}).items():
            for name, value in moments.items():  # which torch does not look at
                if name != "step" and value.shape != parameter.shape:
                    raise ValueError(f"its {name} has another shape than the parameter")

    def close(self) -> None:
        """Close the fleet, films and metrics; after the second signal without waiting for envs."""
        try:
            with self._stack:
                if self._is_abandoned:
                    self._abandon()
        finally:
            self._place.close()

    def _abandon(self) -> None:
        """End the envs where they are, and give films a moment."""
        self._is_abandoned = False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a step was pending is known
            self.collector.envs.close(terminate=True)
        if self._recorder is not None:
            self._recorder.close(timeout=2.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_config(folder: Path) -> tuple[TrainConfig, RunOptions]:
    """What a run's folder says.

    Raises:
        FileNotFoundError, ValueError: it is no run's folder, or what it says cannot be used.
    """
    return _read(folder)[:2]


def _read(folder: Path) -> tuple[TrainConfig, RunOptions, int | None]:
    """What is trained, how, and the step of the first checkpoint that the run has ever written."""
    check_is_run(folder)
    path = folder / CONFIG
    try:
        told = json.loads(path.read_text("utf-8"))
        config, options = (
            {f.name: told[key][f.name] for f in fields(kind)} | told[key]
            for key, kind in (("config", TrainConfig), ("options", RunOptions))
        )
        first = told["first_checkpoint"]
        first = None if first is None else index(first)
        for name in ("hidden", "env_kwargs", "wrappers"):
            config[name] = tuple(config[name])
        return TrainConfig(**config), RunOptions(**options), first
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        missing = isinstance(error, KeyError)
        why = f"{error} is missing" if missing else f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} says nothing that can be used ({why}).") from error


def _check_never_saved(folder: Path, first: int | None, config: TrainConfig) -> None:
    """Refuse to begin anew where there were checkpoints: the metrics would be replaced."""
    if first is not None:
        raise checkpoints.CheckpointError(
            f"{folder} cannot be resumed: its checkpoints are gone (the first one was saved at "
            f"step {first:,}). To start a new run with the same hyper-parameters: "
            f"{command.anew(config)}"
        )


def _write_config(
    folder: Path, config: TrainConfig, options: RunOptions, first_checkpoint: int | None
) -> None:
    told = {
        "config": asdict(config),
        "options": asdict(options),
        "first_checkpoint": first_checkpoint,
    }
    durable.replace(folder / CONFIG, (json.dumps(told, indent=2) + "\n").encode())


def finished(folder: Path, checkpoint: str | None = None) -> tuple[int, float | None] | None:
    """The step a run has ended at, and the return it was to reach if it did; None if it goes on.

    Raises:
        FileNotFoundError, ValueError, CheckpointError: as ``Run.resume``.
    """
    config, options = read_config(folder)
    path = checkpoints.find(folder / "checkpoints", checkpoint)
    if path is None:
        return None
    saved = checkpoints.load(path)
    solved = _is_solved(options, [Episode(*episode) for episode in saved.state["episodes"]])
    if saved.step < config.last_step and not solved:
        return None
    return saved.step, options.stop_at if solved else None


def _is_solved(options: RunOptions, episodes: Iterable[Episode]) -> bool:
    returns = [episode.episode_return for episode in episodes]
    stop_at = options.stop_at
    return stop_at is not None and len(returns) >= 100 and sum(returns) / len(returns) >= stop_at


def make_policy(config: TrainConfig, envs: Any) -> Policy:
    """The policy of a run, untrained."""
    return Policy(
        envs.single_observation_space,
        envs.single_action_space,
        hidden=config.hidden,
        activation=config.activation,
        log_std=config.log_std,
        orthogonal=config.orthogonal,
        normalize=config.normalize_observations,
    )


@contextlib.contextmanager
def _kept_generators() -> Iterator[None]:
    """Give the caller its ``random`` and ``np.random`` back as they were."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002 - envs may use it
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


@contextlib.contextmanager
def _one_thread() -> Iterator[int]:
    """Small networks are fastest with one, and the other cores are the workers'.

    Gives how many threads torch would have used.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpoolctl.threadpool_limits(1, user_api="blas"):
            yield threads
    finally:
        torch.set_num_threads(threads)


def _on_clock(agent: Any, clock: Clock) -> Any:
    """An agent that is the same, on a clock; the agent itself may be copied, and is left alone."""
    names = ("act", "choose", "get_values", "get_actions_and_values")
    methods = {name: clock.timed(getattr(agent, name)) for name in names if hasattr(agent, name)}
    return SimpleNamespace(device=agent.device, **methods)


def _device(name: str, policy: Policy) -> torch.device:
    """Where to train; small networks are faster on the CPU.

    Raises:
        ValueError: torch knows no such device, or it is not here.
    """
    if name == "auto":
        return torch.device("cuda" if policy.is_image and torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # what torch without CUDA raises
        raise ValueError(f"device {name!r} cannot be used: {error}") from error


def _states_of_gpus(policy: Policy) -> list[torch.Tensor]:
    return torch.cuda.get_rng_state_all() if policy.device.type == "cuda" else []
