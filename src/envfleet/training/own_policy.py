"""OwnPolicy: a user's torch module in the place of ``Policy``; it learns by torch's gradients."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from gymnasium import Space
from torch import Tensor, nn

from envfleet.rollout.agent import Answer, device_of, valuing
from envfleet.rollout.nested import Tree

PolicySource = nn.Module | Callable[[Space[Any], Space[Any]], nn.Module]
"""A policy of the user's own, or what makes one for the spaces of observations and actions."""

METHODS = {
    "act": "act(observations, deterministic=False) -> (actions, log_probs, values)",
    "evaluate_actions": "evaluate_actions(observations, actions) -> (log_probs, values, entropies)",
}
"""What PPO asks of a policy; with the keyword ``action_masks`` if it takes masks."""


_LARGE = 100_000
"""Parameters."""


class OwnPolicy(nn.Module):
    """Has a module act and be trained as a ``Policy`` is."""

    normalizer = None

    def __init__(self, module: nn.Module) -> None:
        """Take a module, which is trained in place.

        Raises:
            TypeError: it has not what PPO asks for.
            ValueError: it has no parameters.
        """
        super().__init__()
        _check(module)
        self.own = module
        self.act: Callable[..., Answer] = module.act  # type: ignore[assignment]
        self.get_values = valuing(module)
        self._is_checked = False
        convolves = any(isinstance(part, nn.Conv2d) for part in module.modules())
        size = sum(parameter.numel() for parameter in module.parameters())
        self.is_image = convolves or size > _LARGE
        """Whether a GPU, or more than one core, is worth it."""

    @property
    def body(self) -> nn.Module | None:
        """What may use all cores; None for small networks, which are fastest on one."""
        return self.own if self.is_image else None

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return device_of(self.own, None)

    def evaluate_actions(self, observations: Tree, actions: Tensor, **masks: Any) -> Answer:
        """The log-probabilities of actions, values, and entropies.

        Raises:
            TypeError, ValueError: the module has answered something else.
        """
        own: Any = self.own
        answer: Answer = own.evaluate_actions(observations, actions, **masks)
        if not self._is_checked:
            _check_answer(type(own).__name__, answer, len(actions))
            self._is_checked = True
        return answer


def make_own_policy(
    source: PolicySource, observation_space: Space[Any], action_space: Space[Any]
) -> OwnPolicy:
    """The user's policy, made if it is a function or class.

    Raises:
        TypeError, ValueError: it cannot be trained.
    """
    if not isinstance(source, nn.Module):
        if not callable(source):
            raise TypeError(
                "policy must be a torch.nn.Module, or a function of (observation_space, "
                f"action_space) that returns one, got a {type(source).__name__}."
            )
        source = source(observation_space, action_space)
    return OwnPolicy(source)


def name_of(source: PolicySource | None) -> str | None:
    """``module:name`` of the function or class that makes a policy, or of a module's class."""
    if source is None:
        return None
    named = type(source) if isinstance(source, nn.Module) else source
    named = named.func if isinstance(named, partial) else named
    module = getattr(named, "__module__", None) or "__main__"
    return f"{module}:{getattr(named, '__qualname__', type(named).__qualname__)}"


def is_importable(name: str) -> bool:
    """Whether a name leads to its policy again, in another program."""
    module, _, attribute = name.rpartition(":")
    return attribute.isidentifier() and module != "__main__"


def find_policy(name: str) -> PolicySource:
    """What makes the policy of a run, by the name that its folder has for it.

    It is imported at once, and called with the spaces when the policy is made.

    Raises:
        ValueError: it cannot be imported; says by name what to pass.
    """
    module, _, attribute = name.rpartition(":")
    hint = f"pass {name} in Python, policy=..."
    if not is_importable(name):
        raise ValueError(f"the policy {name} of this run cannot be imported: {hint}")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"the policy {name} of this run is not there ({error}): {hint}") from error

    def make(observation_space: Space[Any], action_space: Space[Any]) -> nn.Module:
        try:
            made: nn.Module = found(observation_space, action_space)
        except TypeError as error:
            raise ValueError(
                f"the policy {name} is not made of two spaces ({error}): {hint}"
            ) from error
        return made

    return make


def _check(module: Any) -> None:
    name = type(module).__name__
    if not isinstance(module, nn.Module):
        raise TypeError(f"a policy must be a torch.nn.Module, got a {name}.")
    missing = [how for method, how in METHODS.items() if not _method(module, method)]
    if missing:
        raise TypeError(f"PPO cannot train {name}: it has no {' and no '.join(missing)}.")
    takes = [
        "action_masks" in inspect.signature(_method(module, method)).parameters
        for method in METHODS
    ]
    if any(takes) and not all(takes):
        has, lacks = METHODS if takes[0] else reversed(METHODS)
        raise TypeError(f"{name} takes action_masks in {has}, but not in {lacks}: both are asked.")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ValueError(f"{name} has no parameters to train.")


def _method(module: nn.Module, name: str) -> Any:
    """A method; a layer that is called so is none."""
    found = getattr(module, name, None)
    return None if isinstance(found, nn.Module) or not callable(found) else found


def _check_answer(name: str, answer: Any, count: int) -> None:
    asked = f"{name}.evaluate_actions must return (log_probs, values, entropies)"
    if not isinstance(answer, tuple) or len(answer) != 3:
        raise TypeError(f"{asked}, got a {type(answer).__name__}.")
    for part, numbers in zip(("log_probs", "values", "entropies"), answer, strict=True):
        if not isinstance(numbers, Tensor):
            raise TypeError(f"{asked} as tensors, its {part} are a {type(numbers).__name__}.")
        if tuple(numbers.shape) != (count,):
            raise ValueError(
                f"{asked} of one number per row: its {part} have shape {tuple(numbers.shape)} for "
                f"{count} rows."
            )
    if not answer[0].requires_grad:
        raise ValueError(f"{asked} with gradients: its log_probs have none (no_grad, detach?).")
