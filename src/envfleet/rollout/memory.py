"""Buffers: the memory that a rollout is collected into, for torch and for NumPy."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from envfleet.rollout.actions import ActionPort
from envfleet.rollout.nested import ObservationFormat, tree_map


class Row:
    """One step's part of the buffers: views, made once."""

    def __init__(self, buffers: Buffers, t: int) -> None:
        self.is_first = t == 0
        self.observations = tree_map(itemgetter(t), buffers.observations)
        self.arrays = tree_map(torch.Tensor.numpy, self.observations)
        """The same memory, for NumPy."""
        self.actions = buffers.actions[t]
        on_cpu = self.actions.device.type == "cpu"
        self.chosen: Any = self.actions.numpy() if on_cpu else None
        """The same memory, for NumPy, where that can be."""
        masks = buffers.action_masks
        self.action_masks = None if masks is None else masks[t]
        self.allowed: Any = None if masks is None else masks[t].numpy()
        """The same memory, for NumPy."""
        self.log_probs, self.values = buffers.log_probs[t], buffers.values[t]
        self.shapes = self.actions.shape, self.log_probs.shape, self.values.shape
        self.rewards: NDArray[np.float64] = buffers.rewards[t]
        self.terminated: NDArray[np.bool_] = buffers.terminated[t].numpy()
        self.truncated: NDArray[np.bool_] = buffers.truncated[t].numpy()
        self.valid: NDArray[np.bool_] = buffers.valid[t].numpy()


class Buffers:
    """The tensors of a rollout: what envs give in the CPU's memory, what agents give on theirs."""

    def __init__(
        self,
        form: ObservationFormat,
        port: ActionPort,
        steps: int,
        count: int,
        device: torch.device,
        mask_width: int | None = None,
    ) -> None:
        dtype = torch.get_default_dtype()
        self.observations = form.allocate(steps + 1, count)
        self.actions = torch.zeros(steps, count, *port.shape, dtype=port.dtype, device=device)
        self.action_masks: torch.Tensor | None = None
        """What was allowed before each step, and after the last one; None without masks."""
        if mask_width is not None:
            self.action_masks = torch.ones(steps + 1, count, mask_width, dtype=torch.bool)
        self.log_probs = torch.zeros(steps, count, dtype=dtype, device=device)
        self.values = torch.zeros(steps, count, dtype=dtype, device=device)
        self.rewards = np.zeros((steps, count))
        self.rounded_rewards = torch.zeros(steps, count, dtype=dtype)
        self.terminated, self.truncated, self.valid = (
            torch.zeros(steps, count, dtype=torch.bool) for _ in range(3)
        )
        self.rows = [Row(self, t) for t in range(steps)]
        self.last_observations = tree_map(itemgetter(steps), self.observations)
        """After the last step."""
        self.arrays = [row.arrays for row in self.rows]
        self.arrays.append(tree_map(torch.Tensor.numpy, self.last_observations))
        """Per step, and after the last one, the observations for NumPy."""
