"""Native engines: what they return, what they refuse, and where they differ from our fleets."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

import envfleet
from envfleet.bench.contestants import BUILDERS
from envfleet.bench.works import factory, has_native
from envfleet.errors import EnvfleetError
from envfleet.vector.native.atari import atari_arguments

ale_py = pytest.importorskip("ale_py")
gymnasium.register_envs(ale_py)
from ale_py.vector_env import AtariVectorEnv  # noqa: E402

PLAIN = {"noop_max": 0, "fire_reset": False, "clip_reward": False}
"""Nothing random, nothing pressed."""
BREAKOUT = "BreakoutNoFrameskip-v4"


def cartpole(num_envs=4, **options):
    return envfleet.make("CartPole-v1", num_envs, backend="native", **options)


def atari(env_id=BREAKOUT, num_envs=2, **options):
    return envfleet.make(env_id, num_envs, backend="native", **options)


# Any vector_entry_point


def test_cartpole_is_gymnasiums_with_float64_rewards():
    theirs = CartPoleVectorEnv(8, max_episode_steps=20)
    theirs.action_space.seed(0)
    with cartpole(8, max_episode_steps=20) as ours:
        assert isinstance(ours, envfleet.NativeVectorEnv)
        np.testing.assert_array_equal(ours.reset(seed=np.int64(5))[0], theirs.reset(seed=5)[0])
        ended = 0
        for _ in range(60):
            actions = theirs.action_space.sample()
            mine, other = ours.step(actions.tolist()), theirs.step(actions)
            for a, b in zip(mine[:4], other[:4], strict=True):
                np.testing.assert_array_equal(a, b)
            assert mine[1].dtype == np.float64
            ended += np.count_nonzero(mine[2] | mine[3])
        assert ended > 8


@pytest.mark.parametrize(
    ("actions", "error", "text"),
    [
        ([0, 1, 2, 0], ValueError, "env 2 got 2, its space says Discrete"),
        ([0, -1, 0, 0], ValueError, "env 1 got -1"),
        ([0, 1], ValueError, "one action per env, 4 in all, got 2"),
        ([0.0, 1.0, 0.0, 0.0], TypeError, "float64"),
        ([[0], [0], [0], [0]], ValueError, "shape"),
        (1, TypeError, "iterate"),
    ],
)
def test_wrong_actions_are_refused_before_any_env_moves(actions, error, text):
    envs, twin = cartpole(), cartpole()
    envs.reset(seed=1), twin.reset(seed=1)
    with pytest.raises(error, match=text):
        envs.step(actions)
    np.testing.assert_array_equal(envs.step([0] * 4)[0], twin.step([0] * 4)[0])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"seed": [1, 2, 3, 4]}, "one seed per env"),
        ({"options": {"reset_mask": np.ones(4, dtype=bool)}}, "reset_mask"),
        ({"options": [{}] * 4}, "one dict of options per env"),
    ],
)
def test_resets_that_cartpole_cannot_do_are_refused(arguments, text):
    envs = cartpole()
    with pytest.raises(ValueError, match=rf"{text}.*backend='process'"):
        envs.reset(**arguments)
    with pytest.raises(TypeError, match="`seed` must be an integer"):
        envs.reset(seed="5")


def test_options_that_it_knows_are_passed_on():
    observations, _ = cartpole().reset(seed=1, options={"low": 0.1, "high": 0.1})
    np.testing.assert_allclose(observations, 0.1)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"autoreset_mode": "SameStep"}, "knows mode 'NextStep'.*cannot do 'SameStep'"),
        ({"autoreset_mode": "Disabled"}, "cannot do 'Disabled'"),
        ({"workers": 2}, "cannot do workers=2"),
        ({"copy": False}, "cannot do copy=False"),
        ({"vector_kwargs": {"info_format": "list"}}, "cannot do info_format='list'"),
        ({"on_failure": "restart"}, "cannot do on_failure='restart'"),
        ({"wrappers": [gymnasium.wrappers.ClipReward]}, "no single envs to wrap"),
        ({"isolate": True}, "isolate=True forbids backend='native'"),
    ],
)
def test_what_it_cannot_do_is_refused(arguments, text):
    with pytest.raises(ValueError, match=text):
        cartpole(**arguments)


def test_an_argument_that_it_does_not_have_is_an_error():
    with pytest.raises(TypeError, match="gravity"):
        cartpole(gravity=3.0)


def test_without_an_implementation_one_is_told_who_has_one():
    with pytest.raises(ValueError, match=r"Pendulum-v1 has no native.*CartPole-v1.*ALE/<game>-v5"):
        envfleet.make("Pendulum-v1", 2, backend="native")
    with pytest.raises(ValueError, match="needs an id or a spec"):
        envfleet.make(lambda: gymnasium.make("CartPole-v1"), 2, backend="native")


def test_auto_never_chooses_it_but_says_that_there_is_one():
    with envfleet.make("CartPole-v1", 2) as envs:
        assert envs.plan.backend != "native"
        assert envs.plan.native.endswith(":CartPoleVectorEnv")
        assert "backend='native' would run" in str(envs.plan)
    with envfleet.make("Pendulum-v1", 1) as envs:
        assert not envs.plan.native
        assert "native" not in str(envs.plan)


def test_the_plan_says_what_runs():
    plan = cartpole().plan
    assert (plan.backend, plan.workers, plan.caller_steps) == ("native", 1, False)
    assert str(plan).startswith("native, gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv")
    assert "was asked for" in str(plan)


def test_the_spec_builds_it_again_here_and_in_gymnasium():
    spec = cartpole(3, max_episode_steps=7).spec
    assert envfleet.make(spec).plan.backend == "native"
    assert (envfleet.make(spec).num_envs, gymnasium.make_vec(spec).num_envs) == (3, 3)
    assert gymnasium.make_vec(spec).max_episode_steps == 7


def test_it_is_closed_once_and_for_all():
    with cartpole() as envs:
        envs.reset()
    envs.close()
    for call in (envs.reset, envs.render, lambda: envs.step([0] * 4)):
        with pytest.raises(ClosedEnvironmentError):
            call()


class Countdown(VectorEnv):
    """Episodes of as many steps as the env's number and one; says things its own way."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    single_observation_space = spaces.Dict({"left": spaces.Box(0, 9, (1,), np.float32)})
    single_action_space = spaces.Tuple((spaces.MultiBinary(2), spaces.MultiDiscrete([3, 4])))

    def __init__(self, num_envs, error_at=None):
        self.num_envs, self.error_at = num_envs, error_at
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)

    def reset(self, *, seed=None, options=None):
        self.left = np.arange(1, self.num_envs + 1)
        return self.observe(), {"level": {"deep": self.left.copy()}}

    def observe(self):
        return {"left": self.left.astype(np.float32)[:, None]}

    def step(self, actions):
        if self.error_at == actions[1][0, 0]:
            raise ArithmeticError("broken off")
        self.left -= 1
        done, final = self.left == 0, self.observe()
        self.left[done] = np.arange(1, self.num_envs + 1)[done]
        infos = {"final_obs": final, "some": np.arange(2), "_some": np.array([True, False])}
        return self.observe(), np.ones(2, np.float32), done, np.zeros(2, bool), infos


