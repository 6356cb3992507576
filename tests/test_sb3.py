"""SB3VecEnv: DummyVecEnv's answers to everything, and Stable-Baselines3 itself on top of it."""

from __future__ import annotations

from collections import OrderedDict
from copy import deepcopy
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.error import ClosedEnvironmentError
from gymnasium.wrappers import TimeLimit
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.utils import get_action_masks
from stable_baselines3 import A2C, DQN, PPO, SAC, HerReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecCheckNan,
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
    VecVideoRecorder,
)
from tqdm import tqdm

import envfleet
from envfleet.adapters import SB3VecEnv
from envfleet.envs import SendMasks
from envfleet.testing import Fault, FaultEnv
from sb3_envs import Masked, Strict, Teller

SERIAL = {"backend": "serial"}
PROCESS = {"backend": "process", "start_method": "fork", "workers": 2}
SHARED = {"backend": "process", "workers": 2, "caller_steps": True}
ENGINES = pytest.mark.parametrize(
    "options", [SERIAL, PROCESS, SHARED], ids=["serial", "process", "caller"]
)
NESTED = spaces.Dict(
    OrderedDict(
        z=spaces.Box(-1, 1, (2,), np.float32), a=spaces.Discrete(4), m=spaces.MultiBinary(3)
    )
)
PAIR = spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2, 2), np.float32)])


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def same(ours, theirs):
    """Equal, and of the same types, all the way down."""
    if isinstance(theirs, dict):
        assert isinstance(ours, dict)
        assert ours.keys() == theirs.keys()
        for key in theirs:
            same(ours[key], theirs[key])
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            same(mine, other)
    elif isinstance(theirs, np.ndarray):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    else:
        assert type(ours) is type(theirs)
        assert ours == theirs


def both(env_fns, options):
    return SB3VecEnv(env_fns, **options), DummyVecEnv(env_fns)


# The contract


@ENGINES
@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"observations": NESTED, "actions": PAIR},
        {"observations": PAIR, "actions": NESTED},
        {"observations": spaces.Discrete(7), "actions": spaces.MultiDiscrete([3, 4])},
        {"observations": spaces.Box(0, 255, (3, 4), np.uint8), "actions": spaces.MultiBinary(3)},
    ],
    ids=["box", "dict", "tuple", "discrete", "bytes"],
)
def test_resets_and_steps_are_those_of_dummy_vec_env(options, kwargs):
    env_fns = [partial(Teller, length, **kwargs) for length in (1, 2, 3, 50)]
    ours, theirs = both(env_fns, options)
    ours.action_space.seed(3)
    assert ours.seed(4) == theirs.seed(4)
    kept = []
    for k in range(9):
        if k % 8 == 0:
            ours.set_options({"round": k})
            theirs.set_options({"round": k})
            same(ours.reset(), theirs.reset())
            same(ours.reset_infos, theirs.reset_infos)
        actions = [ours.action_space.sample() for _ in env_fns]
        result, expected = ours.step(actions), theirs.step(actions)
        same(result, expected)
        assert result[1].dtype == np.float32
        same(ours.reset_infos, theirs.reset_infos)
        kept.append((result, expected))
    for result, expected in kept:  # none of it was written to since
        same(result, expected)
    for mine, other in zip(ours.get_attr("given"), theirs.get_attr("given"), strict=True):
        same(mine[-3:], other[-3:])
    ours.close()
    theirs.close()


@ENGINES
def test_seeds_and_options_are_for_one_reset(options):
    envs = SB3VecEnv([Teller, Teller], **options)
    envs.seed(7)
    given = [{"level": 1}, {}]
    envs.set_options(given)
    given[0]["level"] = 2
    envs.reset()
    assert [info["seed"] for info in envs.reset_infos] == [7, 8]
    assert [info["options"] for info in envs.reset_infos] == [{"level": 1}, None]
    envs.reset()
    assert [info["seed"] for info in envs.reset_infos] == [None, None]
    assert [info["options"] for info in envs.reset_infos] == [None, None]
    envs.close()


