"""Load the policy of a run from its folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from gymnasium.vector import VectorEnv

from envfleet.record.rendering import check_video
from envfleet.rollout.actions import ActionPort
from envfleet.rollout.masks import MASK_KEY, ActionMasks
from envfleet.rollout.nested import ObservationFormat, Tree, tree_leaves, tree_map
from envfleet.training import checkpoint as checkpoints
from envfleet.training.build import EnvSource, make_policy
from envfleet.training.checkpoint import Checkpoint
from envfleet.training.env_options import EnvOptions
from envfleet.training.envs import build_fleet, of_a_run, one_rendered
from envfleet.training.folder import RunRecord
from envfleet.training.own_policy import PolicySource, find_policy
from envfleet.training.ppo import AnyPolicy
from envfleet.training.trust import TO_PLAY, check_trust, not_passed


class TrainedPolicy:
    """A trained policy; ``act`` takes one observation or a batch, as the env returns them.

    It can be used as the agent of ``evaluate``, ``record_agent`` and ``Collector``.
    """

    def __init__(
        self,
        module: AnyPolicy,
        observation_space: Space[Any],
        action_space: Space[Any],
        mask_key: str | None = MASK_KEY,
    ) -> None:
        self.module = module.eval()
        """The networks, as a torch module."""
        self.mask_key = mask_key
        """Key of the action masks in training; ``evaluate`` and the like look for them there."""
        self.observation_space, self.action_space = observation_space, action_space
        self._format = ObservationFormat(observation_space, "auto")
        self._port = ActionPort(action_space)
        self._masks = ActionMasks(action_space, mask_key or MASK_KEY)

    def as_agent(self) -> AnyPolicy:
        """The agent for collectors: batches of tensors in, log-probabilities and values out."""
        return self.module

    def act(self, observations: Tree, deterministic: bool = False, action_masks: Any = None) -> Any:
        """Choose actions for one observation or a batch, ready for ``step`` of an env or a fleet.

        Returns NumPy arrays for NumPy arrays (or plain numbers), and tensors for tensors. Actions
        are sampled with torch's generator; with ``deterministic`` they are the most likely ones.
        Continuous actions are clipped to the space. ``action_masks`` has one mask per observation,
        or is the mask for a single observation; 1 means allowed. The mask of a MultiDiscrete has
        its components side by side, or is a tuple of one mask for each.

        Raises:
            TypeError: there are masks, and the actions are neither Discrete nor MultiDiscrete.
            ValueError: the shape of the observations does not match the space, or a mask has
                another size or forbids everything.
        """
        leaves = tree_leaves(observations)
        is_torch = any(isinstance(leaf, torch.Tensor) for leaf in leaves)
        arrays = tree_map(_array, observations)
        is_one = self._is_one(arrays)
        if is_one:
            arrays = tree_map(lambda leaf: leaf[None], arrays)
        device = self.module.device
        seen = tree_map(lambda leaf: leaf.to(device), self._format.tensors(arrays))
        masks: Any = {}
        if action_masks is not None:
            told = _array(action_masks) if isinstance(action_masks, torch.Tensor) else action_masks
            rows = self._masks.rows(told, None if is_one else len(tree_leaves(arrays)[0]))
            masks = {"action_masks": torch.as_tensor(rows, device=device)}
        with torch.no_grad():
            chosen = self.module.act(seen, deterministic=deterministic, **masks)[0]
        actions = self._port.to_env(chosen.cpu().numpy())
        actions = actions[0] if is_one else actions
        return torch.as_tensor(actions) if is_torch else actions

    def _is_one(self, arrays: Tree) -> bool:
        """Whether it is a single observation; keys of a dict may be in any order."""
        shapes = self._format.shapes
        found = tree_map(lambda leaf: leaf.shape, arrays)
        if found == shapes:
            return True
        if tree_map(lambda leaf: leaf.shape[1:], arrays) == shapes:
            return False
        raise ValueError(
            f"observations of shape {found} are neither one nor a batch of {self.observation_space}"
        )


@dataclass(frozen=True)
class LoadedRun:
    """The contents of a run's folder, from which its policy and its envs are built."""

    folder: Path
    record: RunRecord
    path: Path
    """The checkpoint's folder."""
    saved: Checkpoint

    @property
    def step(self) -> int:
        """The number of steps that the policy was trained for."""
        return self.saved.step

    def make_envs(self, num_envs: int, *, render: bool = False) -> Any:
        """Build a fleet of the run's env."""
        env_id = self.record.config.env_id
        changes = EnvOptions.of(self.record.config)
        with of_a_run():
            if render:
                check_video(partial(one_rendered, env_id, changes))
            return build_fleet(
                env_id,
                num_envs,
                faults=self.record.options.fault_options,
                rendered=num_envs if render else 0,
                changes=changes,
            )

    def policy(
        self,
        observation_space: Space[Any],
        action_space: Space[Any],
        own: PolicySource | None = None,
    ) -> TrainedPolicy:
        """The run's policy as it was saved.

        Raises:
            CheckpointError: it does not fit these spaces.
            ValueError: it is the user's own policy, was not passed, and cannot be imported.
        """
        if own is None and self.record.policy is not None:
            own = find_policy(self.record.policy)
        module = make_policy(self.record.config, observation_space, action_space, own=own)
        with checkpoints.usable(self.path):
            checkpoints.load_policy(module, self.saved.policy)
        mask_key = self.record.config.mask_key
        return TrainedPolicy(module, observation_space, action_space, mask_key)


