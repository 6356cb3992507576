"""Policy: networks that act and value, with the normaliser of their observations.

Actor and critic of vectors are networks of their own; images share a Nature CNN. Dict and Tuple
observations are flattened. No Distribution objects: ``act`` is called once per step.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn
from torch.nn import functional

from envfleet.rollout.nested import ObservationFormat, Tree, tree_leaves
from envfleet.train.heads import head_of

Activation = Literal["tanh", "relu"]


class Normalizer(nn.Module):
    """Mean and deviation of all that was ever seen, kept with the policy's parameters."""

    def __init__(self, size: int, clip: float = 10.0) -> None:
        super().__init__()
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
        self.mean += delta * count / total
        self.variance.copy_(spread / total)
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
        example = ObservationFormat(observation_space, "auto").allocate(1)
        leaves = tree_leaves(example)
        self.is_image = len(leaves) == 1 and _is_image(leaves[0])
        bare = isinstance(example, Tensor)
        self.is_vector = bare and example.ndim == 2 and example.dtype == torch.float32
        """Whether observations are the networks' input as they are."""
        self._one_hot = self._first = 0
        if isinstance(observation_space, spaces.Discrete):
            self._one_hot, self._first = int(observation_space.n), int(observation_space.start)
        if self.is_image:
            if normalize:
                raise ValueError("images are scaled by 255: leave normalize_observations off.")
            self.body: nn.Module | None = _nature_cnn(leaves[0].shape[1:])
            width, hidden = 512, ()
        else:
            self.body = None
            width = self._one_hot or sum(leaf[0].numel() for leaf in leaves)
        self.normalizer = Normalizer(width) if normalize else None
        kind = nn.Tanh if activation == "tanh" else nn.ReLU
        self.actor = _mlp(width, hidden, head.size, kind)
        self.critic = _mlp(width, hidden, 1, kind)
        if orthogonal:
            _initialise(self.body, self.actor, self.critic)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    def act(self, observations: Tree, deterministic: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Actions, their log-probabilities, and values."""
        features = self.features(observations)
        out = self.actor(features)
        actions = self.head.best(out) if deterministic else self.head.sample(out)
        return actions, self.head.log_prob(out, actions), self.critic(features)[:, 0]

    def get_values(self, observations: Tree) -> Tensor:
        """Values alone."""
        values: Tensor = self.critic(self.features(observations))[:, 0]
        return values

    def get_actions_and_values(
        self, observations: Tree, actions: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Actions (new ones, or those given), log-probabilities, values, entropy."""
        return self.judge(self.features(observations), actions)

    def judge(
        self, features: Tensor, actions: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The same for features that are ready."""
        out = self.actor(features)
        if actions is None:
            actions = self.head.sample(out)
        values = self.critic(features)[:, 0]
        return actions, self.head.log_prob(out, actions), values, self.head.entropy(out)

    def features(self, observations: Tree) -> Tensor:
        """What actor and critic are given."""
        if self.body is not None:
            features: Tensor = self.body(_scaled(tree_leaves(observations)[0]))
            return features
        flat = self.flatten(observations)
        return flat if self.normalizer is None else self.normalizer(flat)

    def flatten(self, observations: Tree) -> Tensor:
        """Observations as rows of numbers."""
        if self._one_hot:
            return functional.one_hot(observations.long() - self._first, self._one_hot).float()
        leaves = tree_leaves(observations)
        if len(leaves) == 1 and leaves[0].ndim == 2:
            only: Tensor = leaves[0]
            return only.float()
        return torch.cat([_scaled(leaf).reshape(len(leaf), -1) for leaf in leaves], dim=1)

    def learn_scale(self, rows: Tree) -> None:
        """Have the normaliser take up observations."""
        if self.normalizer is not None:
            self.normalizer.update(self.flatten(rows))


def _is_image(leaf: Tensor) -> bool:
    """Whether the convolutions fit on it: what is smaller is flattened."""
    return leaf.ndim == 4 and min(leaf.shape[2:]) >= 36


def _scaled(leaf: Tensor) -> Tensor:
    """As floats; bytes of pictures from 0 to 1."""
    picture = leaf.dtype == torch.uint8 and leaf.ndim == 4
    return leaf.float() / 255.0 if picture else leaf.float()


def _mlp(width: int, hidden: tuple[int, ...], out: int, activation: type[nn.Module]) -> nn.Module:
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(width, size), activation()]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, out))


def _nature_cnn(shape: Any) -> nn.Module:
    convolutions = nn.Sequential(
        nn.Conv2d(shape[0], 32, 8, stride=4), nn.ReLU(),
        nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
        nn.Conv2d(64, 64, 3, stride=1), nn.ReLU(),
        nn.Flatten(),
    )  # fmt: skip
    with torch.no_grad():
        width = convolutions(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(convolutions, nn.Linear(width, 512), nn.ReLU())


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
