"""FlaggedRollout: a rollout whose last rows are flagged where the buffer cuts episodes off."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from envfleet.rollout.buffer import Rollout


@dataclass(frozen=True, slots=True)
class FlaggedRollout:
    """What a ``SyncVecEnv`` has after ``rollout()``: row ``t`` of env ``n`` at ``[t, n]``.

    The k-th end state belongs to the k-th flag, env by env: to
    ``(done_flags + trunc_flags).T.nonzero()[k]``, which is an ``(env, t)``.
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
    """How many end states each env has."""
    total_return: np.float32


def flagged(rollout: Rollout, *, shares_states: bool) -> FlaggedRollout:
    """A collector's rollout in that form.

    Args:
        rollout: of a fleet without autoreset.
        shares_states: whether the collector will not overwrite the rollout's tensors; otherwise
            all of them are copied.
    """
    done = rollout.terminated | rollout.truncated
    cut = ~done[-1]
    trunc_flags = rollout.truncated.int()
    trunc_flags[-1] += cut
    states, actions = rollout.observations.detach(), rollout.actions
    actions = actions.float() if actions.is_floating_point() else actions.int()
    own = [states, actions, rollout.rewards.float(), rollout.values.float()]
    own.append(rollout.log_probs.float())
    if not shares_states:
        own = [tensor.clone() for tensor in own]
    states, actions, rewards, values, log_probs = own
    end_states, ep_counts = _ends(rollout, done, cut)
    return FlaggedRollout(
        states=states.requires_grad_(True),
        actions=actions,
        rewards=rewards,
        done_flags=rollout.terminated.int(),
        trunc_flags=trunc_flags,
        values=values,
        log_probs=log_probs,
        end_states=end_states,
        ep_counts=ep_counts,
        total_return=np.float32(rollout.total_return),
    )


def _ends(
    rollout: Rollout, done: torch.Tensor, cut: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What episodes ended with, those cut off by the buffer's end included, env by env."""
    steps, count = done.shape
    lost = torch.nonzero(done & ~rollout.valid)  # with a worker: what was seen last is all there is
    running = torch.nonzero(cut).flatten()
    observations = rollout.observations.detach()
    states = [
        rollout.final_observations,
        observations[lost[:, 0], lost[:, 1]],
        rollout.last_observations[running],
    ]
    t = torch.cat([rollout.final_positions[:, 0], lost[:, 0], torch.full_like(running, steps)])
    env = torch.cat([rollout.final_positions[:, 1], lost[:, 1], running])
    order = torch.argsort(env * (steps + 1) + t)
    return torch.cat(states)[order], torch.bincount(env, minlength=count).int()
