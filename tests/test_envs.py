"""envfleet.envs apart from Atari: EpisodeInfo, StackedMountainCar, FrameStack and LazyFrames."""

from __future__ import annotations

import gc
import pickle
import tracemalloc
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import envfleet
from envfleet.envs import EpisodeInfo, FrameStack, LazyFrames, StackedMountainCar, gym_env

ENGINES = [envfleet.SerialVectorEnv, envfleet.ProcessVectorEnv]
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*is different from the unwrapped version:UserWarning"
)


class Screen(gym.Env):
    """Frames full of the step's number, in one array that is used again and again."""

    observation_space = spaces.Box(0, 255, (84, 84, 1), np.uint8)
    action_space = spaces.Discrete(2)

    def __init__(self):
        self._frame = np.zeros((84, 84, 1), dtype=np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._frame[:] = 0
        return self._frame, {}

    def step(self, action):
        self._frame += 1
        return self._frame, 1.0, bool(self._frame[0, 0, 0] == 5), False, {}


# LazyFrames


def some_frames(count=3, shape=(2, 3, 1), dtype=np.uint8):
    return [np.arange(i, i + np.prod(shape), dtype=dtype).reshape(shape) for i in range(count)]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_lazy_frames_look_like_the_joined_array(axis):
    frames = some_frames()
    lazy, joined = LazyFrames(frames, axis), np.concatenate(frames, axis)
    assert (lazy.shape, lazy.dtype, len(lazy)) == (joined.shape, joined.dtype, len(joined))
    np.testing.assert_array_equal(lazy, joined)
    for key in (0, -1, slice(1, 2), (..., 0), (0, slice(None), -1)):
        np.testing.assert_array_equal(lazy[key], joined[key])
    assert [row.tolist() for row in lazy] == joined.tolist()
    assert lazy.frame(-1) is frames[-1]


def test_lazy_frames_convert_as_numpy_2_asks():
    lazy = LazyFrames(some_frames())
    assert np.asarray(lazy, dtype=np.float32).dtype == np.float32
    assert np.array(lazy, copy=True).flags.writeable
    assert np.asarray(lazy) is not np.asarray(lazy)
    with pytest.raises(ValueError, match="copy"):
        np.array(lazy, copy=False)
    assert np.add(lazy, 1)[0, 0, 0] == 1


def test_lazy_frames_are_equal_if_what_they_show_is():
    frames = some_frames()
    lazy = LazyFrames(frames)
    assert lazy == LazyFrames([frame.copy() for frame in frames])
    assert lazy != LazyFrames(frames[::-1])
    assert lazy != LazyFrames(frames, axis=0)
    assert lazy != LazyFrames([frame.astype(np.int64) for frame in frames])
    assert lazy != "frames"
    for elements in (lazy == np.asarray(lazy), np.asarray(lazy) == lazy):
        assert elements.shape == lazy.shape
        assert elements.all()


def test_lazy_frames_pickle_with_the_frames_they_share():
    frames = some_frames(5, (84, 84, 1))
    stacks = [LazyFrames(frames[i : i + 4]) for i in range(2)]
    data = pickle.dumps(stacks)
    assert len(data) < 5.2 * frames[0].nbytes
    one, other = pickle.loads(data)
    assert [one, other] == stacks
    assert one.frame(1) is other.frame(0)


@pytest.mark.parametrize(
    ("frames", "axis", "text"),
    [
        ([], -1, "at least one frame"),
        ([np.zeros(2), np.zeros(3)], -1, r"one shape and dtype, got \(2,\) float64 and \(3,\)"),
        ([np.zeros(2), np.zeros(2, int)], -1, "one shape and dtype"),
        ([np.zeros(2)], 1, r"axis 1 is not one of frames of shape \(2,\)"),
    ],
)
def test_frames_that_do_not_fit_are_refused(frames, axis, text):
    with pytest.raises(ValueError, match=text):
        LazyFrames(frames, axis)


def test_stacks_of_frames_take_the_memory_of_the_frames_also_after_they_were_read():
    env = FrameStack(Screen())
    env.reset()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = [env.step(0)[0] for _ in range(5000)]
        for observation in kept:
            assert observation[0, 0, 0] == np.asarray(observation)[0, 0, 0]
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken <= 1.2 * len(kept) * 84 * 84


# FrameStack


@pytest.mark.parametrize("lazy", [False, True])
def test_a_stack_has_the_last_observations_the_oldest_first(lazy):
    env = FrameStack(Screen(), 3, lazy=lazy)
    assert env.observation_space == spaces.Box(0, 255, (84, 84, 3), np.uint8)
    first = env.reset()[0]
    seen = [first, *(env.step(0)[0] for _ in range(4))]
    assert isinstance(first, LazyFrames if lazy else np.ndarray)
    shown = [np.asarray(observation)[5, 5].tolist() for observation in seen]
    assert shown == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]
    if lazy:
        with pytest.raises(ValueError, match="read-only"):
            seen[-1].frame(0)[:] = 0
    else:
        seen[-1][:] = 0  # the caller's
        assert env.step(0)[0][5, 5].tolist() == [3, 4, 5]


def test_bounds_are_stacked_along_the_axis():
    env = FrameStack(gym.make("Pendulum-v1"), 2, 0)
    assert env.observation_space.high.tolist() == [1, 1, 8, 1, 1, 8]
    np.testing.assert_array_equal(
        gym.make(env.spec).reset(seed=0)[0], env.reset(seed=0)[0], strict=False
    )


