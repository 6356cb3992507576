"""PPO against independent arithmetic, runs that resume exactly, and the command line."""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import distributions

import envfleet
from envfleet.cli.train import Eval, Record, Resume, Train
from envfleet.rollout.buffer import Batch
from envfleet.rollout.nested import tree_map
from envfleet.track.files import FileTracker
from envfleet.train import checkpoint as checkpoints
from envfleet.train.config import TrainConfig
from envfleet.train.envs import UnknownEnvError, build_fleet, find_env
from envfleet.train.policy import Normalizer, Policy, head_of
from envfleet.train.ppo import PPO, RewardScale, losses
from envfleet.train.presets import preset
from envfleet.train.run import Run, RunOptions, read_config

torch.set_num_threads(1)  # else every later fork is warned of

# Heads

ACTIONS = {
    "discrete": spaces.Discrete(4),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "multi-binary": spaces.MultiBinary(3),
    "box": spaces.Box(-1, 1, (2,), np.float32),
}


def reference_distribution(space, head, out):
    if isinstance(space, spaces.Discrete):
        return [distributions.Categorical(logits=out)], lambda a: [a]
    if isinstance(space, spaces.MultiDiscrete):
        parts = torch.split(out, space.nvec.tolist(), dim=1)
        return [distributions.Categorical(logits=p) for p in parts], lambda a: a.unbind(1)
    if isinstance(space, spaces.MultiBinary):
        made = distributions.Independent(distributions.Bernoulli(logits=out), 1)
        return [made], lambda a: [a.float()]
    normal = distributions.Normal(out, head.log_std.exp())
    return [distributions.Independent(normal, 1)], lambda a: [a]


@pytest.mark.parametrize("name", ACTIONS)
def test_heads_are_the_distributions_they_stand_for(name):
    space = ACTIONS[name]
    head = head_of(space, log_std=-0.5)
    torch.manual_seed(0)
    out = torch.randn(5, head.size)
    actions = head.sample(out)
    parts, split = reference_distribution(space, head, out)
    expected = sum(p.log_prob(a) for p, a in zip(parts, split(actions), strict=True))
    assert torch.allclose(head.log_prob(out, actions), expected, atol=1e-5)
    assert torch.allclose(head.entropy(out), sum(p.entropy() for p in parts), atol=1e-5)
    if name != "box":
        assert all(space.contains(a.numpy()) for a in head.best(out))
    assert head.best(out).shape == actions.shape
    assert actions.dtype == torch.from_numpy(np.zeros(0, space.dtype)).dtype


@pytest.mark.parametrize("name", ACTIONS)
def test_heads_sample_as_often_as_they_say(name):
    space = ACTIONS[name]
    head = head_of(space, log_std=0.0)
    torch.manual_seed(1)
    out = torch.randn(1, head.size).expand(20_000, -1)
    actions = head.sample(out)
    if name == "box":
        assert torch.allclose(actions.mean(0), out[0], atol=0.03)
        assert torch.allclose(actions.std(0), torch.ones(2), atol=0.03)
        return
    seen, counts = torch.unique(actions, dim=0, return_counts=True)
    chances = head.log_prob(out[: len(seen)], seen).exp()
    assert torch.allclose(counts / len(actions), chances, atol=0.015)


def test_action_spaces_without_a_policy_are_refused():
    with pytest.raises(TypeError, match="PPO knows no policy for"):
        head_of(spaces.Box(0, 255, (2,), np.uint8), 0.0)


# Normalisers


def test_a_normalizer_knows_mean_and_deviation_of_all_that_it_has_seen():
    torch.manual_seed(0)
    parts = [torch.randn(n, 3) * 5 + 2 for n in (1, 7, 200)]
    normalizer = Normalizer(3)
    for part in parts:
        normalizer.update(part)
    everything = torch.cat(parts).double()
    assert torch.allclose(normalizer.mean, everything.mean(0), atol=1e-3)
    assert torch.allclose(normalizer.variance, everything.var(0, unbiased=False), rtol=1e-3)
    scaled = normalizer(everything.float())
    assert torch.allclose(scaled.mean(0), torch.zeros(3), atol=1e-3)


