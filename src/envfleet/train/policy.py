"""Policy: networks that act and value, with the normaliser of their observations.

Actor and critic of vectors are networks of their own; images share a Nature CNN. Dict and Tuple
observations are flattened. No Distribution objects: ``act`` is called once per step.
"""

from __future__ import annotations

import math
from typing import Any, Literal, Protocol

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn
from torch.nn import functional

from envfleet.rollout.nested import ObservationFormat, Tree, tree_leaves

Activation = Literal["tanh", "relu"]


class Head(Protocol):
    """Actions from the numbers that a network puts out."""

    size: int
    """How many numbers."""

    def sample(self, out: Tensor) -> Tensor:
        """Actions at random."""

    def best(self, out: Tensor) -> Tensor:
        """The most likely actions."""

    def log_prob(self, out: Tensor, actions: Tensor) -> Tensor:
        """Of each action, one number per row."""

    def entropy(self, out: Tensor) -> Tensor:
        """Of each row."""


class CategoricalHead(nn.Module):
    """One of n actions."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.size = count

    def sample(self, out: Tensor) -> Tensor:
        """The largest of logits with Gumbel noise."""
        return (out - torch.empty_like(out).exponential_().log_()).argmax(-1)

    def best(self, out: Tensor) -> Tensor:
        """The largest logit."""
        return out.argmax(-1)

    def log_prob(self, out: Tensor, actions: Tensor) -> Tensor:
        """The chosen one of normalised logits."""
        return out.log_softmax(-1).gather(-1, actions[:, None])[:, 0]

    def entropy(self, out: Tensor) -> Tensor:
        """In nats."""
        log_probs = out.log_softmax(-1)
        return -(log_probs.exp() * log_probs).sum(-1)


class MultiCategoricalHead(nn.Module):
    """Several choices, each of its own number of actions."""

    def __init__(self, counts: list[int]) -> None:
        super().__init__()
        self.size = sum(counts)
        self._counts = counts
        self._heads = [CategoricalHead(count) for count in counts]

    def sample(self, out: Tensor) -> Tensor:
        """Choice by choice."""
        return torch.stack([h.sample(o) for h, o in self._parts(out)], dim=1)

    def best(self, out: Tensor) -> Tensor:
        """Choice by choice."""
        return torch.stack([h.best(o) for h, o in self._parts(out)], dim=1)

    def log_prob(self, out: Tensor, actions: Tensor) -> Tensor:
        """The choices are independent."""
        parts = zip(self._parts(out), actions.unbind(1), strict=True)
        return torch.stack([h.log_prob(o, a) for (h, o), a in parts]).sum(0)

    def entropy(self, out: Tensor) -> Tensor:
        """The choices are independent."""
        return torch.stack([h.entropy(o) for h, o in self._parts(out)]).sum(0)

    def _parts(self, out: Tensor) -> list[tuple[CategoricalHead, Tensor]]:
        return list(zip(self._heads, torch.split(out, self._counts, dim=1), strict=True))


class BernoulliHead(nn.Module):
    """Several bits."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__()
        self.size = math.prod(shape)
        self._shape, self._dtype = shape, dtype

    def sample(self, out: Tensor) -> Tensor:
        """Bit by bit."""
        return self._bits(torch.rand_like(out) < out.sigmoid())

    def best(self, out: Tensor) -> Tensor:
        """The likelier value of each bit."""
        return self._bits(out > 0)

    def log_prob(self, out: Tensor, actions: Tensor) -> Tensor:
        """The bits are independent."""
        bits = actions.reshape(len(actions), -1).to(out.dtype)
        return -functional.binary_cross_entropy_with_logits(out, bits, reduction="none").sum(-1)

    def entropy(self, out: Tensor) -> Tensor:
        """The bits are independent."""
        chances = out.sigmoid()
        return functional.binary_cross_entropy_with_logits(out, chances, reduction="none").sum(-1)

    def _bits(self, bits: Tensor) -> Tensor:
        return bits.to(self._dtype).reshape(len(bits), *self._shape)


class GaussianHead(nn.Module):
    """Numbers around the network's, with a spread that depends on no state."""

    def __init__(self, shape: tuple[int, ...], log_std: float) -> None:
        super().__init__()
        self.size = math.prod(shape)
        self.shape = shape
        self.log_std = nn.Parameter(torch.full((self.size,), log_std))

    def sample(self, out: Tensor) -> Tensor:
        """Independent in each dimension."""
        noise = torch.randn_like(out)
        return (out + self.log_std.exp() * noise).reshape(len(out), *self.shape)

    def best(self, out: Tensor) -> Tensor:
        """The means."""
        return out.reshape(len(out), *self.shape)

    def log_prob(self, out: Tensor, actions: Tensor) -> Tensor:
        """Of the density."""
        scaled = (actions.reshape(len(actions), -1) - out) * (-self.log_std).exp()
        constant = self.log_std.sum() + 0.5 * self.size * math.log(2 * math.pi)
        return -0.5 * scaled.square().sum(-1) - constant

    def entropy(self, out: Tensor) -> Tensor:
        """The same in every state."""
        one = self.log_std.sum() + 0.5 * self.size * (1 + math.log(2 * math.pi))
        return one.expand(len(out))


def head_of(space: Space[Any], log_std: float) -> nn.Module:
    """The head for an action space.

    Raises:
        TypeError: there is none.
    """
    shape = tuple(space.shape or ())
    if isinstance(space, spaces.Discrete):
        return CategoricalHead(int(space.n))
    if isinstance(space, spaces.MultiDiscrete) and len(shape) == 1:
        return MultiCategoricalHead(space.nvec.tolist())
    if isinstance(space, spaces.MultiBinary):
        return BernoulliHead(shape, torch.from_numpy(np.zeros(0, dtype=space.dtype)).dtype)
    if isinstance(space, spaces.Box) and np.dtype(space.dtype).kind == "f":
        return GaussianHead(shape, log_std)
    raise TypeError(
        f"PPO knows no policy for the action space {space}: it takes Discrete, MultiDiscrete with "
        "one axis, MultiBinary, and Box of floats."
    )


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
            return functional.one_hot(observations - self._first, self._one_hot).float()
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
