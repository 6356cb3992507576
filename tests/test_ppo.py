"""PPO against independent arithmetic: heads, normalisers, the update, every kind of space."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import distributions

import envfleet
from envfleet.rollout.buffer import Batch
from envfleet.rollout.nested import ObservationFormat, tree_map
from envfleet.training.config import RunOptions, TrainConfig
from envfleet.training.fast.learner import FastLearner
from envfleet.training.heads import head_of
from envfleet.training.policy import Normalizer, Policy
from envfleet.training.ppo import PPO, RewardScale, TorchLearner
from envfleet.training.trainer import Run
from train_envs import Sampler

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

    config = TrainConfig(num_envs=2, rollout_steps=20, gamma=0.9)
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


def test_rewards_are_scaled_where_columns_are_missing():
    """Rollouts from a cluster may lack envs; these begin anew when they are back."""
    envs = envfleet.make("CartPole-v1", 3, backend="serial")
    policy = Policy(envs.single_observation_space, envs.single_action_space)
    scale = RewardScale(TrainConfig(num_envs=3, rollout_steps=4, gamma=0.9))
    with envfleet.Collector(envs, policy, 4, seed=1) as collector:
        rollout = collector.collect()
    grown = 1 + 0.9 + 0.9**2 + 0.9**3
    scale(rollout)
    assert scale.running.tolist() == pytest.approx([grown] * 3)
    columns = ("rewards", "valid", "terminated", "truncated")
    some = {name: getattr(rollout, name)[:, [0, 2]] for name in columns}
    some = scale(replace(rollout, **some, env_ids=rollout.env_ids[[0, 2]]))
    assert some.rewards.shape == (4, 2)
    assert scale.running.tolist() == pytest.approx([grown * (1 + 0.9**4), 0, grown * (1 + 0.9**4)])


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
    config = TrainConfig(clip_values=clip_values)
    for learner in learners(policy, config):
        found = learner.step(rows_for(learner, batch), 0.2, report=True)
        assert float(found.policy_loss) == pytest.approx(policy_loss / len(batch), rel=1e-4)
        assert float(found.value_loss) == pytest.approx(value_loss / len(batch), rel=1e-4)
        assert float(found.entropy) == pytest.approx(float(chances.entropy().mean()), rel=1e-4)


def learners(policy, config):
    """Both learners, each with a policy of its own."""
    one, other = copy.deepcopy(policy), copy.deepcopy(policy)
    assert FastLearner.fits(policy)
    generator = np.random.default_rng(0)
    return TorchLearner(one, config), FastLearner(other, config, generator)


def rows_for(learner, batch):
    return learner.rows(batch) if isinstance(learner, FastLearner) else batch


class Drift(gym.Env):
    """Ends by itself and by a time limit; rewards and observations vary."""

    def __init__(self, action_space):
        self.observation_space = spaces.Box(-9, 9, (4,), np.float32)
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.normal(size=4).astype(np.float32), {}

    def step(self, action):
        self.t += 1
        seen = self.np_random.normal(size=4).astype(np.float32)
        reward = float(seen[0] + np.sum(action))
        return seen, reward, bool(self.np_random.random() < 0.1), self.t == 12, {}


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("clip_values", [False, True])
@pytest.mark.parametrize("action", ["discrete", "box"])
@pytest.mark.parametrize("longest", [0.05, 100.0])
def test_both_learners_make_the_same_updates(action, clip_values, activation, longest):
    """Whole updates: the same rollouts, advantages, minibatches and schedules on both ways."""
    space = {"discrete": spaces.Discrete(3), "box": spaces.Box(-1, 1, (2,))}[action]
    config = TrainConfig(
        num_envs=4, rollout_steps=16, batch_size=24, epochs=3, learning_rate=1e-2,
        learning_rate_schedule="linear", clip_range_schedule="linear", entropy_coef=0.01,
        max_grad_norm=longest, clip_values=clip_values, normalize_rewards=True,
    )  # fmt: skip

    def make():
        torch.manual_seed(0)
        box = spaces.Box(-9, 9, (4,))
        options = {"activation": activation, "log_std": -0.3, "normalize": True}
        return PPO(Policy(box, space, hidden=(8, 6), **options), config)

    fast, plain = make(), make()
    plain.learner = TorchLearner(plain.policy, config)
    assert isinstance(fast.learner, FastLearner)
    envs = envfleet.SerialVectorEnv([lambda: Drift(space)] * 4, autoreset_mode="SameStep")
    with envfleet.Collector(envs, fast.learner, 16, seed=1) as collector:
        for update in range(3):
            rollout = collector.collect()
            # One of them has sampled actions with it.
            plain.generator.bit_generator.state = fast.generator.bit_generator.state
            ours, theirs = (ppo.update(rollout, update / 3) for ppo in (fast, plain))
            assert ours == pytest.approx(theirs, rel=2e-3, abs=1e-4)
    before = make().policy.parameters()
    for one, other, old in zip(
        fast.policy.parameters(), plain.policy.parameters(), before, strict=True
    ):
        assert torch.allclose(one, other, atol=1e-4)
        assert not torch.allclose(one, old, atol=1e-3)
    for one, other in zip(fast.policy.buffers(), plain.policy.buffers(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", ["torch", "fast"])
def test_a_learner_continues_with_its_state(kind):
    config, policy = TrainConfig(learning_rate=1e-2), small_policy()
    batch = batch_of(policy)

    def pick(policy):
        return learners(policy, config)[kind == "fast"]

    whole = pick(policy)
    for _ in range(4):
        whole.step(rows_for(whole, batch), 0.2, report=False)
    first = pick(policy)
    for _ in range(2):
        first.step(rows_for(whole, batch), 0.2, report=False)
    second = pick(first.policy)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for _ in range(2):
        second.step(rows_for(whole, batch), 0.2, report=False)
    found, wanted = (
        learner.evaluate_actions(batch.observations, batch.actions) for learner in (second, whole)
    )
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("action", ["discrete", "box"])
@pytest.mark.parametrize("seen", ["vector", "nested", "integers", "grid"])
def test_an_agent_in_numpy_is_the_policy(action, normalize, seen):
    space = {"discrete": spaces.Discrete(3), "box": spaces.Box(-1, 1, (1, 2))}[action]
    box = spaces.Box(-1, 1, (4,))
    observed, rows = {
        "vector": (box, torch.randn(4000, 4)),
        "nested": (
            spaces.Dict(a=box, b=spaces.Discrete(3, start=-1)),
            {"a": torch.randn(4000, 4), "b": torch.randint(-1, 2, (4000,))},
        ),
        "integers": (
            spaces.Tuple([spaces.MultiDiscrete([3, 2], start=[1, 0]), spaces.MultiBinary(2)]),
            (
                torch.stack([torch.randint(1, 4, (4000,)), torch.randint(0, 2, (4000,))], 1),
                torch.randint(0, 2, (4000, 2), dtype=torch.int8),
            ),
        ),
        "grid": (
            spaces.Box(0, 255, (2, 2, 3), np.uint8),
            torch.randint(0, 3, (4000, 3, 2, 2), dtype=torch.uint8),
        ),
    }[seen]
    policy = Policy(observed, space, orthogonal=False, normalize=normalize)
    agent = PPO(policy, TrainConfig()).learner
    if normalize:
        policy.learn_scale(rows)
    actions = torch.from_numpy(agent.choose(tree_map(torch.Tensor.numpy, rows)))
    with torch.no_grad():
        found = agent.evaluate_actions(rows, actions)
        expected = policy.evaluate_actions(rows, actions)
        for one, other in zip(found, expected, strict=True):
            assert one.shape == other.shape
            assert torch.allclose(one, other, atol=1e-4)
        assert torch.allclose(agent.get_values(rows), policy.get_values(rows), atol=1e-5)
    # chosen as often as they should be
    assert float(-found[0].mean()) == pytest.approx(float(found[2].mean()), abs=0.05)


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
    config = TrainConfig(num_envs=4, rollout_steps=16, batch_size=16, epochs=50, learning_rate=0.05)
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


@pytest.mark.parametrize("name", [*ACTIONS, "small-numbers"])
def test_a_short_run_improves_with_every_kind_of_action(name):
    small = spaces.MultiDiscrete([3, 2], dtype=np.int8)
    space = ACTIONS.get(name, small)
    torch.manual_seed(0)
    config = TrainConfig(num_envs=8, rollout_steps=32, batch_size=64, epochs=5, learning_rate=5e-3)
    envs = envfleet.SerialVectorEnv([lambda: Guess(space)] * 8, autoreset_mode="SameStep")
    policy = Policy(envs.single_observation_space, space, hidden=(32,), log_std=-0.5)
    ppo = PPO(policy, config)
    with envfleet.Collector(envs, ppo.learner, 32, seed=1) as collector:
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


NESTED = spaces.Dict(
    a=spaces.Discrete(4, start=3),
    b=spaces.Tuple([spaces.MultiDiscrete([[2, 3], [4, 2]]), spaces.Box(-1, 1, (3,))]),
    c=spaces.MultiBinary([2, 2]),
    d=spaces.MultiDiscrete([3, 2], start=[-1, 5]),
)


@pytest.mark.parametrize(
    "space", [NESTED, spaces.MultiDiscrete([3, 4]), spaces.Tuple([spaces.Discrete(32)] * 2)]
)
def test_integers_are_one_hot_wherever_they_are_nested_as_gymnasium_flattens_them(space):
    policy = Policy(space, spaces.Discrete(2))
    assert policy.actor[0].in_features == spaces.flatdim(space)
    space.seed(0)
    samples = [space.sample() for _ in range(20)]
    stacked = ObservationFormat(space, "auto").stack(samples)
    rows = policy.features(tree_map(torch.as_tensor, stacked))
    expected = np.stack([spaces.flatten(space, sample) for sample in samples])
    assert np.array_equal(rows.numpy(), expected.astype(np.float32))


def test_a_category_outside_of_its_space_is_named():
    space = spaces.Dict(cards=spaces.MultiDiscrete([3, 4]))
    with pytest.raises(ValueError, match=r"observation\['cards'\] has values outside of Multi"):
        Policy(space, spaces.Discrete(2)).get_values({"cards": torch.tensor([[3, 0]])})


def test_only_numbers_are_normalised():
    space = spaces.Dict(a=spaces.Discrete(3), b=spaces.Box(-9, 9, (2,)), c=spaces.MultiBinary(2))
    policy = Policy(space, spaces.Discrete(2), normalize=True)
    torch.manual_seed(0)
    rows = {
        "a": torch.randint(0, 3, (500,)),
        "b": torch.randn(500, 2) * 3 + 1,
        "c": torch.randint(0, 2, (500, 2), dtype=torch.int8),
    }
    policy.learn_scale(rows)
    features = policy.features(rows)
    assert set(features[:, [0, 1, 2, 5, 6]].unique().tolist()) == {0.0, 1.0}
    assert torch.allclose(features[:, 3:5].std(0), torch.ones(2), atol=0.01)
    assert Policy(spaces.Discrete(3), spaces.Discrete(2), normalize=True).normalizer is None


@pytest.mark.parametrize("high", [10, 255])
def test_symbols_of_small_grids_reach_the_network_as_they_are(high):
    space = spaces.Dict(image=spaces.Box(0, high, (7, 7, 3), np.uint8))
    symbols = {"image": torch.arange(147, dtype=torch.uint8).reshape(1, 3, 7, 7) % 11}
    assert Policy(space, spaces.Discrete(2)).features(symbols).max() == 10.0


def test_large_grids_of_symbols_are_no_pixels():
    symbols = torch.full((1, 3, 40, 40), 10, dtype=torch.uint8)
    for high, seen in ((10, 10.0), (255, 10 / 255)):
        policy = Policy(spaces.Box(0, high, (40, 40, 3), np.uint8), spaces.Discrete(2))
        assert policy.is_image
        assert float(policy.inputs.images(symbols)[0].max()) == pytest.approx(seen)


@pytest.mark.parametrize(
    "leaf",
    [spaces.Box(0, 255, (4, 50, 50, 3), np.uint8), spaces.Box(-1, 1, (210, 160))],
    ids=["four-axes", "matrix"],
)
def test_large_parts_that_are_flattened_are_warned_of(leaf):
    space = spaces.Dict(eye=leaf, speed=spaces.Box(-1, 1, (3,)))
    told = r"observation\['eye'\] \(.*\) is flattened into 3\d,.* MLP with \d,\d{3},\d{3} param"
    with pytest.warns(UserWarning, match=told):
        Policy(space, spaces.Discrete(2))


def test_cards_are_learnt_from(tmp_path):
    config = TrainConfig(
        env_id="Blackjack-v1", num_envs=4, rollout_steps=64, batch_size=64, total_steps=512
    )
    with Run.start(tmp_path, config, RunOptions(backend="serial")) as run:
        assert run.policy.actor[0].in_features == 45
        before = [p.detach().clone() for p in run.policy.parameters()]
        assert run.train()
        after = list(run.policy.parameters())
    assert not any(torch.equal(one, other) for one, other in zip(before, after, strict=True))


IMAGE = spaces.Box(0, 255, (40, 40, 3), np.uint8)
OBSERVATIONS = {
    "one-leaf": spaces.Dict(o=spaces.Box(-1, 1, (3,))),
    "one-image": spaces.Tuple([IMAGE]),
    "small-image": spaces.Box(0, 255, (7, 7, 3), np.uint8),
    "floats-image": spaces.Box(0, 1, (3, 40, 40), np.float32),
    "image-and-vector": spaces.Dict(p=IMAGE, v=spaces.Box(-1, 1, (3,), np.float64)),
    "matrix": spaces.Box(-1, 1, (4, 4)),
    "offset": spaces.Discrete(5, start=3),
    "several": spaces.MultiDiscrete([3, 4]),
    "nested-integers": NESTED,
    "small-numbers": spaces.Discrete(5, dtype=np.int32),
    "bits": spaces.MultiBinary(4),
}


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("name", OBSERVATIONS)
def test_an_update_works_with_every_kind_of_observation(name, normalize):
    space = OBSERVATIONS[name]
    convolved = "image" in name and name != "small-image"
    if convolved and normalize and name != "image-and-vector":
        with pytest.raises(ValueError, match="leave normalize_observations off"):
            Policy(space, spaces.Discrete(2), normalize=True)
        return
    policy = Policy(space, spaces.Discrete(2), hidden=(8,), normalize=normalize)
    assert policy.is_image == convolved
    ppo = PPO(policy, TrainConfig(num_envs=2, rollout_steps=8, batch_size=8, epochs=1))
    envs = envfleet.SerialVectorEnv([lambda: Sampler(space)] * 2, autoreset_mode="SameStep")
    before = [p.detach().clone() for p in policy.parameters()]
    floats = name in ("one-leaf", "matrix", "floats-image")
    options = {"requires_grad_observations": floats}
    with envfleet.Collector(envs, ppo.learner, 8, **options) as collector:
        ppo.update(collector.collect(), 0.0)
        assert ppo.update(collector.collect(), 0.0)["steps"] == 2
    for one, other in zip(before, policy.parameters(), strict=True):
        assert not torch.equal(one, other)


def test_images_of_bytes_are_scaled_and_those_of_floats_are_not():
    bytes_, floats = (
        Policy(spaces.Box(0, high, (3, 40, 40), dtype), spaces.Discrete(2))
        for high, dtype in ((255, np.uint8), (1, np.float32))
    )
    floats.load_state_dict(bytes_.state_dict())
    image = torch.randint(0, 256, (2, 3, 40, 40), dtype=torch.uint8)
    assert torch.allclose(bytes_.get_values(image), floats.get_values(image / 255.0))


def test_a_rollout_without_a_valid_row_teaches_nothing():
    space = spaces.Box(-1, 1, (4,))
    config = TrainConfig(num_envs=2, rollout_steps=4, normalize_rewards=True)
    policy = Policy(space, spaces.Discrete(2), normalize=True)
    ppo = PPO(policy, config)
    envs = envfleet.SerialVectorEnv([lambda: Sampler(space)] * 2, autoreset_mode="SameStep")
    with envfleet.Collector(envs, ppo.learner, 4) as collector:
        rollout = collector.collect()
    before = {k: v.clone() for k, v in policy.state_dict().items()}
    told = ppo.update(replace(rollout, valid=torch.zeros_like(rollout.valid)), 0.0)
    assert told["steps"] == 0
    assert math.isnan(told["policy_loss"])
    assert all(torch.equal(before[k], v) for k, v in policy.state_dict().items())
    assert not ppo.rewards.scale.variance.isnan().any()
