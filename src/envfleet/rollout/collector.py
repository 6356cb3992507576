"""Collector: steps a fleet with an agent and returns rollouts."""

from __future__ import annotations

import operator
import time
from pathlib import Path
from typing import Any, Protocol, Self, cast

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from envfleet.rollout.actions import ActionPort
from envfleet.rollout.agent import AnyAgent, check_actions, takes_masks
from envfleet.rollout.buffer import Rollout
from envfleet.rollout.engine import autoreset_mode_of, restarted
from envfleet.rollout.flowing import FlowingRows, PartialFleet, Place, check_flowing, drain
from envfleet.rollout.inference import Inference
from envfleet.rollout.masks import AUTO_KEY, MASK_KEY, ActionMasks, mask_key_of
from envfleet.rollout.memory import Buffers
from envfleet.rollout.nested import ChannelsFirst, ObservationFormat, Tree, tree_leaves, tree_map
from envfleet.rollout.statistics import (
    Episode,
    EpisodeFile,
    EpisodeMeter,
    EpisodeSource,
    EpisodeStatistics,
)


class EpisodeRecorder(Protocol):
    """The interface of a collector to a video recorder."""

    def attach(self, envs: VectorEnv[Any, Any, Any], autoreset_mode: AutoresetMode) -> None:
        """Called with the fleet; raises if it cannot be recorded."""

    def begin(self, which: NDArray[np.bool_] | None = None) -> None:
        """Called when all envs, or some, have begun an episode."""

    def step(
        self,
        rewards: NDArray[Any],
        done: NDArray[np.bool_],
        valid: NDArray[np.bool_],
        infos: dict[str, Any],
    ) -> None:
        """Called after each step of the fleet."""

    def cut(self) -> None:
        """Called when an exception interrupts a rollout; ``begin`` follows if there is another."""

    def close(self) -> None:
        """Called at the end; no more steps follow."""