@ENGINES
def test_seeds_make_episodes_again(options):
    ours, theirs = both([Teller] * 3, options)
    runs = []
    for seed in (5, 5, 6):
        runs.append([])
        for envs in (ours, theirs):
            envs.seed(seed)
            answers = [envs.reset(), *(envs.step([0, 1, 2])[0] for _ in range(4))]
            runs[-1].append(np.array(answers))
        same(*runs[-1])
    same(runs[0], runs[1])
    assert (runs[0][0] != runs[2][0]).any()
    np.random.seed(1)
    drawn = ours.seed()
    np.random.seed(1)
    assert drawn == theirs.seed()  # drawn from np.random, one by one
    assert ours._seeds == theirs._seeds
    ours.close()


@pytest.mark.parametrize("options", [SERIAL, PROCESS], ids=["serial", "process"])
def test_steps_and_frames_before_the_first_reset_are_the_envs_to_judge(options):
    ours, theirs = both([Teller, Teller], options)
    same(ours.step([0, 1])[1:], theirs.step([0, 1])[1:])  # nobody has seeded them
    same(ours.render(), theirs.render())
    ours.close()
    for envs in both([partial(gym.make, "CartPole-v1", render_mode="rgb_array")] * 2, options):
        with pytest.raises(gym.error.ResetNeeded):
            envs.step(np.array([0, 1]))
        with pytest.raises(gym.error.ResetNeeded):
            envs.render()
        envs.close()


@ENGINES
def test_dicts_in_any_order(options):
    class Shuffled(Teller):
        """Its observations have their keys in another order than its space."""

        def _shuffled(self, observation):
            return dict(reversed(observation.items()))

        def reset(self, **kwargs):
            observation, info = super().reset(**kwargs)
            return self._shuffled(observation), info

        def step(self, action):
            observation, *rest = super().step(action)
            return self._shuffled(observation), *rest

    ours, theirs = both([partial(Shuffled, observations=NESTED, actions=NESTED)] * 2, options)
    ours.seed(1)
    theirs.seed(1)
    same(ours.reset(), theirs.reset())
    space = ours.action_space
    space.seed(1)
    for _ in range(4):
        actions = [dict(reversed(space.sample().items())) for _ in range(2)]
        same(ours.step(actions), theirs.step(actions))
    assert list(ours.reset()) == list(NESTED.spaces)
    ours.close()


def test_envs_whose_reset_takes_no_options():
    ours, theirs = both([Strict, Strict], PROCESS)
    ours.seed(1)
    theirs.seed(1)
    same(ours.reset(), theirs.reset())
    same(ours.step([0, 1]), theirs.step([0, 1]))
    ours.close()


@ENGINES
def test_attributes_and_methods_by_index(options):
    env_fns = [
        lambda: TimeLimit(Teller(name="limited"), 9),
        lambda: Monitor(TimeLimit(Teller(name="watched"), 9)),
        Teller,
    ]
    ours, theirs = both(env_fns, options)
    for envs in (ours, theirs):
        assert envs.get_attr("name") == ["limited", "watched", "teller"]
        assert envs.get_attr("name", -1) == ["teller"]
        assert envs.get_attr("name", [1, 1, 0]) == ["watched", "watched", "limited"]
        assert envs.get_attr("name", indices=range(1, 3)) == ["watched", "teller"]
        assert envs.get_attr("name", []) == []
        assert envs.env_method("add", 2, more=5) == [7, 7, 7]
        assert envs.env_method("add", 1, indices=[0, 0, -3]) == [3, 4, 5]
        assert envs.has_attr("name")
        assert not envs.has_attr("_max_episode_steps")
        assert envs.has_attr("unpicklable")
        assert envs.env_is_wrapped(Monitor) == [False, True, False]
        assert envs.env_is_wrapped(TimeLimit, indices=[-2, 0]) == [True, True]
        envs.set_attr("name", "outer", indices=[0, -3, 2])
        assert envs.get_attr("name") == ["outer", "watched", "outer"]
        (inner,) = envs.env_method("get_wrapper_attr", "env", indices=0) if envs is theirs else (0,)
        assert envs is ours or inner.name == "limited"
        assert envs.env_method("set_wrapper_attr", "name", "x") == [True, True, True]
        with pytest.raises(AttributeError):
            envs.get_attr("nothing")
        with pytest.raises(IndexError):
            envs.get_attr("name", 3)
    assert ours.get_attr("name", np.int64(1)) == ["x"]
    ours.close()


@ENGINES
def test_get_attr_does_not_call_and_set_attr_takes_lists_as_they_are(options):
    envs = SB3VecEnv([Teller, Teller], **options)
    envs.set_attr("name", int)
    assert envs.get_attr("name") == [int, int]
    envs.set_attr("name", ["a", "b"], indices=1)
    assert envs.get_attr("name") == [int, ["a", "b"]]
    envs.close()


