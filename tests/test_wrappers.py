"""Gymnasium's vector wrappers over our engines give what they give over SyncVectorEnv."""

from __future__ import annotations

import copy
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector as wrappers

import envfleet
from envfleet.testing import SpaceEnv, assert_same
from fleet_envs import CounterEnv

PENDULUM = partial(gym.make, "Pendulum-v1", max_episode_steps=6)
DICT = partial(SpaceEnv, spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Discrete(3)))
IMAGE = partial(SpaceEnv, spaces.Box(0, 255, (8, 8, 3), np.uint8), spaces.Discrete(2))

CASES = {
    "RecordEpisodeStatistics": (PENDULUM, wrappers.RecordEpisodeStatistics),
    "NormalizeObservation": (PENDULUM, wrappers.NormalizeObservation),
    "NormalizeReward": (PENDULUM, wrappers.NormalizeReward),
    "DictInfoToList": (DICT, wrappers.DictInfoToList),
    "FlattenObservation": (DICT, wrappers.FlattenObservation),
    "FilterObservation": (DICT, partial(wrappers.FilterObservation, filter_keys=["a"])),
    "GrayscaleObservation": (IMAGE, wrappers.GrayscaleObservation),
    "ResizeObservation": (IMAGE, partial(wrappers.ResizeObservation, shape=(4, 4))),
    "ReshapeObservation": (IMAGE, partial(wrappers.ReshapeObservation, shape=(8, 24))),
    "RescaleObservation": (
        partial(gym.make, "MountainCar-v0", max_episode_steps=6),
        partial(wrappers.RescaleObservation, min_obs=-1, max_obs=1),
    ),
    "DtypeObservation": (IMAGE, partial(wrappers.DtypeObservation, dtype=np.float32)),
    "TransformObservation": (PENDULUM, partial(wrappers.TransformObservation, func=np.negative)),
    "VectorizeTransformObservation": (
        PENDULUM,
        partial(
            wrappers.VectorizeTransformObservation,
            wrapper=gym.wrappers.TransformObservation,
            func=np.negative,
            observation_space=spaces.Box(-9, 9, (3,), np.float32),
        ),
    ),
    "ClipAction": (PENDULUM, wrappers.ClipAction),
    "RescaleAction": (PENDULUM, partial(wrappers.RescaleAction, min_action=-1, max_action=1)),
    "TransformAction": (PENDULUM, partial(wrappers.TransformAction, func=np.negative)),
    "VectorizeTransformAction": (
        PENDULUM,
        partial(
            wrappers.VectorizeTransformAction,
            wrapper=gym.wrappers.TransformAction,
            func=np.negative,
            action_space=spaces.Box(-2, 2, (1,), np.float32),
        ),
    ),
    "ClipReward": (PENDULUM, partial(wrappers.ClipReward, min_reward=-1, max_reward=0)),
    "TransformReward": (PENDULUM, partial(wrappers.TransformReward, func=np.negative)),
    "VectorizeTransformReward": (
        PENDULUM,
        partial(
            wrappers.VectorizeTransformReward,
            wrapper=gym.wrappers.TransformReward,
            func=lambda reward: -reward,
        ),
    ),
}
SAME_STEP_TOO = {"RecordEpisodeStatistics", "NormalizeReward", "DictInfoToList", "ClipAction"}


@pytest.fixture(params=["serial", "process"])
def engine(request):
    if request.param == "serial":
        return envfleet.SerialVectorEnv
    return partial(envfleet.ProcessVectorEnv, context="fork", workers=2)


def without_times(infos):
    """Episode statistics hold wall-clock times, which differ between any two runs."""
    if isinstance(infos, dict) and "episode" in infos:
        episode = {k: v for k, v in infos["episode"].items() if k not in ("t", "_t")}
        return {**infos, "episode": episode}
    return infos


def compare(engine, env_fn, wrap, mode):
    ours = wrap(engine([env_fn] * 3, autoreset_mode=mode))
    theirs = wrap(SyncVectorEnv([env_fn] * 3, autoreset_mode=mode))
    assert ours.observation_space == theirs.observation_space
    assert_same(ours.reset(seed=5), theirs.reset(seed=5))
    theirs.action_space.seed(6)
    for _ in range(15):
        actions = theirs.action_space.sample()
        # VectorizeTransformAction writes into the actions it is given.
        *got, got_infos = ours.step(copy.deepcopy(actions))
        *want, want_infos = theirs.step(copy.deepcopy(actions))
        assert_same(got, want)
        assert_same(without_times(got_infos), without_times(want_infos))
    ours.close()
    theirs.close()


@pytest.mark.parametrize("name", CASES)
def test_wrapper(engine, name):
    compare(engine, *CASES[name], AutoresetMode.NEXT_STEP)


@pytest.mark.parametrize("name", sorted(SAME_STEP_TOO))
def test_wrapper_with_same_step_autoreset(engine, name):
    compare(engine, *CASES[name], AutoresetMode.SAME_STEP)


def test_numpy_to_torch(engine):
    torch = pytest.importorskip("torch")
    from gymnasium.wrappers.vector import NumpyToTorch  # noqa: PLC0415

    ours = NumpyToTorch(engine([PENDULUM] * 3))
    theirs = SyncVectorEnv([PENDULUM] * 3)
    observations, _ = ours.reset(seed=5)
    assert isinstance(observations, torch.Tensor)
    assert observations.numpy().tolist() == theirs.reset(seed=5)[0].tolist()
    actions = theirs.action_space.sample()
    observations, rewards, *_ = ours.step(torch.from_numpy(actions))
    want = theirs.step(actions)
    assert observations.numpy().tolist() == want[0].tolist()
    assert rewards.numpy().tolist() == want[1].tolist()
    ours.close()


def test_record_video(engine, tmp_path):
    pytest.importorskip("moviepy")
    fleet = wrappers.RecordVideo(
        engine([partial(CounterEnv, length=3)] * 4), str(tmp_path / "videos"), video_length=4
    )
    fleet.reset()
    for _ in range(6):
        fleet.step([0] * 4)
    fleet.close()
    assert {path.suffix for path in (tmp_path / "videos").iterdir()} == {".mp4"}


def test_every_vector_wrapper_of_gymnasium_is_covered():
    needs_a_screen_or_jax = {"HumanRendering", "JaxToNumpy", "JaxToTorch", "ArrayConversion"}
    assert set(wrappers.__all__) - needs_a_screen_or_jax == {*CASES, "NumpyToTorch", "RecordVideo"}
