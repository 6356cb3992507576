"""Fleets and rollouts on Ray: beside one actor per env, beside this machine alone; what it costs.

python benchmarks/ray_fleets.py                   # needs the extras train, box2d, mujoco and ray
python benchmarks/ray_fleets.py --json docs/data/scaling.json   # what docs/scaling.md is made from

Medians of interleaved rounds, on a Ray of this machine with as many CPUs as it has cores. "One
actor per env" is the way of Tianshou's RayVectorEnv: an actor that asks for no CPU for each env,
all of them called in each step.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

import envfleet
from envfleet.engine.cores import usable_cores

STEPS = 128
"""Of a rollout."""


class Idle(gymnasium.Env[Any, Any]):
    """Does nothing: what is left is the message."""

    observation_space = spaces.Box(-1, 1, (8,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, size: int = 8) -> None:
        self.observation_space = spaces.Box(-1, 1, (size,), np.float32)
        self._zeros = np.zeros(size, dtype=np.float32)

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        """Begin."""
        return self._zeros, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        """Do nothing."""
        return self._zeros, 0.0, False, False, {}


class OneActorPerEnv:
    """As Tianshou does it."""

    def __init__(self, env_id: str, num_envs: int) -> None:
        import ray

        class Seat:
            def __init__(self, env_id: str) -> None:
                self._env = gymnasium.make(env_id)

            def reset(self, seed: int) -> Any:
                return self._env.reset(seed=seed)

            def step(self, action: Any) -> Any:
                answer = self._env.step(action)
                if answer[2] or answer[3]:
                    self._env.reset()
                return answer

        self._ray = ray
        self._actors = [
            ray.remote(Seat).options(num_cpus=0).remote(env_id) for _ in range(num_envs)
        ]
        ray.get([actor.reset.remote(i) for i, actor in enumerate(self._actors)])

    def step(self, actions: Any) -> Any:
        """Step all envs."""
        calls = [actor.step.remote(a) for actor, a in zip(self._actors, actions, strict=True)]
        answers = self._ray.get(calls)
        observations, rewards, terminated, truncated, infos = zip(*answers, strict=True)
        return np.stack(observations), np.array(rewards), terminated, truncated, infos

    def close(self) -> None:
        """End the actors."""
        for actor in self._actors:
            self._ray.kill(actor)


class Agent(nn.Module):
    """A policy over discrete actions: an actor and a critic with two layers of 64 each."""

    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        self.actor, self.critic = _layers(inputs, actions), _layers(inputs, 1)
        self.device = torch.device("cpu")

    def act(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Sampled actions, their log-probabilities, and values."""
        log_probs = torch.log_softmax(self.actor(observations), 1)
        actions = torch.multinomial(log_probs.exp(), 1)
        return actions[:, 0], log_probs.gather(1, actions)[:, 0], self.critic(observations)[:, 0]


def _layers(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
    )


