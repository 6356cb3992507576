"""A run whose envs live on a Ray cluster: its collector, and the part of its learner that acts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import VectorEnv

from envfleet.rollout.buffer import Rollout
from envfleet.rollout.ray.collector import RayCollector
from envfleet.training.config import TrainConfig
from envfleet.training.env_options import EnvOptions
from envfleet.training.envs import build_fleet
from envfleet.training.learner import Learner
from envfleet.training.ppo import AnyPolicy, make_learner

if TYPE_CHECKING:
    from envfleet.training.build import CollectorSetup


class ActingLearner:
    """Acts as a learner does, and travels: its weights are the policy's.

    An actor makes a learner of its own of it, which shares no memory with this one.
    """

    def __init__(
        self, policy: AnyPolicy, config: TrainConfig, learner: Learner[Any] | None = None
    ) -> None:
        self.policy, self.config = policy, config
        self._learner = learner or make_learner(policy, config, np.random.default_rng())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._learner, name)

    def state_dict(self) -> dict[str, Any]:
        """The policy's parameters, and what it has learnt of observations."""
        return self.policy.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Act with these from now on."""
        self.policy.load_state_dict(state)

    def __reduce__(self) -> tuple[Any, ...]:
        return _on_cpu, (self.policy, self.config)


def _on_cpu(policy: AnyPolicy, config: TrainConfig) -> ActingLearner:
    return ActingLearner(policy.to("cpu"), config)


def make_ray_collector(setup: CollectorSetup) -> ClusterCollector:
    """A collector whose fleets are on a Ray cluster.

    Raises:
        ValueError, TypeError: the options do not go together.
    """
    env, config, options = setup.env, setup.config, setup.options
    if isinstance(env, VectorEnv):
        raise TypeError("a fleet is where it is: to train on Ray, pass an id or a function.")
    if setup.recorder is not None:
        raise ValueError("record_every records envs of this machine: leave it out with actors.")
    if config.num_envs % options.actors:
        raise ValueError(
            f"num_envs={config.num_envs} must be a multiple of actors={options.actors}: each actor "
            "has as many envs as any other."
        )
    words: dict[str, Any] = {"faults": options.fault_options, "changes": EnvOptions.of(config)}
    with build_fleet(env, 1, backend="process", **words) as one:
        spaces = one.single_observation_space, one.single_action_space
    learner = setup.make_learner(*spaces)
    return ClusterCollector(
        env,
        ActingLearner(learner.policy, config, learner),
        actors=options.actors,
        envs_per_actor=config.num_envs // options.actors,
        steps=config.rollout_steps,
        fleet={"backend": None if options.backend == "auto" else options.backend, **words},
        options={"mask_key": config.mask_key},
        device=learner.device,
        on_late="wait" if options.actor_deadline is None else "drop",
        deadline=options.actor_deadline,
        address=options.ray,
    )


class ClusterCollector(RayCollector):
    """A ``RayCollector`` that a run can seed, ask about its fleet, and abandon."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seconds = {"env": 0.0}
        """What ``collect`` has taken so far: envs, agents and the way to them and back."""

    @staticmethod
    def _builder(env: Any, num_envs: int, fleet: Mapping[str, Any]) -> Callable[[], Any]:
        return partial(build_fleet, env, num_envs, **fleet)

    def collect(self) -> Rollout:
        """The next rollout."""
        begun = time.perf_counter()
        rollout = super().collect()
        self.seconds["env"] += time.perf_counter() - begun
        return rollout

    def begin_episodes(self, entropy: Any, for_globals: int | None = None) -> None:
        """Have all envs begin new episodes; all that is random in them follows from the numbers."""
        if isinstance(entropy, Sequence):
            states = np.random.SeedSequence(list(entropy)).generate_state(2)
            entropy, for_globals = (int(state) >> 1 for state in states)
        super().begin_episodes(entropy, for_globals)

    @property
    def plan(self) -> dict[str, Any]:
        """Where the envs run."""
        actors = len(self.nodes)
        return {
            "backend": "ray",
            "workers": actors,
            "reason": f"actors={actors} was asked for; on {', '.join(sorted(set(self.nodes)))}",
            "num_envs": self.num_envs,
            "nodes": self.nodes,
        }

    def abandon(self) -> None:
        """End the actors where they are."""
        self.close()
