"""XuanCe's classes by name: its contract, and the numbers of a plain loop over the same envs."""

from __future__ import annotations

import gc
import pickle
import re
from argparse import Namespace
from collections import deque
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError

from envfleet.adapters import xuance
from envfleet.adapters.xuance import (
    AlreadySteppingError,
    Atari_Env,
    DummyVecEnv,
    DummyVecEnv_Atari,
    DummyVecEnv_Gym,
    Gym_Env,
    LazyFrames,
    MountainCar,
    NotSteppingError,
    SubprocVecEnv,
    SubprocVecEnv_Atari,
    SubprocVecEnv_Gym,
)
from envfleet.envs import AtariEnv
from waiting import gone, wait_until

PAGE = Path(__file__).parent.parent / "docs" / "xuance.md"
BREAKOUT = "BreakoutNoFrameskip-v4"


class Counting:
    """XuanCe's kind of env: no gymnasium.Env, and ``reset`` takes nothing. Counts to its length."""

    def __init__(self, length=3, offset=0.0, space=None, *, env_seed=0):
        self.observation_space = space or gym.spaces.Box(-99, 99, (2,), np.float64)
        self.action_space = gym.spaces.Discrete(5)
        self.length, self.offset, self.env_seed = length, offset, env_seed
        self.resets = self.count = 0
        self.is_closed = False

    def _observation(self):
        self.row = np.array([self.offset + self.env_seed, 10.0 * self.resets + self.count])
        if isinstance(self.observation_space, gym.spaces.Dict):
            return {"place": self.row, "count": np.array([self.count], np.uint8)}
        return self.row

    def reset(self):
        self.resets, self.count = self.resets + 1, 0
        return self._observation(), {"episode_step": 0, "fresh": True}

    def step(self, action):
        if action == 4:
            raise KeyError("four")
        self.count += 1
        info = {"episode_step": self.count, "episode_score": 0.1 * self.count, "action": action}
        ended = self.count == self.length
        is_odd = bool(self.resets % 2)
        return self._observation(), 0.1, ended and is_odd, ended and not is_odd, info

    def render(self, mode):
        return f"{mode} {self.offset}"

    def close(self):
        self.is_closed = True


class Loop:
    """The oracle: XuanCe's own way, one env after the other."""

    def __init__(self, env_fns, dtype=np.float32):
        self.envs = [fn() for fn in env_fns]
        self.dtype = dtype

    def reset(self):
        observations, infos = zip(*[env.reset() for env in self.envs], strict=True)
        return np.array([np.asarray(o) for o in observations], self.dtype), list(infos)

    def step(self, actions):
        results = []
        for env, action in zip(self.envs, actions, strict=True):
            observation, reward, terminated, truncated, info = env.step(action)
            observation = np.array(observation, self.dtype)
            if terminated or truncated:
                info = {**info, "reset_obs": np.array(env.reset()[0], self.dtype)}
            results.append((observation, np.float32(reward), terminated, truncated, info))
        *arrays, infos = zip(*results, strict=True)
        return *map(np.array, arrays), list(infos)


def assert_equal(ours, theirs):
    """The same numbers, also inside of infos."""
    if isinstance(theirs, (tuple, list)):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert_equal(a, b)
    elif isinstance(theirs, dict):
        assert set(ours) == set(theirs)
        for key, value in theirs.items():
            if key != "t":  # seconds
                assert_equal(ours[key], value)
    else:
        np.testing.assert_array_equal(ours, theirs)
        assert np.asarray(ours).dtype == np.asarray(theirs).dtype


COUNTING = [partial(Counting, length, 100.0 * i) for i, length in enumerate([3, 2, 5, 4, 1])]
ENGINES = {
    "dummy": DummyVecEnv_Gym,
    "subproc": partial(SubprocVecEnv_Gym, context="fork", in_series=2),
}


@pytest.fixture(params=ENGINES)
def engine(request):
    """Builds a vector env of some functions, and closes it afterwards."""
    built = []

    def build(env_fns):
        built.append(ENGINES[request.param](env_fns))
        return built[-1]

    yield build
    for envs in built:
        envs.close()


def compare(envs, loop, actions):
    """Step both, and compare all that they return."""
    assert_equal(envs.reset(), loop.reset())
    ends = 0
    for row in actions:
        ours = envs.step(row)
        assert_equal(ours, loop.step(row))
        assert_equal(ours[1:4], (envs.buf_rews, envs.buf_dones, envs.buf_trunctions))
        assert_equal(ours[1:4], (envs.buf_rewards, envs.buf_terminated, envs.buf_truncated))
        assert_equal((envs.buf_obs, envs.buf_infos, envs.buf_info), (ours[0], ours[4], ours[4]))
        ends += int((ours[2] | ours[3]).sum())
    return ends


