"""SubprocVecEnv_Gym of envfleet.adapters.xuance beside the same written with pickled pipes.

python benchmarks/xuance_engines.py

The plain way comes twice: its worker knows one reset, that of all its envs, so that the end of one
episode cuts those of the group; and as it should be, with a reset of one env, still a round trip
each. All run the same Gym_Env envs and take turns, in another order each round. Figures are medians
of the rounds. The last row is the ceiling of any engine that steps these groups in lock step:
groups that run by themselves, in a process each; a step takes as long as the slower of them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import numpy as np

from envfleet.adapters.xuance import Gym_Env, SubprocVecEnv_Gym


def worker(remote: Connection, factories: bytes) -> None:
    """Obey the caller with some envs, until it hangs up."""
    envs = [factory() for factory in cloudpickle.loads(factories)]
    while True:
        try:
            command, data = remote.recv()
        except EOFError:
            break
        if command == "step":
            remote.send([env.step(action) for env, action in zip(envs, data, strict=True)])
        elif command == "reset":
            remote.send([env.reset() for env in envs])
        elif command == "reset one":
            remote.send(envs[data].reset())
        else:
            remote.send((envs[0].observation_space, envs[0].action_space))
    for env in envs:
        env.close()


class PipedVecEnv:
    """The plain way: a process per group of envs, everything pickled, a round trip per reset.

    Args:
        env_fns: functions that build the envs.
        context: the start method.
        in_series: envs per process.
        whole_groups: whether the end of an episode resets all envs of its process.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        context: str = "spawn",
        in_series: int = 1,
        *,
        whole_groups: bool = False,
    ) -> None:
        self.num_envs, self.in_series, self.whole_groups = len(env_fns), in_series, whole_groups
        start: Any = multiprocessing.get_context(context)
        self.remotes = []
        for group in _groups(env_fns, in_series):
            ours, theirs = start.Pipe()
            start.Process(
                target=worker, args=(theirs, cloudpickle.dumps(group)), daemon=True
            ).start()
            theirs.close()
            self.remotes.append(ours)
        self.remotes[0].send(("spaces", None))
        self.observation_space, self.action_space = self.remotes[0].recv()

    def reset(self) -> tuple[Any, list[dict[str, Any]]]:
        """Reset all envs."""
        for remote in self.remotes:
            remote.send(("reset", None))
        results = [result for remote in self.remotes for result in remote.recv()]
        observations, infos = zip(*results, strict=True)
        self.buf_obs, self.buf_infos = np.array(observations), list(infos)
        return self.buf_obs.copy(), self.buf_infos.copy()

    def step(self, actions: Any) -> tuple[Any, ...]:
        """Step all envs, then reset those whose episodes have ended."""
        for remote, part in zip(self.remotes, _groups(actions, self.in_series), strict=True):
            remote.send(("step", part))
        results = [result for remote in self.remotes for result in remote.recv()]
        observations, rewards, dones, truncations, infos = zip(*results, strict=True)
        self.buf_obs, self.buf_rews = np.array(observations), np.array(rewards)
        self.buf_dones, self.buf_trunctions = np.array(dones), np.array(truncations)
        self.buf_infos = list(infos)
        for e in range(self.num_envs):
            if self.buf_dones[e] or self.buf_trunctions[e]:
                group, place = divmod(e, self.in_series)
                if self.whole_groups:
                    self.remotes[group].send(("reset", None))
                    fresh, _ = self.remotes[group].recv()[place]
                else:
                    self.remotes[group].send(("reset one", place))
                    fresh, _ = self.remotes[group].recv()
                self.buf_infos[e]["reset_obs"] = np.array(fresh)
        buffers = (self.buf_obs, self.buf_rews, self.buf_dones, self.buf_trunctions, self.buf_infos)
        return tuple(buffer.copy() for buffer in buffers)

    def close(self) -> None:
        """Hang up."""
        for remote in self.remotes:
            remote.close()


