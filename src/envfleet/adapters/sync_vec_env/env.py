"""SyncVecEnv: envs, an agent and their last rollout in one object, on a fleet that ``make`` chose.

Two classes of that name are one here; docs/seeds.md has their names, argument by argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, overload

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from PIL import Image

from envfleet.adapters.sync_vec_env.agent import AskedAgent, check_agent
from envfleet.adapters.sync_vec_env.arguments import told_apart
from envfleet.adapters.sync_vec_env.flags import FlaggedRollout, flagged
from envfleet.adapters.sync_vec_env.handles import EnvHandle
from envfleet.adapters.sync_vec_env.statistics import EpisodeNames
from envfleet.adapters.sync_vec_env.videos import FirstEnvRecorder, RecordingNames
from envfleet.record.frames import as_frame
from envfleet.record.rendering import check_renders
from envfleet.rollout.agent import Agent, untouched
from envfleet.rollout.collector import Collector
from envfleet.rollout.player import Player
from envfleet.rollout.progress import progress_bar
from envfleet.vector.make import make

EnvFn = Callable[[], gymnasium.Env[Any, Any]]


class SyncVecEnv(RecordingNames, EpisodeNames):
    """Collects rollouts into attributes of its own.

    ``rollout()`` fills ``states`` (float32, asking for gradients), ``actions``, ``rewards``,
    ``done_flags``, ``trunc_flags``, ``values``, ``log_probs``, ``end_states``, ``ep_counts`` and
    ``total_return``. Tensors are new ones each time, on ``device``. The buffer's end is flagged in
    ``trunc_flags`` and counted in ``ep_counts`` where an episode is running; every flag has its
    end state, env by env. No env is reset but by ``rollout``, ``vec_reset``, ``env_reset`` and
    ``test_agent``.

    Without ``render_every`` and ``render_fps``, images are moved from (H, W, C) to (C, H, W), CUDA
    is used if there is any, and the numbers of episodes are those of the last ten of each env. With
    them, states are as the agent's ``state_space`` says, the device is the agent's, the numbers are
    those of the last hundred episodes, and env 0 is recorded.

    Args:
        env_fn: builds an env; is called ``num_envs`` times, possibly in other processes.
        num_envs: how many envs.
        steps_per_env: the length of a rollout.
        render_every: record an episode of env 0 after so many steps of all envs; off if below 1.
        render_fps: frames per second of the videos.
        agent: has ``get_actions_and_values(states, actions=None)``, which returns actions,
            log-probabilities, values and entropy, and with videos ``state_space``, ``action_space``
            and ``device``.
        seed: of the first reset: env ``i`` gets ``seed + i``.
        **options: of ``envfleet.make``, such as ``backend="serial"`` or ``workers=4``.

    Raises:
        TypeError: arguments of neither form, or an agent or spaces that cannot be used.
        ValueError: a number that means nothing, envs that do not render, or spaces that are not
            the agent's.
    """

    states: torch.Tensor
    actions: torch.Tensor
    rewards: torch.Tensor
    done_flags: torch.Tensor
    trunc_flags: torch.Tensor
    values: torch.Tensor
    log_probs: torch.Tensor
    end_states: torch.Tensor
    ep_counts: torch.Tensor
    total_return: np.float32
    images: list[list[Image.Image]]
    """What ``test_agent`` has shown, env by env."""

    @overload
    def __init__(
        self,
        env_fn: EnvFn,
        num_envs: int,
        steps_per_env: int,
        agent: Agent,
        *,
        seed: int | None = None,
        **options: Any,
    ) -> None: ...
    @overload
    def __init__(
        self,
        env_fn: EnvFn,
        num_envs: int,
        steps_per_env: int,
        render_every: int,
        render_fps: float,
        agent: Agent,
        *,
        seed: int | None = None,
        **options: Any,
    ) -> None: ...
    def __init__(
        self,
        env_fn: EnvFn,
        num_envs: int,
        steps_per_env: int,
        *given: Any,
        seed: int | None = None,
        **named: Any,
    ) -> None:
        told = told_apart(given, named)
        videos = told.videos
        names = ("state_space", "action_space", "device") if videos is not None else ()
        check_agent(told.agent, *names)
        if videos is not None:
            self.render_every = max(1, videos[0])
            self.render_fps = videos[1]
            self._recorder = FirstEnvRecorder(*videos) if videos[0] > 0 else None
            self.device = torch.device(told.agent.device)
        else:
            self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        super().__init__(num_envs)
        self.num_envs = num_envs
        self.steps_per_env = steps_per_env
        self.global_steps = 0
        """Steps of all envs in rollouts so far."""
        self._permutes = videos is None
        self._asked = AskedAgent(told.agent, self.device)
        self.fleet = make(
            env_fn, num_envs, autoreset_mode=AutoresetMode.DISABLED, infos="final", **told.options
        )
        """The envs, wherever they are; ``plan`` says where, and why."""
        try:
            self._take_spaces(agent_has_spaces=videos is not None)
            self._shares_states = len(self.state_shape) >= 3
            self.collector = Collector(
                self.fleet,
                self._asked,
                steps_per_env,
                device=self.device,
                seed=seed,
                reuse=not self._shares_states,  # small tensors are copied, images are not
                channels_first=self._permutes,
                observation_dtype=torch.float32,
                torch_threads=None if len(self.state_shape) >= 3 else 1,
                recorder=self._recorder,
            )
            self.envs: list[EnvHandle] | None = [EnvHandle(self.fleet, i) for i in range(num_envs)]
            if videos is None and seed is None:
                # Envs that seed themselves at their first reset count on it: the class without
                # videos resets env 0 twice.
                self.fleet.reset(options={"reset_mask": np.arange(num_envs) == 0})
            self.vec_reset()
        except BaseException:
            if self._recorder is not None:
                self._recorder.close()
            self.fleet.close()
            raise

    def _take_spaces(self, *, agent_has_spaces: bool) -> None:
        """Learn the shapes of states and actions."""
        space = self.fleet.single_observation_space
        if isinstance(space, (spaces.Dict, spaces.Tuple)):
            raise TypeError(
                f"states are one tensor, and a {type(space).__name__} space has several: wrap the "
                "envs with gymnasium.wrappers.FlattenObservation, or use envfleet.Collector."
            )
        self.action_space: Any = self.fleet.single_action_space
        self.state_space: Any = space
        shape = tuple(space.shape or ())
        if agent_has_spaces:
            agent: Any = self.agent
            _check_same("state_space", agent.state_space, space)
            _check_same("action_space", agent.action_space, self.action_space)
            self.state_space, self.action_space = agent.state_space, agent.action_space
        elif len(shape) == 3:
            shape = (shape[2], shape[0], shape[1])
        self.state_shape: tuple[int, ...] = shape
        is_float = np.dtype(self.action_space.dtype).kind == "f"
        self.action_dtype = torch.float32 if is_float else torch.int32

    @property
    def agent(self) -> Any:
        """Who acts; may be replaced by another one between rollouts."""
        return self._asked.agent

    @agent.setter
    def agent(self, agent: Any) -> None:
        check_agent(agent)
        self._asked.agent = agent

    @property
    def t_states(self) -> torch.Tensor:
        """What the envs show now, and the agent will see next.

        What the methods have returned may be assigned, which changes nothing; anything else is
        refused (ValueError): the envs would be somewhere else.
        """
        return self._states

    @t_states.setter
    def t_states(self, states: torch.Tensor) -> None:
        if states.shape != self._states.shape or not torch.allclose(
            states.to(self.device), self._states, rtol=0, atol=0, equal_nan=True
        ):
            raise ValueError(
                "t_states are what the envs show, and these are others: change states in a "
                "wrapper of the envs, or in the agent."
            )

    def permute_state(self, state: NDArray[Any]) -> NDArray[Any]:
        """An image (H, W, C) as (C, H, W); a view."""
        return state.transpose(2, 0, 1)

    def vec_reset(self) -> torch.Tensor:
        """Reset all envs; the next rollout begins there."""
        self.collector.reset()
        return self._look().clone()

    def env_reset(self, env_id: int) -> torch.Tensor:
        """Reset one env; the next rollout goes on from there. Returns its state."""
        mask = np.zeros(self.num_envs, dtype=np.bool_)
        mask[env_id] = True
        self.collector.reset(options={"reset_mask": mask})
        return self._look()[env_id].clone()

    def vec_step(
        self, actions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Step all envs; none is reset. Returns states, rewards, done flags and trunc flags.

        Episodes that end count; the next rollout resets those envs, and goes on in the others.

        Raises:
            gymnasium.error.ResetNeeded: an env's episode has ended before; no env was stepped.
        """
        seen = len(self.collector.statistics.rollout_episodes)
        shaped = actions.reshape(self.num_envs, *(self.action_space.shape or ()))
        results = self.collector.step(shaped)
        self._roll(self.collector.statistics.rollout_episodes[seen:])
        dtypes = torch.float32, torch.int32, torch.int32
        rewards, done_flags, trunc_flags = (
            torch.as_tensor(result).to(self.device, dtype)
            for result, dtype in zip(results, dtypes, strict=True)
        )
        return self._look().clone(), rewards, done_flags, trunc_flags

    def _look(self) -> torch.Tensor:
        states: torch.Tensor = self.collector.observations
        self._states = states
        return states

    def rollout(self) -> None:
        """Have the agent step every env ``steps_per_env`` times, and keep what came of it."""
        with self._asked.checked_once():
            collected = self.collector.collect()
        result = flagged(collected, shares_states=self._shares_states)
        for field in fields(FlaggedRollout):
            setattr(self, field.name, getattr(result, field.name))
        self._states = collected.last_observations
        self.global_steps += self.steps_per_env * self.num_envs
        statistics = self.collector.statistics
        self._roll(statistics.rollout_episodes)
        window = None if self._permutes else statistics.episodes
        self._summarise(window, statistics.best_return)

    def test_agent(self, render_every: int) -> None:
        """Let the agent play ``steps_per_env`` steps, and show every so many of them in ``images``.

        All envs are reset before and after. Nothing of it counts in the statistics, and random
        states, gradients and modes of the agent are as before.

        Raises:
            ValueError: ``render_every`` is below 1, or the envs render no images.
        """
        if render_every < 1:
            raise ValueError(f"render_every must be at least 1, got {render_every}")
        check_renders(self.fleet)
        player = Player(
            self._asked,
            self.fleet,
            deterministic=False,
            device=self.device,
            channels_first=self._permutes,
            observation_dtype=torch.float32,
        )
        self.images = [[] for _ in range(self.num_envs)]
        try:
            with (
                untouched(self.agent),
                progress_bar(self.steps_per_env, None, "Recording", "step") as bar,
            ):
                player.reset()
                for step in range(self.steps_per_env):
                    if step % render_every == 0:
                        for images, frame in zip(self.images, self.fleet.render(), strict=True):
                            images.append(Image.fromarray(as_frame(frame)))
                    player.step()
                    bar.update(1)
        finally:
            self.vec_reset()

    def close(self) -> None:
        """Close the envs and complete the videos; ``envs`` is None from then on."""
        self.envs = None
        self.collector.close()


def _check_same(name: str, of_agent: Any, of_envs: Any) -> None:
    """Refuse an agent that is made for other envs."""
    if type(of_agent) is not type(of_envs) or of_agent.shape != of_envs.shape:
        raise ValueError(f"the agent's {name} is {of_agent}, the envs have {of_envs}.")