def test_rewards_are_scaled_by_the_spread_of_discounted_returns():
    class Payer(gym.Env):
        observation_space, action_space = spaces.Box(0, 1, (1,)), spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.t = 0
            return np.zeros(1, dtype=np.float32), {}

        def step(self, action):
            self.t += 1
            return np.zeros(1, dtype=np.float32), 100.0, self.t == 5, False, {}

    config = TrainConfig(num_envs=2, steps=20, gamma=0.9)
    policy = Policy(Payer.observation_space, Payer.action_space)
    envs = envfleet.SerialVectorEnv([Payer] * 2, autoreset_mode="SameStep")
    with envfleet.Collector(envs, policy, 20) as collector:
        rollout = RewardScale(config)(collector.collect())
    returns, running = [], 0.0
    for t in range(20):
        running = running * 0.9 + 100.0
        returns += [running] * 2
        running = 0.0 if t % 5 == 4 else running
    assert float(rollout.rewards[0, 0]) == pytest.approx(100 / np.std(returns), rel=1e-3)


# The update


def batch_of(policy, count=12):
    torch.manual_seed(3)
    observations = torch.randn(count, 4)
    with torch.no_grad():
        actions, log_probs, values = policy.act(observations)
    flags = torch.zeros(count, dtype=torch.bool)
    return Batch(
        observations,
        actions,
        torch.zeros(count),
        flags,
        flags,
        values + 0.3 * torch.randn(count),
        log_probs + 0.3 * torch.randn(count),
        torch.randn(count),
        torch.randn(count),
    )


def small_policy(**options):
    torch.manual_seed(0)
    return Policy(spaces.Box(-1, 1, (4,)), spaces.Discrete(2), hidden=(8,), **options)


@pytest.mark.parametrize("clip_values", [False, True])
def test_the_losses_are_those_of_the_paper(clip_values):
    policy = small_policy()
    batch = batch_of(policy)
    found = losses(policy, batch, batch.observations, 0.2, clip_values=clip_values)
    found = [part.detach() for part in found]
    with torch.no_grad():
        chances = distributions.Categorical(logits=policy.actor(batch.observations))
        values = policy.critic(batch.observations)[:, 0]
    advantages = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
    policy_loss = value_loss = 0.0
    for i in range(len(batch)):
        ratio = math.exp(chances.log_prob(batch.actions)[i] - batch.log_probs[i])
        bounded = min(max(ratio, 0.8), 1.2)
        policy_loss -= min(float(advantages[i]) * ratio, float(advantages[i]) * bounded)
        error = float(values[i] - batch.returns[i]) ** 2
        if clip_values:
            moved = min(max(float(values[i] - batch.values[i]), -0.2), 0.2)
            error = max(error, float(batch.values[i] + moved - batch.returns[i]) ** 2)
        value_loss += error
    assert float(found[0]) == pytest.approx(policy_loss / len(batch), rel=1e-4)
    assert float(found[1]) == pytest.approx(value_loss / len(batch), rel=1e-4)
    assert float(found[2]) == pytest.approx(float(chances.entropy().mean()), rel=1e-4)