def test_every_row_of_the_page_names_a_test_and_every_name_is_on_it():
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    named = [line.split("|")[-2].strip(" `") for line in lines]
    rows = [name for name in named if name != "test"]  # the tables' heads
    assert len(rows) > 40
    assert not [name for name in rows if not callable(globals().get(name))]
    assert set(xuance.__all__) - {"VecEnv"} <= set(re.findall(r"\w+", PAGE.read_text()))


# The engines


def test_the_numbers_of_a_plain_loop_over_envs_that_are_no_gymnasium_envs(engine):
    rows = np.random.default_rng(0).integers(0, 4, (12, 5))
    assert compare(engine(COUNTING), Loop(COUNTING), rows) == 4 + 6 + 2 + 3 + 12


@pytest.mark.parametrize("env_id", ["CartPole-v1", "FrozenLake-v1"])
def test_the_numbers_of_gymnasiums_envs(engine, env_id):
    env_fns = [partial(Gym_Env, env_id, seed) for seed in range(3)]
    rows = np.random.default_rng(1).integers(0, 2, (150, 3))
    assert compare(engine(env_fns), Loop(env_fns), rows) >= 3


def test_any_number_of_envs_is_split_among_processes_of_in_series_at_most():
    with_rest = SubprocVecEnv_Gym(COUNTING, "fork", 2)
    assert (with_rest.num_envs, with_rest.n_remotes, with_rest.in_series) == (5, 3, 2)
    assert len(with_rest.ps) == 3
    assert all(process.is_alive() for process in with_rest.ps)
    with_rest.close()
    assert with_rest.ps == []
    with pytest.raises(ValueError, match="in_series must be 1 or more, got 0"):
        SubprocVecEnv_Gym(COUNTING, in_series=0)
    with pytest.raises(ValueError, match="cannot find context"):
        SubprocVecEnv_Gym(COUNTING, "thread")


def test_processes_are_spawned_unless_told_otherwise():
    envs = SubprocVecEnv_Gym([lambda: Gym_Env("CartPole-v1", 1)])  # a lambda travels, too
    (process,) = envs.ps
    assert "spawn" in type(process).__name__.lower()
    envs.close()


def test_seeds_as_in_xuance_1_4(engine):
    del engine
    with_seeds = [
        DummyVecEnv([Counting] * 5, 7),
        SubprocVecEnv([Counting] * 5, 7, 2),
        SubprocVecEnv([Counting] * 5, env_seed=7, in_series=3),
    ]
    for envs in with_seeds:
        assert envs.reset()[0][:, 0].tolist() == [7, 8, 9, 10, 11]  # none of them twice
        envs.close()
    without = DummyVecEnv_Gym([Counting] * 2, None)
    assert without.reset()[0][:, 0].tolist() == [0, 0]
    without.close()


def test_what_is_returned_and_the_buffers_are_new_and_writable_at_each_step(engine):
    envs = engine(COUNTING)
    kept = [envs.reset()[0], envs.buf_obs]
    for _ in range(4):
        observations, rewards, *_ = envs.step([0] * 5)
        kept += [observations, envs.buf_obs, rewards, envs.buf_rews]
    copies = [array.copy() for array in kept]
    for array in (envs.buf_obs, observations):
        array[1] = 77.0
    copies[-4][1] = copies[-3][1] = 77.0
    envs.step([0] * 5)
    assert_equal(kept, copies)
    assert all(not np.shares_memory(a, b) for i, a in enumerate(kept) for b in kept[:i])


def test_an_end_has_the_terminal_observation_and_the_fresh_one_in_the_info(engine):
    envs = engine([partial(Counting, 2, 5.0)])
    envs.reset()
    envs.step([0])
    observations, _, terminated, truncated, infos = envs.step([3])
    assert (observations[0].tolist(), terminated[0], truncated[0]) == ([5.0, 12.0], True, False)
    assert infos[0]["reset_obs"].tolist() == [5.0, 20.0]
    assert (infos[0]["episode_step"], infos[0]["action"]) == (2, 3)
    assert not {"fresh", "final_obs", "final_info"} & set(infos[0])
    assert envs.step([0])[0][0].tolist() == [5.0, 21.0]