def load_run(
    folder: Path | str,
    checkpoint: str | None = None,
    *,
    trust: bool,
    uses: Iterable[str] = TO_PLAY,
) -> LoadedRun:
    """Read a run's folder without changing it; ``uses`` is what of it will be imported.

    Raises:
        FileNotFoundError, ValueError: it is not a run folder, or has no checkpoint yet.
        UntrustedError: something would have to be imported from a module.
        CheckpointError: there is no such checkpoint, or it cannot be read.
    """
    folder = Path(folder).absolute()
    record = RunRecord.read(folder)
    check_trust(folder, record, uses, trust=trust)
    path = checkpoints.find(folder / "checkpoints", None if checkpoint == "last" else checkpoint)
    if path is None:
        raise ValueError(f"{folder} has no checkpoint.")
    return LoadedRun(folder, record, path, checkpoints.load(path))


def load(
    run: Path | str,
    checkpoint: str = "last",
    *,
    env: EnvSource | None = None,
    policy: PolicySource | None = None,
    trust: bool = False,
) -> TrainedPolicy:
    """Load the policy of a run from its folder.

    One env is built to get its spaces, and closed again.

    Args:
        run: the run's folder.
        checkpoint: "last", "best", or the name of a folder in ``checkpoints/``.
        env: for a run whose env cannot be imported by name: a function that builds it, or a fleet,
            which stays open.
        policy: for a run with your own policy: a module like it, or a function that makes one; may
            be omitted with ``trust``, if it was a function or class of a module.
        trust: whether to import the modules that the run's folder names for its env, wrappers and
            policy; passing a function as ``env`` does not replace the wrappers.

    Raises:
        FileNotFoundError, ValueError: it is not a run folder, or has no checkpoint yet.
        UntrustedError: its env, a wrapper or its policy would have to be imported from a module,
            and ``trust`` is False.
        CheckpointError: there is no such checkpoint, or it cannot be read.
    """
    uses = not_passed(TO_PLAY, env=env, policy=policy)
    loaded = load_run(run, checkpoint, trust=trust, uses=uses)
    if isinstance(env, VectorEnv):
        return loaded.policy(env.single_observation_space, env.single_action_space, policy)
    source = loaded.record.config.env_id if env is None else env
    changes = EnvOptions.of(loaded.record.config)
    with of_a_run():
        envs = build_fleet(source, 1, changes=changes)
    with envs:
        return loaded.policy(envs.single_observation_space, envs.single_action_space, policy)


def _array(leaf: Any) -> Any:
    return leaf.detach().cpu().numpy() if isinstance(leaf, torch.Tensor) else np.asarray(leaf)
