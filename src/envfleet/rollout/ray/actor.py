"""RolloutActor: a fleet, a copy of the agent and a collector in a Ray actor."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from gymnasium import Space

from envfleet.rollout.collector import Collector
from envfleet.rollout.ray.parts import Part, part_of
from envfleet.vector.make import EnvLike, make


@dataclass(frozen=True)
class Task:
    """What an actor is to be."""

    env: EnvLike
    num_envs: int
    fleet: Mapping[str, Any]
    """Further arguments of ``make``."""
    agent: Any
    steps: int
    options: Mapping[str, Any]
    """Further arguments of ``Collector``."""


class Built(NamedTuple):
    """What an actor tells of itself."""

    node: str
    pid: int
    observation_space: Space[Any]
    action_space: Space[Any]


class Order(NamedTuple):
    """One rollout, please."""

    weights: Any
    """Of the agent, or a whole agent where it has none to load."""
    random_state: torch.Tensor | int
    """Of torch's generator, or a seed for it: all that is random in the agent's answers."""
    seed: int | None
    """Of the envs, where they begin; afterwards their episodes go on."""


class Delivery(NamedTuple):
    """A rollout, and the state of torch's generator after it."""

    part: Part
    random_state: torch.Tensor


class RolloutActor:
    """Runs in a Ray actor."""

    def build(self, pickled: bytes) -> Built:
        """Build the fleet; the first thing to call."""
        import ray  # noqa: PLC0415 - this module is read where there may be none, too

        task: Task = pickle.loads(pickled)
        envs = make(task.env, task.num_envs, **task.fleet)
        try:
            self._collector = Collector(envs, task.agent, task.steps, **task.options)
        except BaseException:
            envs.close()
            raise
        node = f"{ray.util.get_node_ip_address()} ({ray.get_runtime_context().get_node_id()[:8]})"
        return Built(node, os.getpid(), envs.single_observation_space, envs.single_action_space)

    def collect(self, weights: Any, random_state: torch.Tensor | int, seed: int | None) -> Delivery:
        """Collect one rollout with these weights; see ``Order``."""
        collector = self._collector
        agent: Any = collector.agent
        if hasattr(agent, "load_state_dict"):
            agent.load_state_dict(weights)
        else:
            collector.use(weights)
        if isinstance(random_state, int):
            torch.manual_seed(random_state)
        else:
            torch.set_rng_state(random_state.clone())  # Ray's memory cannot be written to
        if seed is not None:
            collector.reset(seed=seed)
        part = part_of(collector.collect(), collector.finished)
        return Delivery(part, torch.get_rng_state())

    def close(self) -> None:
        """Close the fleet."""
        self._collector.close()
