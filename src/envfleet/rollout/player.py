"""Player: an agent in a fleet without training, a step at a time; nothing is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from envfleet.rollout.actions import ActionPort
from envfleet.rollout.agent import (
    AnyAgent,
    acting,
    acting_best,
    check_actions,
    device_of,
    resolve,
    takes_masks,
)
from envfleet.rollout.engine import autoreset_mode_of, restarted
from envfleet.rollout.masks import AUTO_KEY, ActionMasks, mask_key_of
from envfleet.rollout.nested import ChannelsFirst, ObservationFormat, tree_map
from envfleet.rollout.statistics import Episode, EpisodeMeter, EpisodeSource


class Player:
    """An agent that plays in a fleet without being trained: a step at a time, nothing kept."""

    def __init__(
        self,
        agent: AnyAgent,
        envs: VectorEnv[Any, Any, Any],
        deterministic: bool,
        device: torch.device | str | None = None,
        autoreset_mode: AutoresetMode | str | None = None,
        source: EpisodeSource = "auto",
        channels_first: ChannelsFirst = "auto",
        observation_dtype: torch.dtype | None = None,
        mask_key: str | None = AUTO_KEY,
    ) -> None:
        self._mask_key = mask_key_of(agent, mask_key)
        self._agent = agent = resolve(agent)
        self._masks: ActionMasks | None = None
        self._allowed = np.ones((envs.num_envs, 0), dtype=np.bool_)
        self._best = acting_best(agent) if deterministic else None
        self._sample = acting(agent)
        self._envs = envs
        self.mode = autoreset_mode_of(envs, autoreset_mode)
        self.infos: dict[str, Any] = {}
        """Of the last step."""
        self._form = ObservationFormat(
            envs.single_observation_space, channels_first, observation_dtype
        )
        self._port = ActionPort(envs.single_action_space)
        self._meter = EpisodeMeter(envs, source, self.mode)
        self._is_checked = False
        self._device = device_of(agent, device)
        self._was_done = np.zeros(envs.num_envs, dtype=np.bool_)

    @property
    def returns(self) -> NDArray[np.float64]:
        """The returns of the running episodes so far."""
        return self._meter.running_returns

    def reset(self, seed: int | None = None) -> None:
        """Begin new episodes everywhere."""
        self._observations, infos = self._envs.reset(seed=seed)
        self._masks = ActionMasks.found(
            self._envs, self._agent, infos, self._mask_key, takes_masks=takes_masks(self._agent)
        )
        if self._masks is not None:
            self._allowed = np.ones((self._envs.num_envs, self._masks.width), dtype=np.bool_)
            self._masks.read(self._allowed, infos, when="reset")
        self._was_done[:] = False
        self._meter.restart()

    def step(self) -> list[Episode]:
        """Let the agent act once in every env; the episodes that ended.

        Envs that do not reset themselves are reset by the next step, so that the end can be seen.
        """
        if self.mode == AutoresetMode.DISABLED and self._was_done.any():
            self._observations, infos = self._envs.reset(options={"reset_mask": self._was_done})
            if self._masks is not None:
                self._masks.read(self._allowed, infos, self._was_done, when="reset")
        seen = tree_map(lambda leaf: leaf.to(self._device), self._form.tensors(self._observations))
        masks: dict[str, torch.Tensor] = {}
        if self._masks is not None:
            masks = {"action_masks": torch.tensor(self._allowed, device=self._device)}
        best, sample = self._best, self._sample
        actions = best(seen, **masks) if best is not None else sample(seen, **masks)[0]
        if not self._is_checked:
            check_actions(actions, self._envs.num_envs, self._port, self._device)
            self._is_checked = True
        answer = self._envs.step(self._port.to_env(actions.detach().cpu().numpy()))
        self._observations, rewards, terminated, truncated, infos = answer
        self.infos = infos
        done = np.logical_or(terminated, truncated)
        if self._masks is not None:
            self._masks.after_step(self._allowed, infos, done, self.mode)
        valid = ~self._was_done if self.mode == AutoresetMode.NEXT_STEP else np.ones_like(done)
        valid &= ~restarted(infos, done)
        reports = self._meter.reports(0, infos)
        episodes = self._meter.observe(rewards[None], done[None], valid[None], reports)
        self._was_done = done
        return [episode for _, episode in episodes]
