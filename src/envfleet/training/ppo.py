"""PPO: from rollouts to a better policy, one update at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from envfleet.rollout.buffer import Batch, Rollout
from envfleet.training.adam import FlatAdam
from envfleet.training.config import TrainConfig
from envfleet.training.numpy_mlp import Minibatch, NumpyPolicy
from envfleet.training.policy import Normalizer, Policy

_TOLD = ("policy_loss", "value_loss", "entropy", "kl", "clipped", "grad_norm")

Stepper = Callable[[NDArray[np.int64], float, bool], Tensor | list[float]]
"""Takes the numbers of some rows, the clip, and whether to tell what happened: the numbers of
``_TOLD``, on the device they are on."""


class PPO:
    """Proximal policy optimisation with a clipped objective (Schulman et al., 2017).

    ``update`` takes a rollout that this policy has collected and changes the policy in place. Its
    state, for a checkpoint, is the policy's, the optimiser's, the reward scale's and the
    generator's.
    """

    def __init__(self, policy: Policy, config: TrainConfig) -> None:
        self.policy = policy
        self.config = config
        self.generator = np.random.default_rng(config.seed)
        """Of the order of minibatches, and of actions chosen in NumPy."""
        self.agent: Any = policy
        """Acts as the policy does: what a collector is given."""
        rate, epsilon = config.learning_rate, config.adam_epsilon
        self.optimizer: Any
        if not NumpyPolicy.fits(policy):
            self.optimizer = torch.optim.Adam(policy.parameters(), lr=rate, eps=epsilon, fused=True)
        else:
            self.agent = quick = NumpyPolicy(policy, self.generator)
            self.optimizer = FlatAdam(quick.values, quick.gradient, rate, epsilon)
        self.rewards = RewardScale(config) if config.normalize_rewards else None

    def update(self, rollout: Rollout, progress: float) -> dict[str, float]:
        """Improve the policy; ``progress`` is the part of the run that is over, from 0 to 1.

        Returns the means of what happened in the minibatches of the last epoch (with a limit on the
        KL: of all), ``explained_variance``, and the number of steps of the optimiser: 0 where no
        row is valid, and all means NaN.
        """
        config = self.config
        rate = config.learning_rate * _factor(config.learning_rate_schedule, progress)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        clip = config.clip * _factor(config.clip_schedule, progress)
        if self.rewards is not None:
            rollout = self.rewards(rollout)
        advantages, returns = rollout.advantages(config.gamma, config.gae_lambda)
        with torch.no_grad():  # observations may ask for gradients, which are not ours to give
            rows = rollout.flatten(advantages, returns)
        if not len(rows):
            return dict.fromkeys((*_TOLD, "explained_variance"), math.nan) | {"steps": 0.0}
        step = self.stepper(rows)
        told: list[Tensor | list[float]] = []
        stop, limit, updates = False, config.target_kl, 0
        for epoch in range(config.epochs):
            tell = epoch == config.epochs - 1 or limit is not None
            order = self.generator.permutation(len(rows))
            for start in range(0, len(rows), config.batch_size):
                numbers = step(order[start : start + config.batch_size], clip, tell)
                updates += 1
                if tell:
                    told.append(numbers)
                    # Looking at a number waits for it, so only who asks for a limit pays for it.
                    stop = limit is not None and bool(numbers[3] > 1.5 * limit)
                if stop:
                    break
            if stop:
                break
        self.policy.learn_scale(rows.observations)
        means = torch.stack([torch.as_tensor(numbers) for numbers in told]).mean(0).tolist()
        kept = rollout.valid
        return {
            **dict(zip(_TOLD, means, strict=True)),
            "explained_variance": _explained(rollout.values[kept], returns[kept]),
            "steps": float(updates),
        }

    def stepper(self, rows: Batch) -> Stepper:
        """What makes one step of the optimiser, from some of these rows."""
        return self._torch_stepper(rows) if self.agent is self.policy else self._numpy_stepper(rows)

    def _numpy_stepper(self, rows: Batch) -> Stepper:
        numbers = (rows.log_probs, rows.values, rows.advantages, rows.returns)
        columns = torch.stack([column for column in numbers if column is not None]).numpy()
        features, actions = self.agent.features(rows.observations), rows.actions.numpy()
        masks = None if rows.action_masks is None else rows.action_masks.numpy()

        def step(chosen: NDArray[np.int64], clip: float, tell: bool) -> list[float]:
            batch = Minibatch(
                features.take(chosen, 0), actions.take(chosen, 0), *columns.take(chosen, 1)
            )
            if masks is not None:
                batch = batch._replace(action_masks=masks.take(chosen, 0))
            told: list[float] = self.agent.gradients(batch, self.config, clip, tell=tell)
            self.optimizer.step()
            return told

        return step

    def _torch_stepper(self, rows: Batch) -> Stepper:
        policy, config = self.policy, self.config
        ready = None
        if policy.body is None:  # a body is trained too
            with torch.no_grad():
                ready = policy.features(rows.observations)

        def step(chosen: NDArray[np.int64], clip: float, tell: bool) -> Tensor | list[float]:
            index = torch.from_numpy(chosen)
            batch = rows.select(index)
            features = policy.features(batch.observations) if ready is None else ready[index]
            policy_loss, value_loss, entropy, ratio_log, ratio = losses(
                policy, batch, features, clip, clip_values=config.clip_values
            )
            loss = policy_loss + config.value * value_loss - config.entropy * entropy
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            norm = nn.utils.clip_grad_norm_(policy.parameters(), config.max_grad_norm, foreach=True)
            self.optimizer.step()
            if not tell:
                return []
            with torch.no_grad():
                kl = (ratio - 1 - ratio_log).mean()
                clipped = ((ratio - 1).abs() > clip).float().mean()
                return torch.stack(
                    [policy_loss.detach(), value_loss.detach(), entropy.detach(), kl, clipped, norm]
                )

        return step


def losses(
    policy: Policy, batch: Batch, features: Tensor, clip: float, *, clip_values: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The parts of PPO's loss, then the logarithm of the ratio and the ratio itself."""
    assert batch.advantages is not None  # noqa: S101 - PPO.update has put them there
    assert batch.returns is not None  # noqa: S101 - same
    _, log_probs, values, entropy = policy.judge(features, batch.actions, batch.action_masks)
    ratio_log = log_probs - batch.log_probs
    ratio = ratio_log.exp()
    advantages = batch.advantages
    if len(advantages) > 1:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    bounded = ratio.clamp(1 - clip, 1 + clip)
    policy_loss = -torch.minimum(advantages * ratio, advantages * bounded).mean()
    error = (values - batch.returns).square()
    if clip_values:
        near = batch.values + (values - batch.values).clamp(-clip, clip)
        error = torch.maximum(error, (near - batch.returns).square())
    return policy_loss, error.mean(), entropy.mean(), ratio_log, ratio