@pytest.fixture
def countdown():
    gymnasium.register("Countdown-v0", lambda: None, vector_entry_point=Countdown)
    yield lambda **kwargs: envfleet.make(
        "Countdown-v0", 2, backend="native", autoreset_mode="SameStep", **kwargs
    )
    del gymnasium.registry["Countdown-v0"]


def actions_of(bits=0, number=0):
    return np.full((2, 2), bits, np.int8), np.full((2, 2), number, np.int64)


def test_infos_get_masks_and_final_obs_only_where_an_episode_ended(countdown):
    envs = countdown()
    _, infos = envs.reset()
    assert infos["_level"].tolist() == infos["level"]["_deep"].tolist() == [True, True]
    *_, terminated, _, infos = envs.step(actions_of())
    assert terminated.tolist() == infos["_final_obs"].tolist() == [True, False]
    assert infos["final_obs"][0]["left"].tolist() == [0.0]
    assert infos["final_obs"][1] is None
    assert infos["_some"].tolist() == [True, False]
    envs.reset()
    envs._envs.left[:] = 5
    *_, infos = envs.step(actions_of())
    assert "final_obs" not in infos
    assert "_final_obs" not in infos


def test_numbers_in_nested_actions_are_checked(countdown):
    envs = countdown()
    envs.reset()
    with pytest.raises(ValueError, match=r"actions\[0\]: env 0 got \[2 2\]"):
        envs.step(actions_of(bits=2))
    with pytest.raises(ValueError, match=r"actions\[1\]: env 0 got \[3 3\]"):
        envs.step(actions_of(number=3))


