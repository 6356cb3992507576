"""Observations of several parts: a CNN for each image, columns for the rest, joined."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import envfleet
from envfleet.rollout.nested import ObservationFormat, tree_map
from envfleet.training.config import TrainConfig
from envfleet.training.policy import Policy
from envfleet.training.ppo import PPO

torch.set_num_threads(1)  # else every later fork is warned of

EYE = spaces.Box(0, 255, (40, 48, 3), np.uint8)
GREY = spaces.Box(0, 255, (40, 40), np.uint8)
NESTED = spaces.Dict(
    body=spaces.Tuple([spaces.Box(-9, 9, (3,)), spaces.Discrete(4)]),
    eyes=spaces.Dict(left=EYE, right=spaces.Tuple([GREY])),
    small=spaces.Box(0, 255, (7, 7, 3), np.uint8),
)


def samples(space: spaces.Space[Any], count: int) -> Any:
    space.seed(0)
    form = ObservationFormat(space, "auto")
    return form.tensors(form.stack([space.sample() for _ in range(count)]))


def test_every_image_has_a_network_and_everything_else_a_column():
    policy = Policy(NESTED, spaces.Discrete(2))
    assert policy.inputs.image_shapes == [(3, 40, 48), (1, 40, 40)]
    assert policy.inputs.width == 3 + 4 + 7 * 7 * 3
    assert policy.features(samples(NESTED, 5)).shape == (5, 2 * 256 + 154)
    assert policy.get_values(samples(NESTED, 5)).shape == (5,)


@pytest.mark.parametrize(
    "path", [("eyes", "left"), ("eyes", "right", 0), ("body", 0), ("body", 1), ("small",)], ids=str
)
def test_every_part_is_looked_at(path):
    policy = Policy(NESTED, spaces.Discrete(2))
    seen = samples(NESTED, 1)
    changed = tree_map(torch.clone, seen)
    leaf = changed
    for key in path:
        leaf = leaf[key]
    leaf.copy_((leaf + 1) % 4)
    assert not torch.equal(policy.features(seen), policy.features(changed))


def test_vectors_beside_images_are_normalised_and_images_are_not():
    space = spaces.Dict(eye=EYE, speed=spaces.Box(-99, 99, (2,)))
    policy = Policy(space, spaces.Discrete(2), normalize=True)
    seen = {
        "eye": torch.randint(0, 256, (200, 3, 40, 48), dtype=torch.uint8),
        "speed": torch.randn(200, 2) * 20 + 5,
    }
    policy.learn_scale(seen)
    columns = policy.features(seen)[:, -2:]
    assert torch.allclose(columns.std(0), torch.ones(2), atol=0.02)
    assert torch.allclose(columns.mean(0), torch.zeros(2), atol=0.02)


@pytest.mark.parametrize(
    ("space", "most"),
    [
        (
            spaces.Dict(
                screen=spaces.Box(0, 255, (240, 320, 3), np.uint8),
                gamevariables=spaces.Box(-np.inf, np.inf, (4,)),
            ),
            1_500_000,
        ),
        (spaces.Box(0, 255, (240, 320, 3), np.uint8), 2_500_000),
        (spaces.Box(0, 255, (4, 84, 84), np.uint8), 1_700_000),
    ],
    ids=["vizdoom", "large", "atari"],
)
def test_parameters_stay_few_whatever_the_size_of_the_image(space, most):
    policy = Policy(space, spaces.Discrete(4))
    assert sum(parameter.numel() for parameter in policy.parameters()) < most


def test_the_network_of_atari_is_that_of_the_paper():
    policy = Policy(spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(4))
    shapes = [tuple(p.shape) for p in policy.body.parameters() if p.ndim > 1]
    assert shapes == [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3), (512, 3136)]


@pytest.mark.parametrize("side", [36, 37, 64, 129, 300])
def test_images_of_any_size_from_36_on_go_through_convolutions(side):
    policy = Policy(spaces.Box(0, 255, (side, side + 5, 3), np.uint8), spaces.Discrete(2))
    assert policy.is_image
    assert policy.get_values(torch.zeros(1, 3, side, side + 5, dtype=torch.uint8)).shape == (1,)


class Signpost(gym.Env):
    """The image says left or right, and the vector whether it tells the truth."""

    observation_space = spaces.Dict(
        sign=spaces.Box(0, 255, (36, 36, 1), np.uint8), is_true=spaces.Discrete(2)
    )
    action_space = spaces.Discrete(2)

    def _observe(self) -> Any:
        self.side, is_true = self.np_random.integers(2, size=2)
        shown = self.side if is_true else 1 - self.side
        sign = np.zeros((36, 36, 1), dtype=np.uint8)
        sign[:, slice(0, 18) if shown else slice(18, None)] = 255
        return {"sign": sign, "is_true": is_true}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        reward = float(action == self.side)
        return self._observe(), reward, True, False, {}


def test_an_image_and_a_category_are_understood_together():
    envs = envfleet.SerialVectorEnv([Signpost] * 8, autoreset_mode="SameStep")
    torch.manual_seed(0)
    config = TrainConfig(num_envs=8, rollout_steps=32, batch_size=64, epochs=4, learning_rate=1e-3)
    ppo = PPO(Policy(envs.single_observation_space, envs.single_action_space), config)
    with envfleet.Collector(envs, ppo.learner, 32, seed=0) as collector:
        for _ in range(12):
            rollout = collector.collect()
            ppo.update(rollout, 0.0)
        assert envfleet.evaluate(ppo.policy, envs, 100, seed=1).mean > 0.95