def _groups(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


class Ceiling:
    """Groups of envs that nobody asks: what lock step leaves if asking and telling cost nothing."""

    def __init__(self, env_fns: Sequence[Callable[[], Any]], in_series: int) -> None:
        self.num_envs = len(env_fns)
        start: Any = multiprocessing.get_context("spawn")
        self.remotes = []
        for group in _groups(env_fns, in_series):
            ours, theirs = start.Pipe()
            start.Process(target=loop, args=(theirs, cloudpickle.dumps(group)), daemon=True).start()
            theirs.close()
            self.remotes.append(ours)

    def run(self, seconds: float) -> float:
        """Env steps per second, if each step of all groups had begun together."""
        for remote in self.remotes:
            remote.send(seconds)
        times = [remote.recv() for remote in self.remotes]
        steps = min(map(len, times))
        slowest = np.max([each[:steps] for each in times], axis=0)
        return float(self.num_envs / slowest.mean())

    def close(self) -> None:
        """Hang up."""
        for remote in self.remotes:
            remote.close()


def loop(remote: Connection, factories: bytes) -> None:
    """Step some envs by themselves as long as the caller says, and send the time of each step."""
    envs = [factory() for factory in cloudpickle.loads(factories)]
    for env in envs:
        env.reset()
    actions = [[env.action_space.sample() for env in envs] for _ in range(500)]
    while True:
        try:
            seconds = remote.recv()
        except EOFError:
            return
        times: list[float] = []
        end = time.perf_counter() + seconds
        while (begin := time.perf_counter()) < end:
            for env, action in zip(envs, actions[len(times) % 500], strict=True):
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()
            times.append(time.perf_counter() - begin)
        remote.send(times)


def run(envs: Any, actions: Sequence[Any], seconds: float) -> float:
    """Env steps per second."""
    begin = now = time.perf_counter()
    steps = 0
    while now < begin + seconds:
        envs.step(actions[steps % len(actions)])
        steps += 1
        now = time.perf_counter()
    return steps * int(envs.num_envs) / (now - begin)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env-id", default="LunarLander-v3")
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--in-series", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0)
    asked = parser.parse_args()
    env_fns = [partial(Gym_Env, asked.env_id, seed) for seed in range(asked.num_envs)]
    engines: dict[str, Any] = {
        "pickled pipes": PipedVecEnv(env_fns, "spawn", asked.in_series),
        "pickled pipes, whole groups reset": PipedVecEnv(
            env_fns, "spawn", asked.in_series, whole_groups=True
        ),
        "SubprocVecEnv_Gym": SubprocVecEnv_Gym(env_fns, "spawn", asked.in_series),
    }
    space = engines["SubprocVecEnv_Gym"].action_space
    space.seed(0)
    actions = [np.array([space.sample() for _ in env_fns]) for _ in range(500)]
    ceiling, most = Ceiling(env_fns, asked.in_series), "the ceiling of lock step"
    ceiling.run(0.5)
    rates: dict[str, list[float]] = {name: [] for name in [*engines, most]}
    for envs in engines.values():
        envs.reset()
        run(envs, actions, 0.5)  # warms up
    for number in range(asked.rounds):
        for name in random.Random(number).sample(list(engines), len(engines)):
            rates[name].append(run(engines[name], actions, asked.seconds))
        rates[most].append(ceiling.run(asked.seconds))
    for envs in [*engines.values(), ceiling]:
        envs.close()
    print(
        f"| {asked.env_id}, {asked.num_envs} envs, {asked.in_series} in series | steps/s | times |"
    )
    print("|---|---:|---:|")
    base = statistics.median(rates["pickled pipes"])
    for name, measured in rates.items():
        rate = statistics.median(measured)
        print(f"| {name} | {rate:,.0f} | {rate / base:.2f} |")


if __name__ == "__main__":
    main()
