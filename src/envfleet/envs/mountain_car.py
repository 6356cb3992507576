"""StackedMountainCar: MountainCar that sees where it came from, its last four observations."""

from __future__ import annotations

from gymnasium.envs.registration import EnvSpec

from envfleet.envs.episodes import gym_env
from envfleet.envs.stack import FrameStack

_IDS = ("MountainCar-v0", "MountainCarContinuous-v0")


class StackedMountainCar(FrameStack):
    """MountainCar whose observation is the last four: a Box of 8 float32 numbers.

    Their order is position, velocity, position, velocity and so on, the oldest pair first and the
    latest last; after ``reset`` all four are the first. The bounds are the game's own (-1.2 to 0.6
    and -0.07 to 0.07), four times. Rewards are the game's; infos are those of ``EpisodeInfo``.

    Args:
        env_id: "MountainCar-v0" or "MountainCarContinuous-v0".
        seed: see ``EpisodeInfo``.
        render_mode: see ``gymnasium.make``.

    Raises:
        ValueError: another id.
    """

    def __init__(
        self,
        env_id: str = "MountainCar-v0",
        seed: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        if env_id not in _IDS:
            raise ValueError(f"env_id must be one of {', '.join(_IDS)}, got {env_id!r}")
        env = gym_env(env_id, seed, render_mode)
        super().__init__(env, num_stack=4, lazy=False)
        self.max_episode_steps = env.max_episode_steps
        """Where the game's time limit cuts an episode."""
        self._saved_kwargs = {"env_id": env_id, "seed": seed, "render_mode": render_mode}

    @property
    def spec(self) -> EnvSpec:  # type: ignore[override]
        """What ``gymnasium.make`` builds this env from."""
        kwargs = self._saved_kwargs
        return EnvSpec(
            f"Stacked{kwargs['env_id']}", f"{__name__}:{type(self).__name__}", kwargs=dict(kwargs)
        )
