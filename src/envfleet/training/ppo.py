"""PPO: from a rollout to a better policy (Schulman et al., 2017), in torch.

    rollout = collector.collect()                                   # T steps of N envs
    advantages, returns = rollout.advantages(gamma, gae_lambda)     # PPO.update begins here
    for batch in rollout.minibatches(batch_size, epochs=epochs):    # shuffled rows
        loss = clipped objective + value error - entropy bonus      # ppo_loss
        one step of Adam along the loss's gradient                  # TorchLearner.step

``TorchLearner`` is what runs wherever ``fast.FastLearner``, the same by hand for small networks,
does not; a test holds one against the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from envfleet.rollout.agent import Answer
from envfleet.rollout.buffer import Batch, Rollout
from envfleet.rollout.nested import Tree, tree_map
from envfleet.training.config import Schedule, TrainConfig
from envfleet.training.fast.learner import FastLearner
from envfleet.training.learner import Learner, StepMetrics
from envfleet.training.own_policy import OwnPolicy
from envfleet.training.policy import Normalizer, Policy

AnyPolicy = Policy | OwnPolicy


class PPO:
    """Proximal policy optimisation with a clipped objective.

    ``update`` takes a rollout that ``learner`` has collected, and changes the policy in place.
    """

    def __init__(self, policy: AnyPolicy, config: TrainConfig) -> None:
        self.policy = policy
        self.config = config
        self.generator = np.random.default_rng(config.seed)
        """Of the order of minibatches, and of actions that are sampled in NumPy."""
        self.learner: Learner[Any] = make_learner(policy, config, self.generator)
        """Acts as the policy does: the agent to collect with."""
        self.rewards = RewardScale(config) if config.normalize_rewards else None

    def update(self, rollout: Rollout, progress: float) -> dict[str, float]:
        """Improve the policy; ``progress`` is the part of the run that is over, from 0 to 1.

        Returns the means of the last epoch's ``StepMetrics`` (with a limit on the KL: of all
        epochs), ``explained_variance``, and how many steps the optimiser took: 0 where no row is
        valid, and all means are NaN then.
        """
        config, learner = self.config, self.learner
        learner.learning_rate = config.learning_rate * _left(
            config.learning_rate_schedule, progress
        )
        clip_range = config.clip_range * _left(config.clip_range_schedule, progress)
        if self.rewards is not None:
            rollout = self.rewards(rollout)
        advantages, returns = rollout.advantages(config.gamma, config.gae_lambda)
        batches = math.ceil(rollout.steps / config.batch_size)
        last_epoch = batches * (config.epochs - 1)
        reports: list[StepMetrics] = []
        steps = 0
        for batch in learner.minibatches(rollout, advantages, returns, self.generator):
            report = steps >= last_epoch or config.target_kl is not None
            metrics = learner.step(batch, clip_range, report=report)
            steps += 1
            if metrics is not None:
                reports.append(metrics)
                # Reading a number waits for the device: only those who ask for a limit pay.
                if config.target_kl is not None and metrics.kl > 1.5 * config.target_kl:
                    break
        if steps and self.policy.normalizer is not None:
            # After the steps: they saw observations in the scale that the rollout was made with.
            self.policy.learn_scale(rollout.flatten().observations)
        return {
            **_means(reports),
            "explained_variance": _explained_variance(rollout, returns),
            "steps": float(steps),
        }

    def begin_episodes(self) -> None:
        """All envs begin new episodes: sums over the running ones are void."""
        if self.rewards is not None:
            self.rewards.running.zero_()

    def state_dict(self) -> dict[str, Any]:
        """All that decides about the next update but the policy's parameters."""
        return {
            "learner": self.learner.state_dict(),
            "generator": self.generator.bit_generator.state,
            "rewards": None if self.rewards is None else self.rewards.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with a state from ``state_dict``.

        Raises:
            ValueError: it belongs to another policy.
        """
        self.learner.load_state_dict(state["learner"])
        self.generator.bit_generator.state = state["generator"]
        if self.rewards is not None:
            self.rewards.load_state_dict(state["rewards"])


def make_learner(
    policy: AnyPolicy, config: TrainConfig, generator: np.random.Generator
) -> Learner[Any]:
    """The fastest learner for a policy; in NumPy it samples actions with the generator."""
    if isinstance(policy, Policy) and FastLearner.fits(policy):
        return FastLearner(policy, config, generator)
    return TorchLearner(policy, config)


class TorchLearner:
    """Improves any policy by torch's own gradients and its Adam."""

    def __init__(self, policy: AnyPolicy, config: TrainConfig) -> None:
        self.policy = policy
        self.config = config
        self.learning_rate = config.learning_rate
        self.optimizer = torch.optim.Adam(
            policy.parameters(), lr=config.learning_rate, eps=config.adam_epsilon, fused=True
        )
        self.act = policy.act
        self.get_values = policy.get_values

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.policy.device

    def evaluate_actions(
        self, observations: Tree, actions: Tensor, action_masks: Tensor | None = None
    ) -> Answer:
        """The log-probabilities of actions, values, and entropies."""
        if action_masks is None:  # which a policy of the user's own need not know
            return self.policy.evaluate_actions(observations, actions)
        return self.policy.evaluate_actions(observations, actions, action_masks=action_masks)

    def minibatches(
        self,
        rollout: Rollout,
        advantages: Tensor,
        returns: Tensor,
        generator: np.random.Generator,
    ) -> Iterator[Batch]:
        """The rollout's own; if observations ask for gradients, those are not ours to give."""
        observations = tree_map(Tensor.detach, rollout.observations)
        return replace(rollout, observations=observations).minibatches(
            self.config.batch_size,
            generator,
            epochs=self.config.epochs,
            advantages=advantages,
            returns=returns,
        )

    def step(self, batch: Batch, clip_range: float, *, report: bool) -> StepMetrics | None:
        """One step of Adam along the gradient of PPO's loss."""
        config, parameters = self.config, list(self.policy.parameters())
        log_probs, values, entropies = self.evaluate_actions(
            batch.observations, batch.actions, batch.action_masks
        )
        ratio_log = log_probs - batch.log_probs
        policy_loss = clipped_objective(ratio_log.exp(), _advantages(batch), clip_range)
        value_loss = value_error(values, batch, clip_range if config.clip_values else math.inf)
        entropy = entropies.mean()
        loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(parameters, config.max_grad_norm, foreach=True)
        self.optimizer.param_groups[0]["lr"] = self.learning_rate
        self.optimizer.step()
        if not report:
            return None
        with torch.no_grad():
            moved = ratio_log.exp() - 1
            kl, clipped = (moved - ratio_log).mean(), (moved.abs() > clip_range).float().mean()
        losses = policy_loss.detach(), value_loss.detach(), entropy.detach()
        return StepMetrics(*losses, kl, clipped, norm)

    def state_dict(self) -> dict[str, Any]:
        """Adam's moments."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with Adam's moments.

        Raises:
            ValueError: they are of other parameters.
        """
        self.optimizer.load_state_dict(state)
        for parameter, moments in self.optimizer.state.items():
            for name, value in moments.items():  # which torch does not look at
                if name != "step" and value.shape != parameter.shape:
                    raise ValueError(f"its {name} has another shape than the parameter")


def clipped_objective(ratio: Tensor, advantages: Tensor, clip_range: float) -> Tensor:
    """PPO's loss: a ratio beyond the clip range earns nothing more."""
    bounded = ratio.clamp(1 - clip_range, 1 + clip_range)
    return -torch.minimum(advantages * ratio, advantages * bounded).mean()


def value_error(values: Tensor, batch: Batch, clip_range: float) -> Tensor:
    """The mean squared error of values; moving further than the clip range earns nothing."""
    assert batch.returns is not None  # noqa: S101 - PPO.update has put them there
    error = (values - batch.returns).square()
    if math.isfinite(clip_range):
        near = batch.values + (values - batch.values).clamp(-clip_range, clip_range)
        error = torch.maximum(error, (near - batch.returns).square())
    return error.mean()


def _advantages(batch: Batch) -> Tensor:
    """The batch's advantages with mean 0 and deviation 1, where it has more than one row."""
    assert batch.advantages is not None  # noqa: S101 - PPO.update has put them there
    if len(batch.advantages) < 2:
        return batch.advantages
    return (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)


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
        envs = rollout.env_ids.cpu()  # rollouts from a cluster may lack some
        returns, running = np.empty_like(rewards), self.running[envs].numpy()
        for t, now in enumerate(rewards):
            returns[t] = self._gamma * running + now
            running = returns[t] * goes_on[t]
        self.running.zero_()[envs] = torch.from_numpy(running)
        self.scale.update(torch.from_numpy(returns[valid]))
        factor = (self.scale.variance + 1e-8).rsqrt().to(rollout.rewards)
        return replace(rollout, rewards=(rollout.rewards * factor).clamp(-10.0, 10.0))


def _left(schedule: Schedule, progress: float) -> float:
    """What a schedule leaves of a value."""
    return 1.0 - progress if schedule == "linear" else 1.0


def _means(reports: list[StepMetrics]) -> dict[str, float]:
    if not reports:
        return dict.fromkeys(StepMetrics._fields, math.nan)
    rows = torch.stack([torch.stack([torch.as_tensor(x) for x in report]) for report in reports])
    return dict(zip(StepMetrics._fields, rows.mean(0).tolist(), strict=True))


def _explained_variance(rollout: Rollout, returns: Tensor) -> float:
    """1 is a perfect critic, 0 as good as none, below that worse; NaN where nothing varies."""
    values, returns = rollout.values[rollout.valid], returns[rollout.valid]
    spread = returns.var() if len(returns) > 1 else torch.zeros(())
    return float(1 - (returns - values).var() / spread) if spread > 0 else math.nan
