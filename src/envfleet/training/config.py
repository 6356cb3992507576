"""What a run trains and how: flat records whose fields are the options of the command line."""

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
    """Of networks, envs, actions and minibatches."""
    total_steps: int = 100_000
    """Steps of all envs together, rounded up to whole rollouts."""
    num_envs: int = 8
    """How many envs run side by side."""
    rollout_steps: int = 2048
    """Steps of each env per rollout."""
    batch_size: int = 64
    """Rows of a minibatch."""
    epochs: int = 10
    """How often an update goes through its rollout."""
    learning_rate: float = 3e-4
    """Of Adam."""
    learning_rate_schedule: Schedule = "constant"
    """linear: down to 0 at the end of the run."""
    gamma: float = 0.99
    """Discount of rewards per step."""
    gae_lambda: float = 0.95
    """Of generalised advantage estimation: 0 trusts the critic, 1 the returns."""
    clip_range: float = 0.2
    """How far the ratio of new to old probabilities may move from 1."""
    clip_range_schedule: Schedule = "constant"
    """linear: down to 0 at the end of the run."""
    clip_values: bool = False
    """Keep new values within clip-range of the old ones in the value loss."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    value_coef: float = 0.5
    """Weight of the mean squared error of values."""
    max_grad_norm: float = 0.5
    """Longer gradients are scaled down to this."""
    adam_epsilon: float = 1e-5
    """Of Adam, beside the root of the second moment."""
    target_kl: float | None = None
    """Stop an update where the policy has moved further than 1.5 times this."""
    normalize_observations: bool = False
    """Scale observations by their running mean and deviation."""
    normalize_rewards: bool = False
    """Scale rewards by the running deviation of the discounted return."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers."""
    activation: Activation = "tanh"
    """Between layers."""
    log_std: float = 0.0
    """Logarithm of the deviation of continuous actions at first."""
    orthogonal: bool = True
    """Initialise weights orthogonally; otherwise as torch does."""
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
        for name in ("total_steps", "num_envs", "rollout_steps", "batch_size", "epochs"):
            _check(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("gamma", "gae_lambda"):
            _check(0 <= getattr(self, name) <= 1, name, getattr(self, name), "between 0 and 1")
        for name in ("learning_rate", "clip_range", "max_grad_norm", "adam_epsilon"):
            _check(getattr(self, name) > 0, name, getattr(self, name), "above 0")
        _check(self.seed < 2**63, "seed", self.seed, "below 2**63")
        for name in ("entropy_coef", "value_coef", "seed"):
            _check(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        fine = all(width >= 1 for width in self.hidden)
        _check(fine, "hidden", self.hidden, "widths of at least 1")
        _check(self.target_kl is None or self.target_kl > 0, "target_kl", self.target_kl, "above 0")

    @property
    def last_step(self) -> int:
        """``total_steps`` rounded up to whole rollouts: where the run ends."""
        rows = self.num_envs * self.rollout_steps
        return math.ceil(self.total_steps / rows) * rows


@dataclass(frozen=True)
class RunOptions:
    """How a run is carried out.

    It learns the same with any of these but ``checkpoint_every``, ``eval_every`` and ``min_envs``.
    """

    backend: Literal["auto", "serial", "process"] = "auto"
    """Where envs run; auto measures one and chooses."""
    on_failure: Literal["raise", "restart"] = "raise"
    """What to do when an env raises or a worker dies."""
    device: str = "auto"
    """cpu, cuda, or auto: the GPU for images, if there is one, else the CPU."""
    checkpoint_every: int | None = None
    """Updates between checkpoints, where all envs begin new episodes; by default about 50 times per
    run, but at least 10,000 steps of each env apart."""
    keep: int = 3
    """How many checkpoints to keep, besides the best one."""
    eval_every: int | None = None
    """Updates between evaluations (deterministic, in envs of their own); each comes with a
    checkpoint, and the best one is the best by evaluation."""
    eval_episodes: int = 20
    """Episodes of each evaluation."""
    min_envs: int | None = None
    """Act as soon as so many envs are ready, so that slow ones hold nobody up; by default all of
    them step together. Which are ready first is up to the machine, so such a run is not repeatable.
    """
    record_every: int = 0
    """Steps between videos of env 0; 0 records nothing."""
    video_length: int = 10_000
    """Frames after which a video ends, even in the middle of an episode."""
    video_scale: float = 1.0
    """Factor for the width and height of videos."""
    video_skip: int = 1
    """Record only every so many frames; videos keep their speed."""
    stop_at: float | None = None
    """End the run when the mean return of the last 100 episodes reaches this."""
    actors: int = 0
    """Ray actors that share the envs and collect with copies of the policy; 0 does without Ray."""
    ray: str | None = None
    """Address of the Ray cluster with the actors: host:port, auto (one that runs here) or local (a
    new one); by default what is there, else a new one."""

    def __post_init__(self) -> None:
        """Refuse what means nothing.

        Raises:
            ValueError: naming the field, its value and what is allowed.
        """
        check_types(self)
        counts = ("checkpoint_every", "keep", "eval_every", "eval_episodes", "min_envs")
        for name in (*counts, "video_length", "video_skip"):
            value = getattr(self, name)
            _check(value is None or value >= 1, name, value, "at least 1")
        for name in ("record_every", "actors"):
            _check(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        if self.min_envs is not None and self.actors:
            raise ValueError("min_envs is for a fleet on this machine: leave out actors, or it.")
        if self.ray is not None and not self.actors:
            raise ValueError("ray says where actors are, and there are none: say how many actors.")
        fine = 0 < self.video_scale < math.inf
        _check(fine, "video_scale", self.video_scale, "above 0")


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
        choices = [arg for arg in get_args(hint) if isinstance(arg, str)]
        if choices:
            _check(value in choices, field.name, value, " or ".join(choices))
            continue
        kinds = get_args(hint) or (hint,)
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
