"""AtariEnv: against the published wrappers, and each option against what ALE shows."""

from __future__ import annotations

import pickle
import sys
from functools import partial

import ale_py
import cv2
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

import envfleet
from baselines import baseline
from envfleet.envs import AtariEnv, LazyFrames
from envfleet.record.rendering import fps_of

gym.register_envs(ale_py)
BREAKOUT = "BreakoutNoFrameskip-v4"
ENGINES = [envfleet.SerialVectorEnv, envfleet.ProcessVectorEnv]


def short_game(frames):
    """Breakout that ALE cuts after so many raw frames."""
    name = f"Breakout{frames}-v0"
    if name not in gym.registry:
        game = dict(gym.spec(BREAKOUT).kwargs, max_num_frames_per_episode=frames)
        gym.register(name, "ale_py.env:AtariEnv", kwargs=game)
    return name


def play(env, steps, seed=0):
    """What an env returns for some actions, reset wherever an episode ends."""
    actions = np.random.default_rng(seed)
    yield *env.reset(seed=seed), None
    for _ in range(steps):
        answer = env.step(int(actions.integers(env.action_space.n)))
        yield answer[0], answer[4], answer[1:4]
        if answer[2] or answer[3]:
            yield *env.reset(), None


# The published baselines


@pytest.mark.parametrize(
    ("env_id", "steps", "ends", "games"),
    [
        (BREAKOUT, 260, 11, 2),  # five lives, does nothing without FIRE
        ("MsPacmanNoFrameskip-v4", 630, 3, 1),  # three lives, no FIRE
        ("ALE/SpaceInvaders-v5", 150, 0, 0),  # sticky actions, several rewards
        ("ALE/Freeway-v5", 50, 0, 0),  # no lives
    ],
)
def test_it_plays_as_the_published_wrappers_do(env_id, steps, ends, games):
    ours, theirs = AtariEnv(env_id, channels_first=True), baseline(env_id)
    told, ended = [], 0
    pairs = zip(play(ours, steps), play(theirs, steps), strict=True)
    for (mine, my_info, my_step), (other, other_info, other_step) in pairs:
        np.testing.assert_array_equal(mine, other)
        assert my_info["episode_frame_number"] == other_info["episode_frame_number"]
        if my_step is None:
            continue
        reward, *flags = other_step
        assert my_step == (np.sign(reward), *flags)
        ended += flags[0]
        assert ("episode" in my_info) == ("episode" in other_info)
        if "episode" in my_info:
            assert my_info["episode"]["r"] == other_info["episode"]["r"]
            told.append(my_info["episode"]["r"])
    assert (ended, len(told)) == (ends, games)
    assert list(ours.return_queue) == told


@pytest.mark.parametrize("env_id", ["ALE/Pong-v5", BREAKOUT])
def test_without_lives_and_fire_it_is_gymnasiums_preprocessing(env_id):
    ours = AtariEnv(
        env_id, channels_first=True, episodic_life=False, fire_reset=False, clip_reward=False
    )
    theirs = FrameStackObservation(AtariPreprocessing(gym.make(env_id, frameskip=1)), 4)
    pairs = zip(play(ours, 150), play(theirs, 150), strict=True)
    for (mine, _, my_step), (other, _, other_step) in pairs:
        assert my_step == other_step
        if my_step is None or not (my_step[1] or my_step[2]):  # theirs shows no terminal frame
            np.testing.assert_array_equal(mine, other)


# Lives, games, limits


def lose_a_life(env):
    """Play no-ops until a life is gone; the last answer."""
    while True:
        answer = env.step(0)
        if answer[2] or answer[3]:
            return answer


def test_only_the_end_of_a_game_or_a_wish_starts_a_new_one():
    env = AtariEnv(BREAKOUT, seed=0)
    env.reset()
    _, _, terminated, truncated, info = lose_a_life(env)
    assert (terminated, truncated, info["lives"]) == (True, False, 4)
    assert "episode" not in info
    step = info["episode_step"]
    for beginning in ({"seed": 1}, {"options": {"new_game": True}}):
        _, goes_on = env.reset()
        assert (goes_on["lives"], goes_on["episode_step"]) == (4, step)
        assert goes_on["episode_frame_number"] == info["episode_frame_number"] + 12
        _, fresh = env.reset(**beginning)
        assert (fresh["lives"], fresh["episode_step"], fresh["episode_score"]) == (5, 0, 0.0)
        *_, info = lose_a_life(env)
        step = info["episode_step"]
    env.reset()
    env.step(0)
    assert env.reset()[1]["lives"] == 5  # in the middle of a life: somebody has cut it