def test_set_attr_is_plain_setattr_on_the_outermost_wrapper():
    def name_inside(env):
        return env.unwrapped.name

    envs = SB3VecEnv([lambda: TimeLimit(Teller(), 9)] * 2, **PROCESS)
    envs.set_attr("name", "outside")
    assert envs.get_attr("name") == ["outside", "outside"]
    assert envs.fleet.call(name_inside) == ("teller", "teller")
    envs.close()


def test_what_set_attr_has_set_survives_a_restart(tmp_path):
    fault = {"step": Fault("sigkill", at=2, once=str(tmp_path / "fired"))}
    envs = SB3VecEnv(
        [lambda: TimeLimit(FaultEnv(fault), 9), FaultEnv], **PROCESS, on_failure="restart"
    )
    envs.reset()
    envs.set_attr("tag", "kept", indices=0)
    for _ in range(2):
        result = envs.step([0, 0])
    assert result[2].tolist() == [True, False]
    assert result[3][0]["worker_restarted"]
    assert result[3][0]["TimeLimit.truncated"]
    assert result[3][0]["terminal_observation"].tolist() == [1, 1, 1]
    assert envs.get_attr("tag") == ["kept", None]
    assert envs.fleet.call(lambda env: env.unwrapped.tag) == (None, None)
    envs.close()


@ENGINES
def test_images_and_what_video_recorders_read(options):
    ours, theirs = both([Teller] * 3, options)
    same(ours.get_images(), theirs.get_images())  # before any reset
    for envs in (ours, theirs):
        envs.reset()
        envs.step([0, 1, 2])
    same(ours.get_images(), theirs.get_images())
    same(ours.render(), theirs.render())
    same(ours.render("rgb_array"), theirs.render("rgb_array"))
    assert ours.render_mode == "rgb_array"
    assert ours.metadata == theirs.metadata == Teller.metadata
    ours.close()
    blind = SB3VecEnv([partial(Teller, render_mode=None)] * 2, **options)
    with pytest.warns(UserWarning, match="rgb_array"):
        assert blind.get_images() == [None, None]
    blind.close()


def test_render_modes_that_differ_are_refused():
    with pytest.raises(AssertionError, match="render_mode"):
        SB3VecEnv([Teller, partial(Teller, render_mode=None)], **PROCESS)


def test_steps_come_in_turns_and_a_reset_drops_the_pending_one():
    envs = SB3VecEnv([Teller, Teller], **PROCESS)
    envs.reset()
    envs.step_async([0, 1])
    with pytest.raises(gym.error.AlreadyPendingCallError):
        envs.step_async([0, 1])
    envs.reset()
    assert [info["a"] for info in envs.step([0, 1])[3]] == [1, 1]
    envs.step_async([0, 1])
    envs.close()
    envs.close()
    with pytest.raises(ClosedEnvironmentError):
        envs.reset()
    with pytest.raises(ClosedEnvironmentError):
        envs.step([0, 0])


@ENGINES
def test_floats_for_integer_actions(options):
    envs = SB3VecEnv([partial(Teller, actions=spaces.Box(0, 255, (2,), np.uint8))] * 2, **options)
    envs.reset()
    envs.step(np.full((2, 2), 7.9))
    same(envs.get_attr("given")[0], [np.array([7, 7], np.uint8)])
    envs.close()
    envs = SB3VecEnv([partial(Teller, actions=spaces.MultiBinary(2))] * 2, **options)
    envs.reset()
    envs.step(np.ones((2, 2), np.float32))
    same(envs.get_attr("given")[1], [np.ones(2, np.int8)])
    with pytest.raises(TypeError):
        envs.step(np.full((2, 2), 0.5))
    envs.close()


def test_bounds_may_differ_between_envs():
    boxes = [spaces.Box(-n, n, (2,), np.float32) for n in (1, 2)]
    envs = SB3VecEnv([partial(Teller, observations=box) for box in boxes], **PROCESS)
    assert envs.observation_space == boxes[0]
    envs.close()


# Where the envs come from


