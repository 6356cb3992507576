"""What an agent must be able to do, and how its answers are checked."""

from __future__ import annotations

import contextlib
import inspect
import random
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import torch

from envfleet.rollout.actions import ActionPort
from envfleet.rollout.nested import Tree

Answer = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Actions, their log-probabilities, and values of the observations."""


class Agent(Protocol):
    """Chooses actions and values observations, a batch at a time.

    ``device`` (optional) says where it computes. An agent may also have

    - ``act(observations) -> (actions, log_probs, values)``: the same without entropy, preferred;
    - ``act(observations, deterministic=True)``: its best actions, for evaluation;
    - ``get_values(observations) -> values``: preferred where only values are needed.
    """

    def get_actions_and_values(
        self, observations: Tree, actions: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Actions (new ones, or those given), log-probabilities, values, entropy."""
        ...


def device_of(agent: Any, device: torch.device | str | None) -> torch.device:
    """Where to collect: as told, else where the agent is, else on the CPU."""
    if device is None:
        device = getattr(agent, "device", None) or "cpu"
    return torch.device(device)


def acting(agent: Any) -> Callable[[Tree], Answer]:
    """The function that gives actions, log-probabilities and values.

    Raises:
        TypeError: the agent has neither ``act`` nor ``get_actions_and_values``.
    """
    if callable(getattr(agent, "act", None)):
        return agent.act  # type: ignore[no-any-return]
    if not callable(getattr(agent, "get_actions_and_values", None)):
        raise TypeError(
            f"a {type(agent).__name__} is no agent: it has neither act(observations) nor "
            "get_actions_and_values(observations, actions=None)."
        )

    def act(observations: Tree) -> Answer:
        actions, log_probs, values, *_ = agent.get_actions_and_values(observations, actions=None)
        return actions, log_probs, values

    return act


def acting_best(agent: Any) -> Callable[[Tree], torch.Tensor]:
    """The function that gives the agent's best actions.

    Raises:
        TypeError: the agent can only sample.
    """
    act = getattr(agent, "act", None)
    if not callable(act) or "deterministic" not in inspect.signature(act).parameters:
        raise TypeError(
            f"{type(agent).__name__} cannot act deterministically: give it "
            "act(observations, deterministic=False), or sample with deterministic=False."
        )
    return lambda observations: act(observations, deterministic=True)[0]


def valuing(agent: Any) -> Callable[[Tree], torch.Tensor]:
    """The function that gives values."""
    if callable(getattr(agent, "get_values", None)):
        return agent.get_values  # type: ignore[no-any-return]
    act = acting(agent)
    return lambda observations: act(observations)[2]


def check_answer(answer: Any, count: int, port: ActionPort, device: torch.device) -> None:
    """Refuse what an agent returned for ``count`` envs, naming the output that is wrong.

    Raises:
        TypeError, ValueError: it is.
    """
    if not isinstance(answer, tuple) or len(answer) != 3:
        raise TypeError(
            f"the agent's act must return (actions, log_probs, values), got {_described(answer)}."
        )
    shapes = {"actions": (count, *port.shape), "log_probs": (count,), "values": (count,)}
    for (name, shape), output in zip(shapes.items(), answer, strict=True):
        if not isinstance(output, torch.Tensor):
            raise TypeError(f"the agent's {name} must be a tensor, got {type(output).__name__}.")
        if tuple(output.shape) != shape:
            raise ValueError(
                f"the agent's {name} have shape {tuple(output.shape)}, expected {shape}: one "
                f"{'action' if name == 'actions' else 'number'} per env."
            )
        if output.device.type != device.type:
            raise ValueError(
                f"the agent's {name} are on device '{output.device}', the collector works on "
                f"'{device}': move the agent, or pass device= to the collector."
            )
        if output.is_floating_point() and not bool(torch.isfinite(output).all()):
            broken = torch.nonzero(~torch.isfinite(output.reshape(count, -1)).all(1)).flatten()
            raise ValueError(
                f"the agent's {name} of envs {broken.tolist()[:8]} are NaN or infinite."
            )
    actions = answer[0]
    if not port.continuous and (actions.is_floating_point() or actions.is_complex()):
        raise TypeError(
            f"the agent's actions have dtype {actions.dtype}, the action space has {port.dtype}."
        )
    if port.counts is not None:
        chosen = actions.cpu().numpy()
        if ((chosen < 0) | (chosen >= port.counts)).any():
            raise ValueError(
                f"the agent's actions are between {chosen.min()} and {chosen.max()}, the space has "
                f"{port.counts} to choose from, counted from 0."
            )


def _described(answer: Any) -> str:
    kind = type(answer).__name__
    return f"a {kind} of {len(answer)}" if isinstance(answer, (tuple, list)) else f"a {kind}"


@contextlib.contextmanager
def untouched(agent: Any, seed: int | None = None) -> Iterator[None]:
    """Use an agent without a trace: no gradients, and modes and random states as before.

    A module is in evaluation mode meanwhile, so that normalisers and dropout keep still. With a
    seed, what it samples depends on that alone.
    """
    modes = [(m, m.training) for m in agent.modules()] if hasattr(agent, "modules") else []
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - agents may use it
    try:
        with torch.no_grad(), torch.random.fork_rng():
            if seed is not None:
                torch.manual_seed(seed)
                random.seed(seed)
                np.random.seed(seed % 2**32)  # noqa: NPY002 - same
            for module, _ in modes:
                module.training = False
            yield
    finally:
        for module, mode in modes:
            module.training = mode
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002 - same