def test_without_episodic_life_an_episode_is_a_game():
    env = AtariEnv(BREAKOUT, seed=0, episodic_life=False)
    env.reset()
    lives = set()
    for number in range(3000):
        _, _, terminated, truncated, info = env.step(number % 2)
        lives.add(info["lives"])
        if terminated:
            break
    assert lives == {0, 1, 2, 3, 4, 5}
    assert not truncated
    assert info["episode"]["l"] == info["episode_step"] == number + 1
    with pytest.raises(gym.error.ResetNeeded, match="the game is over"):
        env.step(0)


def test_the_time_limit_is_a_truncation_that_shows_its_last_frame():
    env = AtariEnv(short_game(50), seed=0, image_size=None, num_stack=1, noop_max=0)
    raw = gym.make(short_game(50), obs_type="grayscale")
    _, info = env.reset()
    raw.reset(seed=0)
    frames = [raw.step(action)[0] for action in [1] * 4 + [2] * 4]
    assert info["episode_frame_number"] == 8
    truncated = False
    while not truncated:
        observation, _, terminated, truncated, info = env.step(3)
        assert not terminated
    frames += [raw.step(3)[0] for _ in range(50 - 8)]
    assert info["episode_frame_number"] == 50  # not a multiple of four: cut within a step
    np.testing.assert_array_equal(observation[..., 0], np.maximum(frames[-2], frames[-1]))
    assert info["episode"]["l"] == 11
    assert env.max_episode_steps == 13


def test_a_game_that_ends_while_nobody_looks_is_told_in_the_reset():
    env = AtariEnv(BREAKOUT, seed=0)
    env.reset()
    *_, info = lose_a_life(env)
    env = AtariEnv(short_game(info["episode_frame_number"] + 2), seed=0)
    env.reset()
    *_, terminated, truncated, info = lose_a_life(env)
    assert (terminated, truncated) == (True, False)
    _, fresh = env.reset()
    assert (fresh["lives"], fresh["episode_step"]) == (5, 0)
    assert fresh["episode"]["l"] == info["episode_step"]
    assert "episode" not in env.step(0)[4]


# What is seen


def raw_frame(env_id, obs_type, image_size):
    """The first frame after a reset with seed 0, straight from ALE."""
    env = gym.make(env_id, frameskip=1, obs_type=obs_type)
    frame, _ = env.reset(seed=0)
    if obs_type != "ram" and image_size is not None:
        frame = cv2.resize(frame, image_size[::-1], interpolation=cv2.INTER_AREA)
    return frame


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("obs_type", "image_size", "channels_first"),
    [
        ("grayscale", (60, 40), False),
        ("grayscale", None, True),
        ("rgb", None, False),
        ("rgb", (60, 40), True),
        ("ram", (60, 40), False),
    ],
)
def test_observations_are_laid_out_as_asked(obs_type, image_size, channels_first, lazy):
    env = AtariEnv(
        "ALE/Pong-v5",
        seed=0,
        obs_type=obs_type,
        num_stack=3,
        image_size=image_size,
        noop_max=0,
        fire_reset=False,
        channels_first=channels_first,
        lazy=lazy,
    )
    observation, _ = env.reset()
    height, width = image_size or (210, 160)
    channels = 3 if obs_type == "rgb" else 1
    shape = (height, width, 3 * channels)
    if channels_first:
        shape = (3 * channels, height, width)
    assert env.observation_space == gym.spaces.Box(
        0, 255, (3 * 128,) if obs_type == "ram" else shape, np.uint8
    )
    assert observation.shape == env.observation_space.shape
    assert isinstance(observation, LazyFrames if lazy else np.ndarray)
    frame = raw_frame("ALE/Pong-v5", obs_type, image_size)
    if obs_type == "grayscale":
        frame = frame[..., None]
    expected = np.concatenate([frame] * 3, axis=-1)
    if channels_first and obs_type != "ram":
        expected = np.concatenate([frame.transpose(2, 0, 1)] * 3)
    np.testing.assert_array_equal(observation, expected)
    earlier = np.array(observation)
    stepped = env.step(2)[0]
    np.testing.assert_array_equal(observation, earlier)  # it is the caller's
    part = earlier.shape[0 if channels_first or obs_type == "ram" else -1] // 3
    keep = (slice(part, None),) if channels_first or obs_type == "ram" else (..., slice(part, None))
    drop = (slice(0, -part),) if channels_first or obs_type == "ram" else (..., slice(0, -part))
    np.testing.assert_array_equal(np.asarray(stepped)[drop], earlier[keep])


