"""Policy: networks that act and value, with the normaliser of their observations.

Actor and critic are networks of their own, on flat rows of what is no image (``inputs``) and on the
features of a Nature CNN for each image, which they share. No Distribution objects: ``act`` is
called once per step.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, Literal

import torch
from gymnasium import Space
from torch import Tensor, nn

from envfleet.rollout.nested import Tree
from envfleet.training.convolutions import ImageBody
from envfleet.training.heads import CategoricalHead, MultiCategoricalHead, head_of
from envfleet.training.inputs import Inputs

Activation = Literal["tanh", "relu"]

_ALONE, _AMONG_OTHERS = 512, 256
"""Features of an image: as in the papers where it is all there is, with linear heads."""
MASKED = -1e30
"""The logit of an action that is not allowed: no chance of it is left, and sums stay finite."""
_MANY = 10_000
"""Numbers of one leaf that are too many for an MLP to go without saying."""


class Normalizer(nn.Module):
    """Mean and deviation of all that was ever seen, kept with the policy's parameters.

    Columns that are not among ``learns`` (all, by default) stay as they are.
    """

    def __init__(self, size: int, clip: float = 10.0, learns: Tensor | None = None) -> None:
        super().__init__()
        learns = torch.ones(size, dtype=torch.bool) if learns is None else learns
        self.register_buffer("learns", learns, persistent=False)
        self.learns: Tensor
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(size, dtype=torch.float64))
        self.register_buffer("count", torch.tensor(1e-4, dtype=torch.float64))
        self.clip = clip
        self.mean: Tensor
        self.variance: Tensor
        self.count: Tensor

    def forward(self, values: Tensor) -> Tensor:
        """Values in units of the deviation, clipped."""
        scale = (self.variance + 1e-8).rsqrt().to(values.dtype)
        shifted = values - self.mean.to(values.dtype)
        return (shifted * scale).clamp(-self.clip, self.clip)

    @torch.no_grad()
    def update(self, values: Tensor) -> None:
        """Take up a batch (Chan, Golub and LeVeque's rule)."""
        if not len(values):
            return
        batch = values.reshape(-1, self.mean.numel()).double()
        count = torch.tensor(float(len(batch)), dtype=torch.float64)
        total = self.count + count
        delta = batch.mean(0) - self.mean
        spread = self.variance * self.count + batch.var(0, unbiased=False) * count
        spread += delta.square() * self.count * count / total
        self.mean += torch.where(self.learns, delta * count / total, 0.0)
        self.variance.copy_(torch.where(self.learns, spread / total, 1.0))
        self.count.copy_(total)


class Policy(nn.Module):
    """An actor and a critic; an agent for ``Collector``, ``evaluate`` and ``record_agent``."""

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        hidden: tuple[int, ...] = (64, 64),
        activation: Activation = "tanh",
        log_std: float = 0.0,
        orthogonal: bool = True,
        normalize: bool = False,
    ) -> None:
        super().__init__()
        head: Any = head_of(action_space, log_std)
        self.head = head
        self.inputs = Inputs(observation_space)
        width = self.inputs.width
        self.body: ImageBody | None = None
        if self.inputs.image_shapes:
            alone = len(self.inputs.image_shapes) == 1 and not width
            if normalize and not width:
                raise ValueError("images are scaled by 255: leave normalize_observations off.")
            self.body = ImageBody(self.inputs.image_shapes, _ALONE if alone else _AMONG_OTHERS)
            hidden = () if alone else hidden
        numbers = self.inputs.are_numbers
        self.normalizer = (
            Normalizer(width, learns=numbers) if normalize and bool(numbers.any()) else None
        )
        width += 0 if self.body is None else self.body.width
        kind = nn.Tanh if activation == "tanh" else nn.ReLU
        self.actor = _mlp(width, hidden, head.size, kind)
        self.critic = _mlp(width, hidden, 1, kind)
        if orthogonal:
            _initialise(self.body, self.actor, self.critic)
        self._warn_of_size()

    def _warn_of_size(self) -> None:
        """Say which parts of an observation make the networks huge."""
        for leaf in self.inputs.flattened:
            if leaf.width <= _MANY:
                continue
            total = sum(parameter.numel() for parameter in self.parameters())
            what = "x".join(map(str, leaf.shape)) or "one-hot"
            warnings.warn(
                f"observation{leaf.path} ({what}) is flattened into {leaf.width:,} of the "
                f"{self.inputs.width:,} inputs of an MLP with {total:,} parameters: convolutions "
                "are used for images of at least 36x36 with up to three axes. Wrap the envs to "
                "make this part smaller or leave it out (gymnasium.wrappers: FilterObservation, "
                "ReshapeObservation, ResizeObservation).",
                stacklevel=3,
            )

    @property
    def is_image(self) -> bool:
        """Whether observations, or parts of them, go through convolutions."""
        return self.body is not None

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    def act(
        self,
        observations: Tree,
        deterministic: bool = False,
        action_masks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Actions, their log-probabilities, and values; of masked actions none is chosen."""
        features = self.features(observations)
        out = self._logits(features, action_masks)
        actions = self.head.best(out) if deterministic else self.head.sample(out)
        return actions, self.head.log_prob(out, actions), self.critic(features)[:, 0]

    def get_values(self, observations: Tree) -> Tensor:
        """Values alone."""
        values: Tensor = self.critic(self.features(observations))[:, 0]
        return values

    def get_actions_and_values(
        self,
        observations: Tree,
        actions: Tensor | None = None,
        action_masks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Actions (new ones, or those given), log-probabilities, values, entropy."""
        if actions is None:
            actions = self.act(observations, action_masks=action_masks)[0]
        return actions, *self.evaluate_actions(observations, actions, action_masks)

    def evaluate_actions(
        self, observations: Tree, actions: Tensor, action_masks: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The log-probabilities of actions, values, and entropies."""
        features = self.features(observations)
        out, values = self._logits(features, action_masks), self.critic(features)[:, 0]
        return self.head.log_prob(out, actions), values, self.head.entropy(out)

    def _logits(self, features: Tensor, action_masks: Tensor | None) -> Tensor:
        """What the actor puts out; constants, which have no gradient, for what is masked."""
        out: Tensor = self.actor(features)
        if action_masks is None:
            return out
        if not isinstance(self.head, (CategoricalHead, MultiCategoricalHead)):
            raise TypeError("action_masks are for Discrete and MultiDiscrete actions.")
        return out.masked_fill(~action_masks, MASKED)

    def features(self, observations: Tree) -> Tensor:
        """What actor and critic are given."""
        flat = self.inputs.rows(observations)
        if self.normalizer is not None:
            flat = self.normalizer(flat)
        if self.body is None:
            return flat
        seen = self.body(self.inputs.images(observations))
        return torch.cat([seen, flat], dim=1) if self.inputs.width else seen

    def learn_scale(self, rows: Tree) -> None:
        """Have the normaliser take up observations."""
        if self.normalizer is not None:
            self.normalizer.update(self.inputs.rows(rows))


def _mlp(width: int, hidden: tuple[int, ...], out: int, activation: type[nn.Module]) -> nn.Module:
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(width, size), activation()]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, out))


def _initialise(body: nn.Module | None, actor: nn.Module, critic: nn.Module) -> None:
    """Orthogonal weights, no biases; a nearly uniform policy to begin with."""
    for network, last in ((body, math.sqrt(2)), (actor, 0.01), (critic, 1.0)):
        if network is None:
            continue
        layers = [m for m in network.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
        for layer in layers:
            gain = last if layer is layers[-1] else math.sqrt(2)
            nn.init.orthogonal_(layer.weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