def plain_step(policy, batch, config):
    """One step of PPO with torch's own gradient, its clipping and its Adam."""
    optimizer = torch.optim.Adam(policy.parameters(), config.learning_rate, eps=1e-5)
    for _ in range(3):
        parts = losses(policy, batch, batch.observations, 0.2, clip_values=config.clip_values)
        optimizer.zero_grad()
        (parts[0] + config.value * parts[1] - config.entropy * parts[2]).backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), config.max_grad_norm)
        optimizer.step()
    return [float(part.detach()) for part in parts[:3]]


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("clip_values", [False, True])
@pytest.mark.parametrize("action", ["discrete", "box"])
@pytest.mark.parametrize("longest", [0.05, 100.0])
def test_gradients_by_hand_are_those_of_torch(action, clip_values, activation, longest):
    space = {"discrete": spaces.Discrete(3), "box": spaces.Box(-1, 1, (2,))}[action]
    config = TrainConfig(
        learning_rate=1e-2, entropy=0.01, max_grad_norm=longest, clip_values=clip_values
    )

    def make():
        torch.manual_seed(0)
        box = spaces.Box(-1, 1, (4,))
        return Policy(box, space, hidden=(8, 6), activation=activation, log_std=-0.3)

    quick, plain = make(), make()
    batch = batch_of(plain)
    ppo = PPO(quick, config)
    assert ppo.agent is not quick
    everything = np.arange(len(batch))
    told = [ppo.stepper(batch)(everything, 0.2, True) for _ in range(3)][-1]
    expected = plain_step(plain, batch, config)
    assert told[:3] == pytest.approx(expected, rel=1e-3, abs=1e-5)
    for one, other in zip(quick.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(one, other, atol=2e-5)


def test_the_general_step_is_the_same_as_well():
    config = TrainConfig(learning_rate=1e-2, entropy=0.01)
    policy, plain = small_policy(), small_policy()
    ppo = PPO(policy, config)
    ppo.agent = policy
    ppo.optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2, eps=1e-5)
    batch = batch_of(plain)
    for _ in range(3):
        ppo.stepper(batch)(np.arange(len(batch)), 0.2, True)
    plain_step(plain, batch, config)
    for one, other in zip(policy.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("action", ["discrete", "box"])
@pytest.mark.parametrize("seen", ["vector", "nested"])
def test_an_agent_in_numpy_is_the_policy(action, normalize, seen):
    space = {"discrete": spaces.Discrete(3), "box": spaces.Box(-1, 1, (1, 2))}[action]
    box = spaces.Box(-1, 1, (4,))
    nested = spaces.Dict(a=box, b=spaces.Discrete(3))
    observed = {"vector": box, "nested": nested}[seen]
    policy = Policy(observed, space, orthogonal=False, normalize=normalize)
    agent = PPO(policy, TrainConfig()).agent
    observations = {"a": torch.randn(4000, 4), "b": torch.randint(0, 3, (4000,))}
    rows = observations["a"] if seen == "vector" else observations
    if normalize:
        policy.learn_scale(tree_map(lambda leaf: leaf + 1, rows))
    actions = torch.from_numpy(agent.choose(tree_map(torch.Tensor.numpy, rows)))
    with torch.no_grad():
        found = agent.get_actions_and_values(rows, actions=actions)
        expected = policy.get_actions_and_values(rows, actions=actions)
        for one, other in zip(found, expected, strict=True):
            assert one.shape == other.shape
            assert torch.allclose(one, other, atol=1e-4)
        assert torch.allclose(agent.get_values(rows), policy.get_values(rows), atol=1e-5)
    # chosen as often as they should be
    assert float(-found[1].mean()) == pytest.approx(float(found[3].mean()), abs=0.05)


def test_an_update_stops_where_the_policy_has_moved_too_far():
    class Still(gym.Env):
        observation_space, action_space = spaces.Box(-1, 1, (4,)), spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.observation_space.sample(), {}

        def step(self, action):
            return self.observation_space.sample(), float(action), True, False, {}

    envs = envfleet.SerialVectorEnv([Still] * 4, autoreset_mode="SameStep")
    policy = small_policy()
    config = TrainConfig(num_envs=4, steps=16, batch_size=16, epochs=50, learning_rate=0.05)
    with envfleet.Collector(envs, policy, 16) as collector:
        rollout = collector.collect()
        told = PPO(policy, replace(config, target_kl=0.01)).update(rollout, 0.0)
    assert told["steps"] < 50 * 4
    assert set(told) > {"policy_loss", "value_loss", "entropy", "kl", "clipped", "grad_norm"}


class Guess(gym.Env):
    """Pays for an action near the one that the observation names."""

    def __init__(self, space):
        self.action_space = space
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.sign = self.np_random.choice([-1.0, 1.0])
        return np.array([self.sign, 1.0], dtype=np.float32), {}

    def step(self, action):
        space = self.action_space
        if isinstance(space, spaces.Box):
            reward = -float(np.square(action - 0.5 * self.sign).mean())
        else:
            high = (
                space.n - 1
                if isinstance(space, spaces.Discrete)
                else np.asarray(space.nvec - 1 if isinstance(space, spaces.MultiDiscrete) else 1)
            )
            wanted = high if self.sign > 0 else 0 * high
            reward = float(np.mean(np.asarray(action) == wanted))
        return np.array([self.sign, 1.0], dtype=np.float32), reward, True, False, {}


@pytest.mark.parametrize("name", ACTIONS)
def test_a_short_run_improves_with_every_kind_of_action(name):
    space = ACTIONS[name]
    torch.manual_seed(0)
    config = TrainConfig(num_envs=8, steps=32, batch_size=64, epochs=5, learning_rate=5e-3)
    envs = envfleet.SerialVectorEnv([lambda: Guess(space)] * 8, autoreset_mode="SameStep")
    policy = Policy(envs.single_observation_space, space, hidden=(32,), log_std=-0.5)
    ppo = PPO(policy, config)
    with envfleet.Collector(envs, ppo.agent, 32, seed=1) as collector:
        before = envfleet.evaluate(policy, envs, 40, seed=2).mean
        collector.reset()
        for _ in range(25):
            ppo.update(collector.collect(), 0.0)
        after = envfleet.evaluate(policy, envs, 40, seed=2).mean
    assert after > (-0.05 if name == "box" else 0.95)
    assert after > before


def test_images_and_nested_observations_have_networks():
    image = spaces.Box(0, 255, (84, 84, 4), np.uint8)
    policy = Policy(image, spaces.Discrete(3))
    actions, log_probs, values = policy.act(torch.zeros(2, 4, 84, 84, dtype=torch.uint8))
    assert actions.shape == log_probs.shape == values.shape == (2,)
    nested = spaces.Dict(a=spaces.Box(-1, 1, (3,)), b=spaces.Tuple([spaces.Box(0, 1, (2, 2))]))
    policy = Policy(nested, spaces.Discrete(3), normalize=True)
    seen = {"a": torch.zeros(5, 3), "b": (torch.zeros(5, 2, 2),)}
    assert policy.get_values(seen).shape == (5,)
    policy.learn_scale({"a": torch.ones(30, 3), "b": (torch.ones(30, 2, 2),)})
    assert torch.allclose(policy.normalizer.mean, torch.ones(7, dtype=torch.float64), atol=1e-3)
    counts = Policy(spaces.Discrete(4, start=3), spaces.Discrete(3))
    assert counts.get_values(torch.tensor([3, 6])).shape == (2,)


class Sampler(gym.Env):
    """Shows samples of a space."""

    def __init__(self, space):
        self.observation_space, self.action_space = space, spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, self.np_random.random() < 0.1, False, {}


PICTURE = spaces.Box(0, 255, (40, 40, 3), np.uint8)
OBSERVATIONS = {
    "one-leaf": spaces.Dict(o=spaces.Box(-1, 1, (3,))),
    "one-picture": spaces.Tuple([PICTURE]),
    "small-picture": spaces.Box(0, 255, (7, 7, 3), np.uint8),
    "floats-picture": spaces.Box(0, 1, (3, 40, 40), np.float32),
    "picture-and-vector": spaces.Dict(p=PICTURE, v=spaces.Box(-1, 1, (3,), np.float64)),
    "matrix": spaces.Box(-1, 1, (4, 4)),
    "offset": spaces.Discrete(5, start=3),
    "several": spaces.MultiDiscrete([3, 4]),
    "bits": spaces.MultiBinary(4),
}


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("name", OBSERVATIONS)
def test_an_update_works_with_every_kind_of_observation(name, normalize):
    space = OBSERVATIONS[name]
    convolved = name in ("one-picture", "floats-picture")
    if convolved and normalize:
        with pytest.raises(ValueError, match="leave normalize_observations off"):
            Policy(space, spaces.Discrete(2), normalize=True)
        return
    policy = Policy(space, spaces.Discrete(2), hidden=(8,), normalize=normalize)
    assert policy.is_image == convolved
    ppo = PPO(policy, TrainConfig(num_envs=2, steps=8, batch_size=8, epochs=1))
    envs = envfleet.SerialVectorEnv([lambda: Sampler(space)] * 2, autoreset_mode="SameStep")
    before = [p.detach().clone() for p in policy.parameters()]
    with envfleet.Collector(envs, ppo.agent, 8) as collector:
        ppo.update(collector.collect(), 0.0)
        assert ppo.update(collector.collect(), 0.0)["steps"] == 2
    for one, other in zip(before, policy.parameters(), strict=True):
        assert not torch.equal(one, other)


def test_pictures_of_bytes_are_scaled_and_those_of_floats_are_not():
    bytes_, floats = (
        Policy(spaces.Box(0, high, (3, 40, 40), dtype), spaces.Discrete(2))
        for high, dtype in ((255, np.uint8), (1, np.float32))
    )
    floats.load_state_dict(bytes_.state_dict())
    picture = torch.randint(0, 256, (2, 3, 40, 40), dtype=torch.uint8)
    assert torch.allclose(bytes_.get_values(picture), floats.get_values(picture / 255.0))


def test_a_rollout_without_a_valid_row_teaches_nothing():
    space = spaces.Box(-1, 1, (4,))
    config = TrainConfig(num_envs=2, steps=4, normalize_rewards=True)
    policy = Policy(space, spaces.Discrete(2), normalize=True)
    ppo = PPO(policy, config)
    envs = envfleet.SerialVectorEnv([lambda: Sampler(space)] * 2, autoreset_mode="SameStep")
    with envfleet.Collector(envs, ppo.agent, 4) as collector:
        rollout = collector.collect()
    before = {k: v.clone() for k, v in policy.state_dict().items()}
    told = ppo.update(replace(rollout, valid=torch.zeros_like(rollout.valid)), 0.0)
    assert told["steps"] == 0
    assert math.isnan(told["policy_loss"])
    assert all(torch.equal(before[k], v) for k, v in policy.state_dict().items())
    assert not ppo.rewards.scale.variance.isnan().any()


# Configurations


def test_presets_are_known_for_some_envs_only():
    assert preset("CartPole-v1", "zoo", continuous=False, image=False).batch_size == 256
    assert preset("HalfCheetah-v5", "zoo", continuous=True, image=False).hidden == (256, 256)
    assert preset("ALE/Pong-v5", "zoo", continuous=False, image=True).clip == 0.1
    assert preset("Any-v0", "cleanrl", continuous=True, image=False).normalize_rewards
    for name in ("zoo", "fast"):
        with pytest.raises(ValueError, match=f"no preset '{name}' for Any-v0"):
            preset("Any-v0", name, continuous=False, image=False)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"gamma": 1.5}, "gamma must be between 0 and 1, got 1.5"),
        ({"num_envs": 0}, "num_envs must be at least 1"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"clip_schedule": "square"}, "clip_schedule must be constant or linear"),
    ],
)
def test_values_that_mean_nothing_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        TrainConfig(**options)