def test_dict_observations(engine):
    space = gym.spaces.Dict(
        place=gym.spaces.Box(-99, 999, (2,), np.float64), count=gym.spaces.Box(0, 9, (1,), np.uint8)
    )
    envs = engine([partial(Counting, length, 1.0, space) for length in (2, 3, 4)])
    assert envs.obs_shape == {"place": (2,), "count": (1,)}
    assert envs.buf_obs["place"].shape == (3, 2)
    first, _ = envs.reset()
    envs.step([0] * 3)
    observations, *_, infos = envs.step([0] * 3)
    assert observations["place"].tolist() == [[1.0, 12.0]] * 3
    assert observations["count"].tolist() == [[2]] * 3
    assert observations["count"].dtype == np.uint8
    assert {key: value.tolist() for key, value in infos[0]["reset_obs"].items()} == {
        "place": [1.0, 20.0],
        "count": [0],
    }
    assert "reset_obs" not in infos[1]
    assert first["place"][:, 1].tolist() == [10.0] * 3
    envs.buf_obs["count"][0] = 9
    assert observations["count"][0] == 2


def test_other_observations_are_refused_by_name_and_nothing_is_left():
    text = gym.spaces.Dict(a=gym.spaces.Text(3))
    with pytest.raises(TypeError, match=r"observation\['a'\] has the space Text"):
        SubprocVecEnv([partial(Counting, space=text)])


def test_a_lone_action_for_one_env(engine):
    envs = engine([Counting])
    envs.reset()
    for action in (2, [2], np.array([2]), np.int64(2)):
        assert envs.step(action)[4][0]["action"] == 2
    pendulum = engine([partial(Gym_Env, "Pendulum-v1", 0)])
    pendulum.reset()
    for action in (np.array([0.5], np.float32), np.array([[0.5]], np.float32)):
        assert pendulum.step(action)[0].shape == (1, 3)
    several = engine(COUNTING)
    several.reset()
    with pytest.raises((TypeError, ValueError)):
        several.step(2)
    assert not several.waiting


def test_steps_come_in_turns(engine):
    envs = engine(COUNTING)
    envs.reset()
    with pytest.raises(NotSteppingError, match="not running an async step"):
        envs.step_wait()
    envs.step_async([1] * 5)
    assert envs.waiting
    assert list(envs.actions) == [1] * 5
    with pytest.raises(AlreadySteppingError, match="already running an async step"):
        envs.step_async([0] * 5)
    assert envs.step_wait()[4][0]["action"] == 1
    assert not envs.waiting
    for error in (AlreadySteppingError(), NotSteppingError()):
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_reset_drops_the_step_that_is_pending(engine):
    envs = engine(COUNTING)
    envs.reset()
    envs.step_async([0, 4, 0, 0, 0])  # one raises, which nobody wants to know any more
    observations, _ = envs.reset()
    assert not envs.waiting
    assert observations[0, 1] == 20.0
    assert envs.step([0] * 5)[0][0, 1] == 21.0


def test_what_an_env_raises_arrives_and_reset_goes_on(engine):
    envs = engine(COUNTING)
    envs.reset()
    with pytest.raises(KeyError, match="four"):
        envs.step([0, 0, 4, 0, 0])
    assert not envs.waiting
    envs.reset()
    envs.step([0] * 5)


def test_frames_and_limits(engine):
    envs = engine(COUNTING[:2])
    assert envs.render("human") == ["human 0.0", "human 100.0"]
    assert envs.max_episode_steps == 1000  # nobody has told
    drawn = engine([partial(Gym_Env, "CartPole-v1", 1, "rgb_array")])
    drawn.reset()
    (frame,) = drawn.render("rgb_array")
    assert frame.shape == (400, 600, 3)
    assert drawn.max_episode_steps == 500
    plain = engine([partial(gym.make, "CartPole-v1", render_mode="rgb_array")])  # takes no mode
    plain.reset()
    assert plain.render("rgb_array")[0].shape == (400, 600, 3)
    assert plain.max_episode_steps == 500


def test_names_that_agents_read(engine):
    envs = engine(COUNTING)
    assert envs.observation_space == Counting().observation_space
    assert envs.action_space == gym.spaces.Discrete(5)
    assert (envs.num_envs, envs.obs_shape, envs.actions) == (5, (2,), None)
    assert (envs.waiting, envs.closed) == (False, False)
    assert (envs.buf_obs.shape, envs.buf_obs.dtype) == ((5, 2), np.float32)
    assert envs.buf_infos == [{}] * 5


def test_the_envs_of_a_dummy_are_those_that_were_built():
    envs = DummyVecEnv_Gym([partial(Counting, 3, 1.0), partial(Gym_Env, "CartPole-v1", 1)][:1])
    assert [type(env) for env in envs.envs] == [Counting]
    (env,) = envs.envs
    envs.close()
    assert env.is_closed


