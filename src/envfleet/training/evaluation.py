"""Evaluation while training: in envs of its own, deterministic, without a trace in the run."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from envfleet.rollout.evaluate import evaluate
from envfleet.training.build import EnvSource
from envfleet.training.config import RunOptions, TrainConfig
from envfleet.training.env_options import EnvOptions
from envfleet.training.envs import build_fleet
from envfleet.training.ppo import AnyPolicy


class Evaluation:
    """Evaluates a run's policy again and again; its envs are built when they are first needed.

    Raises:
        TypeError: the run's envs are a fleet, of which no second one can be built.
    """

    def __init__(self, env: EnvSource, config: TrainConfig, options: RunOptions) -> None:
        if isinstance(env, VectorEnv):
            raise TypeError(
                "eval_every needs envs of its own: train with an id, a spec or a function that "
                "builds an env instead of a fleet, or evaluate in a callback."
            )
        self._env = env
        self._seed = config.seed
        self._episodes = options.eval_episodes
        self._num_envs = min(config.num_envs, options.eval_episodes)
        self._faults = options.fault_options
        self._changes = EnvOptions.of(config)
        self._envs: Any = None

    def of(self, policy: AnyPolicy, step: int) -> dict[str, float]:
        """The metrics of deterministic episodes; their seeds follow from the run's and the step."""
        if self._envs is None:
            self._envs = build_fleet(
                self._env,
                self._num_envs,
                faults=self._faults,
                changes=self._changes,
            )
        seed = int(np.random.SeedSequence([self._seed, step, 1]).generate_state(1)[0]) >> 1
        result = evaluate(
            policy,
            self._envs,
            self._episodes,
            seed=seed,
            progress=False,
            mask_key=self._changes.mask_key,
        )
        return {
            "eval/return_mean": result.mean,
            "eval/return_std": result.std,
            "eval/length_mean": float(result.lengths.mean()),
        }

    def close(self) -> None:
        """Close the envs, if there are any."""
        if self._envs is not None:
            self._envs.close()
