"""Heads: actions from the numbers that a network puts out, for each kind of action space."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn
from torch.nn import functional


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
        return out.log_softmax(-1).gather(-1, actions[:, None].long())[:, 0]

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