def test_close_once_twice_and_with_a_step_pending(engine):
    for is_stepping in (False, True):
        envs = engine(COUNTING)
        envs.reset()
        if is_stepping:
            envs.step_async([0] * 5)
        envs.close_extras()
        envs.close()
        assert envs.closed
        for call in (envs.reset, envs.step_wait, envs._assert_not_closed):
            with pytest.raises(ClosedEnvironmentError, match="after a call to `close"):
                call()


def test_processes_end_with_their_engine():
    envs = SubprocVecEnv_Gym(COUNTING, "fork", 3)
    pids = [process.pid for process in envs.ps]
    del envs
    gc.collect()
    wait_until(lambda: gone(pids))


@pytest.mark.parametrize("name", ["remotes", "work_remotes", "_save_obs", "_save_infos"])
def test_names_that_are_gone(engine, name):
    assert not hasattr(engine(COUNTING), name)
    assert not hasattr(xuance, "worker")


# The envs


def test_gym_env_draws_on_after_the_reset_of_its_constructor():
    ours, theirs = Gym_Env("CartPole-v1", 3, "rgb_array"), gym.make("CartPole-v1")
    theirs.reset(seed=3)
    theirs.action_space.seed(3)
    observation, info = ours.reset()
    assert_equal(observation, theirs.reset()[0])
    assert info["episode_step"] == 0
    total = 0.0
    for step in range(1, 8):
        action = theirs.action_space.sample()
        assert ours.action_space.sample() == action
        *told, info = ours.step(action)
        *expected, _ = theirs.step(action)
        assert_equal(told, expected)
        total += expected[1]
        assert (info["episode_step"], info["episode_score"]) == (step, total)
        assert (ours._episode_step, ours._episode_score) == (step, total)
    assert ours.render("rgb_array").shape == (400, 600, 3)
    assert ours.max_episode_steps == 500
    assert ours.reward_range == (-np.inf, np.inf)
    ours.close()
    theirs.close()


def test_gym_env_from_a_configuration_of_1_4():
    config = Namespace(env_id="CartPole-v1", env_seed=3, render_mode="rgb_array")
    first = [env.reset()[0] for env in (Gym_Env(config), Gym_Env("CartPole-v1", 3, "rgb_array"))]
    assert_equal(*first)


@pytest.mark.parametrize("env_id", ["MountainCar-v0", "CartPole-v1"])
def test_mountain_car_stacks_four_observations_of_any_env(env_id):
    ours, theirs = MountainCar(env_id, 5, None), Gym_Env(env_id, 5, None)
    size = theirs.observation_space.shape[0]
    frames = deque([theirs.reset()[0]] * 4, maxlen=4)
    observation, _ = ours.reset()
    for _ in range(5):
        assert isinstance(observation, LazyFrames)
        assert_equal(np.asarray(observation), np.concatenate(frames))
        assert np.asarray(observation) in ours.observation_space
        assert ours.pre_position == frames[-1][0]
        *told, _ = ours.step(1)
        *expected, _ = theirs.step(1)
        frames.append(expected[0])
        observation = told[0]
        assert told[1:] == expected[1:]
    assert ours.observation_space.shape == (4 * size,)
    if env_id == "MountainCar-v0":
        low, high = np.float32([-1.2, -0.07] * 4), np.float32([0.6, 0.07] * 4)
        assert ours.observation_space == gym.spaces.Box(low, high)
    with pytest.raises(TypeError, match="stacks Box observations"):
        MountainCar("FrozenLake-v1", 1, None)


def test_lazy_frames_count_along_the_last_axis():
    frames = [np.full((5, 3, 1), i, np.uint8) for i in range(4)]
    lazy = LazyFrames(frames)
    joined = np.concatenate(frames, -1)
    assert_equal(np.asarray(lazy), joined)
    assert_equal(lazy._force(), joined)
    assert_equal(lazy.__array__(np.float32), joined.astype(np.float32))
    assert len(lazy) == 5
    assert_equal([lazy[i] for i in range(4)], [frame[..., 0] for frame in frames])
    assert_equal(list(lazy), [frame[..., 0] for frame in frames])
    assert_equal(lazy[1:3], joined[..., 1:3])
    assert lazy.frame(0) is frames[0]  # still shared after it was read
    copy = pickle.loads(pickle.dumps(lazy))
    assert type(copy) is LazyFrames
    assert_equal(copy[2], lazy[2])


# Atari