# Envs


@pytest.mark.parametrize("env_id", ["ALE/Pong-v5", "PongNoFrameskip-v4", "ale_py:ALE/Pong-v5"])
def test_atari_has_gymnasiums_own_wrappers(env_id):
    config = preset(env_id, "zoo", continuous=False, image=True)
    assert config.clip == 0.1
    with build_fleet(env_id, 2, backend="serial", on_failure="raise") as envs:
        assert envs.single_observation_space == spaces.Box(0, 255, (4, 84, 84), np.uint8)
        sticky = [env.unwrapped.ale.getFloat("repeat_action_probability") for env in envs.envs]
        assert sticky == [0.0 if "NoFrameskip" in env_id else 0.25] * 2


def test_returns_of_atari_are_the_games_although_rewards_are_signs():
    # It pays 50 for each thing that is caught.
    with build_fleet("ALE/Asterix-v5", 1, backend="serial", on_failure="raise") as envs:
        envs.reset(seed=0)
        envs.action_space.seed(0)
        rewards, ended = [], False
        while not ended:
            _, reward, terminated, truncated, infos = envs.step(envs.action_space.sample())
            rewards += reward.tolist()
            ended = bool(terminated[0] or truncated[0])
    assert set(rewards) == {0.0, 1.0}
    episode = infos["final_info"]["episode"]
    assert episode["r"][0] == 50 * sum(rewards)
    assert episode["l"][0] == len(rewards)


