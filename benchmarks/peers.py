"""Other libraries' engines for ``envfleet bench --peers benchmarks/peers.py``.

Each is a class with ``run``, ``answers`` and ``close`` as envfleet.bench.contestants asks for. A
library that is not installed fails in its own row. Versions are the installed ones.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from gymnasium.vector.utils import batch_space, iterate


class Peer:
    """What the peers share: the same actions as the others get, and the loop that is timed."""

    plan = ""
    envs: Any
    """The library's engine."""
    fills_rows = False
    """Whether the row after an end only says that the env was reset: no step."""

    def __init__(self, make: Any, num_envs: int) -> None:
        env = make()
        space = batch_space(env.action_space, num_envs)
        env.close()
        space.seed(0)
        self.num_envs = num_envs
        self.batches = [self.pack(space, space.sample()) for _ in range(50)]
        self.build(make)
        self.reset()

    def pack(self, space: Any, actions: Any) -> Any:
        """Actions as the library takes them."""
        return np.array(list(iterate(space, actions)))

    def run(self, seconds: float) -> float:
        """Step for a while; env steps per second."""
        turns, fillers, start = 0, 0, time.perf_counter()
        while time.perf_counter() < start + seconds or turns == 0:
            _, ended = self.step(self.batches[turns % 50])
            fillers += int(np.count_nonzero(ended))
            turns += 1
        steps = turns * self.num_envs - (fillers if self.fills_rows else 0)
        return steps / (time.perf_counter() - start)

    def answers(self, steps: int) -> Any:
        """What the first steps after a reset with seed 0 return; infos are not compared."""
        self.reset()
        told = []
        for i in range(steps):
            rewards, ended = self.step(self.batches[i % 50])
            told.append((np.array(rewards, float), np.array(ended, bool), float("nan")))
        return told

    def build(self, make: Any) -> None:
        """Build the engine."""
        raise NotImplementedError

    def reset(self) -> None:
        """Reset with seed 0."""
        raise NotImplementedError

    def step(self, actions: Any) -> Any:
        """Rewards, and whether episodes ended."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the engine."""
        self.envs.close()


class StableBaselines3(Peer):
    """SubprocVecEnv, or DummyVecEnv."""

    serial = False

    def build(self, make: Any) -> None:
        """Build the engine."""
        from stable_baselines3.common import vec_env

        engine = vec_env.DummyVecEnv if self.serial else vec_env.SubprocVecEnv
        self.envs = engine([make] * self.num_envs)

    def reset(self) -> None:
        """Reset with seed 0."""
        self.envs.seed(0)
        self.envs.reset()

    def step(self, actions: Any) -> Any:
        """Rewards, and whether episodes ended."""
        _, rewards, ended, _ = self.envs.step(actions)
        return rewards, ended


class StableBaselines3Dummy(StableBaselines3):
    """DummyVecEnv."""

    serial = True


class Tianshou(Peer):
    """ShmemVectorEnv; resets, which the user of it does, are a part of the step."""

    def build(self, make: Any) -> None:
        """Build the engine."""
        try:
            from tianshou.env import ShmemVectorEnv
        except ImportError:
            from tianshou.env.venvs import ShmemVectorEnv
        self.envs = ShmemVectorEnv([make] * self.num_envs)

    def reset(self) -> None:
        """Reset with seed 0."""
        self.envs.reset()
        self.envs.seed(list(range(self.num_envs)))  # resets each env with its seed

    def step(self, actions: Any) -> Any:
        """Rewards, and whether episodes ended."""
        _, rewards, terminated, truncated, _ = self.envs.step(actions)
        ended = np.logical_or(terminated, truncated)
        if ended.any():
            self.envs.reset(np.flatnonzero(ended))
        return rewards, ended


class PufferLib(Peer):
    """pufferlib.vector with its multiprocessing backend, one worker per core."""

    fills_rows = True

    def build(self, make: Any) -> None:
        """Build the engine."""
        import os

        import pufferlib.emulation
        import pufferlib.vector

        workers = max(
            w for w in range(1, len(os.sched_getaffinity(0)) + 1) if self.num_envs % w == 0
        )
        self.envs = pufferlib.vector.make(
            lambda *_, **__: pufferlib.emulation.GymnasiumPufferEnv(env_creator=make),
            backend=pufferlib.vector.Multiprocessing,
            num_envs=self.num_envs,
            num_workers=workers,
        )

    def reset(self) -> None:
        """Reset with seed 0."""
        self.envs.reset(seed=0)

    def step(self, actions: Any) -> Any:
        """Rewards, and whether episodes ended."""
        _, rewards, terminated, truncated, _ = self.envs.step(actions)
        return rewards, np.logical_or(terminated, truncated)


class EnvPool(Peer):
    """EnvPool's own C++ implementation, where it has the id."""

    fills_rows = True

    def __init__(self, make: Any, num_envs: int) -> None:
        self.env_id = make().spec.id
        super().__init__(make, num_envs)

    def build(self, make: Any) -> None:  # noqa: ARG002
        """Build the engine."""
        import envpool

        self.envs = envpool.make_gymnasium(self.env_id, num_envs=self.num_envs, seed=0)

    def reset(self) -> None:
        """Reset."""
        self.envs.reset()

    def step(self, actions: Any) -> Any:
        """Rewards, and whether episodes ended."""
        _, rewards, terminated, truncated, _ = self.envs.step(actions)
        return rewards, np.logical_or(terminated, truncated)

    def answers(self, steps: int) -> None:
        """Not compared: it draws other random numbers."""


class GymnasiumNative(Peer):
    """The env's own batched implementation, where Gymnasium has one registered."""

    fills_rows = True

    def __init__(self, make: Any, num_envs: int) -> None:
        self.env_id = make().spec.id
        super().__init__(make, num_envs)

    def build(self, make: Any) -> None:  # noqa: ARG002
        """Build the engine."""
        import gymnasium

        self.envs = gymnasium.make_vec(
            self.env_id, self.num_envs, vectorization_mode="vector_entry_point"
        )

    def reset(self) -> None:
        """Reset."""
        self.envs.reset(seed=0)

    def step(self, actions: Any) -> Any:
        """Rewards, and whether episodes ended."""
        _, rewards, terminated, truncated, _ = self.envs.step(actions)
        return rewards, np.logical_or(terminated, truncated)

    def answers(self, steps: int) -> None:
        """Not compared: one generator for all envs gives other numbers."""


PEERS = {
    "SB3 Dummy": StableBaselines3Dummy,
    "SB3 Subproc": StableBaselines3,
    "Tianshou Shmem": Tianshou,
    "PufferLib": PufferLib,
    "EnvPool (C++)": EnvPool,
    "Gymnasium native": GymnasiumNative,
}