def test_make_vec_env_takes_it_and_seeds_as_ever(tmp_path):
    def build(vec_env_cls, folder, **vec_env_kwargs):
        return make_vec_env(
            "CartPole-v1",
            4,
            seed=5,
            monitor_dir=str(tmp_path / folder),
            wrapper_class=TimeLimit,
            wrapper_kwargs={"max_episode_steps": 12},
            vec_env_cls=vec_env_cls,
            vec_env_kwargs=vec_env_kwargs,
        )

    ours = build(SB3VecEnv, "ours", start_method="fork", workers=2)
    theirs = build(SubprocVecEnv, "theirs", start_method="fork")
    same(ours.reset(), theirs.reset())
    for k in range(30):
        actions = np.arange(4) * k // 3 % 2
        mine, other = ours.step(actions), theirs.step(actions)
        same(mine[:1] + mine[2:3], other[:1] + other[2:3])
        for info in (*mine[3], *other[3]):
            info.get("episode", {}).pop("t", None)
        same(mine[3], other[3])
    assert ours.env_is_wrapped(Monitor) == [True] * 4
    ours.close()
    theirs.close()
    assert len(list((tmp_path / "ours").iterdir())) == 4
    assert ours.fleet.context == "fork"


def test_without_options_the_engine_is_chosen_by_measurement():
    envs = SB3VecEnv([Teller] * 2)
    assert "asked for" not in envs.fleet.plan.reason
    envs.reset()
    envs.close()


def test_a_fleet_is_taken_over_and_becomes_same_step():
    fleet = envfleet.make(Teller, 2, backend="process", workers=2, copy=False)
    envs = SB3VecEnv(fleet)
    theirs = DummyVecEnv([Teller] * 2)
    assert fleet.autoreset_mode == gym.vector.AutoresetMode.SAME_STEP
    envs.seed(1)
    theirs.seed(1)
    first, expected = envs.reset(), theirs.reset()
    for _ in range(5):
        same(envs.step([0, 1]), theirs.step([0, 1]))
    same(first, expected)
    envs.close()
    assert fleet.closed


def test_a_fleet_that_was_reset_in_another_mode_is_refused_with_the_fix():
    with envfleet.make(Teller, 2, backend="serial") as fleet:
        fleet.reset()
        with pytest.raises(RuntimeError, match="autoreset_mode='SameStep'"):
            SB3VecEnv(fleet)
        assert not fleet.closed
        assert fleet.info_format == "columns"
    with envfleet.make(Teller, 2, backend="serial", autoreset_mode="SameStep") as fleet:
        fleet.reset()
        SB3VecEnv(fleet)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: SB3VecEnv([]), ValueError, "at least one env"),
        (lambda: SB3VecEnv("CartPole-v1"), TypeError, "got str"),
        (lambda: SB3VecEnv(gym.make_vec("CartPole-v1")), TypeError, "got CartPoleVectorEnv"),
        (lambda: SB3VecEnv([Teller], "teleport"), ValueError, "cannot find context for 'teleport'"),
        (lambda: SB3VecEnv([Teller], "fork", context="fork"), TypeError, "give one"),
        (lambda: SB3VecEnv([Teller], worker_count=3), TypeError, "'worker_count'.*workers"),
        (lambda: SB3VecEnv([Teller], info_format="list"), TypeError, "needs its own"),
        (lambda: SB3VecEnv([Teller], masks="nothing", **SERIAL), AttributeError, "nothing"),
        (
            lambda: SB3VecEnv([Teller], masks="action_masks", infos="final", **SERIAL),
            ValueError,
            "infos='final'",
        ),
    ],
)
def test_what_is_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_the_same_env_twice_is_refused():
    env = Teller()
    with pytest.raises(ValueError, match="one and the same object"):
        SB3VecEnv([lambda: env, lambda: env], **SERIAL)
    with pytest.raises(ValueError, match="one and the same object"):
        SB3VecEnv([lambda: env, lambda: env], "fork", workers=1)
    envs = SB3VecEnv([lambda: env, lambda: env], **PROCESS)  # a copy in each process
    envs.set_attr("name", "mine", indices=0)
    assert envs.get_attr("name") == ["mine", "teller"]
    envs.close()


def test_options_beside_a_fleet_are_refused():
    with envfleet.make(Teller, 2, backend="serial") as fleet:
        with pytest.raises(TypeError, match="built already"):
            SB3VecEnv(fleet, workers=2)
        with pytest.raises(ValueError, match="SendMasks"):
            SB3VecEnv(fleet, masks="action_masks")


