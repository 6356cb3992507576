"""What an agent must be able to do, and how its answers are checked."""

from __future__ import annotations

import contextlib
import inspect
import random
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from envfleet.rollout.actions import ActionPort
from envfleet.rollout.nested import Tree

Answer = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Actions, their log-probabilities, and values of the observations."""


class Agent(Protocol):
    """Chooses actions and values observations, a batch at a time.

    Or it is an ``Actor``, or a ``CleanRLAgent``.

    ``device`` (optional) says where it computes. It must not change the observations that it is
    given: they are the rollout's own. An agent may also have

    - ``act(observations) -> (actions, log_probs, values)``: the same without entropy, preferred;
    - ``act(observations, deterministic=True)``: its best actions, for evaluation;
    - ``get_values(observations) -> values``: preferred where only values are needed;
    - ``choose(observations) -> actions``: actions alone, NumPy arrays both, preferred in rollouts
      on the CPU. The rest is asked for all rows at once, at the end, by
      ``evaluate_actions(observations, actions) -> (log_probs, values, entropies)`` or by
      ``get_actions_and_values(observations, actions)``: for networks so small that a call costs
      more than what it computes.

    Where envs send action masks, an agent whose methods have the keyword ``action_masks`` is given
    them with every question for actions: (n, width) booleans, see ``envfleet.rollout.masks``.
    """

    def get_actions_and_values(
        self, observations: Tree, actions: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Actions (new ones, or those given), log-probabilities, values, entropy."""
        ...


class Actor(Protocol):
    """An agent that has ``act`` alone, which is enough for rollouts, evaluation and recording."""

    def act(self, observations: Tree) -> Answer:
        """Actions, log-probabilities, values."""
        ...