def test_a_game_is_trained_from_its_screen(tmp_path):
    config = preset("ALE/Pong-v5", "zoo", continuous=False, image=True)
    config = replace(config, num_envs=2, steps=8, batch_size=8, epochs=1, total_steps=16)
    with Run.start(tmp_path, config, RunOptions(backend="serial")) as run:
        before = [p.detach().clone() for p in run.policy.parameters()]
        assert run.train()
        assert run.policy.is_image
        after = list(run.policy.parameters())
    assert not any(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_envs_that_cannot_be_found_are_named_with_what_is_like_them(tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    for env_id, text in {
        "CartPol-v1": "Did you mean CartPole-v1",
        "ALE/Pongg-v5": "Did you mean ALE/Pong-v5",
        "no_module:thing": "importing no_module failed with ModuleNotFoundError",
        "broken_module:thing": "importing broken_module failed with ZeroDivisionError",
        "math:nothing": "nothing",
    }.items():
        with pytest.raises(UnknownEnvError, match=text):
            find_env(env_id)


# Runs

QUICK = {
    "cartpole": TrainConfig(
        env_id="CartPole-v1", num_envs=4, steps=32, batch_size=64, epochs=2, total_steps=6000
    ),
    "pendulum": TrainConfig(
        env_id="Pendulum-v1",
        num_envs=4,
        steps=32,
        batch_size=64,
        epochs=2,
        total_steps=6000,
        normalize_observations=True,
        normalize_rewards=True,
    ),
}

PROGRAM = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_train import QUICK
from envfleet.train.run import Run, RunOptions
folder = Path({folder!r})
options = RunOptions(backend="process", checkpoint_every=7)
run = Run.resume(folder) if {resume} else Run.start(folder, QUICK[{name!r}], options)
with run:
    run.train(lambda metrics, step: print(step, flush=True))
"""


def program(folder, name, *, resume):
    text = PROGRAM.format(
        tests=str(Path(__file__).parent), folder=str(folder), name=name, resume=resume
    )
    return subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)


def told(folder):
    """The metrics of a run as they were written, without what depends on the clock."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    rows = [{k: v for k, v in json.loads(line).items() if "time" not in k} for line in lines]
    return [json.dumps(row) for row in rows]


@pytest.mark.parametrize("name", QUICK)
def test_a_run_that_was_killed_goes_on_as_if_it_had_not_been(tmp_path, name):
    whole = program(tmp_path / "whole", name, resume=False)
    killed = program(tmp_path / "killed", name, resume=False)
    for line in killed.stdout:
        if int(line) > 2200:  # checkpoints are at 1792 and 2688
            break
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    killed.stdout.close()
    assert whole.communicate()[0]
    assert whole.returncode == 0
    assert len(told(tmp_path / "killed")) < len(told(tmp_path / "whole"))
    resumed = program(tmp_path / "killed", name, resume=True)
    steps = [int(line) for line in resumed.communicate()[0].split()]
    assert steps[0] in (1792 + 128, 2688 + 128)  # from the last checkpoint on
    assert told(tmp_path / "killed") == told(tmp_path / "whole")
    assert table(tmp_path / "killed") == table(tmp_path / "whole")


def table(folder):
    """The same from the CSV file."""
    with (folder / "metrics.csv").open(newline="") as file:
        return [{k: v for k, v in r.items() if "time" not in k} for r in csv.DictReader(file)]


class StopError(Exception):
    """Ends a run like a crash would, but sooner."""


def stop_after(steps):
    def listener(metrics, step):
        if step > steps:
            raise StopError

    return listener


def test_films_of_a_resumed_run_are_those_of_a_whole_one(tmp_path):
    options = RunOptions(backend="serial", checkpoint_every=7, record_every=1000)
    config = replace(QUICK["cartpole"], total_steps=4000)
    with Run.start(tmp_path / "whole", config, options) as run:
        assert run.train()
    with Run.start(tmp_path / "cut", config, options) as run, pytest.raises(StopError):
        run.train(stop_after(2500))
    with Run.resume(tmp_path / "cut") as run:
        assert run.train()

    def films(name):
        lines = (tmp_path / name / "films.jsonl").read_text().splitlines()
        return sorted(json.loads(line)["step"] for line in lines)

    assert films("cut") == films("whole")
    assert len(films("whole")) == 5


def test_every_backend_learns_the_same(tmp_path):
    config = replace(QUICK["pendulum"], total_steps=1500)
    for backend in ("serial", "process"):
        with Run.start(tmp_path / backend, config, RunOptions(backend=backend)) as run:
            assert run.train()
    assert told(tmp_path / "serial") == told(tmp_path / "process")


class Failing(gym.Env):
    """Raises in its 300th step."""

    observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, dtype=np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 300:
            raise ArithmeticError("too many steps")
        return np.zeros(2, dtype=np.float32), 1.0, self.steps % 10 == 0, False, {}


def test_an_error_of_an_env_loses_nothing_that_was_learnt(tmp_path):
    config = TrainConfig(env_id="test_train:Failing", num_envs=1, steps=64, total_steps=1000)
    with Run.start(tmp_path, config, RunOptions(backend="serial")) as run:
        with pytest.raises(ArithmeticError, match="too many steps"):
            run.train()
        learnt = run.policy.state_dict()
    with Run.resume(tmp_path) as run:
        assert run.collector.total_steps == 256
        assert all(torch.equal(learnt[k], v) for k, v in run.policy.state_dict().items())
    assert len(told(tmp_path)) == 4


def test_episodes_that_never_end_between_checkpoints_are_warned_of(tmp_path):
    config = replace(QUICK["pendulum"], total_steps=1000)
    options = RunOptions(backend="serial", checkpoint_every=3)
    with (
        Run.start(tmp_path, config, options) as run,
        pytest.warns(UserWarning, match="no episode has ended between two checkpoints, 3 updates"),
    ):
        run.train()


def test_a_solved_run_is_over_when_it_is_resumed(tmp_path):
    options = RunOptions(backend="serial", stop_at=5.0)
    with Run.start(tmp_path, QUICK["cartpole"], options) as run:
        assert run.train()
        steps = run.collector.total_steps
    assert steps < 6000
    with Run.resume(tmp_path) as run:
        assert run.train()
        assert run.collector.total_steps == steps
    assert len(told(tmp_path)) == steps // 128


@pytest.mark.parametrize(
    ("config", "updates"),
    [
        (TrainConfig(num_envs=8, steps=32, total_steps=100_000), 313),  # 10,000 steps of each env
        (TrainConfig(num_envs=8, steps=128, total_steps=10_000_000), 196),  # 50 in all
    ],
)
def test_checkpoints_are_far_enough_apart_for_episodes_to_end(tmp_path, config, updates):
    with Run.start(tmp_path, config, RunOptions(backend="serial")) as run:
        assert run._interval == updates


def test_training_goes_on_while_workers_are_killed(tmp_path):
    config = preset("CartPole-v1", "fast", continuous=False, image=False)
    config = replace(config, total_steps=250_000)  # to be on the safe side
    options = RunOptions(on_failure="restart", stop_at=475.0)
    kills, over = [], threading.Event()

    def kill(envs):
        """Each worker every two seconds, and none twice."""
        while not over.wait(2.0):
            for process in envs.processes:
                if process.pid not in kills:
                    os.kill(process.pid, signal.SIGKILL)
                    kills.append(process.pid)

    with Run.start(tmp_path, config, options) as run:
        killer = threading.Thread(target=kill, args=(run.collector.envs,))
        killer.start()
        try:
            assert run.train()
        finally:
            over.set()
            killer.join()
        steps = run.collector.total_steps
        run.collector.collect()  # what was killed at last is noticed by the next step
        restarts = run.collector.envs.restart_count
        assert run.collector.statistics.window.returns.mean >= 475
    assert restarts == len(kills) >= 4
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == steps
    assert rows[-1]["restarts"] > 0


def test_a_checkpoint_that_was_cut_short_is_named_and_the_one_before_can_be_used(tmp_path):
    options = RunOptions(backend="serial", checkpoint_every=10, keep=2)
    with Run.start(tmp_path, QUICK["cartpole"], options) as run:
        assert run.train()
    found = checkpoints.everyone(tmp_path / "checkpoints")
    assert 2 <= len(found) <= 3  # the last two, and the best
    broken = found[-1] / "policy.safetensors"
    broken.write_bytes(broken.read_bytes()[:100])
    with pytest.raises(checkpoints.CheckpointError, match=f"take {found[-2].name} instead"):
        checkpoints.load(found[-1])
    assert checkpoints.load(found[-2]).step > 0
    with pytest.raises(checkpoints.CheckpointError, match="cannot be read"):
        Run.resume(tmp_path)
    with Run.resume(tmp_path, checkpoint=found[-2].name) as run:
        assert run.train()
    assert checkpoints.load(found[-1]).step == 6016  # whole again
    (found[-1] / "state.json").write_text("{}")
    with pytest.raises(checkpoints.CheckpointError, match="cannot be read"):
        checkpoints.load(found[-1])
    with pytest.raises(checkpoints.CheckpointError, match="has no checkpoint 'step_1'; there are"):
        Run.resume(tmp_path, checkpoint="step_1")
    with pytest.raises(FileExistsError, match="has a run already"):
        Run.start(tmp_path, QUICK["cartpole"], options)
    assert read_config(tmp_path) == (QUICK["cartpole"], options)


# The command line


def envfleet_command(*words, cwd):
    command = [sys.executable, "-m", "envfleet", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    done = envfleet_command(
        *("train", "CartPole-v1", "--total-steps", 3000, "--name", "a", "--backend", "serial"),
        *("--record-every", 2000, "--checkpoint-every", 4),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    assert "finished, 3," in done.stdout
    assert re.search(r"s of training: env \d+%, policy .*, collector .*, update .*", done.stdout)
    return folder / "runs/CartPole-v1/a"


def test_training_leaves_a_folder_to_look_at(trained):
    names = {path.name for path in trained.iterdir()}
    wanted = {"config.json", "metrics.csv", "metrics.jsonl", "checkpoints", "renders", "curve.png"}
    assert names >= wanted
    assert list((trained / "renders").glob("render_*.gif"))


def test_a_run_is_evaluated_and_filmed(trained):
    done = envfleet_command("eval", trained, "--episodes", 5, "--json", cwd=trained)
    result = json.loads(done.stdout)
    assert len(result["returns"]) == 5
    assert result["mean"] == pytest.approx(np.mean(result["returns"]))
    done = envfleet_command("record", trained, "--path", "film.mp4", cwd=trained)
    assert done.stdout == "film.mp4\n"
    assert (trained / "film.mp4").stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["train", "CartPol-v1"], "Did you mean CartPole-v1"),
        (["train", "CartPole-v1", "--gamma", 3], "gamma must be between 0 and 1"),
        (["train", "Acrobot-v1", "--preset", "fast"], "no preset 'fast' for Acrobot-v1"),
        (["train", "no_module:thing"], "No module named 'no_module'"),
        (["resume", "nowhere"], "nowhere is no run"),
        (["eval", "nowhere"], "nowhere is no run"),
        (["eval", "nowhere", "--episodes", 0], "must be 1 or more"),
    ],
)
def test_what_cannot_be_done_is_said_with_exit_code_2(tmp_path, words, text):
    done = envfleet_command(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def refused(command, capsys):
    assert command.run() == 2
    return capsys.readouterr().err


def test_what_cannot_be_done_leaves_nothing_behind(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    assert "without slashes" in refused(Train("CartPole-v1", name="../x"), capsys)
    assert "Not a directory" in refused(Train("CartPole-v1", run_dir=Path("file")), capsys)
    assert "seed must be below" in refused(Train("CartPole-v1", seed=2**64), capsys)
    assert "a finite number" in refused(Train("CartPole-v1", learning_rate=math.inf), capsys)
    assert "no reward threshold" in refused(Train("Pendulum-v1", until_solved=True), capsys)
    assert "takes Discrete" in refused(Train("test_train:integers"), capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def integers():
    env = Sampler(spaces.Box(0, 1, (2,)))
    env.action_space = spaces.Box(0, 9, (2,), np.int64)
    return env


def test_what_cannot_be_read_is_refused(trained, tmp_path, capsys):
    shutil.copytree(trained, tmp_path / "run")
    assert "no checkpoint 'x'" in refused(Eval(tmp_path / "run", checkpoint="x"), capsys)
    assert "seed must be 0 or more" in refused(Eval(tmp_path / "run", seed=-1), capsys)
    assert "scale must be above 0" in refused(Record(tmp_path / "run", scale=0.0), capsys)
    with FileTracker(tmp_path / "run"):
        assert "another tracker is writing" in refused(Resume(tmp_path / "run"), capsys)
    (tmp_path / "run/config.json").write_text('{"config": ')
    assert "config.json says nothing that can be used" in refused(Eval(tmp_path / "run"), capsys)


def test_a_run_with_restarts_is_evaluated_too(tmp_path, capsys):
    config = replace(QUICK["cartpole"], total_steps=500)
    with Run.start(tmp_path, config, RunOptions(on_failure="restart")) as run:
        assert run.train()
    assert Eval(tmp_path, episodes=3, checkpoint="best").run() == 0
    assert "over 3 episodes" in capsys.readouterr().out


def test_envs_of_the_current_folder_are_trained_and_tracked(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import gymnasium\n\ndef cart(**kwargs): return gymnasium.make('CartPole-v1', **kwargs)\n"
    )
    done = envfleet_command(
        *("train", "mine:cart", "--total-steps", 64, "--steps", 16, "--num-envs", 2),
        *("--track", "tensorboard", "--name", "a"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "runs/mine_cart/a/tensorboard").iterdir())


def test_training_goes_on_when_nobody_listens(tmp_path):
    command = [sys.executable, "-m", "envfleet", "train", "CartPole-v1", "--name", "a"]
    command += ["--total-steps", "2000", "--backend", "serial"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 0
    assert checkpoints.everyone(tmp_path / "runs/CartPole-v1/a/checkpoints")


def test_a_terminal_has_a_bar(tmp_path):
    command = [sys.executable, "-m", "envfleet", "train", "CartPole-v1", "--name", "a"]
    command += ["--total-steps", "2000", "--backend", "serial"]
    inside, outside = pty.openpty()
    termios.tcsetwinsize(outside, (24, 120))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=outside, cwd=tmp_path)
    os.close(outside)
    seen = b""
    with contextlib.suppress(OSError):  # how the end of a terminal is told
        while part := os.read(inside, 4096):
            seen += part
    os.close(inside)
    assert process.wait() == 0
    assert re.search(rb"Training: 100%.* 2000/2000 .*step/s, return \d+/\d+/\d+", seen)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_the_run_can_be_resumed(tmp_path, number, code):
    process, folder = started(tmp_path)
    process.send_signal(number)
    assert "stopped; go on with: envfleet resume" in process.communicate(timeout=30)[0]
    assert process.returncode == code
    (saved,) = checkpoints.everyone(folder / "checkpoints")
    assert checkpoints.load(saved).step < 20_000
    with Run.resume(folder) as run:
        assert run.train()
    assert checkpoints.everyone(folder / "checkpoints")[-1].name == "step_000000020224"


def started(tmp_path, name="metrics.jsonl", *words):
    """A run that has written something to this file."""
    command = [sys.executable, "-m", "envfleet", "train", "CartPole-v1", "--name", "a"]
    command += ["--total-steps", "20000", "--backend", "serial", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, **pipes, text=True, cwd=tmp_path)
    folder = tmp_path / "runs/CartPole-v1/a"
    end = time.monotonic() + 30
    while not (folder / name).exists() or not (folder / name).stat().st_size:
        assert time.monotonic() < end
        time.sleep(0.01)
    return process, folder


def test_the_second_ctrl_c_ends_at_once(tmp_path):
    process, folder = started(tmp_path, "config.json", "--epochs", "1000000")
    end = time.monotonic() + 30
    while process.poll() is None:  # the first one waits for the end of an update
        assert time.monotonic() < end
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    assert process.returncode == 130
    assert process.communicate()[1] == "interrupted\n"
    assert not (folder / "checkpoints").exists()
