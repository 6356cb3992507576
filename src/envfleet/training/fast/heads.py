"""The heads of ``training.heads`` in NumPy, with the slopes of what they say."""

from __future__ import annotations

import math
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from envfleet.training.fast.network import Array


class Head(Protocol):
    """Actions from what the actor puts out, (numbers, rows)."""

    def sample(self, out: Array, generator: np.random.Generator) -> NDArray[Any]:
        """Actions at random."""

    def evaluate(self, out: Array, actions: NDArray[Any]) -> tuple[Array, Array, Any]:
        """Log-probabilities, entropies, and the function that gives the loss's slope by ``out``.

        It is given the slope by the log-probabilities and the weight of one row's entropy.
        """


class Categorical:
    """See CategoricalHead."""

    def sample(self, out: Array, generator: np.random.Generator) -> NDArray[Any]:
        """The largest of logits with Gumbel noise."""
        noise = generator.standard_exponential(out.shape, dtype=np.float32)
        noise += np.float32(1e-30)  # 0 does come, once in millions
        best: NDArray[Any] = (out - np.log(noise, out=noise)).argmax(0)
        return best

    def evaluate(self, out: Array, actions: NDArray[Any]) -> tuple[Array, Array, Any]:
        """By normalised logits."""
        logs = out - out.max(0)
        chances = np.exp(logs)
        total = chances.sum(0)
        logs -= np.log(total)
        chances /= total
        entropy = -(chances * logs).sum(0)
        rows = np.arange(len(actions))

        def slopes(by_log_prob: Array, weight: float) -> Array:
            slope = (logs + entropy) * np.float32(weight)
            slope -= by_log_prob
            slope *= chances
            slope[actions, rows] += by_log_prob
            return cast("Array", slope)

        return logs[actions, rows], entropy, slopes


class Gaussian:
    """See GaussianHead."""

    def __init__(self, head: Any) -> None:
        self._log_std = head.log_std.detach().numpy()
        self._shape = head.shape
        self._slope = head.log_std.grad.numpy()

    def sample(self, out: Array, generator: np.random.Generator) -> NDArray[Any]:
        """Independent in each dimension."""
        noise = generator.standard_normal(out.T.shape, dtype=np.float32)
        noise *= np.exp(self._log_std)
        noise += out.T
        return noise.reshape(len(noise), *self._shape)

    def evaluate(self, out: Array, actions: NDArray[Any]) -> tuple[Array, Array, Any]:
        """Of the density; writes the slope of its own deviation."""
        size, count = out.shape
        inverse = np.exp(-self._log_std)[:, None]
        scaled = (actions.reshape(count, size).T - out) * inverse
        squares = scaled * scaled
        constant = self._log_std.sum() + np.float32(0.5 * size * math.log(2 * math.pi))
        entropy = np.full(count, constant + 0.5 * size, dtype=np.float32)

        def slopes(by_log_prob: Array, weight: float) -> Array:
            self._slope[:] = (squares - 1) @ by_log_prob - weight * count
            return cast("Array", by_log_prob * scaled * inverse)

        return -0.5 * squares.sum(0) - constant, entropy, slopes