def test_after_an_error_envs_wait_for_a_reset(countdown):
    envs = countdown(error_at=1)
    with pytest.raises(ResetNeeded, match="have not been reset"):
        envs.step(actions_of())
    envs.reset()
    with pytest.raises(ArithmeticError):
        envs.step(actions_of(number=1))
    with pytest.raises(ResetNeeded, match="interrupted in a step"):
        envs.step(actions_of())
    envs.reset()
    envs.step(actions_of())


def test_an_implementation_that_hides_its_autoreset_mode_is_refused(countdown, monkeypatch):
    monkeypatch.setattr(Countdown, "metadata", {})
    with pytest.raises(ValueError, match="no mode of autoreset"):
        countdown()


# Arguments of ALE's engine

ARGUMENTS = {
    "frame_skip": [0, (2, 5), 2.0, True],
    "num_stack": [0, -1],
    "image_size": [(0, 84), (84,), 84],
    "noop_max": [-1],
    "obs_type": ["ram", "gray"],
    "repeat_action_probability": [1.5, "often", float("nan")],
    "max_num_frames_per_episode": [0],
    "episodic_life": [1],
    "mode": [1],
    "render_mode": ["rgb_array"],
    "life_loss_info": [True],
    "batch_size": [1],
    "num_threads": [1],
}


@pytest.mark.parametrize(
    ("word", "value"), [(word, value) for word, bad in ARGUMENTS.items() for value in bad]
)
def test_values_that_ale_cannot_honour_are_refused(word, value):
    with pytest.raises(ValueError, match=r"AtariVectorEnv|image_size"):
        atari(**{word: value})


def test_words_that_ale_does_not_have_are_refused():
    with pytest.raises(TypeError, match=r"no argument 'stack'; it has .*num_stack"):
        atari(stack=4)
    with pytest.raises(TypeError, match="stack_num: given twice"):
        atari(num_stack=4, stack_num=3)
    with pytest.raises(TypeError, match="says which game it is"):
        atari(game="pong")
    with pytest.raises(ValueError, match=r"cannot do workers=.*a thread per core"):
        atari(workers=10_000)
    with pytest.raises(ValueError, match="workers"):
        atari(workers=0)
    with pytest.raises(ValueError, match="'Disabled'"):
        atari(autoreset_mode="Disabled")
    with pytest.raises(ValueError, match="Breakout-v4 has no native"):
        atari("Breakout-v4")


def test_our_words_are_those_of_ale():
    spec = gymnasium.spec(BREAKOUT)
    assert atari_arguments(spec, {}) == {
        "game": "breakout",
        "repeat_action_probability": 0.0,
        "full_action_space": False,
        "frameskip": 4,
        "max_num_frames_per_episode": 108_000,
    }
    words = {
        "num_stack": np.int64(2),
        "frame_skip": 3,
        "image_size": (60, 50),
        "obs_type": "rgb",
        "noop_max": 7,
        "episodic_life": True,
        "fire_reset": False,
        "clip_reward": False,
        "max_pool": False,
        "repeat_action_probability": None,
    }
    assert atari_arguments(gymnasium.spec("ALE/Breakout-v5"), words) == {
        "game": "breakout",
        "repeat_action_probability": 0.25,
        "full_action_space": False,
        "frameskip": 3,
        "max_num_frames_per_episode": 108_000,
        "stack_num": 2,
        "img_height": 60,
        "img_width": 50,
        "grayscale": False,
        "noop_max": 7,
        "episodic_life": True,
        "use_fire_reset": False,
        "reward_clipping": False,
        "maxpool": False,
    }