class CleanRLAgent(Protocol):
    """An agent in CleanRL's form; its ``get_value(observations)``, if any, is used for values."""

    def get_action_and_value(
        self, x: Any, action: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Actions, log-probabilities, entropy, and values of shape (n, 1) or (n,)."""
        ...


class AgentHolder(Protocol):
    """Stands for an agent, such as the policy that ``envfleet.load`` returns.

    ``mask_key`` (optional, of any agent) is the info in which the envs it knows send action masks.
    """

    def as_agent(self) -> Any:
        """The agent."""
        ...


AnyAgent = Agent | Actor | CleanRLAgent | AgentHolder


def resolve(agent: Any) -> Any:
    """The agent itself, or the one that it stands for."""
    return agent.as_agent() if _has(agent, "as_agent") else agent


def device_of(agent: Any, device: torch.device | str | None) -> torch.device:
    """Where to collect: as told, else where the agent or its parameters are, else on the CPU."""
    if device is None:
        device = getattr(agent, "device", None)
    if device is None and isinstance(agent, torch.nn.Module):
        device = next((parameter.device for parameter in agent.parameters()), None)
    return torch.device(device or "cpu")


def acting(agent: Any) -> Callable[..., Answer]:
    """The function that gives actions, log-probabilities and values.

    It takes observations, and ``action_masks`` if the agent does (``takes_masks``).

    Raises:
        TypeError: the agent has no method that does.
    """
    if _has(agent, "act"):
        return agent.act  # type: ignore[no-any-return]
    if _is_cleanrl(agent):
        return lambda seen, **masks: _in_our_order(agent.get_action_and_value(seen, **masks))
    if not _has(agent, "get_actions_and_values"):
        raise TypeError(
            f"{type(agent).__name__} is not an agent: it has neither act(observations) nor "
            "get_actions_and_values(observations, actions=None), nor CleanRL's "
            "get_action_and_value(x, action=None)."
        )

    def act(observations: Tree, **masks: Any) -> Answer:
        answer: Any = agent.get_actions_and_values(observations, actions=None, **masks)
        return answer[:3] if isinstance(answer, tuple) and len(answer) > 3 else answer

    return act


def takes_masks(agent: Any) -> bool:
    """Whether all methods that are asked for actions have the keyword ``action_masks``."""
    if _has(agent, "choose"):
        evaluates = _has(agent, "evaluate_actions")
        names = ["choose", "evaluate_actions" if evaluates else "get_actions_and_values"]
    elif _has(agent, "act"):
        names = ["act"]
    else:
        names = ["get_action_and_value" if _is_cleanrl(agent) else "get_actions_and_values"]
    return all(_takes(getattr(agent, name), "action_masks") for name in names if _has(agent, name))


def _takes(method: Callable[..., Any], keyword: str) -> bool:
    return keyword in inspect.signature(method).parameters


def _is_cleanrl(agent: Any) -> bool:
    return _has(agent, "get_action_and_value") and not _has(agent, "get_actions_and_values")


def _in_our_order(answer: Any) -> Any:
    """What CleanRL's agents return without the entropy, and values without their second axis."""
    if not isinstance(answer, tuple) or len(answer) != 4:
        raise TypeError(
            "get_action_and_value must return (action, log_prob, entropy, value), got "
            f"{_described(answer)}."
        )
    actions, log_probs, _, values = answer
    return actions, log_probs, _flat(values)


def _flat(values: Any) -> Any:
    is_column = isinstance(values, torch.Tensor) and values.ndim == 2 and values.shape[1] == 1
    return values[:, 0] if is_column else values


def choosing(agent: Any) -> Callable[..., NDArray[Any]] | None:
    """The function that gives actions alone, if there is one; as ``acting``'s it may take masks.

    Raises:
        TypeError: the agent could not evaluate them afterwards.
    """
    if not _has(agent, "choose"):
        return None
    evaluating(agent)
    return agent.choose  # type: ignore[no-any-return]


def evaluating(agent: Any) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """The function that gives log-probabilities of actions, and values; it may take masks.

    Raises:
        TypeError: the agent has no method that does.
    """
    if _has(agent, "evaluate_actions"):
        return lambda seen, actions, **masks: agent.evaluate_actions(seen, actions, **masks)[:2]
    if _has(agent, "get_actions_and_values"):
        return lambda seen, actions, **masks: agent.get_actions_and_values(
            seen, actions=actions, **masks
        )[1:3]
    raise TypeError(
        f"{type(agent).__name__} has choose(observations): it needs "
        "evaluate_actions(observations, actions) or get_actions_and_values(observations, actions) "
        "too."
    )


def _has(agent: Any, name: str) -> bool:
    """Whether it has such a method; a layer of a network that is called so is none."""
    method = getattr(agent, name, None)
    return callable(method) and not isinstance(method, torch.nn.Module)


def acting_best(agent: Any) -> Callable[..., torch.Tensor]:
    """The function that gives the agent's best actions; as ``acting``'s it may take masks.

    Raises:
        TypeError: the agent can only sample.
    """
    act: Any = getattr(agent, "act", None)
    if not _has(agent, "act") or not _takes(act, "deterministic"):
        raise TypeError(
            f"{type(agent).__name__} cannot act deterministically: give it "
            "act(observations, deterministic=False), or sample with deterministic=False."
        )
    return lambda observations, **masks: act(observations, deterministic=True, **masks)[0]


def valuing(agent: Any) -> Callable[[Tree], torch.Tensor]:
    """The function that gives values."""
    if _has(agent, "get_values"):
        return agent.get_values  # type: ignore[no-any-return]
    if _is_cleanrl(agent) and not _has(agent, "act") and _has(agent, "get_value"):
        return lambda observations: _flat(agent.get_value(observations))
    act = acting(agent)
    return lambda observations: act(observations)[2]


def check_answer(answer: Any, count: int, port: ActionPort, device: torch.device) -> None:
    """Refuse what an agent returned for ``count`` envs, naming the output that is wrong.

    Raises:
        TypeError, ValueError: it is.
    """
    if not isinstance(answer, tuple) or len(answer) != 3:
        raise TypeError(
            "the agent must return (actions, log_probs, values), and get_actions_and_values the "
            f"entropy too; got {_described(answer)}."
        )
    check_actions(answer[0], count, port, device)
    check_numbers("log_probs", answer[1], count, device)
    check_numbers("values", answer[2], count, device)


def check_actions(actions: Any, count: int, port: ActionPort, device: torch.device) -> None:
    """Refuse actions that the space does not have; continuous ones may be beyond its bounds."""
    _check_tensor("actions", actions, (count, *port.shape), device)
    if actions.is_complex() or (actions.is_floating_point() and not port.continuous):
        raise TypeError(
            f"the agent's actions have dtype {actions.dtype}, the action space has {port.dtype}."
        )
    chosen = actions.cpu().numpy()
    if port.range is not None and ((chosen < port.range[0]) | (chosen > port.range[1])).any():
        raise ValueError(
            f"the agent's actions are between {chosen.min()} and {chosen.max()}, the space has "
            f"{port.range[0]} to {port.range[1]} (agents count from 0)."
        )


def check_choice(actions: Any, count: int, port: ActionPort) -> None:
    """Refuse what ``choose`` returned for ``count`` envs, if it cannot be used."""
    if not isinstance(actions, np.ndarray):
        raise TypeError(f"choose must return a NumPy array, got a {type(actions).__name__}.")
    check_actions(torch.as_tensor(actions), count, port, torch.device("cpu"))


def check_numbers(
    name: str, output: Any, count: int, device: torch.device, of: str = "envs"
) -> None:
    """Refuse what is not one finite number per observation."""
    _check_tensor(name, output, (count,), device, of)
    if not output.is_floating_point():
        raise TypeError(f"the agent's {name} have dtype {output.dtype}, floats are expected.")


def _check_tensor(
    name: str, output: Any, shape: tuple[int, ...], device: torch.device, of: str = "envs"
) -> None:
    if not isinstance(output, torch.Tensor):
        raise TypeError(f"the agent's {name} must be a tensor, got {type(output).__name__}.")
    if tuple(output.shape) != shape:
        raise ValueError(
            f"the agent's {name} have shape {tuple(output.shape)}, expected {shape}: one "
            f"{'action' if name == 'actions' else 'number'} for each of the {of}."
        )
    if output.device.type != device.type:
        raise ValueError(
            f"the agent's {name} are on device '{output.device}', the collector works on "
            f"'{device}': move the agent, or pass device= to the collector."
        )
    if output.is_floating_point() and not bool(torch.isfinite(output).all()):
        broken = torch.nonzero(~torch.isfinite(output.reshape(shape[0], -1)).all(1)).flatten()
        raise ValueError(f"the agent's {name} of {of} {broken.tolist()[:8]} are NaN or infinite.")


def _described(answer: Any) -> str:
    kind = type(answer).__name__
    return f"a {kind} of {len(answer)}" if isinstance(answer, (tuple, list)) else f"a {kind}"


@contextlib.contextmanager
def untouched(agent: Any, seed: int | None = None) -> Iterator[None]:
    """Use an agent without a trace: no gradients, and modes and random states as before.

    Modules, the agent itself or what it holds, are in evaluation mode meanwhile, so that
    normalisers and dropout keep still. Random states are torch's, NumPy's and Python's own and
    those of generators that the agent holds. With a seed, what it samples depends on that alone.
    """
    parts = _parts_of(resolve(agent))
    nets = [part for part in parts if isinstance(part, torch.nn.Module)]
    modes = [(module, module.training) for net in nets for module in net.modules()]
    torches = [(g, g.get_state()) for g in parts if isinstance(g, torch.Generator)]
    numpies = [
        (g.bit_generator, g.bit_generator.state)
        for g in parts
        if isinstance(g, np.random.Generator)
    ]
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - agents may use it
    try:
        with torch.no_grad(), torch.random.fork_rng():
            if seed is not None:
                torch.manual_seed(seed)
                random.seed(seed)
                np.random.seed(seed % 2**32)  # noqa: NPY002 - same
                for generator, _ in torches:
                    generator.manual_seed(seed)
                for bits, _ in numpies:
                    bits.state = type(bits)(seed).state
            for module, _ in modes:
                module.training = False
            yield
    finally:
        for module, mode in modes:
            module.training = mode
        for generator, state in torches:
            generator.set_state(state)
        for bits, kept in numpies:
            bits.state = kept
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002 - same


def _parts_of(agent: Any) -> list[Any]:
    """An agent and what it holds in attributes, lists and dicts, a few levels deep."""
    found: dict[int, Any] = {}
    level = [agent]
    for _ in range(5):
        level = [part for part in level if id(part) not in found]
        found.update((id(part), part) for part in level)
        inner: list[Any] = []
        for part in level:
            if isinstance(part, dict):
                inner += part.values()
            elif isinstance(part, (list, tuple)):
                inner += part
            elif not isinstance(part, (torch.Tensor, np.ndarray, type)):
                inner += getattr(part, "__dict__", {}).values()
        level = [part for part in inner if not isinstance(part, (str, int, float, type(None)))]
    return list(found.values())


@contextlib.contextmanager
def standing_still(envs: Any) -> Iterator[None]:
    """Have Gymnasium's normalising wrappers around a fleet learn nothing meanwhile."""
    learning = []
    while envs is not None:
        if getattr(envs, "update_running_mean", None) is True:
            learning.append(envs)
        envs = getattr(envs, "env", None)
    for wrapper in learning:
        wrapper.update_running_mean = False
    try:
        yield
    finally:
        for wrapper in learning:
            wrapper.update_running_mean = True
