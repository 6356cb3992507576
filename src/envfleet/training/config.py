"""The configuration of a run: flat records whose fields are the command-line options."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from envfleet.training.policy import Activation

Schedule = Literal["constant", "linear"]


@dataclass(frozen=True)
class TrainConfig:
    """Hyper-parameters of PPO. The defaults are those of Stable-Baselines3."""

    env_id: str = "CartPole-v1"
    """An id registered with Gymnasium, or module:callable."""
    seed: int = 0
    """Seed of the networks, envs, actions and minibatches."""
    total_steps: int = 100_000
    """Steps of all envs together, rounded up to whole rollouts."""
    num_envs: int = 8
    """Number of envs that run in parallel."""
    rollout_steps: int = 2048
    """Steps of each env per rollout."""
    batch_size: int = 64
    """Rows per minibatch."""
    epochs: int = 10
    """Passes over the rollout per update."""
    learning_rate: float = 3e-4
    """Learning rate of Adam."""
    learning_rate_schedule: Schedule = "constant"
    """linear: down to 0 at the end of the run."""
    gamma: float = 0.99
    """Discount factor per step."""
    gae_lambda: float = 0.95
    """Lambda of generalised advantage estimation: 0 trusts the critic, 1 the returns."""
    clip_range: float = 0.2
    """How far the ratio of new to old probabilities may be from 1."""
    clip_range_schedule: Schedule = "constant"
    """linear: down to 0 at the end of the run."""
    clip_values: bool = False
    """In the value loss, keep new values within clip-range of the old ones."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    value_coef: float = 0.5
    """Weight of the value loss (mean squared error)."""
    max_grad_norm: float = 0.5
    """Scale gradients with a larger norm down to this."""
    adam_epsilon: float = 1e-5
    """Epsilon of Adam, added to the root of the second moment."""
    target_kl: float | None = None
    """Stop an update when the KL divergence from the old policy exceeds 1.5 times this."""
    normalize_observations: bool = False
    """Normalize observations by their running mean and standard deviation."""
    normalize_rewards: bool = False
    """Scale rewards by the running standard deviation of the discounted return."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers."""
    activation: Activation = "tanh"
    """Activation function between layers."""
    log_std: float = 0.0
    """Initial logarithm of the standard deviation of continuous actions."""
    orthogonal: bool = True
    """Initialise weights orthogonally; otherwise as torch does."""
    mask_key: str | None = "action_mask"
    """Key of the action mask in the infos; None ignores masks. If an env does not set it, but has a
    method action_masks(), the result of that is used."""
    env_kwargs: tuple[str, ...] = ()
    """Arguments of the env as key=value, typed by its signature; nested values as JSON."""
    wrappers: tuple[str, ...] = ()
    """Wrappers of the env as module:callable, innermost first."""

    def __post_init__(self) -> None:
        """Refuse invalid values.

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
    """How a run is executed.

    With the same seed it learns the same whatever ``backend`` (but for "native", whose random
    numbers differ), ``keep`` and the video options are. ``checkpoint_every``, ``eval_every``,
    ``min_envs``, ``actors``, ``actor_deadline`` and ``device`` affect it.
    """

    backend: str = "auto"
    """Where envs run: auto (measures one env and chooses), serial, process, ray, native (the env's
    own batched implementation, with other random numbers), or your own engine."""
    on_failure: Literal["raise", "restart"] = "raise"
    """What to do when an env raises or a worker dies."""
    step_timeout: float | None = None
    """Seconds after which a worker that has not finished its step counts as dead; by default an env
    may take as long as it likes."""
    device: str = "auto"
    """cpu, cuda, or auto: a GPU for images, if there is one, else the CPU."""
    checkpoint_every: int | None = None
    """Updates between checkpoints, at which all envs begin new episodes; by default about 50 times
    per run, but at least 10,000 steps of each env apart."""
    keep: int = 3
    """Number of checkpoints to keep, besides the best one."""
    eval_every: int | None = None
    """Updates between evaluations (deterministic, in separate envs); each saves a checkpoint, and
    the best checkpoint is the one with the best evaluation."""
    eval_episodes: int = 20
    """Episodes per evaluation."""
    min_envs: int | None = None
    """Act as soon as this many envs are ready, without waiting for slow ones; by default all envs
    step together. Which are ready first depends on the machine, so the run is not reproducible."""
    record_every: int = 0
    """Steps between videos of env 0; 0 records nothing."""
    video_length: int = 10_000
    """Maximum number of frames per video; a video may end in the middle of an episode."""
    video_scale: float = 1.0
    """Scale factor for the width and height of videos."""
    video_skip: int = 1
    """Record every Nth frame; videos keep their speed."""
    stop_at: float | None = None
    """End the run when the mean return of the last 100 episodes reaches this."""
    actors: int = 0
    """Number of Ray actors that share the envs and collect with copies of the policy; 0: no Ray."""
    actor_deadline: float | None = None
    """Seconds after which an update goes on without the actors that are late; a run that has done
    so cannot be resumed. By default all are waited for."""
    ray: str | None = None
    """Address of the Ray cluster for actors, or for backend ray: host:port, auto (one running on
    this machine) or local (a new one); by default an existing one, else a new one."""

    def __post_init__(self) -> None:
        """Refuse invalid values.

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
        for name in ("step_timeout", "actor_deadline"):
            value = getattr(self, name)
            _check(value is None or 0 < value < math.inf, name, value, "above 0")
        if self.actor_deadline is not None and not self.actors:
            raise ValueError("actor_deadline is about Ray actors: say how many, or leave it out.")
        if self.min_envs is not None and self.actors:
            raise ValueError("min_envs is for a fleet on this machine: leave out actors, or it.")
        if self.actors and self.backend == "ray":
            raise ValueError("actors have fleets of their own: leave out backend, or actors.")
        if self.ray is not None and not self.actors and self.backend != "ray":
            raise ValueError(
                "ray says which cluster to use: say how many actors to start there, or set "
                "backend='ray'."
            )
        fine = 0 < self.video_scale < math.inf
        _check(fine, "video_scale", self.video_scale, "above 0")

    @property
    def fault_options(self) -> dict[str, Any]:
        """What an engine with workers is told about envs that fail or hang; often nothing."""
        told: dict[str, Any] = {}
        if self.on_failure == "restart":  # a crash loop is more than one a second
            told |= {"on_failure": "restart", "restarts": (60, 60.0)}
        if self.step_timeout is not None:
            told["step_timeout"] = self.step_timeout
        return told


_NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}


_PLURALS = {int: "integers", str: "texts"}


def check_types(options: Any) -> None:
    """Refuse values of a dataclass that do not match its annotations; True is not a number here.

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