class RewardScale(nn.Module):
    """Rewards in units of the deviation of the discounted return so far, clipped to 10."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        self._gamma = config.gamma
        self.scale = Normalizer(1)
        self.register_buffer("running", torch.zeros(config.num_envs, dtype=torch.float64))
        self.running: Tensor

    def forward(self, rollout: Rollout) -> Rollout:
        """The rollout with scaled rewards; takes up its returns first."""
        valid = rollout.valid.cpu().numpy()
        rewards = np.where(valid, rollout.rewards.cpu().double().numpy(), 0.0)
        goes_on = ~(rollout.terminated | rollout.truncated).cpu().numpy()
        returns, running = np.empty_like(rewards), self.running.numpy()
        for t, now in enumerate(rewards):
            returns[t] = self._gamma * running + now
            running = returns[t] * goes_on[t]
        self.running.copy_(torch.from_numpy(running))
        self.scale.update(torch.from_numpy(returns[valid]))
        factor = (self.scale.variance + 1e-8).rsqrt().to(rollout.rewards)
        return replace(rollout, rewards=(rollout.rewards * factor).clamp(-10.0, 10.0))

    def begin_anew(self) -> None:
        """All episodes were cut."""
        self.running.zero_()


def _factor(schedule: str, progress: float) -> float:
    return 1.0 - progress if schedule == "linear" else 1.0


def _explained(values: Tensor, returns: Tensor) -> float:
    """1 is a perfect critic, 0 as good as none, below that worse; NaN where nothing varies."""
    spread = returns.var()
    return float(1 - (returns - values).var() / spread) if spread > 0 else float("nan")