def test_two_frames_are_pooled_or_not():
    raw = gym.make(BREAKOUT, obs_type="grayscale")
    raw.reset(seed=0)
    frames = [raw.step(1)[0] for _ in range(4)]
    options = {"noop_max": 0, "fire_reset": False, "image_size": None, "num_stack": 1}
    for max_pool, expected in ((True, np.maximum(*frames[-2:])), (False, frames[-1])):
        env = AtariEnv(BREAKOUT, max_pool=max_pool, **options)
        env.reset(seed=0)
        np.testing.assert_array_equal(env.step(1)[0][..., 0], expected)


def test_a_pair_of_skips_is_drawn_from():
    env = AtariEnv(BREAKOUT, frame_skip=(2, 5), seed=0)
    _, info = env.reset()
    skips = set()
    for _ in range(40):
        before = info["episode_frame_number"]
        *_, info = env.step(0)
        skips.add(info["episode_frame_number"] - before)
    assert skips == {2, 3, 4}
    assert env.metadata["render_fps"] == 20


def test_sticky_actions_are_the_ids_or_as_asked():
    def stickiness(*args, **kwargs):
        return AtariEnv(*args, **kwargs).ale.getFloat("repeat_action_probability")

    assert stickiness("ALE/Pong-v5") == 0.25
    assert stickiness("PongNoFrameskip-v4") == 0.0
    assert stickiness("ale_py:ALE/Pong-v5", repeat_action_probability=0.5) == 0.5


def test_observation_and_reward_can_be_overridden():
    class Inverted(AtariEnv):
        def observation(self, frame):
            return 255 - super().observation(frame)

        def reward(self, reward):
            return reward - 0.5

    plain, inverted = AtariEnv(BREAKOUT, seed=0), Inverted(BREAKOUT, seed=0)
    np.testing.assert_array_equal(255 - plain.reset()[0], inverted.reset()[0])
    assert inverted.step(0)[1] == -0.5

    class Cropped(AtariEnv):
        def observation(self, frame):
            return super().observation(frame)[:10]

    with pytest.raises(ValueError, match=r"must return bytes of shape \(84, 84, 1\), got uint8 of"):
        Cropped(BREAKOUT).reset()


def test_the_screen_is_rendered_and_the_speed_is_true():
    env = AtariEnv(BREAKOUT, seed=0, frame_skip=2)
    env.reset()
    assert env.render().shape == (210, 160, 3)
    assert env.metadata["render_fps"] == 30
    assert AtariEnv.metadata["render_fps"] == 15
    with envfleet.make(partial(AtariEnv, BREAKOUT), 1, backend="serial") as envs:
        assert fps_of(envs) == 15


# As an env


def check(env, monkeypatch):
    for driver in ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER"):
        monkeypatch.setenv(driver, "dummy")
    check_env(env)


def test_gymnasiums_checker_has_nothing_to_say(monkeypatch):
    check(AtariEnv("ALE/Breakout-v5"), monkeypatch)


@pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array:UserWarning")
@pytest.mark.filterwarnings("ignore:.*was expecting a numpy array, actual type:UserWarning")
def test_gymnasiums_checker_says_only_that_lazy_frames_are_no_array(monkeypatch):
    check(AtariEnv("ALE/Breakout-v5", lazy=True), monkeypatch)