# Masks


@ENGINES
def test_masks_come_along_with_resets_and_steps(options):
    ours = SB3VecEnv(
        [partial(Teller, length) for length in (2, 3, 4)], masks="action_masks", **options
    )
    theirs = DummyVecEnv([partial(Teller, length) for length in (2, 3, 4)])
    same(get_action_masks(ours), get_action_masks(theirs))  # nothing has come along yet
    ours.seed(0)
    theirs.seed(0)
    same(ours.reset(), theirs.reset())
    same(ours.reset_infos, theirs.reset_infos)
    same(get_action_masks(ours), get_action_masks(theirs))
    before = ours.get_attr("mask_calls")
    for _ in range(5):
        same(ours.step([0, 1, 2]), theirs.step([0, 1, 2]))
        assert ours.has_attr("action_masks")
        same(get_action_masks(ours), get_action_masks(theirs))
        same(
            ours.env_method("action_masks", indices=-1),
            theirs.env_method("action_masks", indices=-1),
        )
        same(ours.reset_infos, theirs.reset_infos)
    ends = np.array([2, 1, 1])  # the masks of last steps came too
    assert ours.get_attr("mask_calls") == (np.array(before) + 5 + ends).tolist()
    for envs in (ours, theirs):
        envs.env_method("add", 1)  # changes the masks
    same(get_action_masks(ours), get_action_masks(theirs))
    for envs in (ours, theirs):
        envs.step([0, 1, 2])
        envs.set_attr("steps", 3)
    same(get_action_masks(ours), get_action_masks(theirs))
    ours.close()


def test_masks_of_a_fleet_take_no_message_and_survive_a_restart(monkeypatch):
    fleet = envfleet.make(
        Masked, 4, wrappers=[SendMasks()], workers=2, on_failure="restart", context="fork"
    )
    envs = SB3VecEnv(fleet, masks="action_masks")
    envs.reset()
    fleet.processes[0].kill()
    with monkeypatch.context() as patch:
        patch.setattr(fleet, "call_on", None)
        for _ in range(20):
            masks = get_action_masks(envs)
            infos = envs.step(masks.argmax(axis=1))[3]  # Masked refuses what is masked
            assert not any("action_mask" in info for info in infos)  # not at an end either
    assert fleet.restart_count == 1
    envs.close()


# Stable-Baselines3 itself

SMALL = {"policy_kwargs": {"net_arch": [16]}, "seed": 3, "device": "cpu"}
ON = {"n_steps": 16, **SMALL}
OFF = {"learning_starts": 40, "batch_size": 16, "train_freq": 4, **SMALL}
TRAININGS = {
    "PPO": (PPO, "MlpPolicy", "CartPole-v1", {"batch_size": 32, "n_epochs": 2, **ON}),
    "PPO multi-binary": (
        PPO,
        "MlpPolicy",
        partial(Teller, 9, actions=spaces.MultiBinary(3)),
        {"batch_size": 32, "n_epochs": 2, **ON},
    ),
    "A2C": (A2C, "MultiInputPolicy", partial(Teller, observations=NESTED), ON),
    "DQN": (DQN, "MlpPolicy", "CartPole-v1", OFF),
    "SAC": (SAC, "MlpPolicy", "Pendulum-v1", OFF),
    "HER": (
        SAC,
        "MultiInputPolicy",
        partial(BitFlippingEnv, n_bits=4, continuous=True),
        {**OFF, "replay_buffer_class": HerReplayBuffer, "learning_starts": 60},
    ),
    "MaskablePPO": (MaskablePPO, "MlpPolicy", Masked, {"batch_size": 32, "n_epochs": 2, **ON}),
}


def trained(name, vec_env_cls, **vec_env_kwargs):
    algorithm, policy, env, kwargs = TRAININGS[name]
    if name == "MaskablePPO" and vec_env_cls is SB3VecEnv:
        vec_env_kwargs["masks"] = "action_masks"
    envs = make_vec_env(env, 4, seed=1, vec_env_cls=vec_env_cls, vec_env_kwargs=vec_env_kwargs)
    envs = VecNormalize(envs) if name == "PPO" else envs
    model = algorithm(policy, envs, **deepcopy(kwargs)).learn(160)
    returns = [episode["r"] for episode in model.ep_info_buffer]
    envs.close()
    return model.policy.state_dict(), returns


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
@pytest.mark.parametrize("name", TRAININGS)
def test_parameters_after_training_are_those_on_dummy_vec_env(name):
    expected, returns = trained(name, DummyVecEnv)
    parameters, ours = trained(name, SB3VecEnv, **PROCESS)
    assert ours == returns
    assert parameters.keys() == expected.keys()
    assert all(torch.equal(parameters[key], expected[key]) for key in expected)


