"""Twins: the actor's and the critic's layers, side by side in one array, forwards and backwards.

Outputs of the actor are (numbers, rows): NumPy reduces over a short last axis ten times slower than
over a first one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

Array = NDArray[np.float32]


class Twins:
    """Actor and critic side by side: the hidden layers of both are one array each."""

    def __init__(self, actor: nn.Sequential, critic: nn.Sequential, more: list[Any]) -> None:
        """Put the parameters of both, and some more, into ``values``, their gradients likewise."""
        pairs: list[Any] = [
            pair for pair in zip(actor, critic, strict=True) if isinstance(pair[0], nn.Linear)
        ]
        twins = [p for a, c in pairs for p in (a.weight, c.weight, a.bias, c.bias)]
        self.values, self.gradient = _in_one_array([*twins, *more])
        self._weights, self._biases = _stacked(self.values, pairs[:-1])
        self._slopes = list(zip(*_stacked(self.gradient, pairs[:-1]), strict=True))
        last = [p for layer in pairs[-1] for p in (layer.weight, layer.bias)]
        self._last = [p.detach().numpy() for p in last]
        self._last_slopes = [p.grad.numpy() for p in last]
        self._is_tanh = any(isinstance(layer, nn.Tanh) for layer in actor)
        self._acting = [(w[0].T, b[0, 0]) for w, b in zip(self._weights, self._biases, strict=True)]

    def act(self, x: Array) -> Array:
        """What the actor puts out, (numbers, rows)."""
        for weight, bias in self._acting:
            x = x.dot(weight)  # quicker than matmul, where both are small
            x += bias
            self._activate(x)
        out: Array = x.dot(self._last[0].T)
        out += self._last[1]
        return out.T

    def forward(self, x: Array) -> tuple[list[Array], Array, Array]:
        """What goes into each layer, (2, rows, width); the actor's output; and values, (rows,)."""
        hidden: list[Any] = [np.broadcast_to(x, (2, *x.shape))]
        for weight, bias in zip(self._weights, self._biases, strict=True):
            out = np.matmul(hidden[-1], weight.transpose(0, 2, 1))
            out += bias
            hidden.append(self._activate(out))
        actor_weight, actor_bias, critic_weight, critic_bias = self._last
        left, right = hidden[-1]
        return (
            hidden,
            actor_weight @ left.T + actor_bias[:, None],
            right @ critic_weight[0] + critic_bias,
        )

    def backward(self, hidden: list[Array], by_out: Array, by_value: Array) -> None:
        """Write the gradients, given the loss's by both outputs."""
        left, right = hidden[-1]
        actor_weight, actor_bias, critic_weight, critic_bias = self._last_slopes
        np.matmul(by_out, left, out=actor_weight)
        by_out.sum(1, out=actor_bias)
        np.matmul(by_value, right, out=critic_weight[0])
        critic_bias[0] = by_value.sum()
        if not self._slopes:
            return
        slope = np.empty_like(hidden[-1])
        np.matmul(by_out.T, self._last[0], out=slope[0])
        np.multiply(by_value[:, None], self._last[2], out=slope[1])
        ones = np.ones(len(by_value), dtype=np.float32)
        for i in reversed(range(len(self._slopes))):
            after = hidden[i + 1]
            if self._is_tanh:
                steepness = after * after
                slope *= np.subtract(1.0, steepness, out=steepness)
            else:
                slope *= after > 0.0
            weight, bias = self._slopes[i]
            np.matmul(slope.transpose(0, 2, 1), hidden[i], out=weight)
            np.matmul(ones, slope, out=bias[:, 0])
            if i:
                slope = np.matmul(slope, self._weights[i])

    def _activate(self, x: Array) -> Array:
        return np.tanh(x, out=x) if self._is_tanh else np.maximum(x, 0.0, out=x)


def _in_one_array(parameters: list[nn.Parameter]) -> tuple[Array, Array]:
    """Give parameters and their gradients a part each of two arrays."""
    sizes = [parameter.numel() for parameter in parameters]
    values, gradient = (np.zeros(sum(sizes), dtype=np.float32) for _ in range(2))
    end = 0
    for parameter, size in zip(parameters, sizes, strict=True):
        part = slice(end, end + size)
        end += size
        values[part] = parameter.detach().numpy().ravel()
        parameter.data = torch.from_numpy(values[part].reshape(parameter.shape))
        parameter.grad = torch.from_numpy(gradient[part].reshape(parameter.shape))
    return values, gradient


def _stacked(flat: Array, pairs: list[Any]) -> tuple[list[Array], list[Array]]:
    """The weights, (2, out, in), and biases, (2, 1, out), at the beginning of an array."""
    weights, biases, end = [], [], 0
    for layer, _ in pairs:
        out, width = layer.weight.shape
        weights.append(flat[end : end + 2 * out * width].reshape(2, out, width))
        end += 2 * out * width
        biases.append(flat[end : end + 2 * out].reshape(2, 1, out))
        end += 2 * out
    return weights, biases
