"""What a run is made of, from its config: the policy, and the collector with the envs.

``make_collector`` is the one function to replace for a run whose envs live somewhere else.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, Protocol

import gymnasium
import numpy as np
import torch
from gymnasium import Space
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from envfleet.record.recorder import Recorder
from envfleet.rollout.buffer import Rollout
from envfleet.rollout.collector import Collector
from envfleet.rollout.statistics import EpisodeStatistics
from envfleet.training.cluster import make_ray_collector
from envfleet.training.config import RunOptions, TrainConfig
from envfleet.training.env_options import EnvOptions
from envfleet.training.envs import build_fleet
from envfleet.training.learner import Learner
from envfleet.training.own_policy import PolicySource, make_own_policy
from envfleet.training.policy import Policy
from envfleet.training.ppo import AnyPolicy

EnvSource = str | EnvSpec | Callable[..., gymnasium.Env[Any, Any]] | VectorEnv[Any, Any, Any]
"""Where a run's envs come from: an id, a spec, a function that builds one, or a fleet."""


class RolloutSource(Protocol):
    """What a run asks of whoever collects its rollouts."""

    total_steps: int
    statistics: EpisodeStatistics
    seconds: dict[str, float]
    """What ``collect`` has taken so far, by what it went into."""

    def begin_episodes(self, entropy: Sequence[int]) -> None:
        """All envs begin new episodes; all that is random in them follows from these numbers."""
        ...

    def collect(self) -> Rollout:
        """The next rollout."""
        ...

    @property
    def restart_count(self) -> int:
        """How many workers were replaced so far."""
        ...

    @property
    def plan(self) -> dict[str, Any]:
        """How the envs run, and why; for ``plan.json``."""
        ...

    def metrics(self) -> dict[str, float]:
        """What else is worth logging of the last rollout, such as ``flow/...``."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What was counted so far."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Count on from there."""
        ...

    def close(self) -> None:
        """Close envs and videos."""
        ...

    def abandon(self) -> None:
        """Close without waiting for envs."""
        ...


@dataclass(frozen=True)
class CollectorSetup:
    """What a collector is made from."""

    env: EnvSource
    config: TrainConfig
    options: RunOptions
    make_learner: Callable[[Space[Any], Space[Any]], Learner[Any]]
    """Makes the agent, given the spaces of a single env's observations and actions; once."""
    recorder: Recorder | None = None


MakeCollector = Callable[[CollectorSetup], RolloutSource]


def make_collector(setup: CollectorSetup) -> RolloutSource:
    """A collector whose fleet is on this machine, or on a Ray cluster where there are actors."""
    env, config, options = setup.env, setup.config, setup.options
    if options.actors:
        return make_ray_collector(setup)
    is_fleet = isinstance(env, VectorEnv)
    envs: Any = env
    if not isinstance(env, VectorEnv):
        envs = build_fleet(
            env,
            config.num_envs,
            backend=options.backend,
            address=options.ray,
            faults=options.fault_options,
            rendered=0 if setup.recorder is None else 1,  # its env 0
            changes=EnvOptions.of(config),
        )
    try:
        learner = setup.make_learner(envs.single_observation_space, envs.single_action_space)
        return FleetCollector(
            envs,
            learner,
            config.rollout_steps,
            recorder=setup.recorder,
            close_envs=not is_fleet,
            mask_key=config.mask_key,
            min_envs=options.min_envs,
        )
    except BaseException:
        if not is_fleet:
            envs.close()
        raise


class FleetCollector(Collector):
    """A collector that a run can seed, ask about its fleet, and abandon."""

    def begin_episodes(self, entropy: Sequence[int]) -> None:
        """Reset all envs, and seed them and the global generators where they live."""
        states = np.random.SeedSequence(list(entropy)).generate_state(2)
        seed, for_globals = (int(state) >> 1 for state in states)
        envs: Any = self.envs
        if hasattr(envs, "seed_globals"):  # other libraries' fleets have no such thing
            envs.seed_globals(for_globals)
        self.reset(seed=seed)

    @property
    def restart_count(self) -> int:
        """How many workers were replaced so far."""
        return int(getattr(self.envs, "restart_count", 0))

    @property
    def plan(self) -> dict[str, Any]:
        """How the envs run, and why."""
        plan = getattr(self.envs, "plan", None)
        if is_dataclass(plan) and not isinstance(plan, type):
            return asdict(plan)
        return {"backend": type(self.envs).__name__, "reason": "not an engine of envfleet's"}

    def metrics(self) -> dict[str, float]:
        """How envs flowed, where they do not step together."""
        if not self.is_flowing:
            return {}
        envs: Any = self.envs
        flow = envs.flow()._asdict()
        del flow["env_steps"]
        return {f"flow/{name}": float(value) for name, value in flow.items()}

    def abandon(self) -> None:
        """End the envs where they are, and give videos a moment."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a step was pending is known
            self.envs.close(terminate=True)
        if isinstance(self.recorder, Recorder):
            self.recorder.close(timeout=2.0)


def make_policy(
    config: TrainConfig,
    observation_space: Space[Any],
    action_space: Space[Any],
    device: str = "cpu",
    own: PolicySource | None = None,
) -> AnyPolicy:
    """The policy of a run, untrained, or the user's own.

    Raises:
        TypeError, ValueError: there is none for such spaces, or torch cannot use the device.
    """
    if own is not None:
        of_user = make_own_policy(own, observation_space, action_space)
        return of_user.to(_device(device, of_user))
    policy = Policy(
        observation_space,
        action_space,
        hidden=config.hidden,
        activation=config.activation,
        log_std=config.log_std,
        orthogonal=config.orthogonal,
        normalize=config.normalize_observations,
    )
    return policy.to(_device(device, policy))


def _device(name: str, policy: AnyPolicy) -> torch.device:
    """Where to train; small networks are faster on the CPU."""
    if name == "auto":
        return torch.device("cuda" if policy.is_image and torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # what torch without CUDA raises
        raise ValueError(f"device {name!r} cannot be used: {error}") from error