def test_seeds_decide_everything():
    first, second = AtariEnv("ALE/Breakout-v5", seed=5), AtariEnv("ALE/Breakout-v5")
    np.testing.assert_array_equal(first.reset()[0], second.reset(seed=5)[0])
    alike = gym.spaces.Discrete(4, seed=5)
    assert [first.action_space.sample() for _ in range(9)] == [alike.sample() for _ in range(9)]
    noops = set()
    for _ in range(20):
        noops.add(first.reset()[1]["episode_frame_number"] - 8)
    assert len(noops) > 5
    assert min(noops) >= 1
    assert max(noops) <= 30


def test_it_pickles_and_is_built_from_its_spec():
    env = AtariEnv(BREAKOUT, 3, num_stack=2, clip_reward=False)
    expected = env.reset(seed=1)[0]
    for other in (pickle.loads(pickle.dumps(env)), gym.make(env.spec)):
        assert other.observation_space.shape == (84, 84, 2)
        np.testing.assert_array_equal(other.reset(seed=1)[0], expected)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"env_id": "ALE/Pongg-v5"}, "no Atari game 'ALE/Pongg-v5'; did you mean .*ALE/Pong-v5.*"),
        ({"env_id": "CartPole-v1"}, "no Atari game 'CartPole-v1'.*games: Adventure, .*Zaxxon"),
        ({"obs_type": "gray"}, "obs_type must be one of grayscale, rgb, ram, got 'gray'"),
        ({"frame_skip": -1}, "frame_skip must be 1 or more, or a pair .* got -1"),
        ({"frame_skip": (4, 2)}, "frame_skip must be 1 or more, or a pair"),
        ({"num_stack": 0}, "num_stack must be 1 or more, got 0"),
        ({"image_size": (84, 0)}, r"image_size must be \(height, width\)"),
        ({"image_size": 84}, r"image_size must be \(height, width\)"),
        ({"noop_max": -1}, "noop_max must be 0 .* or more, got -1"),
        ({"repeat_action_probability": 2.0}, "repeat_action_probability must be between 0 and 1"),
        ({"render_mode": "ansi"}, "render_mode must be one of human, rgb_array or None"),
    ],
)
def test_what_means_nothing_is_refused_with_the_choices(options, text):
    with pytest.raises(ValueError, match=text):
        AtariEnv(**{"env_id": BREAKOUT, **options})


def test_actions_that_are_none_are_refused():
    env = AtariEnv(BREAKOUT)
    with pytest.raises(gym.error.ResetNeeded, match="has not begun"):
        env.step(0)
    env.reset()
    for action in (-1, 4):
        with pytest.raises(ValueError, match=f"action must be 0 to 3, got {action}"):
            env.step(action)
    with pytest.raises(TypeError):
        env.step(1.5)


@pytest.mark.parametrize("module", ["ale_py", "cv2"])
def test_what_is_missing_is_named_in_one_line(module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    line = f"{module} is not installed: pip install 'envfleet[atari]'"
    with pytest.raises(gym.error.DependencyNotInstalled) as caught:
        envfleet.make(partial(AtariEnv, BREAKOUT), 1, backend="serial")
    assert str(caught.value) == line
    assert line not in getattr(caught.value, "__notes__", [])


# In fleets


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_fleet_sees_what_single_envs_see(engine, lazy):
    build = partial(AtariEnv, BREAKOUT, lazy=lazy)
    singles = [AtariEnv(BREAKOUT) for _ in range(3)]
    expected = [env.reset(seed=7 + i)[0] for i, env in enumerate(singles)]
    lost = 0
    with engine([build] * 3, autoreset_mode=AutoresetMode.SAME_STEP) as envs:
        observations, _ = envs.reset(seed=7)
        np.testing.assert_array_equal(observations, expected)
        for _ in range(40):
            actions = np.zeros(3, dtype=np.int64)
            observations, rewards, terminated, truncated, infos = envs.step(actions)
            for i, env in enumerate(singles):
                seen, reward, ended, cut, info = env.step(0)
                assert (rewards[i], terminated[i], truncated[i]) == (reward, ended, cut)
                if ended:
                    np.testing.assert_array_equal(infos["final_obs"][i], seen)
                    lost += 1
                    seen, info = env.reset()
                np.testing.assert_array_equal(observations[i], seen)
                assert infos["episode_frame_number"][i] == info["episode_frame_number"]
    assert lost
