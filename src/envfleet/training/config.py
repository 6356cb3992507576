"""What a training run is: every choice in one flat, readable record."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from envfleet.training.policy import Activation

Schedule = Literal["constant", "linear"]


@dataclass(frozen=True)
class TrainConfig:
    """A run of PPO. The defaults are Stable-Baselines3's."""

    env_id: str = "CartPole-v1"
    """An id that Gymnasium knows, or module:callable."""
    seed: int = 0
    total_steps: int = 100_000
    """Of all envs together; the last rollout is finished."""
    num_envs: int = 8
    steps: int = 2048
    """Of each env per rollout."""
    batch_size: int = 64
    epochs: int = 10
    learning_rate: float = 3e-4
    learning_rate_schedule: Schedule = "constant"
    """linear: down to 0 at the end of the run."""
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    clip_schedule: Schedule = "constant"
    clip_values: bool = False
    """Whether new values stay within ``clip`` of the old ones in the loss."""
    entropy: float = 0.0
    """Weight of the entropy bonus."""
    value: float = 0.5
    """Weight of the mean squared error of values."""
    max_grad_norm: float = 0.5
    adam_epsilon: float = 1e-5
    target_kl: float | None = None
    """Stop an update where the policy has moved further than 1.5 times this."""
    normalize_observations: bool = False
    normalize_rewards: bool = False
    hidden: tuple[int, ...] = (64, 64)
    activation: Activation = "tanh"
    log_std: float = 0.0
    orthogonal: bool = True
    mask_key: str | None = "action_mask"
    """The info in which envs say what actions they allow; None ignores it. Envs that have the
    method action_masks() send what it returns."""
    env_kwargs: tuple[str, ...] = ()
    """Arguments of the env as key=value, of the types in its signature; JSON for what is nested."""
    wrappers: tuple[str, ...] = ()
    """Wrappers of the env as module:callable, the first one innermost."""

    def __post_init__(self) -> None:
        """Refuse what means nothing.

        Raises:
            ValueError: naming the field, its value and what is allowed.
        """
        check_types(self)
        for name, value in vars(self).items():
            if isinstance(value, float):
                _check(math.isfinite(value), name, value, "a finite number")
        for name in ("total_steps", "num_envs", "steps", "batch_size", "epochs"):
            _check(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("gamma", "gae_lambda"):
            _check(0 <= getattr(self, name) <= 1, name, getattr(self, name), "between 0 and 1")
        for name in ("learning_rate", "clip", "max_grad_norm", "adam_epsilon"):
            _check(getattr(self, name) > 0, name, getattr(self, name), "above 0")
        _check(self.seed < 2**63, "seed", self.seed, "below 2**63")
        for name in ("entropy", "value", "seed"):
            _check(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        for name in ("learning_rate_schedule", "clip_schedule"):
            known = ("constant", "linear")
            _check(getattr(self, name) in known, name, getattr(self, name), "constant or linear")
        fine = all(width >= 1 for width in self.hidden)
        _check(fine, "hidden", self.hidden, "widths of at least 1")
        _check(self.activation in ("tanh", "relu"), "activation", self.activation, "tanh or relu")
        _check(self.target_kl is None or self.target_kl > 0, "target_kl", self.target_kl, "above 0")

    @property
    def rollout_size(self) -> int:
        """Rows of one rollout."""
        return self.num_envs * self.steps

    @property
    def last_step(self) -> int:
        """``total_steps`` rounded up to whole rollouts: where the run ends."""
        return math.ceil(self.total_steps / self.rollout_size) * self.rollout_size


_NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}


_PLURALS = {int: "integers", str: "texts"}


def check_types(options: Any) -> None:
    """Refuse values of a dataclass that are not what its annotations say: True is no number here.

    Raises:
        ValueError: naming the field and its value.
    """
    hints = get_type_hints(type(options))
    for field in fields(options):
        value, hint = getattr(options, field.name), hints[field.name]
        if get_origin(hint) is tuple:
            kind = get_args(hint)[0]
            fine = isinstance(value, tuple) and all(_is(item, (kind,)) for item in value)
            _check(fine, field.name, value, f"a list of {_PLURALS[kind]}")
            continue
        literals = [arg for arg in get_args(hint) if isinstance(arg, str)]
        kinds = (str,) if literals else (get_args(hint) or (hint,))
        names = [_NAMES[kind] for kind in kinds if kind is not NoneType]
        if len(names) < len(kinds):
            names.append("none")
        _check(_is(value, kinds), field.name, value, " or ".join(names))


def _is(value: object, kinds: tuple[Any, ...]) -> bool:
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, kinds) or (float in kinds and isinstance(value, int))


def _check(fine: bool, name: str, value: object, allowed: str) -> None:
    if not fine:
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
