"""Generalised advantage estimation, masked right at episode ends and at the horizon."""

from __future__ import annotations

import torch


def estimate_advantages(
    rewards: torch.Tensor,
    values: torch.Tensor,
    next_values: torch.Tensor,
    *,
    terminated: torch.Tensor,
    done: torch.Tensor,
    valid: torch.Tensor,
    gamma: float,
    gae_lambda: float,
) -> torch.Tensor:
    """The advantages of (T, N) transitions.

    ``delta_t = r_t + gamma * (1 - terminated_t) * V(next_t) - V(s_t)`` and
    ``A_t = delta_t + gamma * gae_lambda * (1 - done_t) * A_{t+1}``, where ``next_values`` holds the
    value of what really came next: of the final observation where an episode ended, of the last
    observation at the horizon. Rows that are not ``valid`` have advantage 0, and nothing flows over
    them.
    """
    nothing = torch.zeros((), dtype=values.dtype, device=values.device)
    bootstrap = torch.where(terminated, nothing, next_values)
    deltas = torch.where(valid, rewards + gamma * bootstrap - values, nothing)
    decay = gamma * gae_lambda * (valid & ~done)
    advantages = torch.empty_like(deltas)
    running = torch.zeros_like(deltas[0])
    for row, delta, factor in zip(
        reversed(advantages.unbind()),
        reversed(deltas.unbind()),
        reversed(decay.unbind()),
        strict=True,
    ):
        running = torch.addcmul(delta, factor, running, out=row)
    return advantages