def test_an_old_ale_is_refused(monkeypatch):
    monkeypatch.setattr(ale_py, "__version__", "0.11.2")
    with pytest.raises(ImportError, match=r"needs ale-py 0\.12\.1 or newer, 0\.11\.2 is installed"):
        atari()


# Playing with ALE's engine


@pytest.fixture(scope="module")
def breakout():
    """Episodes of 40 frames, 10 steps, in same-step mode; reset it first."""
    with atari(**PLAIN, autoreset_mode="SameStep", max_num_frames_per_episode=40) as envs:
        yield envs


def test_a_mask_resets_some_envs_and_final_obs_tells_of_those_that_ended(breakout):
    breakout.reset()
    for _ in range(4):
        breakout.step([1, 1])
    mask = np.array([True, False])
    _, infos = breakout.reset(options={"reset_mask": mask})
    assert infos["_lives"].tolist() == [True, False]
    assert infos["episode_frame_number"].tolist() == [0, 16]
    for _ in range(5):
        _, rewards, _, truncated, infos = breakout.step([0, 0])
        assert not truncated.any()
        assert "final_obs" not in infos
    assert rewards.dtype == np.float64
    observations, _, terminated, truncated, infos = breakout.step([0, 0])
    assert (truncated.tolist(), terminated.any()) == ([False, True], False)
    assert infos["_final_obs"].tolist() == [False, True]
    assert infos["final_obs"][0] is None
    assert infos["final_obs"][1].shape == (4, 84, 84)
    assert observations[1, :3].max() == 0 < infos["final_obs"][1][0].max()
    assert infos["_lives"].all()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"seed": -1}, ValueError, "seed -1"),
        ({"seed": 2**31 - 1}, ValueError, "seed 2147483648"),
        ({"seed": [1]}, ValueError, "length must match"),
        ({"seed": 1.5}, TypeError, "must be an integer"),
        ({"options": {"level": 1}}, ValueError, "other than 'reset_mask'"),
        ({"options": {"reset_mask": np.zeros(2, dtype=bool)}}, ValueError, "at least one True"),
        ({"options": {"reset_mask": [True, False]}}, TypeError, "numpy array"),
    ],
)
def test_resets_that_ale_cannot_do_are_refused(breakout, arguments, error, text):
    with pytest.raises(error, match=text):
        breakout.reset(**arguments)


def test_an_action_that_would_hang_ale_is_refused(breakout):
    breakout.reset()
    for wrong in ([0, 4], [-1, 0], [0.0, 1.0], [0, 1, 2]):
        with pytest.raises((ValueError, TypeError), match="actions"):
            breakout.step(wrong)
    breakout.step(np.array([0, 3], dtype=np.uint8))