class Collector:
    """Collects rollouts of ``steps`` steps from any ``gymnasium.vector.VectorEnv``.

    Episodes continue from one rollout to the next; the first ``collect`` resets the fleet. The
    agent is called without gradients, for all envs at once. The next ``collect`` overwrites a
    rollout's tensors, unless ``reuse=False``. If an exception interrupts a rollout, the rollout is
    lost, and the next one begins with a reset.

    Args:
        envs: the fleet; ``close`` closes it.
        agent: see ``envfleet.rollout.agent.Agent``.
        steps: the length T of a rollout.
        device: device of the rollouts and the agent's inputs; by default ``agent.device``, or the
            CPU.
        seed: seed of the first reset: env ``i`` gets ``seed + i``.
        autoreset_mode: for engines that do not set ``metadata["autoreset_mode"]``.
        reuse: whether all rollouts share one set of tensors.
        window: number of finished episodes in ``statistics``.
        episodes: where returns and lengths of finished episodes come from: "own" sums, the envs'
            "info", or "auto": the infos if the envs have Gymnasium's RecordEpisodeStatistics.
        episodes_csv: a file to which every finished episode is appended.
        channels_first: whether images are transposed to (channels, height, width); "auto" does so
            for those that are clearly (height, width, channels).
        observation_dtype: dtype of all observations, instead of the space's own.
        requires_grad_observations: whether a rollout's observations require gradients.
        torch_threads: number of threads torch may use while collecting; None does not change it.
            Small networks are fastest with one, which leaves the other cores to the workers.
        recorder: records episodes of some envs, such as ``envfleet.Recorder``; ``close`` closes it.
        overlap: whether the agent acts for one half of the envs while the other half steps. The
            agent is called twice as often, and workers do not wait for it. A number sets the
            number of groups: more than 2 hide more of the agent's time if a call for few envs is
            quick. Needs one of envfleet's own fleets.
        min_envs: have the agent act as soon as this many envs are ready, without waiting for slow
            ones; every env still contributes ``steps`` rows. Needs one of envfleet's own fleets.
            Which envs are ready first depends on the machine: with an agent that samples, rollouts
            are not reproducible.
        close_envs: whether ``close`` closes the fleet.
        mask_key: key of the action masks in the infos; "auto" is the agent's own ``mask_key``, as
            a loaded policy has one, or "action_mask". Masks are passed to an agent whose methods
            take ``action_masks``, and stored in the rollout. None ignores them. See
            docs/policies.md.

    Raises:
        TypeError, ValueError: a space, an agent or an option is not supported.
    """

    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any],
        agent: AnyAgent,
        steps: int,
        *,
        device: torch.device | str | None = None,
        seed: int | None = None,
        autoreset_mode: AutoresetMode | str | None = None,
        reuse: bool = True,
        window: int = 100,
        episodes: EpisodeSource = "auto",
        episodes_csv: Path | str | None = None,
        channels_first: ChannelsFirst = "auto",
        observation_dtype: torch.dtype | None = None,
        requires_grad_observations: bool = False,
        torch_threads: int | None = 1,
        recorder: EpisodeRecorder | None = None,
        overlap: bool | int = False,
        min_envs: int | None = None,
        close_envs: bool = True,
        mask_key: str | None = AUTO_KEY,
    ) -> None:
        if operator.index(steps) < 1:
            raise ValueError(f"steps must be at least 1, got {steps}")
        if torch_threads is not None and torch_threads < 1:
            raise ValueError(f"torch_threads must be at least 1 or None, got {torch_threads}")
        self._groups = check_flowing(envs, overlap=overlap, min_envs=min_envs, recorder=recorder)
        self._min_envs = min_envs
        self._closes_envs = close_envs
        self.envs = envs
        self.steps = steps
        self._port = ActionPort(envs.single_action_space)
        self._inference = Inference(agent, self._port, envs.num_envs, device)
        self.device = self._inference.device
        self.seed = seed
        self.autoreset_mode = autoreset_mode_of(envs, autoreset_mode)
        self.total_steps = 0
        """Transitions so far, over all envs; resets do not count."""
        self.statistics = EpisodeStatistics(window)
        self.seconds = {"env": 0.0, "policy": 0.0, "videos": 0.0}
        """Time spent in ``collect`` so far, by part; the rest is the collector's own."""
        self.finished: list[tuple[int, Episode]] = []
        """The episodes that ended in the last rollout, or step, each with its row."""
        self._format = ObservationFormat(
            envs.single_observation_space, channels_first, observation_dtype
        )
        self._meter = EpisodeMeter(envs, episodes, self.autoreset_mode)
        self._wants_gradients = requires_grad_observations
        if requires_grad_observations and not all(d.is_floating_point for d in self._format.dtypes):
            raise ValueError(
                "requires_grad_observations needs observations of floats, the space has "
                f"{envs.single_observation_space}."
            )
        self._threads = torch_threads
        self._reuse = reuse
        self._buffers: Buffers | None = None
        self._now: Tree = None  # the current observations; None: everything must be reset
        self._is_new = True
        self._mask_key = mask_key_of(agent, mask_key)
        self._masks: ActionMasks | None = None
        self._allowed: Any = None  # the current masks, if there are any
        self._was_done = np.zeros(envs.num_envs, dtype=np.bool_)
        self._closed = False
        self.recorder = recorder
        if recorder is not None:
            recorder.attach(envs, self.autoreset_mode)
        self._file = EpisodeFile(episodes_csv) if episodes_csv is not None else None

    @property
    def agent(self) -> Any:
        """The agent that acts; the one that was passed, or the one that it stands for."""
        return self._inference.agent

    def use(self, agent: AnyAgent) -> None:
        """Use this agent from now on, on the same device.

        Raises:
            TypeError: it is not an agent.
        """
        self._inference.use(agent)

    @property
    def is_flowing(self) -> bool:
        """Whether envs are sent and received some at a time (``overlap``, ``min_envs``)."""
        return self._groups is not None

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Reset every env, or those of ``options["reset_mask"]``; the next rollout begins there.

        Their running episodes are discarded. The first time, the collector's seed is the default.

        Raises:
            ValueError: only some envs, before the first reset or after a rollout was interrupted.
        """
        which = options.get("reset_mask") if isinstance(options, dict) else None
        if which is not None and self._now is None:
            raise ValueError("all envs must be reset now: leave out options['reset_mask'].")
        if self._is_new and seed is None:
            seed = self.seed
        if self.is_flowing and self._now is None:
            drain(cast("PartialFleet", self.envs))
        # Engines may take the mask out of the dict.
        observations, infos = self.envs.reset(
            seed=seed, options=dict(options) if isinstance(options, dict) else options
        )
        if self._is_new:
            self._masks = self._found_masks(infos)
        if self._masks is not None:
            if self._allowed is None:
                self._allowed = np.ones((self.envs.num_envs, self._masks.width), dtype=np.bool_)
            self._masks.read(self._allowed, infos, which, when="reset")
        self._is_new = False
        self._now = self._format.allocate(self.envs.num_envs)
        self._now = tree_map(torch.Tensor.numpy, self._now)
        self._format.write(self._now, observations)
        self._was_done[... if which is None else which] = False
        self._meter.restart(which)
        if self.recorder is not None:
            self.recorder.begin(which)

    def collect(self) -> Rollout:
        """Step every env ``steps`` times; the first time, and after an error, reset first.

        Raises:
            TypeError, ValueError: the agent returned something that cannot be used.
            RuntimeError: the collector is closed.
        """
        if self._closed:
            raise RuntimeError("this collector is closed: build a new one.")
        self._begin()
        threads = torch.get_num_threads()
        if self._buffers is None or not self._reuse:
            self._buffers = Buffers(
                self._format,
                self._port,
                self.steps,
                self.envs.num_envs,
                self.device,
                None if self._masks is None else self._masks.width,
            )
        try:
            if self._threads is not None:
                torch.set_num_threads(self._threads)
            with torch.no_grad():
                return self._collect(self._buffers)
        except BaseException:
            self._break_off()
            raise
        finally:
            torch.set_num_threads(threads)

    def _begin(self) -> None:
        """Reset what cannot be stepped: at first everything, then what ``step`` has left over."""
        if self._now is None:
            self.reset()
        elif self.autoreset_mode == AutoresetMode.DISABLED and self._was_done.any():
            self.reset(options={"reset_mask": self._was_done.copy()})

    @property
    def observations(self) -> Tree:
        """What the agent will see next, as a copy on the collector's device.

        Raises:
            RuntimeError: a reset is needed: there was none yet, or a rollout was interrupted.
        """
        if self._now is None:
            raise RuntimeError("there are no observations yet: reset() the collector.")
        return tree_map(lambda leaf: torch.tensor(leaf, device=self.device), self._now)

    def step(
        self, actions: torch.Tensor
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
        """Step every env once with these actions instead of the agent's.

        The next rollout continues from there; episodes that end count in ``statistics``. Envs
        without autoreset stay at the end of their episode until ``reset`` or the next ``collect``.

        Returns:
            Rewards, and which envs were terminated and truncated; ``observations`` has the rest.

        Raises:
            RuntimeError: the collector is closed, or nothing was reset yet.
            TypeError, ValueError: the actions do not fit the action space; no env was stepped.
        """
        if self._closed or self._now is None:
            raise RuntimeError(
                "this collector is closed: build a new one."
                if self._closed
                else "all envs must be reset first: reset() the collector."
            )
        check_actions(actions, self.envs.num_envs, self._port, actions.device)
        try:
            sent = self._port.to_env(actions.detach().cpu().numpy())
            observations, rewards, terminated, truncated, infos = self.envs.step(sent)
            done = np.logical_or(terminated, truncated)
            valid, began = ~restarted(infos, done), done
            if self.autoreset_mode == AutoresetMode.NEXT_STEP:
                began = self._was_done & valid
                valid &= ~self._was_done
            self._note_episodes(
                rewards[None], done[None], valid[None], self._meter.reports(0, infos)
            )
            self.total_steps += int(np.count_nonzero(valid))
            self._was_done = done
            if self.recorder is not None:
                self.recorder.step(rewards, done, valid, infos)
                if self.autoreset_mode != AutoresetMode.DISABLED and began.any():
                    self.recorder.begin(began)
            self._format.write(self._now, observations)
            self._read_masks(infos, done)
        except gymnasium.error.ResetNeeded:
            raise  # no env was stepped
        except BaseException:
            self._break_off()
            raise
        return rewards, terminated, truncated

    def _break_off(self) -> None:
        """Where the envs are, and whose episode has ended, is not known: all must be reset."""
        self._now = None
        if self.recorder is not None:
            self.recorder.cut()

    def _collect(self, buffers: Buffers) -> Rollout:
        tree_map(np.copyto, buffers.arrays[0], self._now)
        allowed = self._masks_in(buffers)
        buffers.valid.fill_(True)
        self.statistics.begin_rollout()
        if self.is_flowing:
            return self._collect_flowing(buffers)
        ask, to_env, step = self._inference.ask, self._port.to_env, self.envs.step
        recorder, began = self.recorder, self._was_done
        wants_reports = self._meter.source == "info"
        reports: list[tuple[int, Episode]] = []
        finals: list[Tree] = []
        clock, acting, stepping = time.perf_counter, 0.0, 0.0
        # This loop is the hot path: what can be worked out after it is not done in it.
        for t, row in enumerate(buffers.rows):
            start = clock()
            actions = to_env(ask(row))
            acted = clock()
            observations, rewards, terminated, truncated, infos = step(actions)
            stepped = clock()
            acting += acted - start
            stepping += stepped - acted
            row.rewards[:] = rewards
            row.terminated[:] = terminated
            row.truncated[:] = truncated
            if infos:
                if not isinstance(infos, dict):
                    raise TypeError(
                        f"infos of a step are a dict, got a {type(infos).__name__}: give the "
                        "collector the fleet inside of wrappers such as DictInfoToList."
                    )
                if wants_reports:
                    reports += self._meter.reports(t, infos)
                if "worker_restarted" in infos:
                    row.valid[restarted(infos, row.valid)] = False
            if recorder is not None:
                began = self._record(recorder, buffers, t, infos)
            if allowed is not None:
                self._allowed = allowed[t + 1]
                self._read_masks(infos, np.logical_or(terminated, truncated))
            if self.autoreset_mode != AutoresetMode.NEXT_STEP:
                done = np.logical_or(terminated, truncated)
                if done.any():
                    observations = self._turn_over(done, observations, infos, finals)
            if recorder is not None and began.any():
                self._begin_videos(recorder, began)
            self._now = buffers.arrays[t + 1]
            self._format.write(self._now, observations)
        self._refuse_late_masks(infos)
        self.seconds["env"] += stepping
        self.seconds["policy"] += acting
        return self._finish(buffers, finals, reports)

    def _found_masks(self, infos: Any) -> ActionMasks | None:
        return ActionMasks.found(
            self.envs, self.agent, infos, self._mask_key, takes_masks=takes_masks(self.agent)
        )

    def _masks_in(self, buffers: Buffers) -> NDArray[np.bool_] | None:
        """Where a rollout's masks are, the current ones in the first row; None without any."""
        if buffers.action_masks is None:
            return None
        allowed: NDArray[np.bool_] = buffers.action_masks.numpy()
        allowed[0] = self._allowed
        return allowed

    def _read_masks(self, infos: dict[str, Any], done: NDArray[np.bool_]) -> None:
        """Take up what a step allows next."""
        if self._masks is not None:
            self._masks.after_step(self._allowed, infos, done, self.autoreset_mode)

    def _refuse_late_masks(self, infos: dict[str, Any]) -> None:
        """Refuse masks that came with a step, and would be used, but not with the first reset."""
        if self._masks is None and self._mask_key in infos and self._found_masks(infos) is not None:
            raise ValueError(
                f"the envs send info[{MASK_KEY!r}] with their steps but not with their resets: an "
                "agent needs one for its first action too. Pass mask_key=None to do without masks."
            )

    def _collect_flowing(self, buffers: Buffers) -> Rollout:
        """The same, some envs at a time."""
        envs = cast("PartialFleet", self.envs)
        rows = FlowingRows(
            envs, buffers, self._format, self.autoreset_mode, self._meter, self._masks
        )

        def ask(place: Place, count: int) -> NDArray[Any]:
            return self._port.to_env(self._inference.ask_some(buffers, place, count))

        start = time.perf_counter()
        if self._min_envs is not None:
            rows.as_ready(ask, self._min_envs)
        elif self._groups is not None:
            rows.in_groups(ask, self._groups)
        self._refuse_late_masks(rows.infos)
        self.seconds["env"] += time.perf_counter() - start - rows.asking
        self.seconds["policy"] += rows.asking
        self._now = buffers.arrays[-1]
        if buffers.action_masks is not None:
            self._allowed = buffers.action_masks[-1].numpy()
        return self._finish(buffers, rows.finals(), rows.reports)

    def _record(
        self, recorder: EpisodeRecorder, buffers: Buffers, t: int, infos: dict[str, Any]
    ) -> NDArray[np.bool_]:
        """Show a step to the recorder; returns which envs begin an episode with it."""
        start = time.perf_counter()
        row = buffers.rows[t]
        done = np.logical_or(row.terminated, row.truncated)
        valid, began = ~restarted(infos, done), done
        if self.autoreset_mode == AutoresetMode.NEXT_STEP:
            before = buffers.rows[t - 1] if t else None
            resets = self._was_done if before is None else before.terminated | before.truncated
            began = resets & valid  # the env of a replaced worker is reset by the next step
            valid &= ~resets
        recorder.step(row.rewards, done, valid, infos)
        self.seconds["videos"] += time.perf_counter() - start
        return began

    def _begin_videos(self, recorder: EpisodeRecorder, began: NDArray[np.bool_]) -> None:
        start = time.perf_counter()
        recorder.begin(began)
        self.seconds["videos"] += time.perf_counter() - start

    def _turn_over(
        self, done: NDArray[np.bool_], observations: Tree, infos: dict[str, Any], finals: list[Tree]
    ) -> Tree:
        """Keep what episodes ended with; returns what the next ones begin with."""
        ended = np.flatnonzero(done & ~restarted(infos, done))
        if self.autoreset_mode == AutoresetMode.DISABLED:
            finals.append(tree_map(lambda leaf: leaf[ended], observations))
            observations, infos = self.envs.reset(options={"reset_mask": done})
            if self._masks is not None:
                self._masks.read(self._allowed, infos, done, when="reset")
            return observations
        if len(ended):
            if "final_obs" not in infos:
                raise RuntimeError(
                    "the fleet says autoreset_mode SAME_STEP, but the infos of envs "
                    f"{ended.tolist()}, whose episodes ended, have no 'final_obs'."
                )
            final = infos["final_obs"]
            finals.append(self._format.stack([final[env] for env in ended]))
        return observations

    def _finish(
        self,
        buffers: Buffers,
        finals: list[Tree],
        reports: list[tuple[int, Episode]],
    ) -> Rollout:
        """Work out what the rows mean, value what came last, and put the rollout together."""
        start = time.perf_counter()
        self._inference.catch_up(buffers)
        self.seconds["policy"] += time.perf_counter() - start
        valid = buffers.valid.numpy()
        done = (buffers.terminated | buffers.truncated).numpy()
        if self.autoreset_mode == AutoresetMode.NEXT_STEP:
            valid[0] &= ~self._was_done
            valid[1:] &= ~done[:-1]
            self._was_done = done[-1].copy()
        positions = torch.from_numpy(np.argwhere(done & valid))
        final_observations = self._final_observations(buffers, positions, finals)
        start = time.perf_counter()
        final_values, last_values = self._inference.values(buffers, positions, final_observations)
        self.seconds["policy"] += time.perf_counter() - start
        buffers.rounded_rewards.copy_(torch.from_numpy(buffers.rewards))
        self._note_episodes(buffers.rewards, done, valid, reports)
        rollout = Rollout(
            observations=tree_map(lambda leaf: leaf[:-1], buffers.observations),
            actions=buffers.actions,
            rewards=buffers.rounded_rewards,
            terminated=buffers.terminated,
            truncated=buffers.truncated,
            valid=buffers.valid,
            values=buffers.values,
            log_probs=buffers.log_probs,
            final_observations=final_observations,
            final_positions=positions,
            final_values=final_values,
            last_observations=tree_map(torch.clone, buffers.last_observations),
            last_values=last_values,
            episode_counts=torch.bincount(positions[:, 1], minlength=self.envs.num_envs),
            total_return=float(buffers.rewards[valid].sum()),
            episodes=self.statistics.rollout,
            env_ids=torch.arange(self.envs.num_envs),
            action_masks=None if buffers.action_masks is None else buffers.action_masks[:-1],
        ).to(self.device)
        self.total_steps += rollout.steps
        if self._wants_gradients:
            for leaf in tree_leaves(rollout.observations):
                leaf.requires_grad_(True)
        return rollout

    def _note_episodes(
        self,
        rewards: NDArray[Any],
        done: NDArray[np.bool_],
        valid: NDArray[np.bool_],
        reports: list[tuple[int, Episode]],
    ) -> None:
        self.finished = episodes = self._meter.observe(rewards, done, valid, reports)
        self.statistics.add(episode for _, episode in episodes)
        if self._file is not None:
            steps = self.total_steps + np.cumsum(np.count_nonzero(valid, axis=1))
            self._file.add((int(steps[t]), episode) for t, episode in episodes)

    def _final_observations(
        self, buffers: Buffers, positions: torch.Tensor, finals: list[Tree]
    ) -> Tree:
        """The true last observations of the episodes that ended, in memory of their own."""
        if self.autoreset_mode == AutoresetMode.NEXT_STEP:
            t, env = positions.unbind(1)
            return tree_map(lambda leaf: leaf[t + 1, env], buffers.observations)
        if not finals:
            return self._format.allocate(0)
        return self._format.tensors(tree_map(lambda *parts: np.concatenate(parts), *finals))

    def state_dict(self) -> dict[str, Any]:
        """The counts so far, for a checkpoint; without envs and running episodes."""
        return {"total_steps": self.total_steps, "statistics": self.statistics.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state of ``state_dict``."""
        self.total_steps = operator.index(state["total_steps"])
        self.statistics.load_state_dict(state["statistics"])

    def close(self) -> None:
        """Close the fleet, the recorder and the episodes file. Further calls do nothing."""
        if not self._closed:
            self._closed = True
            try:
                if self._file is not None:
                    self._file.close()
                if self.recorder is not None:
                    self.recorder.close()
            finally:
                if self._closes_envs:
                    self.envs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