def interleaved(contestants: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds that each took in each round; the first round does not count."""
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for r in range(rounds + 1):
        names = list(contestants)
        random.shuffle(names)
        for name in names:
            begun = time.perf_counter()
            contestants[name]()
            if r:
                taken[name].append(time.perf_counter() - begun)
    return taken


def spread(values: list[float]) -> tuple[float, float]:
    """The median, and its standard error from the quartiles."""
    low, middle, high = np.percentile(values, [25, 50, 75])
    return float(middle), float(1.25 * (high - low) / 1.35 / len(values) ** 0.5)


def stepping(num_envs: int, rounds: int) -> dict[str, float]:
    """Steps of one env per second, on Ant-v5."""
    cores = usable_cores()
    ours = envfleet.make("Ant-v5", num_envs, backend="ray", workers=cores, start_timeout=60)
    theirs = OneActorPerEnv("Ant-v5", num_envs)
    ours.reset(seed=1)
    actions = np.zeros((num_envs, 8), dtype=np.float32)

    def run(envs: Any) -> None:
        for _ in range(50):
            envs.step(actions)

    taken = interleaved({"ours": partial(run, ours), "theirs": partial(run, theirs)}, rounds)
    ours.close()
    theirs.close()
    rate = {name: 50 * num_envs / statistics.median(times) for name, times in taken.items()}
    print(
        f"Ant-v5, {num_envs} envs: RayVectorEnv with {cores} actors {rate['ours']:,.0f} steps/s, "
        f"one actor per env {rate['theirs']:,.0f}: {rate['ours'] / rate['theirs']:.2f} times"
    )
    return rate


def collecting(num_envs: int, rounds: int) -> dict[str, float]:
    """Transitions per second, on LunarLander-v3."""
    cores = usable_cores()
    agent = Agent(8, 4)
    remote = envfleet.RayCollector(
        "LunarLander-v3",
        agent,
        actors=cores,
        envs_per_actor=num_envs // cores,
        steps=STEPS,
        start_timeout=60,
    )
    engines: dict[str, dict[str, Any]] = {
        "serial": {"backend": "serial"},
        "process": {"backend": "process"},
        "process, caller steps": {"backend": "process", "caller_steps": True},
    }
    here = {
        name: envfleet.Collector(envfleet.make("LunarLander-v3", num_envs, **words), agent, STEPS)
        for name, words in engines.items()
    }
    overlapping = envfleet.make("LunarLander-v3", num_envs, backend="process")
    here["process, overlap"] = envfleet.Collector(overlapping, agent, STEPS, overlap=True)
    contestants: dict[str, Any] = {name: c.collect for name, c in here.items()}
    contestants["ray"] = remote.collect
    taken = interleaved(contestants, rounds)
    remote.close()
    for collector in here.values():
        collector.close()
    rate = {name: STEPS * num_envs / statistics.median(times) for name, times in taken.items()}
    best = max((name for name in rate if name != "ray"), key=lambda name: rate[name])
    print(
        f"LunarLander-v3, {num_envs} envs, rollouts of {STEPS}: RayCollector with {cores} actors "
        f"{rate['ray']:,.0f} steps/s, the best Collector ({best}) {rate[best]:,.0f}: "
        f"{rate['ray'] / rate[best]:.2f} times"
    )
    for name, value in rate.items():
        print(f"    {name}: {value:,.0f} steps/s")
    return rate


def messages(rounds: int) -> dict[str, Any]:
    """Seconds of a step that only sends messages: until the answer, and of this process's CPU time.

    Here actors share the cores with this process. On a cluster they do not, and what more actors
    cost is this process's own time for their messages.
    """
    words: dict[str, Any] = {"resources": {"CPU": 0.1}, "start_timeout": 60}
    latency: dict[int, tuple[float, float]] = {}
    cpu: dict[int, tuple[float, float]] = {}
    for actors in (1, 2, 4, 8):
        with envfleet.RayVectorEnv([Idle] * actors, workers=actors, **words) as fleet:
            latency[actors], cpu[actors] = _steps(fleet, rounds)
    by_bytes: dict[int, tuple[float, float]] = {}
    for size in (2_000, 100_000, 500_000, 2_000_000):
        with envfleet.RayVectorEnv([partial(Idle, size)], workers=1, **words) as fleet:
            by_bytes[4 * size], _ = _steps(fleet, rounds)
    per_actor, per_actor_error = _slope(cpu)
    per_byte, per_byte_error = _slope(by_bytes)
    first, first_error = latency[1][0] - per_actor, (latency[1][1] ** 2 + per_actor_error**2) ** 0.5
    print(
        f"a step's messages: {1e6 * first:.0f} us (+- {1e6 * first_error:.0f}) and "
        f"{1e6 * per_actor:.0f} us (+- {1e6 * per_actor_error:.0f}) of this process per actor; "
        f"{1e-9 / per_byte:.2f} GB/s of observations"
    )
    for actors, (middle, _) in latency.items():
        print(f"    {actors} actors on these cores: {1e6 * middle:.0f} us")
    return {
        "first": first,
        "first_error": first_error,
        "per_actor": per_actor,
        "per_actor_error": per_actor_error,
        "per_byte": per_byte,
        "per_byte_error": per_byte_error,
        "latency": {str(actors): middle for actors, (middle, _) in latency.items()},
        "bytes_per_env_step": _bytes_per_step(),
    }


def _steps(fleet: Any, rounds: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """Seconds of a step, and of CPU time of this process, with their errors."""
    fleet.reset()
    actions = np.zeros(fleet.num_envs, dtype=int)
    passed: list[float] = []
    used: list[float] = []
    for i in range(rounds + 1):
        times = []
        before = time.process_time()
        for _ in range(20):
            begun = time.perf_counter()
            fleet.step(actions)
            times.append(time.perf_counter() - begun)
        if i:
            passed += times
            used.append((time.process_time() - before) / 20)
    return spread(passed), spread(used)


def _slope(points: dict[int, tuple[float, float]]) -> tuple[float, float]:
    """Of a line through medians, with its standard error."""
    (slope, _), covariance = np.polyfit(
        list(points), [middle for middle, _ in points.values()], 1, cov=True
    )
    return float(slope), float(covariance[0, 0] ** 0.5)


def _bytes_per_step() -> dict[str, int]:
    """What a step of one env sends, either way, without the message around it."""
    found = {}
    for env_id in ("LunarLander-v3", "Ant-v5"):
        env = gymnasium.make(env_id)
        shapes = [env.observation_space, env.action_space]
        numbers = [int(np.prod(s.shape or ())) * s.dtype.itemsize for s in shapes if s.dtype]
        found[env_id] = sum(numbers) + 8 + 3
        env.close()
    return found


def round_costs(rounds: int) -> dict[str, float]:
    """Seconds of what a round of RayCollector takes beside the envs' steps."""
    agent, idle = Agent(8, 4), Agent(8, 2)
    taken: dict[str, list[float]] = {}
    with envfleet.RayCollector(
        Idle, idle, actors=1, envs_per_actor=16, steps=1, resources={"CPU": 0.1}, start_timeout=60
    ) as collector:
        taken |= interleaved({"round": lambda: void(collector.collect())}, 10 * rounds)
    with envfleet.Collector(envfleet.make(Idle, 16, backend="serial"), idle, 1) as local:
        taken |= interleaved({"local": lambda: void(local.collect())}, 10 * rounds)
    with envfleet.Collector(envfleet.make(Idle, 16, backend="serial"), idle, STEPS) as local:
        taken |= interleaved({"policy": lambda: void(local.collect())}, rounds)
    with envfleet.Collector(
        envfleet.make("LunarLander-v3", 16, backend="serial"), agent, STEPS
    ) as c:
        taken |= interleaved({"env": lambda: void(c.collect())}, rounds)
        rollout = c.collect()
    taken |= interleaved({"learn": lambda: _learn(agent, rollout)}, rounds)
    (whole, whole_error), (local_, local_error) = spread(taken["round"]), spread(taken["local"])
    (policy, policy_error), (env, env_error) = spread(taken["policy"]), spread(taken["env"])
    learn, learn_error = spread(taken["learn"])
    costs = {
        "round": whole - local_,
        "round_error": (whole_error**2 + local_error**2) ** 0.5,
        "policy_per_step": policy / STEPS,
        "policy_per_step_error": policy_error / STEPS,
        "env": (env - policy) / STEPS / 16,
        "env_error": (env_error**2 + policy_error**2) ** 0.5 / STEPS / 16,
        "learn_per_row": learn / STEPS / 16,
        "learn_per_row_error": learn_error / STEPS / 16,
        "bytes_per_row": 8 * 4 + 8 + 4 * 3 + 3,
    }
    for name, value in costs.items():
        if not name.endswith("_error"):
            print(f"    {name}: {value:.3g} (+- {costs.get(f'{name}_error', 0.0):.1g})")
    return costs


def void(_: object) -> None:
    """Let go of something."""


def _learn(agent: Agent, rollout: Any) -> None:
    """Four epochs of four minibatches: what PPO computes, without what it means."""
    optimiser = torch.optim.Adam(agent.parameters())
    batch = rollout.observations.flatten(0, 1)
    for _ in range(4):
        for rows in torch.randperm(len(batch)).chunk(4):
            logits, values = agent.actor(batch[rows]), agent.critic(batch[rows])
            loss = torch.log_softmax(logits, 1).mean() + values.square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()


def main() -> None:
    """Measure everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    import ray

    torch.set_num_threads(1)
    ray.init(
        address="local",
        num_cpus=usable_cores(),
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
    )
    measured = {
        "cores": usable_cores(),
        "ray": ray.__version__,
        "stepping": stepping(16, arguments.rounds),
        "collecting": collecting(32, arguments.rounds),
        "messages": messages(arguments.rounds),
        "costs": round_costs(arguments.rounds),
    }
    ray.shutdown()
    if arguments.json:
        arguments.json.write_text(json.dumps(measured, indent=2) + "\n")


if __name__ == "__main__":
    main()
