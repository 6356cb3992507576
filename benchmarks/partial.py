"""Partial batches beside ``step``: uneven envs, and what send and recv cost where envs are even.

python benchmarks/partial.py [--rounds 7] [--seconds 1] [--cells naps resets cartpole ...]

Every cell has its contestants take turns; a row is the median of its rates, and the median of the
rounds' ratios to the cell's first contestant. ``recv(k)`` receives at least k envs, which are then
sent on at once.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces

import envfleet
from envfleet.bench.limit import Limit
from envfleet.bench.works import factory


class Uneven(gymnasium.Env[Any, Any]):
    """Sleeps: in each step, longer in one step of ten, and in ``reset``."""

    observation_space = spaces.Box(-1, 1, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(
        self, nap: float, long_nap: float = 0.0, reset_nap: float = 0.0, lengths: Any = None
    ) -> None:
        self._nap, self._long_nap, self._reset_nap = nap, long_nap, reset_nap
        self._lengths = lengths
        self._left = -1
        self._observation = np.zeros(4, dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin, after a while; an episode's length is drawn."""
        super().reset(seed=seed, options=options)
        if self._left == 0:
            time.sleep(self._reset_nap)  # not at the start, which is not measured
        self._left = -1 if self._lengths is None else int(self.np_random.integers(*self._lengths))
        return self._observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        """Take a while."""
        is_long = self._long_nap and self.np_random.random() < 0.1
        time.sleep(self._long_nap if is_long else self._nap)
        self._left -= 1
        return self._observation, 0.0, self._left == 0, False, {}


class Contestant(Protocol):
    """What can be timed."""

    def run(self, seconds: float) -> float:
        """Go on for a while; env steps per second."""

    def close(self) -> None:
        """Let go of everything."""


class Lockstep:
    """A fleet that is stepped as a whole."""

    def __init__(self, envs: Any) -> None:
        self.envs = envs
        envs.action_space.seed(0)
        self.actions = [envs.action_space.sample() for _ in range(50)]
        envs.reset(seed=0)

    def run(self, seconds: float) -> float:
        """Step for a while; env steps per second."""
        steps, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            self.envs.step(self.actions[steps % 50])
            steps += 1
        return steps * int(self.envs.num_envs) / (time.perf_counter() - start)

    def close(self) -> None:
        """Close the fleet."""
        self.envs.close()


class Flowing(Lockstep):
    """The same, received as envs are ready, at least ``min_envs`` at a time."""

    def __init__(self, envs: Any, min_envs: int) -> None:
        super().__init__(envs)
        self._min_envs = min_envs
        envs.send(self.actions[0])

    def run(self, seconds: float) -> float:
        """Receive and send on for a while; env steps per second."""
        recv, send, actions = self.envs.recv, self.envs.send, self.actions
        steps = turns = 0
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            env_ids = recv(self._min_envs).env_ids
            send(actions[turns % 50][: len(env_ids)], env_ids)
            steps += len(env_ids)
            turns += 1
        return steps / (time.perf_counter() - start)


def process(make: Callable[[], Any], num_envs: int, **options: Any) -> Any:
    """A process fleet."""
    return envfleet.ProcessVectorEnv([make] * num_envs, **options)


def serial(make: Callable[[], Any], num_envs: int) -> Any:
    """A serial fleet."""
    return envfleet.SerialVectorEnv([make] * num_envs)


Builders = dict[str, Callable[[], Contestant]]


def side_by_side(fleet: Callable[[], Any], min_envs: int, name: str = "") -> Builders:
    """A fleet that is stepped, and one like it that flows."""
    return {
        f"{name}step()": lambda: Lockstep(fleet()),
        f"{name}recv({min_envs})": lambda: Flowing(fleet(), min_envs),
    }


def of_the_limit(work: str, num_envs: int, min_envs: int) -> Builders:
    """The limit, and both kinds of process fleets."""
    make = factory(work)
    return {
        "limit": lambda: Limit(make, num_envs),
        **side_by_side(partial(process, make, num_envs), min_envs, "process "),
        **side_by_side(partial(process, make, num_envs, caller_steps=True), min_envs, "caller "),
    }


CARTPOLE = factory("CartPole-v1")
NAPS = partial(Uneven, 0.001, 0.020)
RESETS = partial(Uneven, 0.001, reset_nap=0.2, lengths=(100, 301))
CELLS: dict[str, Builders] = {
    "naps": side_by_side(partial(process, NAPS, 16, workers=16), 8),
    "resets": side_by_side(partial(process, RESETS, 32, workers=32), 16),
    "cartpole-serial": side_by_side(partial(serial, CARTPOLE, 64), 32),
    "cartpole-process": side_by_side(partial(process, CARTPOLE, 64), 32),
    "cartpole-caller": side_by_side(partial(process, CARTPOLE, 64, caller_steps=True), 32),
    "lander": of_the_limit("LunarLander-v3", 64, 32),
    "breakout": of_the_limit("Breakout-84x84x4", 32, 16),
}


def measure(builders: Builders, rounds: int, seconds: float) -> dict[str, list[float]]:
    """The rates of each contestant, a round each time."""
    seats = {name: build() for name, build in builders.items()}
    rates: dict[str, list[float]] = {name: [] for name in seats}
    try:
        for seat in seats.values():
            seat.run(seconds / 2)  # not counted: adaptive engines learn, caches fill
        for done in range(rounds):
            for name in random.Random(done).sample(list(seats), len(seats)):
                rates[name].append(seats[name].run(seconds))
    finally:
        for seat in seats.values():
            seat.close()
    return rates


def main() -> None:
    """Print a row per contestant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--cells", nargs="*", default=list(CELLS), choices=list(CELLS))
    given = parser.parse_args()
    for cell in given.cells:
        rates = measure(CELLS[cell], given.rounds, given.seconds)
        first = next(iter(rates.values()))
        for name, own in rates.items():
            ratio = statistics.median(b / a for a, b in zip(first, own, strict=True))
            print(f"| {cell} | {name} | {statistics.median(own):,.0f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
