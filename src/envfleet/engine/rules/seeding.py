"""Who is reset, with which seed and options; and seeds for the workers' global generators."""

from __future__ import annotations

import hashlib
import operator
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """One reset of some envs: parallel lists, ordered by env."""

    env_ids: list[int]
    seeds: list[int | None]
    options: list[dict[str, Any] | None]

    def shard(self, envs: range) -> ResetPlan:
        """The part of the plan that concerns a contiguous range of envs."""
        picked = [k for k, env in enumerate(self.env_ids) if env in envs]
        return ResetPlan(
            [self.env_ids[k] for k in picked],
            [self.seeds[k] for k in picked],
            [self.options[k] for k in picked],
        )

    def pick(self, envs: Sequence[int]) -> ResetPlan:
        """The part of the plan that concerns these envs, in their order."""
        by_env = dict(zip(self.env_ids, self.singly(), strict=True))
        return self.joined([by_env[env] for env in envs])

    def singly(self) -> list[ResetPlan]:
        """One plan per env."""
        rows = zip(self.env_ids, self.seeds, self.options, strict=True)
        return [ResetPlan([env], [seed], [options]) for env, seed, options in rows]

    @classmethod
    def joined(cls, plans: Sequence[ResetPlan]) -> ResetPlan:
        """Several plans as one, in their order."""
        return cls(
            [env for plan in plans for env in plan.env_ids],
            [seed for plan in plans for seed in plan.seeds],
            [options for plan in plans for options in plan.options],
        )

    def after(self, unsent: ResetPlan) -> ResetPlan:
        """This plan, and what an earlier one that was never sent wanted of other envs."""
        plans = {
            env: (seed, options)
            for plan in (unsent, self)
            for env, seed, options in zip(plan.env_ids, plan.seeds, plan.options, strict=True)
        }
        env_ids = sorted(plans)
        return ResetPlan(env_ids, [plans[e][0] for e in env_ids], [plans[e][1] for e in env_ids])


def env_seeds(seed: Any, num_envs: int, name: str = "num_envs") -> list[int | None]:
    """One seed per env: ``seed + i`` from an integer, or a list's own entries.

    Raises:
        ValueError: a list of another length.
        TypeError: neither an integer nor a sequence of integers and None.
    """
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, (int, np.integer)):
        return [int(seed) + i for i in range(num_envs)]
    if not isinstance(seed, (Sequence, np.ndarray)) or isinstance(seed, str):
        raise TypeError(
            f"`seed` must be an integer, a list with one entry per env, or None, got {type(seed)}"
        )
    if len(seed) != num_envs:
        raise ValueError(
            f"If seeds are passed as a list the length must match {name}={num_envs} "
            f"but got length={len(seed)}."
        )
    return [None if entry is None else operator.index(entry) for entry in seed]


def plan_reset(
    seeds: list[int | None], options: Any, num_envs: int, name: str = "num_envs"
) -> ResetPlan:
    """The reset that ``options`` asks for: all envs, those of a mask, or one dict per env.

    Each env gets an options dict of its own; the caller's is never changed.

    Raises:
        TypeError: ``reset_mask`` is no boolean array, or ``options`` is of no known form.
        ValueError: ``reset_mask`` has another shape or selects nothing, or a list's length is off.
    """
    everyone = list(range(num_envs))
    if options is None:
        return ResetPlan(everyone, seeds, [None] * num_envs)
    if isinstance(options, Mapping):
        if "reset_mask" not in options:
            return ResetPlan(everyone, seeds, [dict(options) for _ in everyone])
        rest = {key: value for key, value in options.items() if key != "reset_mask"}
        chosen = _masked_envs(options["reset_mask"], num_envs)
        return ResetPlan(chosen, [seeds[i] for i in chosen], [dict(rest) for _ in chosen])
    if isinstance(options, (list, tuple)):
        if len(options) != num_envs:
            raise ValueError(
                f"If options are passed as a list the length must match {name}={num_envs} "
                f"but got length={len(options)}."
            )
        return ResetPlan(everyone, seeds, [None if o is None else dict(o) for o in options])
    raise TypeError(f"`options` must be a dict or a list of one dict per env, got {type(options)}")


def plan_subset(seed: Any, options: Any, env_ids: Sequence[int]) -> ResetPlan:
    """The reset of some envs: env ``i`` gets ``seed + i``; lists have an entry per env of these.

    Raises:
        TypeError: ``seed`` or ``options`` is of no known form.
        ValueError: a list of another length, or a ``reset_mask``, which names envs too.
    """
    ids, count = list(env_ids), len(env_ids)
    if isinstance(seed, (int, np.integer)):
        seed = [int(seed) + env for env in ids]
    if isinstance(options, Mapping) and "reset_mask" in options:
        raise ValueError("`options['reset_mask']` and `env_ids` both say whom to reset: give one")
    plan = plan_reset(env_seeds(seed, count, "len(env_ids)"), options, count, "len(env_ids)")
    return ResetPlan(ids, plan.seeds, plan.options)


def _masked_envs(mask: Any, num_envs: int) -> list[int]:
    """The envs a mask selects; the texts of its errors are Gymnasium's."""
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"`options['reset_mask']` must be a numpy array, got {type(mask)}")
    if mask.shape != (num_envs,):
        raise ValueError(
            f"`options['reset_mask']` must have shape `({num_envs},)`, got {mask.shape}"
        )
    if mask.dtype != np.bool_:
        raise TypeError(f"`options['reset_mask']` must have `dtype=np.bool_`, got {mask.dtype}")
    if not np.any(mask):
        raise ValueError(
            "`options['reset_mask']` must contain a boolean array with at least one True value, "
            f"got reset_mask={mask}"
        )
    return [int(i) for i in np.flatnonzero(mask)]


def worker_seeds(caller_state: object, fleet: int, workers: int) -> list[int]:
    """A 32-bit seed per worker for ``random`` and ``np.random``: all different, and repeatable.

    Derived from the state of the caller's own generators and the fleet's number in this process,
    so that a seeded program stays repeatable and two fleets do not get the same numbers.
    """
    digest = hashlib.sha256(pickle.dumps(caller_state)).digest()
    entropy = np.random.SeedSequence([int.from_bytes(digest, "little"), fleet])
    seeds: list[int] = []
    for child in entropy.spawn(workers):
        word = int(child.generate_state(1)[0])
        while word in seeds:
            word = (word + 1) % 2**32
        seeds.append(word)
    return seeds


def derived_seed(seed: int, generation: int) -> int:
    """The seed of a later generation: another number, and the same one each time."""
    if generation == 0:
        return seed
    return int(np.random.SeedSequence([seed, generation]).generate_state(1)[0])
