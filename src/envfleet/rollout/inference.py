"""Inference: asks the agent for the actions, log-probabilities and values of a rollout.

An agent that has ``choose`` is asked for actions alone at each step, and for the rest of all rows
at the end. Any other is asked for everything at each step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import NDArray

from envfleet.rollout.actions import ActionPort
from envfleet.rollout.agent import (
    Answer,
    acting,
    check_answer,
    check_choice,
    check_numbers,
    choosing,
    device_of,
    evaluating,
    resolve,
    valuing,
)
from envfleet.rollout.flowing import Place
from envfleet.rollout.memory import Buffers, Row
from envfleet.rollout.nested import Tree, tree_map

EVALUATED_AT_ONCE = 4096
"""Rows. More are no faster, and take memory."""


class Inference:
    """One agent on one device; its answers go into a rollout's buffers, checked.

    Args:
        agent: see ``envfleet.rollout.agent.Agent``.
        port: the action space.
        count: the number of envs.
        device: as for ``Collector``.

    Raises:
        TypeError: it is not an agent. Methods also raise TypeError and ValueError for answers that
            cannot be used.
    """

    def __init__(
        self, agent: Any, port: ActionPort, count: int, device: torch.device | str | None
    ) -> None:
        self.device = device_of(resolve(agent), device)
        self._on_cpu = self.device.type == "cpu"
        self._port = port
        self._count = count
        self.use(agent)

    def use(self, agent: Any) -> None:
        """Ask this agent from now on, on the same device.

        Raises:
            TypeError: it is not an agent; the one before stays.
        """
        agent = resolve(agent)
        choose = choosing(agent) if self._on_cpu else None
        act, value = acting(agent), valuing(agent)
        self._choose, self._act, self._value, self.agent = choose, act, value, agent

    @property
    def ask(self) -> Callable[[Row], NDArray[Any]]:
        """The function that has the agent act for all envs in one row, and returns its actions."""
        return self._ask if self._choose is None else self._ask_for_actions

    def ask_some(self, buffers: Buffers, place: Place, count: int) -> NDArray[Any]:
        """Have the agent act for the envs at a place of the buffers; returns its actions."""
        seen = tree_map(lambda leaf: leaf[place], buffers.observations)
        masks = None if buffers.action_masks is None else buffers.action_masks[place]
        if self._choose is not None:
            allowed = {} if masks is None else {"action_masks": masks.numpy()}
            chosen = self._choose(tree_map(torch.Tensor.numpy, seen), **allowed)
            check_choice(chosen, count, self._port)
            buffers.actions.numpy()[place] = chosen
            return chosen
        answer = self._asked(seen, masks)
        shapes = (count, *self._port.shape), (count,), (count,)
        is_first = isinstance(place[0], int) and place[0] == 0
        if is_first or tuple(part.shape for part in answer) != shapes:
            check_answer(answer, count, self._port, self.device)
        actions, buffers.log_probs[place], buffers.values[place] = answer
        buffers.actions[place] = actions.to(buffers.actions.dtype)
        return actions.detach().cpu().numpy()

    def catch_up(self, buffers: Buffers) -> None:
        """Have the agent value all rows and say how likely its actions were, if it has not yet."""
        if self._choose is None:
            return
        evaluate = evaluating(self.agent)
        seen = tree_map(lambda leaf: leaf[:-1].flatten(0, 1), buffers.observations)
        actions = buffers.actions.flatten(0, 1)
        masks = None if buffers.action_masks is None else buffers.action_masks[:-1].flatten(0, 1)
        log_probs, values = buffers.log_probs.view(-1), buffers.values.view(-1)
        for start in range(0, len(actions), EVALUATED_AT_ONCE):
            part = slice(start, start + EVALUATED_AT_ONCE)
            rows = tree_map(lambda leaf, part=part: self._to_device(leaf[part]), seen)
            allowed = {} if masks is None else {"action_masks": self._to_device(masks[part])}
            answer = evaluate(rows, actions[part], **allowed)
            for name, numbers, place in zip(
                ("log_probs", "values"), answer, (log_probs, values), strict=True
            ):
                check_numbers(name, numbers, len(actions[part]), self.device, "rows")
                place[part] = numbers

    def values(
        self, buffers: Buffers, positions: torch.Tensor, finals: Tree
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The values of final and of last observations, by one call of the agent.

        Args:
            buffers: those of the rollout.
            positions: step and env of each final observation.
            finals: these. Where the episode was terminated, the value is 0.
        """
        t, env = positions.unbind(1)
        bootstrapped = torch.nonzero(~buffers.terminated[t, env]).flatten()
        wanted = tree_map(
            lambda last, final: torch.cat([last, final[bootstrapped]]).to(self.device),
            buffers.last_observations,
            finals,
        )
        values = self._value(wanted)
        check_numbers("values", values, self._count + len(bootstrapped), self.device)
        values = values.to(buffers.values.dtype)
        final_values = torch.zeros(len(positions), dtype=values.dtype, device=self.device)
        final_values[bootstrapped.to(self.device)] = values[self._count :]
        return final_values, values[: self._count].clone()

    def _ask(self, row: Row) -> NDArray[Any]:
        """Have the agent act and value; returns its actions."""
        answer = self._asked(row.observations, row.action_masks)
        if row.is_first:
            check_answer(answer, self._count, self._port, self.device)
        actions, log_probs, values = answer
        if (actions.shape, log_probs.shape, values.shape) != row.shapes:  # they would be broadcast
            check_answer(answer, self._count, self._port, self.device)
        row.actions.copy_(actions)
        row.log_probs.copy_(log_probs)
        row.values.copy_(values)
        return actions.detach().cpu().numpy()

    def _ask_for_actions(self, row: Row) -> NDArray[Any]:
        """Have the agent act alone; ``catch_up`` has it value later."""
        assert self._choose is not None  # noqa: S101 - ``ask`` has looked
        if row.allowed is None:
            actions = self._choose(row.arrays)
        else:
            actions = self._choose(row.arrays, action_masks=row.allowed)
        if row.is_first or actions.shape != row.chosen.shape:
            check_choice(actions, self._count, self._port)
        row.chosen[...] = actions
        return actions

    def _asked(self, seen: Tree, masks: torch.Tensor | None) -> Answer:
        """What the agent answers to some observations and, where there are any, their masks."""
        if not self._on_cpu:
            seen = tree_map(self._to_device, seen)
        if masks is None:
            return self._act(seen)
        return self._act(seen, action_masks=self._to_device(masks))

    def _to_device(self, leaf: torch.Tensor) -> torch.Tensor:
        return leaf.to(self.device)