def test_an_interrupted_step_leaves_nothing_for_the_next_answer(breakout, monkeypatch):
    first, _ = breakout.reset(seed=0)

    def interrupted(actions):
        breakout._envs.send(actions)
        raise KeyboardInterrupt

    monkeypatch.setattr(breakout._envs, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        breakout.step([1, 1])
    with pytest.raises(ResetNeeded, match="interrupted in a step"):
        breakout.step([1, 1])
    with pytest.raises(ValueError, match="all of them must be reset"):
        breakout.reset(options={"reset_mask": np.array([True, False])})
    again, infos = breakout.reset(seed=0)
    np.testing.assert_array_equal(again, first)
    assert infos["episode_frame_number"].tolist() == [0, 0]
    *_, infos = breakout.step([1, 1])
    assert infos["episode_frame_number"].tolist() == [4, 4]


def test_in_a_forked_child_it_says_that_its_threads_are_elsewhere(breakout):
    breakout.reset()
    child = os.fork()
    if not child:
        try:
            breakout.step([0, 0])
        except EnvfleetError:
            breakout.close()
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def threads():
    """How many there are, those of C++ included."""
    return len(list(Path("/proc/self/task").iterdir()))


def test_close_ends_the_threads_and_leaves_the_frames():
    before = threads()
    envs = atari(num_envs=1, workers=1, obs_type="rgb", num_stack=2, image_size=(60, 50), **PLAIN)
    assert (envs.threads, envs.plan.workers) == (1, 1)
    frames, _ = envs.reset(seed=0)
    kept = frames.copy()
    spec = envs.spec
    envs.close()
    np.testing.assert_array_equal(frames, kept)
    assert threads() == before
    assert frames.shape == (1, *envs.single_observation_space.shape) == (1, 6, 60, 50)
    theirs = gymnasium.make_vec(spec)
    assert isinstance(theirs, AtariVectorEnv)
    raw, _ = theirs.reset(seed=0)
    for frame in range(2):
        for colour in range(3):
            np.testing.assert_array_equal(kept[0, 3 * frame + colour], raw[0, frame, :, :, colour])


# Collecting, and measuring


class Player:
    """Plays at random and values what it sees by its mean."""

    device = torch.device("cpu")

    def __init__(self, actions):
        self.actions = actions

    def get_actions_and_values(self, observations, actions=None):
        values = observations.flatten(1).float().mean(1)
        if actions is None:
            actions = torch.randint(self.actions, (len(values),))
        return actions, torch.zeros(len(values)), values, torch.zeros(len(values))


def test_a_collector_in_next_step_mode_brings_home_what_happened():
    envs, twin = cartpole(8), CartPoleVectorEnv(8)
    torch.manual_seed(0)
    with envfleet.Collector(envs, Player(2), steps=60, seed=3) as collector:
        rollout = collector.collect()
    observations, _ = twin.reset(seed=3)
    done = np.zeros(8, dtype=bool)
    for t in range(60):
        np.testing.assert_array_equal(rollout.observations[t], observations)
        np.testing.assert_array_equal(rollout.valid[t], ~done)
        observations, rewards, terminated, truncated, _ = twin.step(rollout.actions[t].numpy())
        np.testing.assert_array_equal(rollout.rewards[t], rewards)
        np.testing.assert_array_equal(rollout.terminated[t], terminated)
        done = terminated | truncated
    np.testing.assert_array_equal(rollout.last_observations, observations)
    assert 8 < len(rollout.final_positions) == len(rollout.final_observations)
    assert rollout.total_return == int(rollout.valid.sum())


def test_a_collector_in_same_step_mode_bootstraps_with_the_final_frames(breakout):
    collector = envfleet.Collector(breakout, Player(4), steps=25)
    rollout = collector.collect()
    assert rollout.observations.shape == (25, 2, 4, 84, 84)
    assert rollout.observations.dtype == torch.uint8
    assert rollout.valid.all()
    assert rollout.final_positions.tolist() == [[9, 0], [9, 1], [19, 0], [19, 1]]
    seen = rollout.observations.numpy()
    # A final stack goes on from the last one; the next begins with three empty frames.
    for (t, env), final in zip(rollout.final_positions, rollout.final_observations, strict=True):
        np.testing.assert_array_equal(final[:3], seen[t, env, 1:])
        assert seen[t + 1, env, :3].max() == 0
    means = rollout.final_observations.numpy().mean(axis=(1, 2, 3))
    np.testing.assert_allclose(rollout.final_values, means, rtol=1e-5)


def test_evaluation_and_wrappers_take_it():
    result = envfleet.evaluate(Player(2), cartpole(2), 4, deterministic=False, seed=0)
    assert len(result.returns) == 4
    envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(cartpole(2, max_episode_steps=3))
    envs.reset(seed=0)
    for _ in range(3):
        *_, truncated, infos = envs.step([0, 1])
    assert truncated.all()
    assert infos["episode"]["r"].tolist() == [3.0, 3.0]


def test_the_bench_has_a_native_contestant_where_there_is_one():
    assert [has_native(work) for work in ("CartPole-v1", "Pendulum-v1", "Sleep-5ms")] == [
        True,
        False,
        False,
    ]
    assert has_native("Breakout-84x84x4")
    contestant = BUILDERS["envfleet native"](factory("CartPole-v1"), 4)
    assert contestant.run(0.01) > 0
    assert contestant.answers(3) is None
    assert contestant.plan.startswith("native")
    contestant.close()
    for work in ("Pendulum-v1", "Sleep-5ms"):
        with pytest.raises(ValueError, match="no native implementation"):
            BUILDERS["envfleet native"](factory(work), 4)


# make_atari


def test_make_atari_takes_the_native_engine_where_that_can_do_it():
    with envfleet.make_atari(BREAKOUT, 1, episodic_life=False, image_size=None) as envs:
        assert envs.plan.backend == "native"
        assert "can do what is asked for" in envs.plan.reason
        assert envs.reset()[0].shape == (1, 4, 210, 160)


CANNOT = {
    "new game at every lost life": {"episodic_life": True},
    "draw it from a range": {"frame_skip": (2, 5)},
    "ram": {"obs_type": "ram"},
    "render": {"render_mode": "rgb_array"},
    "Disabled": {"autoreset_mode": "Disabled"},
    "isolate": {"isolate": True},
    "on_failure": {"on_failure": "restart"},
    "a thread per core": {"workers": 10_000},
    "Breakout-v4": {"env_id": "Breakout-v4"},
}


@pytest.mark.parametrize("text", CANNOT)
def test_make_atari_says_what_the_native_engine_cannot_do(text):
    with pytest.raises(ValueError, match=rf"cannot do .*{text}"):
        envfleet.make_atari(
            **{"env_id": BREAKOUT, "episodic_life": False, "backend": "native", **CANNOT[text]}
        )


def test_make_atari_names_what_is_unknown():
    for env_id in ("ALE/Nonesuch-v5", "CartPole-v1"):
        with pytest.raises(ValueError, match=r"no Atari game .*Breakout"):
            envfleet.make_atari(env_id, episodic_life=False)
    with pytest.raises(ValueError, match=r"obs_type must be one of .*, got 'colour'"):
        envfleet.make_atari(BREAKOUT, episodic_life=False, obs_type="colour")
    with pytest.raises(ValueError, match="`backend` must be one of"):
        envfleet.make_atari(BREAKOUT, backend="fast")


def test_make_atari_runs_atari_env_in_workers_where_ale_cannot():
    # Torch has worked in this process: its threads do not survive a fork.
    words = {"obs_type": "rgb", "num_stack": 3, "workers": 1, "context": "forkserver"}
    with envfleet.make_atari(BREAKOUT, 2, **words) as envs:
        assert (envs.plan.backend, envs.plan.workers) == ("process", 1)
        assert "new game at every lost life" in envs.plan.reason
        assert envs.single_observation_space.shape == (9, 84, 84)
        assert envs.reset()[0].shape == (2, 9, 84, 84)


# The two ways of make_atari beside each other


def both(env_id, **options):
    """One game on both engines, nothing random in it."""
    options = {"episodic_life": False, **PLAIN, "repeat_action_probability": 0.0, **options}
    return [
        envfleet.make_atari(env_id, 1, backend=backend, autoreset_mode="SameStep", **options)
        for backend in ("native", "serial")
    ]


@pytest.fixture(scope="module")
def pair():
    """Breakout on both engines; reset them first."""
    native, ours = both(BREAKOUT)
    with native, ours:
        yield native, ours


GAMES = ["PongNoFrameskip-v4", "ALE/Breakout-v5", "MsPacmanNoFrameskip-v4"]


@pytest.mark.parametrize("env_id", GAMES)
def test_frames_are_those_of_atari_env(env_id):
    native, ours = both(env_id)
    with native, ours:
        assert native.single_observation_space == ours.single_observation_space
        assert native.single_action_space == ours.single_action_space
        native.reset(seed=0), ours.reset(seed=0)
        random = np.random.default_rng(0)
        for t in range(120):
            action = random.integers(native.single_action_space.n, size=1)
            mine, other = native.step(action), ours.step(action)
            for a, b in zip(mine[1:4], other[1:4], strict=True):
                np.testing.assert_array_equal(a, b)
            known = slice(max(0, 3 - t - 1), None)  # before: see the row stack-padding
            np.testing.assert_array_equal(mine[0][0][known], other[0][0][known])


# Rows of docs/native.md


def test_every_difference_of_the_page_is_shown_here():
    page = (Path(__file__).parent.parent / "docs" / "native.md").read_text()
    table = page.split("## Where native engines differ")[1]
    rows = re.findall(r"^\| `([a-z-]+)` \|", table, flags=re.MULTILINE)
    shown = [name for name in globals() if name.startswith("test_difference_")]
    assert [f"test_difference_{row.replace('-', '_')}" for row in rows] == shown


def test_difference_one_generator():
    fleet = envfleet.make("CartPole-v1", 2, backend="serial")
    two, three = cartpole(2).reset(seed=5)[0], cartpole(3).reset(seed=5)[0]
    assert (two != fleet.reset(seed=5)[0]).any()
    assert (two != three[:2]).any()
    fleet.close()


def test_difference_no_single_envs():
    envs = cartpole()
    assert not hasattr(envs, "call_on")
    with pytest.raises(AttributeError, match=r"no `set_attr`.*backend='process'"):
        envs.set_attr("x", 1)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(envs)


def test_difference_prepared_frames(breakout):
    assert breakout.single_observation_space.shape == (4, 84, 84)
    assert gymnasium.make(BREAKOUT).observation_space.shape == (210, 160, 3)


def test_difference_final_info(breakout):
    breakout.reset()
    for _ in range(10):
        *_, truncated, infos = breakout.step([0, 0])
    assert truncated.all()
    assert "final_info" not in infos
    assert infos["episode_frame_number"].tolist() == [0, 0]  # of the game that has begun


def test_difference_scores(pair):
    native, ours = pair
    ours.reset()
    assert {"episode_score", "episode_step"} <= ours.step([0])[4].keys()
    native.reset()
    told = {key for key in native.step([0])[4] if not key.startswith("_")}
    assert told == {"env_id", "lives", "frame_number", "episode_frame_number"}


def frames_at_the_start(**options):
    """How many raw frames a game is old when the learner first sees it, on both engines."""
    native, ours = both(BREAKOUT, **options)
    with native, ours:
        return [int(envs.reset()[1]["episode_frame_number"][0]) for envs in (native, ours)]


def test_difference_no_ops():
    assert frames_at_the_start(noop_max=1) == [0, 1]


def test_difference_fire():
    assert frames_at_the_start(fire_reset=True) == [1, 8]


def test_difference_time_limit():
    with atari(num_envs=1, noop_max=0, max_num_frames_per_episode=40) as native:
        native.reset()
        ended = False
        while not ended:
            *_, (ended,), infos = native.step([0])
    assert infos["episode_frame_number"] == 41  # FIRE is not counted
    ours = gymnasium.make(BREAKOUT, max_num_frames_per_episode=40)
    ours.reset(seed=0)
    ended = False
    while not ended:
        *_, ended, info = ours.step(0)
    assert info["episode_frame_number"] == 40
    ours.close()


def test_difference_episodic_life():
    with atari(num_envs=1, noop_max=0, episodic_life=True, autoreset_mode="SameStep") as native:
        native.reset()
        ended = False
        while not ended:
            *_, (ended,), _, infos = native.step([0])
    assert infos["lives"] == 5
    assert infos["episode_frame_number"] == 1


def test_difference_stack_padding(pair):
    (theirs, _), (mine, _) = (envs.reset(seed=0) for envs in pair)
    np.testing.assert_array_equal(theirs[0][3], mine[0][3])
    assert theirs[0][:3].max() == 0
    np.testing.assert_array_equal(mine[0][:3], mine[0][[3, 3, 3]])


def test_difference_terminal_frame(pair):
    native, ours = pair
    native.reset(seed=0), ours.reset(seed=0)
    random = np.random.default_rng(1)
    ended = False
    while not ended:
        action = random.integers(4, size=1)
        mine, other = native.step(action), ours.step(action)
        (ended,) = mine[2]
    stale, true = mine[4]["final_obs"][0], other[4]["final_obs"][0]
    np.testing.assert_array_equal(stale[:3], true[:3])
    assert (stale[3] != true[3]).any()