def test_atari_env_has_xuances_flags_and_frames():
    ours = Atari_Env(BREAKOUT, 1, image_size=[84, 84])
    theirs = AtariEnv(BREAKOUT, 1)
    observation, _ = ours.reset()
    assert isinstance(observation, LazyFrames)
    assert_equal(np.asarray(observation), theirs.reset()[0])
    assert_equal(ours._get_obs()[3], np.asarray(observation)[..., 3])
    lost_lives = 0
    truncated = False
    while not truncated:
        observation, reward, terminated, truncated, info = ours.step(0)
        expected, same, ended, cut, game = theirs.step(0)
        assert (reward, terminated, truncated) == (same, ended, "episode" in game)
        assert not cut
        if terminated:
            assert_equal(np.asarray(observation), expected)
            assert ours.was_real_done == truncated
            lost_lives += not truncated
            told = info["episode_step"], info["episode_score"]
            assert told == (game["episode_step"], game["episode_score"])
            assert told == (ours._episode_step, ours._episode_score)
            assert_equal(np.asarray(ours.reset()[0]), theirs.reset()[0])
    assert lost_lives == 4
    assert ours.lifes == 5
    assert ours.render("rgb_array").shape == (210, 160, 3)


def test_atari_env_is_210_by_160_unless_told_otherwise_and_pickles():
    env = pickle.loads(pickle.dumps(Atari_Env("ALE/Pong-v5", 1)))
    assert env.observation_space.shape == np.asarray(env.reset()[0]).shape == (210, 160, 4)
    assert env.image_size == [210, 160]
    assert env.reward_range == (-np.inf, np.inf)
    config = {"env_id": BREAKOUT, "env_seed": 2, "render_mode": None, "obs_type": "rgb"}
    config |= {"frame_skip": 4, "num_stack": 2, "img_size": [50, 40], "noop_max": 5}
    assert np.asarray(Atari_Env(Namespace(**config)).reset()[0]).shape == (50, 40, 6)
    with pytest.raises(ValueError, match="full_action_space is not there"):
        Atari_Env(Namespace(**config, full_action_space=True))


def test_atari_env_may_be_overridden():
    class Dark(Atari_Env):
        def observation(self, frame):
            return super().observation(frame) // 2

        def reward(self, reward):
            return reward - 1.0

    env, bright = (build(BREAKOUT, 1, obs_type="ram") for build in (Dark, Atari_Env))
    assert env.observation_space.shape == (4 * 128,)
    observation, _ = env.reset()
    assert_equal(np.asarray(observation), np.asarray(bright.reset()[0]) // 2)
    assert np.asarray(observation) in env.observation_space
    assert env.step(0)[1] == -1.0


@pytest.mark.parametrize("build", [Atari_Env, AtariEnv])
def test_the_atari_engines_have_bytes_and_tell_games_from_lives(build):
    """Also around our AtariEnv, whose own flags are Gymnasium's."""
    env_fns = [partial(build, BREAKOUT, seed, image_size=(84, 84)) for seed in range(2)]
    loop = Loop([partial(Atari_Env, BREAKOUT, seed, image_size=(84, 84)) for seed in range(2)])
    loop.dtype = np.uint8
    engines = [DummyVecEnv_Atari(env_fns), SubprocVecEnv_Atari(env_fns)]
    expected, _ = loop.reset()
    for envs in engines:
        observations, _ = envs.reset()
        assert (observations.shape, observations.dtype) == ((2, 84, 84, 4), np.uint8)
        assert envs.buf_obs.dtype == np.uint8
        assert_equal(observations, expected)
    kinds = set()
    for _ in range(250):
        expected = loop.step([0, 0])
        for envs in engines:
            assert_equal(envs.step([0, 0]), expected)
        kinds |= set(zip(expected[2].tolist(), expected[3].tolist(), strict=True))
    assert kinds == {(False, False), (True, False), (True, True)}  # going on, a life, the game
    for envs in engines:
        envs.close()


class Telling(gym.Wrapper):
    """Reports a lost life as the end of an episode, as wrappers do."""

    def step(self, action):
        *told, terminated, truncated, info = super().step(action)
        return *told, terminated, truncated, info | ({"episode": {}} if terminated else {})


def test_a_lost_life_is_no_game_whatever_wrappers_tell():
    envs = DummyVecEnv_Atari([lambda: Telling(AtariEnv(BREAKOUT, 1))])
    envs.reset()
    ends = []
    while not any(truncated for _, truncated in ends):
        _, _, terminated, truncated, infos = envs.step([0])
        if terminated[0]:
            assert "episode" in infos[0]
            ends.append((bool(terminated[0]), bool(truncated[0])))
    assert ends == [(True, False)] * 4 + [(True, True)]
    envs.close()