def test_stacks_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="num_stack must be 1 or more, got 0"):
        FrameStack(Screen(), 0)
    with pytest.raises(ValueError, match="axis 3 is not one of"):
        FrameStack(Screen(), axis=3)
    with pytest.raises(TypeError, match="needs Box observations, got Discrete"):
        FrameStack(gym.make("Taxi-v4"))


# EpisodeInfo


def test_steps_and_scores_are_told_at_every_step():
    env = EpisodeInfo(Screen())
    assert env.max_episode_steps is None
    for _ in range(2):
        assert env.reset()[1] == {"episode_step": 0, "episode_score": 0.0}
        told = [env.step(0)[4] for _ in range(5)]
        assert told == [{"episode_step": i, "episode_score": float(i)} for i in range(1, 6)]


def test_gym_env_seeds_the_env_and_its_actions():
    env = gym_env("MountainCar-v0", 7, "rgb_array", goal_velocity=0.01)
    assert env.max_episode_steps == 200
    assert env.unwrapped.goal_velocity == 0.01
    plain = gym.make("MountainCar-v0")
    np.testing.assert_array_equal(env.reset()[0], plain.reset(seed=7)[0])
    np.testing.assert_array_equal(env.reset()[0], plain.reset()[0])
    alike = spaces.Discrete(3, seed=7)
    assert [env.action_space.sample() for _ in range(9)] == [alike.sample() for _ in range(9)]
    assert env.render().ndim == 3
    env.close()
    with pytest.raises(gym.error.Error, match="NoSuch"):
        gym_env("NoSuch-v0")


# StackedMountainCar


def test_mountain_car_has_its_last_four_observations_in_order():
    env, plain = StackedMountainCar(seed=3), gym.make("MountainCar-v0")
    low, high = [-1.2, -0.07] * 4, [0.6, 0.07] * 4
    assert env.observation_space == spaces.Box(np.float32(low), np.float32(high))
    assert (env.observation_space.shape, env.max_episode_steps) == ((8,), 200)
    seen = [plain.reset(seed=3)[0]] * 4
    observation, info = env.reset()
    np.testing.assert_array_equal(observation, np.concatenate(seen))
    assert info["episode_step"] == 0
    for step in range(1, 7):
        seen = [*seen[1:], plain.step(2)[0]]
        observation, reward, _, _, info = env.step(2)
        np.testing.assert_array_equal(observation, np.concatenate(seen))
        assert observation.dtype == np.float32
        assert (reward, info) == (-1.0, {"episode_step": step, "episode_score": -float(step)})
    with pytest.raises(ValueError, match=r"MountainCar-v0, MountainCarContinuous-v0, got 'Cart"):
        StackedMountainCar("CartPole-v1")


# Gymnasium's checker, and fleets


@pytest.mark.parametrize(
    "build",
    [
        partial(gym_env, "Acrobot-v1", 3),
        StackedMountainCar,
        lambda: FrameStack(gym_env("Acrobot-v1"), 2, lazy=False),
    ],
)
def test_gymnasiums_checker_finds_only_that_they_are_wrappers(build, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    check_env(build())


@pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array:UserWarning")
@pytest.mark.filterwarnings("ignore:.*was expecting a numpy array, actual type:UserWarning")
def test_gymnasiums_checker_finds_only_that_lazy_frames_are_no_arrays(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    check_env(FrameStack(gym_env("Acrobot-v1"), 2))


class Unjoined(LazyFrames):
    """Frames that must not be joined."""

    __slots__ = ()

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("joined")


class UnjoinedStack(FrameStack):
    def _stacked(self):
        return Unjoined(self._frames, self._axis)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("engine", ENGINES)
def test_fleets_take_lazy_frames_without_joining_them(engine, mode):
    build = [lambda: UnjoinedStack(Screen(), 2)] * 3
    with engine(build, autoreset_mode=mode) as envs:
        seen = [envs.reset(seed=0)[0]]
        for _ in range(5):
            observations, _, terminated, _, infos = envs.step(np.zeros(3, dtype=np.int64))
            seen.append(observations)
        assert terminated.all()
    shown = [step[2, 5, 5].tolist() for step in seen]
    last = [4, 5] if mode != AutoresetMode.SAME_STEP else [0, 0]
    assert shown == [[0, 0], [0, 1], [1, 2], [2, 3], [3, 4], last]
    if mode == AutoresetMode.SAME_STEP:
        assert infos["final_obs"][2][5, 5].tolist() == [4, 5]


@pytest.mark.parametrize("engine", ENGINES)
def test_fleets_see_what_single_envs_see(engine):
    single = StackedMountainCar()
    with engine([StackedMountainCar] * 2) as envs:
        np.testing.assert_array_equal(envs.reset(seed=0)[0][0], single.reset(seed=0)[0])
        for _ in range(3):
            observations, rewards, _, _, infos = envs.step(np.array([2, 0]))
            expected, reward, _, _, info = single.step(2)
            np.testing.assert_array_equal(observations[0], expected)
            assert rewards[0] == reward
            assert {key: infos[key][0] for key in info} == info
    with engine([partial(gym_env, "CartPole-v1", seed) for seed in (4, 9)]) as envs:
        observations, _ = envs.reset()
    for observation, seed in zip(observations, (4, 9), strict=True):
        np.testing.assert_array_equal(observation, gym.make("CartPole-v1").reset(seed=seed)[0])


@pytest.mark.parametrize("engine", ENGINES)
def test_lazy_frames_of_another_shape_are_refused(engine):
    class Wrong(FrameStack):
        def _stacked(self):
            return LazyFrames([*self._frames, self._frames[0]])

    refused = pytest.raises(envfleet.ObservationMismatch, match=r"\(84, 84, 3\)")
    with engine([lambda: Wrong(Screen(), 2)]) as envs, refused:
        envs.reset()
