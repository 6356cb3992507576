"""RolloutActor: a fleet, a copy of the agent and a collector in a Ray actor."""

from __future__ import annotations

import os
import pickle
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import Space
from gymnasium.vector import VectorEnv

from envfleet.rollout.collector import Collector
from envfleet.rollout.ray.parts import Part, part_of


@dataclass(frozen=True)
class Task:
    """What an actor is to be."""

    build: Callable[[], VectorEnv[Any, Any, Any]]
    """Builds the fleet."""
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


class Beginning(NamedTuple):
    """All envs are to begin new episodes."""

    seed: int | None
    """Of the first env; the others' follow."""
    for_globals: int | None = None
    """Of the generators that envs may use without asking."""


class Randomness(NamedTuple):
    """All that is random in an agent's answers: the states of generators."""

    torch_state: torch.Tensor
    own: dict[str, Any] | None
    """Of the agent's ``generator``, NumPy's, if it has one."""

    @classmethod
    def of(cls, agent: Any) -> Randomness:
        """As it is now, in this process."""
        own = getattr(agent, "generator", None)
        state = dict(own.bit_generator.state) if isinstance(own, np.random.Generator) else None
        return cls(torch.get_rng_state(), state)

    @classmethod
    def seeded(cls, agent: Any, seed: int) -> Randomness:
        """Another one, of the same kinds."""
        has_own = isinstance(getattr(agent, "generator", None), np.random.Generator)
        own = np.random.default_rng(seed).bit_generator.state if has_own else None
        return cls(torch.Generator().manual_seed(seed).get_state(), dict(own) if own else None)

    def digest(self) -> int:
        """A number that follows from the states."""
        return zlib.crc32(self.torch_state.numpy().tobytes() + repr(self.own).encode())

    def use(self, agent: Any) -> None:
        """Go on from there, in this process."""
        torch.set_rng_state(self.torch_state.clone())  # Ray's memory cannot be written to
        if self.own is not None:
            agent.generator.bit_generator.state = self.own


class Delivery(NamedTuple):
    """A rollout, and what there is to know after it."""

    part: Part
    randomness: Randomness
    """Where the generators are."""
    restarts: int
    """Workers that the fleet has replaced since the last one."""


class RolloutActor:
    """Runs in a Ray actor."""

    _restarts = 0

    def build(self, pickled: bytes) -> Built:
        """Build the fleet; the first thing to call."""
        import ray  # noqa: PLC0415 - this module is read where there may be none, too

        task: Task = pickle.loads(pickled)
        envs = task.build()
        try:
            self._collector = Collector(envs, task.agent, task.steps, **task.options)
        except BaseException:
            envs.close()
            raise
        node = f"{ray.util.get_node_ip_address()} ({ray.get_runtime_context().get_node_id()[:8]})"
        return Built(node, os.getpid(), envs.single_observation_space, envs.single_action_space)

    def collect(
        self, weights: Any, randomness: Randomness, beginning: Beginning | None
    ) -> Delivery:
        """Collect one rollout.

        Args:
            weights: of the agent, or a whole agent where it has none to load.
            randomness: what the agent's answers draw on.
            beginning: where the envs begin; None has their episodes go on.
        """
        collector = self._collector
        agent: Any = collector.agent
        if hasattr(agent, "load_state_dict"):
            agent.load_state_dict(weights)
        else:
            collector.use(weights)
        Randomness(*randomness).use(collector.agent)
        if beginning is not None:
            seed, for_globals = beginning
            envs: Any = collector.envs
            if for_globals is not None and hasattr(envs, "seed_globals"):
                envs.seed_globals(for_globals)
            collector.reset(seed=seed)
        part = part_of(collector.collect(), collector.finished)
        before, self._restarts = self._restarts, getattr(collector.envs, "restart_count", 0)
        return Delivery(part, Randomness.of(collector.agent), self._restarts - before)

    def close(self) -> None:
        """Close the fleet."""
        self._collector.close()
