"""Run: a training run in its folder; it can be stopped at any moment and goes on exactly.

    runs/<env>/<name>/  config.json   what is trained, and how
                        metrics.csv, metrics.jsonl, films.jsonl
                        checkpoints/  the last ones and the best
                        renders/      films, if any were asked for

At every checkpoint, in a run that is never stopped too, all envs begin new episodes with seeds
drawn from the run's seed and the step. So a checkpoint needs no env's state, and what follows it is
the same whether the run was stopped there or not.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Self

import numpy as np
import threadpoolctl
import torch

from envfleet.record.recorder import Recorder
from envfleet.rollout.collector import Collector
from envfleet.rollout.statistics import Episode
from envfleet.track.files import FileTracker
from envfleet.track.tracker import Tracker, Trackers
from envfleet.train import checkpoint as checkpoints
from envfleet.train.checkpoint import Checkpoint, pack_bytes, unpack_bytes
from envfleet.train.config import TrainConfig
from envfleet.train.envs import build_fleet
from envfleet.train.policy import Policy
from envfleet.train.ppo import PPO


@dataclass(frozen=True)
class RunOptions:
    """How a run is carried out; it learns the same with any of these but ``checkpoint_every``."""

    backend: str = "auto"
    """auto, serial or process."""
    on_failure: str = "raise"
    """raise, or restart workers that die."""
    checkpoint_every: int = 50
    """Updates."""
    keep: int = 3
    """Checkpoints, besides the best one."""
    record_every: int = 0
    """Steps between films of env 0; 0 films nothing."""
    stop_at: float | None = None
    """End the run when the mean return of the last 100 episodes reaches this."""

    def __post_init__(self) -> None:
        """Refuse what means nothing."""
        for name in ("checkpoint_every", "keep"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.record_every < 0:
            raise ValueError(f"record_every must be 0 or more, got {self.record_every}")


TrackerMaker = Callable[[], list[Tracker]]
"""Makes trackers once it is certain that there will be a run."""

Listener = Callable[[dict[str, float], int], None]
"""Is told the metrics of every update, and the step."""


class Run:
    """Trains a policy in a folder; ``start`` and ``resume`` make one."""

    def __init__(
        self,
        folder: Path,
        config: TrainConfig,
        options: RunOptions,
        trackers: TrackerMaker | None = None,
    ) -> None:
        self.folder = folder
        self.config = config
        self.options = options
        torch.manual_seed(config.seed)
        with contextlib.ExitStack() as stack:
            # Small networks are fastest with one thread, and the other cores are the workers'.
            threads = torch.get_num_threads()
            stack.callback(torch.set_num_threads, threads)
            torch.set_num_threads(1)
            stack.enter_context(threadpoolctl.threadpool_limits(1, user_api="blas"))
            envs = stack.enter_context(
                build_fleet(
                    config.env_id,
                    config.num_envs,
                    backend=options.backend,
                    on_failure=options.on_failure,
                    films=options.record_every > 0,
                )
            )
            self.policy = make_policy(config, envs)
            if self.policy.body is not None:
                torch.set_num_threads(threads)  # workers rest during an update
            self.ppo = PPO(self.policy, config)
            agent = self.ppo.agent
            asked = ("act", "choose", "get_values", "get_actions_and_values")
            self._clocks = {"env": _Clock(envs, "step"), "policy": _Clock(agent, *asked)}
            # Nothing was written until here: what cannot be trained leaves no folder.
            self._files = FileTracker(folder)
            stack.callback(self._files.close)
            self._tracker = Trackers([self._files, *(trackers() if trackers else [])])
            stack.callback(self._tracker.close)
            recorder = None
            if options.record_every:
                recorder = Recorder(
                    folder / "renders", every_steps=options.record_every, tracker=self._tracker
                )
            self.collector = Collector(envs, agent, config.steps, recorder=recorder)
            stack.enter_context(self.collector)
            self._stack = stack.pop_all()
        self.updates = 0
        self.seconds: dict[str, float] = {}
        """Of ``train`` so far, by what they went into: env, policy, collector, update, other."""
        self._best = -math.inf

    @classmethod
    def start(
        cls,
        folder: Path,
        config: TrainConfig,
        options: RunOptions,
        trackers: TrackerMaker | None = None,
    ) -> Self:
        """Begin a new run.

        Raises:
            FileExistsError: there is one in this folder.
        """
        if (folder / "config.json").exists():
            raise FileExistsError(
                f"{folder} has a run already: resume it, or choose another name or folder."
            )
        run = cls(folder, config, options, trackers)
        told = {"config": asdict(config), "options": asdict(options)}
        (folder / "config.json").write_text(json.dumps(told, indent=2) + "\n")
        return run

    @classmethod
    def resume(cls, folder: Path, trackers: TrackerMaker | None = None) -> Self:
        """Go on from the last checkpoint, or from the beginning if there is none yet."""
        config, options = read_config(folder)
        run = cls(folder, config, options, trackers)
        found = checkpoints.everyone(folder / "checkpoints")
        try:
            if found:
                run._restore(checkpoints.load(found[-1]))
            run._files.forget_after(run.collector.total_steps)
        except BaseException:
            run.close()
            raise
        return run

    def train(self, listener: Listener | None = None) -> bool:
        """Train to the end; False if Ctrl-C came first: the current update is still finished."""
        start = time.perf_counter() - sum(self.seconds.values())
        try:
            return self._train(listener)
        finally:
            known = sum(self.seconds.values())
            other = self.seconds.pop("other", 0.0)
            self.seconds["other"] = other + time.perf_counter() - start - known

    def _train(self, listener: Listener | None) -> bool:
        config, collector = self.config, self.collector
        with _GentleInterrupt() as interrupt:
            self._cut()
            while collector.total_steps < config.total_steps:
                begin = time.perf_counter()
                rollout = collector.collect()
                collected = time.perf_counter()
                progress = min(1.0, (collector.total_steps - rollout.steps) / config.total_steps)
                told = self.ppo.update(rollout, progress)
                self.updates += 1
                end = time.perf_counter()
                metrics = {
                    "updates": float(self.updates),
                    "restarts": float(getattr(collector.envs, "restart_count", 0)),
                    **collector.statistics.window.flat(),
                    **{f"loss/{name}": value for name, value in told.items()},
                    "time/steps_per_second": rollout.steps / (end - begin),
                    **self._time_split(collected - begin, end - collected),
                }
                self._tracker.log(metrics, collector.total_steps)
                if listener is not None:
                    listener(metrics, collector.total_steps)
                is_over = collector.total_steps >= config.total_steps or self._is_solved()
                due = self.updates % self.options.checkpoint_every == 0
                if due or is_over or interrupt.came:
                    self._checkpoint()
                    if is_over or interrupt.came:
                        return is_over
                    self._cut()
        return True

    def _time_split(self, collect: float, update: float) -> dict[str, float]:
        """Seconds of the last update, by what they went into."""
        split = {name: clock.stop() for name, clock in self._clocks.items()}
        split |= {"collector": collect - sum(split.values()), "update": update}
        for name, seconds in split.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        return {f"time/{name}": seconds for name, seconds in split.items()}

    def _is_solved(self) -> bool:
        if self.options.stop_at is None:
            return False
        window = self.collector.statistics.window
        return window.n >= 100 and window.returns.mean >= self.options.stop_at

    def _cut(self) -> None:
        """All envs begin new episodes, with seeds that only the run's seed and the step decide."""
        entropy = [self.config.seed, self.collector.total_steps]
        seed = int(np.random.SeedSequence(entropy).generate_state(1)[0]) >> 1
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
            "order": self.ppo.generator.bit_generator.state,
            "rewards": None
            if rewards is None
            else {k: v.tolist() for k, v in rewards.scale.state_dict().items()},
        }
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

    def _restore(self, found: Checkpoint) -> None:
        self.policy.load_state_dict(found.policy)
        self.ppo.optimizer.load_state_dict(found.optimizer)
        state = found.state
        self.updates, self._best = state["updates"], state["best"]
        self.collector.total_steps = found.step
        statistics = self.collector.statistics
        statistics.add(Episode(*episode) for episode in state["episodes"])
        statistics.count, statistics.best_return = state["episode_count"], state["best_return"]
        torch.set_rng_state(unpack_bytes(state["random"]))
        self.ppo.generator.bit_generator.state = state["order"]
        if self.ppo.rewards is not None:
            kept = {k: torch.tensor(v, dtype=torch.float64) for k, v in state["rewards"].items()}
            self.ppo.rewards.scale.load_state_dict(kept)

    def close(self) -> None:
        """Close the fleet, films and metrics."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_config(folder: Path) -> tuple[TrainConfig, RunOptions]:
    """What a run's folder says.

    Raises:
        FileNotFoundError: it is no run's folder.
    """
    path = folder / "config.json"
    if not path.exists():
        raise FileNotFoundError(f"{folder} is no run: it has no config.json.")
    told = json.loads(path.read_text())
    config = {**told["config"], "hidden": tuple(told["config"]["hidden"])}
    return TrainConfig(**config), RunOptions(**told["options"])


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


class _Clock:
    """Knows how long methods of an object have run, that do not call each other."""

    def __init__(self, thing: Any, *names: str) -> None:
        self._seconds = 0.0
        for name in names:
            if hasattr(thing, name):
                setattr(thing, name, self._timed(getattr(thing, name)))

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self._seconds += time.perf_counter() - start

        return timed

    def stop(self) -> float:
        """Seconds since the last time."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


class _GentleInterrupt:
    """Ctrl-C is noted; the second one is a KeyboardInterrupt as ever."""

    came = False

    def __enter__(self) -> Self:
        self._before: Any = None
        with contextlib.suppress(ValueError):  # not the main thread: Ctrl-C does not come here
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.came:
            signal.default_int_handler(number, frame)
        self.came = True

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