def test_training_goes_on_when_a_worker_is_killed(tmp_path):
    plan = {"step": Fault("sigkill", at=40, once=str(tmp_path / "fired"))}
    envs = make_vec_env(
        lambda: FaultEnv(plan, length=20),
        4,
        vec_env_cls=SB3VecEnv,
        vec_env_kwargs={"workers": 2, "on_failure": "restart", "start_method": "fork"},
    )
    model = PPO("MlpPolicy", envs, n_steps=32, batch_size=64, n_epochs=1, device="cpu").learn(512)
    assert model.num_timesteps == 512
    assert envs.fleet.restart_count == 1
    assert envs.env_method("ping")[0] == envs.fleet.processes[0].pid
    envs.close()


def test_what_ends_a_training_is_told():
    def train(plan):
        envs = SB3VecEnv([partial(FaultEnv, plan)] * 2, **PROCESS)
        try:
            PPO("MlpPolicy", envs, n_steps=32, batch_size=64, n_epochs=1, device="cpu").learn(512)
        finally:
            envs.close()

    with pytest.raises(envfleet.WorkerDied, match="SIGKILL"):
        train({"step": Fault("sigkill", at=5)})
    with pytest.raises(ValueError) as caught:
        train({"step": Fault("raise", at=5)})
    assert any("env 0" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    ("wrapper", "kwargs"),
    [
        (VecTransposeImage, {"observations": spaces.Box(0, 255, (36, 40, 3), np.uint8)}),
        (partial(VecExtractDictObs, key="z"), {"observations": NESTED}),
        (partial(VecCheckNan, raise_exception=True), {}),
    ],
    ids=["transpose", "extract", "nan"],
)
def test_wrappers_of_observations_wrap_it(wrapper, kwargs):
    ours, theirs = map(wrapper, both([partial(Teller, 2, **kwargs)] * 2, PROCESS))
    ours.seed(2)
    theirs.seed(2)
    same(ours.reset(), theirs.reset())
    for _ in range(5):  # last observations too
        same(ours.step(np.array([0, 1])), theirs.step(np.array([0, 1])))
    ours.close()


def test_their_vec_env_wrappers_wrap_it(tmp_path):
    env_fns = [partial(gym.make, "CartPole-v1", render_mode="rgb_array")] * 2
    ours, theirs = (
        VecNormalize(VecFrameStack(VecMonitor(envs), 3)) for envs in both(env_fns, PROCESS)
    )
    ours.seed(2)
    theirs.seed(2)
    same(ours.reset(), theirs.reset())
    for k in range(40):
        mine, other = ours.step(np.array([k % 2, 1])), theirs.step(np.array([k % 2, 1]))
        for info in (*mine[3], *other[3]):
            info.get("episode", {}).pop("t", None)
        same(mine, other)
    ours.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_their_video_recorder_records_it(tmp_path, monkeypatch):
    monkeypatch.setattr(tqdm, "monitor_interval", 0)  # MoviePy's bar would leave a thread
    envs = SB3VecEnv([partial(gym.make, "CartPole-v1", render_mode="rgb_array")] * 2, **PROCESS)
    envs = VecVideoRecorder(envs, str(tmp_path), lambda step: step == 0, video_length=5)
    assert envs.frames_per_sec == 50
    envs.reset()
    for _ in range(6):
        envs.step(np.array([0, 1]))
    envs.close()
    assert [path.suffix for path in tmp_path.iterdir()] == [".mp4"]


def test_evaluation_counts_whole_episodes():
    envs = make_vec_env("CartPole-v1", 4, seed=0, vec_env_cls=SB3VecEnv, vec_env_kwargs=PROCESS)
    others = make_vec_env("CartPole-v1", 4, seed=0)
    model = PPO("MlpPolicy", others, device="cpu", seed=0)
    ours, theirs = (
        evaluate_policy(model, e, 8, return_episode_rewards=True) for e in (envs, others)
    )
    assert ours == theirs
    envs.close()
