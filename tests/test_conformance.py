"""What every engine must do: compared with Gymnasium's SyncVectorEnv, number by number.

``pytest tests/test_conformance.py --engines=gymnasium`` runs the same tests on Gymnasium's own two
engines. They pass except where a test is marked ``differs``: those marks are the rows of
docs/differences.md.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import random
import re
import warnings
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import psutil
import pytest
from gymnasium import spaces
from gymnasium.error import (
    AlreadyPendingCallError,
    ClosedEnvironmentError,
    NoAsyncCallError,
    ResetNeeded,
)
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

import envfleet
from envfleet.testing import SpaceEnv, assert_same, compare
from fleet_envs import (
    CounterEnv,
    CustomSpace,
    IncomparableSpace,
    InfoEnv,
    MissionSpace,
    ReusedBufferEnv,
)

ENGINES = {
    "serial": envfleet.SerialVectorEnv,
    "process": envfleet.ProcessVectorEnv,
    "caller": partial(envfleet.ProcessVectorEnv, caller_steps=True),
    "ray": envfleet.RayVectorEnv,
    "gymnasium-sync": SyncVectorEnv,
    "gymnasium-async": AsyncVectorEnv,
}
IN_PROCESS = ("serial", "gymnasium-sync")


def pytest_generate_tests(metafunc):
    """Run each test on the engines that --engines asks for and that it is about."""
    if "engine" in metafunc.fixturenames:
        choice = metafunc.config.getoption("--engines")
        kinds = {e: "ray" if e == "ray" else "gymnasium" if "-" in e else "ours" for e in ENGINES}
        chosen = [e for e in ENGINES if choice in ("all", kinds[e])]
        if only := metafunc.definition.get_closest_marker("engines"):
            chosen = [e for e in chosen if e.removeprefix("gymnasium-") in only.args]
        metafunc.parametrize("engine", chosen)


differs = pytest.mark.differs
only_async = pytest.mark.engines("process", "caller", "ray", "async")
only_here = pytest.mark.engines("process", "caller", "async")
not_on_ray = pytest.mark.engines("serial", "process", "caller", "sync", "async")
"""For what is decided in code that all engines share: starting actors takes its time."""
only_processes = pytest.mark.engines("process", "async")
only_elsewhere = pytest.mark.engines("process", "ray", "async")


@pytest.fixture
def build(engine):
    """Builds fleets of the engine under test, forked and with two workers unless told otherwise."""
    fleets: list[VectorEnv] = []

    def build(env_fns, **kwargs):
        if engine in (*IN_PROCESS, "ray"):
            kwargs = {k: v for k, v in kwargs.items() if k not in ("shared_memory", "context")}
        else:
            kwargs.setdefault("context", "fork")
        workers = kwargs.pop("workers", 2)
        if engine in ("process", "caller", "ray"):
            kwargs["workers"] = workers
        if engine == "ray":
            kwargs.update(start_timeout=60, resources={"CPU": 0.5})  # some ask for three workers
        fleets.append(ENGINES[engine](env_fns, **kwargs))
        return fleets[-1]

    yield build
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for fleet in fleets:
            fleet.close(**({} if engine in IN_PROCESS else {"terminate": True}))
    fleets.clear()


@pytest.fixture
def row(request, engine):
    """Marks a cell of a product as a row of docs/differences.md."""

    def row(name, on):
        if engine.startswith("gymnasium-") and engine.split("-")[1] in on:
            request.applymarker(pytest.mark.xfail(strict=True, reason=name))

    return row


# The same numbers

SPACES = {
    "box-float32": spaces.Box(-1, 1, (3,), np.float32),
    "box-float16": spaces.Box(-1, 1, (2, 3), np.float16),
    "box-float64-unbounded": spaces.Box(-np.inf, np.inf, (2,), np.float64),
    "box-uint8-image": spaces.Box(0, 255, (4, 5, 3), np.uint8),
    "box-int64": spaces.Box(-5, 5, (2,), np.int64),
    "box-bool": spaces.Box(0, 1, (3,), np.bool_),
    "box-scalar": spaces.Box(-1, 1, (), np.float32),
    "box-empty": spaces.Box(-1, 1, (0,), np.float32),
    "discrete": spaces.Discrete(5),
    "discrete-start": spaces.Discrete(4, start=-3),
    "multidiscrete": spaces.MultiDiscrete([3, 4]),
    "multidiscrete-2d": spaces.MultiDiscrete([[2, 3], [4, 5]]),
    "multibinary": spaces.MultiBinary((2, 2)),
    "nested": spaces.Dict(
        pose=spaces.Tuple((spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3))),
        camera=spaces.Dict(rgb=spaces.Box(0, 255, (2, 2, 3), np.uint8), on=spaces.MultiBinary(1)),
    ),
    "text": spaces.Text(8),
    "sequence": spaces.Sequence(spaces.Box(-1, 1, (2,), np.float32)),
    "sequence-stacked": spaces.Sequence(spaces.Discrete(4), stack=True),
    "graph": spaces.Graph(spaces.Box(-1, 1, (2,)), spaces.Discrete(3)),
    "one-of": spaces.OneOf((spaces.Discrete(3), spaces.Box(-1, 1, (2,)))),
    "nested-loose": spaces.Dict(
        note=spaces.Text(5),
        speed=spaces.Box(-1, 1, (2,), np.float32),
        parts=spaces.Tuple((spaces.Sequence(spaces.Discrete(2)), spaces.Discrete(3))),
    ),
    "custom": CustomSpace(),
    "mission": spaces.Dict(
        image=spaces.Box(0, 255, (7, 7, 3), np.uint8),
        direction=spaces.Discrete(4),
        mission=MissionSpace(),
    ),
}
LOOSE = {"text", "sequence", "sequence-stacked", "graph", "one-of", "nested-loose"}
CUSTOM = {"custom", "mission"}
MODES = list(AutoresetMode)


def compare_space(build, space, mode, **kwargs):
    fns = [partial(SpaceEnv, space)] * 3
    oracle = SyncVectorEnv(fns, autoreset_mode=mode)
    compare(build(fns, autoreset_mode=mode.value, **kwargs), oracle)


@pytest.mark.engines("serial", "sync")
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", SPACES)
def test_every_space_and_mode_in_this_process(build, name, mode):
    compare_space(build, SPACES[name], mode)


@only_here
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", [name for name in SPACES if name not in CUSTOM])
def test_every_space_and_mode_with_shared_memory(build, row, name, mode):
    if name in LOOSE:
        row("loose-observations", on=("async",))
    compare_space(build, SPACES[name], mode)


@only_here
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", SPACES)
def test_every_space_and_mode_by_pipe(build, name, mode):
    compare_space(build, SPACES[name], mode, shared_memory=False)


@pytest.mark.engines("ray")
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", SPACES)
def test_every_space_and_mode_in_actors(build, name, mode):
    compare_space(build, SPACES[name], mode)


@only_here
@pytest.mark.parametrize(
    ("context", "workers", "num_envs"),
    [
        ("fork", 1, 1),
        ("fork", 2, 4),
        ("fork", 3, 13),
        ("forkserver", 1, 4),
        ("forkserver", 2, 13),
        ("forkserver", 3, 1),
        ("spawn", 1, 13),
        ("spawn", 2, 1),
        ("spawn", 3, 4),
    ],
)
def test_start_methods_and_splits_give_the_numbers_of_sync(build, context, workers, num_envs):
    if context == "spawn" and num_envs == 13:
        mode = AutoresetMode.SAME_STEP
    else:
        mode = AutoresetMode.NEXT_STEP
    fns = [partial(SpaceEnv, SPACES["nested"])] * num_envs
    fleet = build(fns, context=context, workers=workers, autoreset_mode=mode)
    compare(fleet, SyncVectorEnv(fns, autoreset_mode=mode), steps=30)


@only_here
def test_a_custom_observation_space_is_refused_with_shared_memory(build):
    with pytest.raises(ValueError, match=r"shared_memory=False"):
        build([partial(SpaceEnv, SPACES["mission"], spaces.Discrete(2))] * 2)


@only_here
@differs("custom-space", on=("async",))
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", sorted(CUSTOM))
def test_custom_spaces_go_by_pipe_beside_shared_memory(build, name, mode):
    compare_space(build, SPACES[name], mode, shared_memory="auto")


@differs("custom-equality")
def test_custom_spaces_without_equality_are_the_same_if_their_class_is(build):
    fleet = build([IncomparableEnv] * 3, shared_memory=False)
    assert fleet.reset(seed=1)[0] == ("go to the green door",) * 3


class IncomparableEnv(CounterEnv):
    def __init__(self):
        super().__init__()
        self.observation_space = IncomparableSpace()

    def _observe(self):
        return "go to the green door"


@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_custom_action_space_works(build, shared_memory):
    fns = [partial(SpaceEnv, spaces.Discrete(3), CustomSpace())] * 3
    compare(build(fns, shared_memory=shared_memory), SyncVectorEnv(fns))


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "Taxi-v4", "Blackjack-v1"])
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_registered_envs_give_the_numbers_of_sync(build, env_id, mode):
    fns = [partial(gym.make, env_id, max_episode_steps=9)] * 5
    compare(build(fns, autoreset_mode=mode), SyncVectorEnv(fns, autoreset_mode=mode), seed=7)


def test_envs_with_arguments_of_their_own(build):
    fns = [partial(gym.make, "Pendulum-v1", g=g, max_episode_steps=5) for g in (9.81, 1.62, 3.7)]
    compare(build(fns), SyncVectorEnv(fns))


@pytest.mark.parametrize("seed", [None, 3, [1, 2, 3], [4, None, 6]], ids=str)
def test_seeds_reach_the_envs(build, seed):
    fleet = build([CounterEnv] * 3)
    fleet.reset(seed=seed)
    seeds = fleet.np_random_seed
    expected = {3: (3, 4, 5)}.get(seed) if isinstance(seed, int) else seed
    for got, want in zip(seeds, expected or [None] * 3, strict=True):
        assert isinstance(got, int)
        assert want is None or got == want
    assert all(isinstance(rng, np.random.Generator) for rng in fleet.np_random)


@differs("numpy-seed")
def test_a_numpy_integer_is_a_seed(build):
    fleet = build([CounterEnv] * 3)
    fleet.reset(seed=np.int64(5))
    assert fleet.np_random_seed == (5, 6, 7)


# Resets


def test_a_reset_mask_resets_only_its_envs(build):
    fleet = build([CounterEnv] * 3)
    fleet.reset()
    fleet.step([0, 0, 0])
    mask = np.array([False, True, False])
    observations, infos = fleet.reset(options={"reset_mask": mask})
    assert observations.tolist() == [[1, 1], [2, 0], [1, 1]]
    assert infos == {}
    assert fleet.step([0, 0, 0])[0].tolist() == [[1, 2], [2, 1], [1, 2]]


def test_the_mask_is_not_among_the_options_the_env_sees(build):
    fleet = build([CounterEnv] * 2)
    fleet.reset(options={"reset_mask": np.array([True, True]), "level": 3})
    assert fleet.call("options") == ({"level": 3}, {"level": 3})


@differs("options-unchanged")
def test_the_callers_options_are_not_changed(build):
    options = {"reset_mask": np.array([True, False]), "level": 3}
    fleet = build([CounterEnv] * 2)
    fleet.reset()
    fleet.reset(options=options)
    assert options.keys() == {"reset_mask", "level"}


@differs("options-list")
def test_options_may_be_a_list_with_one_dict_per_env(build):
    fleet = build([CounterEnv] * 3)
    fleet.reset(options=[{"level": 1}, None, {"level": 3}])
    assert fleet.call("options") == ({"level": 1}, None, {"level": 3})


@not_on_ray
@pytest.mark.parametrize(
    ("mask", "error", "text"),
    [
        ([True, False], TypeError, "`options['reset_mask']` must be a numpy array, got <class "),
        (np.array([True]), ValueError, "`options['reset_mask']` must have shape `(2,)`, got (1,)"),
        (np.array([1, 0]), TypeError, "`options['reset_mask']` must have `dtype=np.bool_`, got in"),
        (
            np.array([False, False]),
            ValueError,
            (
                "`options['reset_mask']` must contain a boolean array with at least one True "
                "value, got reset_mask=[False False]"
            ),
        ),
    ],
)
def test_bad_reset_masks_are_refused_in_gymnasiums_words(build, mask, error, text):
    fleet = build([CounterEnv] * 2)
    fleet.reset()
    with pytest.raises(error, match=re.escape(text)):
        fleet.reset(options={"reset_mask": mask})
    assert fleet.get_attr("resets") == (1, 1)


def test_a_list_of_seeds_of_the_wrong_length_is_refused(build):
    with pytest.raises(
        ValueError,
        match=re.escape(
            "If seeds are passed as a list the length must match num_envs=2 but got length=3."
        ),
    ):
        build([CounterEnv] * 2).reset(seed=[1, 2, 3])


@differs("manual-reset", on=("async",))
def test_a_manual_reset_of_a_finished_env_is_not_repeated_by_autoreset(build):
    fleet = build([partial(CounterEnv, length=2)] * 2, shared_memory=False)
    fleet.reset()
    fleet.step([0, 0])
    assert fleet.step([0, 0])[2].all()
    fleet.reset()
    observations, rewards, *_ = fleet.step([0, 0])
    assert observations.tolist() == [[2, 1], [2, 1]]
    assert rewards.tolist() == [1, 1]


# Autoreset


def test_next_step_resets_on_the_following_step_and_ignores_the_action(build):
    fleet = build([partial(CounterEnv, length=2), CounterEnv])
    fleet.reset()
    fleet.step([0, 0])
    observations, rewards, terminated, *_ = fleet.step([0, 0])
    assert observations.tolist() == [[1, 2], [1, 2]]
    assert terminated.tolist() == [True, False]
    observations, rewards, terminated, *_ = fleet.step([2, 2])
    assert observations.tolist() == [[2, 0], [1, 3]]
    assert rewards.tolist() == [0, 3]
    assert terminated.tolist() == [False, False]


@differs("final-obs-copy")
def test_final_observation_and_info_are_copies_made_before_the_reset(build):
    fleet = build([ReusedBufferEnv] * 2, autoreset_mode="SameStep")
    fleet.reset()
    for _ in range(2):
        fleet.step([0, 0])
    observations, _, terminated, _, infos = fleet.step([0, 0])
    assert terminated.all()
    assert observations.tolist() == [[-2] * 3] * 2
    assert [final.tolist() for final in infos["final_obs"]] == [[13] * 3] * 2
    assert infos["final_info"]["at"].tolist() == [3, 3]
    kept = infos["final_obs"][0]
    for _ in range(3):
        fleet.step([0, 0])
    assert kept.tolist() == [13] * 3


@differs("disabled-checked")
def test_stepping_a_finished_env_without_autoreset_is_refused_before_any_env_moves(build):
    fleet = build([CounterEnv, partial(CounterEnv, length=1)], autoreset_mode="Disabled")
    fleet.reset()
    fleet.step([0, 0])
    with pytest.raises(ResetNeeded, match=r"envs 1 ended"):
        fleet.step([0, 0])
    assert fleet.get_attr("total_steps") == (1, 1)
    fleet.reset(options={"reset_mask": np.array([False, True])})
    assert fleet.step([0, 0])[0].tolist() == [[1, 2], [2, 1]]


# Infos

MIXED_INFOS = [
    ([{"a": 1}, {"a": 1.5}], np.array([1.0, 1.5])),
    ([{"a": True}, {"a": 2}], np.array([1, 2])),
    (
        [{"a": np.float32(0.5)}, {"a": 2**60 + 1}],
        np.array([np.float32(0.5), 2**60 + 1], dtype=object),
    ),
    ([{"a": np.zeros(2)}, {"a": np.ones(3)}], None),
    ([{"a": {"b": 1}}, {"a": 2}], None),
    ([{"a": 2**70}, {"a": 1}], np.array([2**70, 1], dtype=object)),
]


@not_on_ray
@differs("info-values")
@pytest.mark.parametrize(("infos", "expected"), MIXED_INFOS, ids=range(len(MIXED_INFOS)))
def test_an_info_value_is_never_changed_to_fit(build, infos, expected):
    fleet = build([partial(InfoEnv, info) for info in infos])
    merged = fleet.reset()[1]
    assert merged["_a"].tolist() == [True, True]
    if expected is None:
        expected = np.empty(2, dtype=object)
        for i, info in enumerate(infos):
            expected[i] = info["a"]
    assert_same(merged["a"], expected)


# Ownership


def test_observations_are_copies_unless_told_otherwise(build):
    fleet = build([CounterEnv] * 2)
    first = fleet.reset()[0]
    fleet.step([0, 0])
    assert first.tolist() == [[1, 0], [1, 0]]


def test_without_copy_the_arrays_are_the_fleets_own_and_survive_close(build, engine):
    fleet = build([CounterEnv] * 2, copy=False)
    first = fleet.reset()[0]
    second, rewards, *_ = fleet.step([0, 0])
    assert first is second or np.shares_memory(first, second)
    assert first.tolist() == [[1, 1], [1, 1]]
    fleet.step([0, 0])
    assert rewards.tolist() == [1, 1]
    fleet.close()
    assert second.tolist() == [[1, 2], [1, 2]]


@differs("own-action", on=("sync",))
def test_the_action_an_env_keeps_does_not_change(build):
    fns = [partial(ActionKeeper, spaces.Box(-1, 1, (2,), np.float32))] * 2
    fleet = build(fns)
    fleet.reset()
    actions = np.full((2, 2), 0.25, dtype=np.float32)
    fleet.step(actions)
    actions[:] = -1
    fleet.step(actions)
    for kept in fleet.call("kept"):
        assert kept[0].tolist() == [0.25, 0.25]
        kept[0][:] = 7
        assert kept[1].tolist() == [-1, -1]
    assert actions.tolist() == [[-1, -1]] * 2


class ActionKeeper(CounterEnv):
    def __init__(self, action_space):
        super().__init__()
        self.action_space = action_space
        self._kept = []

    def step(self, action):
        self._kept.append(action)
        return super().step(action)

    def kept(self):
        return self._kept


# Actions


@not_on_ray
@differs("cast-actions")
@pytest.mark.parametrize(
    "actions",
    [[0, 2], (0, 2), np.array([0, 2], dtype=np.int8), np.array([0, 2], dtype=np.uint64)],
    ids=["list", "tuple", "int8", "uint64"],
)
def test_actions_arrive_in_the_dtype_of_their_space(build, actions):
    fleet = build([partial(ActionKeeper, spaces.Discrete(3))] * 2)
    fleet.reset()
    fleet.step(actions)
    kept = [actions[0] for actions in fleet.call("kept")]
    assert kept == [0, 2]
    assert [type(action) for action in kept] == [np.int64, np.int64]


@not_on_ray
@differs("wrong-actions")
@pytest.mark.parametrize("actions", [[0, 0], [0, 0, 0, 0], [[0, 0], [0, 0], [0, 0]]])
def test_a_wrong_number_of_actions_is_refused_before_any_env_moves(build, actions):
    fleet = build([CounterEnv] * 3)
    fleet.reset()
    with pytest.raises(ValueError):
        fleet.step(actions)
    assert fleet.step([0, 0, 0])[0].tolist() == [[1, 1]] * 3
    # An engine whose workers had got some of those actions shows it here, however fast they were.
    assert fleet.get_attr("total_steps") == (1, 1, 1)


def test_a_scalar_is_no_batch_of_actions(build):
    fleet = build([CounterEnv] * 2)
    fleet.reset()
    with pytest.raises(TypeError, match="Unable to iterate over the following elements: 3"):
        fleet.step(3)
    assert fleet.step([0, 0])[0].tolist() == [[1, 1]] * 2


class PairEnv(ActionKeeper):
    def __init__(self):
        super().__init__(spaces.Tuple((spaces.Discrete(3), spaces.Discrete(5))))


@differs("tuple-actions")
@pytest.mark.parametrize("num_envs", [2, 3])
def test_a_list_with_one_tuple_per_env_is_no_tuple_of_batches(build, num_envs):
    fleet = build([PairEnv] * num_envs)
    fleet.reset()
    with pytest.raises(ValueError, match=rf"list of {num_envs} tuples.*tuple\(zip\(\*actions\)\)"):
        fleet.step([(0, 4), (1, 3), (2, 2)][:num_envs])
    assert fleet.get_attr("total_steps") == (0,) * num_envs


def test_a_tuple_of_batches_is_taken_at_its_word(build):
    fleet = build([PairEnv] * 2)
    fleet.reset()
    fleet.step(((0, 1), (4, 3)))
    fleet.step([[0, 1], np.array([4, 3])])
    assert fleet.call("kept") == ([(0, 4)] * 2, [(1, 3)] * 2)


# What is no env


class NoMetadata(CounterEnv):
    metadata = None


class Nothing:
    pass


class ParallelEnv:
    """What PettingZoo calls so, as far as it can be told without PettingZoo."""

    metadata = {"name": "pursuit_v4"}  # noqa: RUF012
    possible_agents = ("hunter_0", "hunter_1")

    def observation_space(self, agent):
        return spaces.Discrete(2)

    action_space = observation_space

    def reset(self, seed=None, options=None):
        return dict.fromkeys(self.possible_agents, 0), {}

    def step(self, actions):
        raise NotImplementedError


class OldSpaces(CounterEnv):
    observation_space = ((2,), np.float32)


@not_on_ray
@differs("no-env")
@pytest.mark.parametrize(
    ("factory", "text"),
    [
        (lambda: None, "returned None; expected a gymnasium.Env"),
        (lambda: CounterEnv, "returned the class CounterEnv; expected a gymnasium.Env"),
        (Nothing, r"returned an object \(Nothing\) without reset, step, observation_space"),
        (ParallelEnv, r"returned a PettingZoo env of several agents \(ParallelEnv\)"),
        (partial(SyncVectorEnv, [CounterEnv]), r"returned a vector env \(SyncVectorEnv\)"),
        (NoMetadata, "metadata is None; expected a dict"),
        (OldSpaces, r"observation_space is \(\(2,\).*expected a gymnasium.Space"),
    ],
    ids=["none", "class", "object", "pettingzoo", "vector", "metadata", "space"],
)
def test_what_is_no_env_is_named(build, factory, text):
    with pytest.raises(TypeError, match=f"^env 1: .*{text}"):
        build([CounterEnv, factory, CounterEnv])


@differs("same-env")
@pytest.mark.parametrize(
    "wrap", [lambda env: env, gym.wrappers.OrderEnforcing], ids=["", "wrapped"]
)
def test_factories_that_return_the_same_env_are_refused(build, wrap):
    env = CounterEnv()
    with pytest.raises(TypeError, match=r"envs 0-1, 3 are one and the same object"):
        build([lambda: wrap(env), lambda: wrap(env), CounterEnv, lambda: wrap(env)], workers=1)


# Answers of another kind


class Answering(CounterEnv):
    """Steps like any other, but answers what it is told to."""

    def __init__(self, answer=None, **parts):
        super().__init__()
        self._answer, self._parts = answer, parts

    def step(self, action):
        names = ("observation", "reward", "terminated", "truncated", "info")
        values = dict(zip(names, super().step(action), strict=True)) | self._parts
        return tuple(values.values()) if self._answer is None else self._answer


def refused(build, env_fn, text):
    """Env 1 fails in its step, with that text; the others have stepped."""
    fleet = build([CounterEnv, env_fn, CounterEnv])
    fleet.reset()
    with pytest.raises((TypeError, ValueError), match=f"^env 1 in step returned {text}"):
        fleet.step([0, 0, 0])
    assert fleet.get_attr("total_steps") == (1, 1, 1)


@not_on_ray
@differs("answer-size")
@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ((np.zeros(2), 1.0, False, {}), r"4 values \(ndarray, float, bool, dict\).*old Gym API"),
        ((np.zeros(2), 1.0, False, False, {}, 6), "6 values .*; expected .*terminated, truncated"),
        (np.zeros(2), r"an array of shape \(2,\); expected"),
        ((), r"0 values \(\); expected"),
        (3.5, "a float; expected"),
    ],
    ids=["4", "6", "observation", "0", "float"],
)
def test_a_step_of_other_than_five_values_is_named(build, answer, text):
    refused(build, partial(Answering, answer), text)


class OldReset(CounterEnv):
    def __init__(self, observation_space, answer):
        super().__init__()
        self.observation_space, self._answer = observation_space, answer

    def reset(self, **kwargs):
        super().reset(**kwargs)
        return self._answer


@not_on_ray
@differs("answer-size")
@pytest.mark.parametrize(
    ("space", "answer", "text"),
    [
        (CounterEnv.observation_space, np.zeros(2, np.float32), r"an array of shape \(2,\)"),
        (spaces.Dict(a=spaces.Discrete(2), b=spaces.Discrete(2)), {"a": 0, "b": 0}, "a dict"),
        (
            spaces.Tuple([spaces.Discrete(2)] * 2),
            (1, 0),
            r"2 values \(int, int\): info must be a dict, got int",
        ),
        (spaces.Discrete(2), (1, {}, {}), r"3 values \(int, dict, dict\)"),
        (spaces.Discrete(2), None, "None"),
    ],
    ids=["box", "dict", "tuple", "three", "none"],
)
def test_a_reset_that_returns_only_an_observation_is_named(build, space, answer, text):
    fleet = build([partial(OldReset, space, answer)] * 2)
    with pytest.raises(
        TypeError, match=rf"^env 0 in reset returned {text}; expected \(obs.*old Gym"
    ):
        fleet.reset()


BAD_REWARDS = {
    "none": (None, "None"),
    "string": ("1.5", "the str '1.5'"),
    "bytes": (b"1", "the bytes b'1'"),
    "array": (np.ones(2), r"an array of shape \(2,\)"),
    "empty": (np.ones(0), r"an array of shape \(0,\)"),
    "strings": (np.array(["1"]), "the str '1'"),
    "masked": (np.ma.masked, "masked"),
    "masked-array": (np.ma.masked_array([1.0], mask=[True]), "masked"),
    "object": (np.array(None), "None"),
    "list": ([1.0], "a list"),
    "complex": (1j, "a complex"),
    "huge": (10**400, "an int too large for a float"),
}


@not_on_ray
@differs("reward-kind")
@pytest.mark.filterwarnings("ignore:Warning. converting a masked element")
@pytest.mark.parametrize("reward", BAD_REWARDS)
def test_a_reward_that_is_no_number_is_named(build, reward):
    value, text = BAD_REWARDS[reward]
    refused(build, partial(Answering, reward=value), f"{text}.* as `reward`; expected one number")


@not_on_ray
@differs("flag-kind")
@pytest.mark.parametrize("name", ["terminated", "truncated"])
@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("no", "the str 'no'"),
        (2, "2"),
        (0.5, "0.5"),
        (np.nan, "nan"),
        ({"TimeLimit": True}, "a dict"),
        (np.array([False, True]), r"an array of shape \(2,\)"),
    ],
    ids=["string", "two", "half", "nan", "dict", "array"],
)
def test_a_flag_that_is_not_true_or_false_is_named(build, name, value, text):
    refused(build, partial(Answering, **{name: value}), f"{text} as `{name}`; expected True or")


@not_on_ray
@pytest.mark.parametrize("flag", [True, np.bool_(1), 1, np.int8(1), 1.0, np.array(1)], ids=repr)
@pytest.mark.parametrize("reward", [0.5, np.float32(0.5), np.array(0.5)], ids=repr)
def test_numbers_of_any_kind_are_rewards_and_flags(build, reward, flag):
    fns = [partial(Answering, reward=reward, terminated=flag, truncated=flag == 0)] * 2
    fleet = build(fns)
    fleet.reset()
    _, rewards, terminated, truncated, _ = fleet.step([0, 0])
    assert (rewards.tolist(), rewards.dtype) == ([0.5, 0.5], np.float64)
    assert (terminated.tolist(), truncated.tolist()) == ([True] * 2, [False] * 2)


# Gymnasium refuses them from NumPy 2.4 on, which no longer takes an array for a number.
@pytest.mark.engines("serial", "process", "caller")
def test_arrays_of_one_number_are_rewards_and_flags(build):
    one = np.array([1])
    fleet = build(
        [CounterEnv, partial(Answering, reward=one / 2, terminated=one, truncated=one - 1)]
    )
    fleet.reset()
    _, rewards, terminated, truncated, _ = fleet.step([0, 0])
    assert rewards.tolist() == [1, 0.5]
    assert (terminated.tolist(), truncated.tolist()) == ([False, True], [False, False])


@not_on_ray
@pytest.mark.parametrize("reward", [np.nan, np.inf, -np.inf])
def test_a_reward_that_is_not_finite_is_passed_on(build, reward):
    fleet = build([partial(Answering, reward=reward), CounterEnv])
    fleet.reset()
    np.testing.assert_array_equal(fleet.step([0, 0])[1], [reward, 1])


# Observations that do not fit


class WrongShape(CounterEnv):
    observation_space = spaces.Box(0, np.inf, (2, 3), np.float32)

    def _observe(self):
        return np.zeros((3, 2), dtype=np.float32)


class UnknownKey(CounterEnv):
    observation_space = spaces.Dict(a=spaces.Discrete(3))

    def _observe(self):
        return {"a": 1, "b": 2}


@differs("observation-shape", on=("async",))
def test_an_observation_of_another_shape_is_refused(build):
    with pytest.raises(ValueError, match="shape"):
        build([WrongShape] * 2).reset()


@differs("observation-keys")
def test_an_observation_with_an_unknown_key_is_refused(build):
    with pytest.raises(envfleet.ObservationMismatch, match=r"env 0: observation.*unknown keys"):
        build([UnknownKey] * 2).reset()


# Errors of envs


@differs("construct-error", on=("async",))
def test_an_error_in_a_constructor_is_the_callers(build):
    with pytest.raises(ZeroDivisionError, match="planned"):
        build([CounterEnv, Unbuildable, CounterEnv])


class Unbuildable(CounterEnv):
    def __init__(self):
        raise ZeroDivisionError("planned")


@differs("error-unchanged", on=("async",))
def test_an_envs_error_arrives_as_it_was_raised(build):
    fleet = build([partial(CounterEnv, fail_at=1, error=KeyError("x", 7)), CounterEnv])
    fleet.reset()
    with pytest.raises(KeyError) as caught:
        fleet.step([0, 0])
    assert caught.value.args == ("x", 7)


@differs("error-costs-one-env")
def test_an_env_that_raises_costs_nothing_but_itself(build):
    fleet = build([CounterEnv, partial(CounterEnv, fail_at=2), CounterEnv])
    fleet.reset()
    fleet.step([0, 0, 0])
    with pytest.raises(ValueError, match="planned"):
        fleet.step([0, 0, 0])
    assert fleet.get_attr("total_steps") == (2, 2, 2)
    with pytest.raises(ResetNeeded, match="envs 1 raised"):
        fleet.step([0, 0, 0])
    observations, _ = fleet.reset(options={"reset_mask": np.array([False, True, False])})
    assert observations.tolist() == [[1, 2], [2, 0], [1, 2]]
    assert fleet.step([0, 0, 0])[0].tolist() == [[1, 3], [2, 1], [1, 3]]


@differs("attribute-error", on=("async",))
def test_asking_for_a_missing_attribute_costs_nothing(build):
    fleet = build([CounterEnv] * 2)
    fleet.reset()
    with pytest.raises(AttributeError, match="nothing"):
        fleet.get_attr("nothing")
    assert fleet.step([0, 0])[0].tolist() == [[1, 1]] * 2


@differs("close-error")
def test_an_error_in_close_is_a_warning_and_every_env_is_closed(build, engine, tmp_path):
    fns = [partial(CloseLogger, tmp_path / str(i), fail=i == 0) for i in range(3)]
    fleet = build(fns)
    with pytest.warns(UserWarning, match=r"env 0.*planned"):
        fleet.close()
    assert fleet.closed
    assert all((tmp_path / str(i)).exists() for i in range(3))


class CloseLogger(CounterEnv):
    def __init__(self, path, *, fail):
        super().__init__()
        self._path, self._fail = path, fail

    def close(self):
        self._path.touch()
        if self._fail:
            raise RuntimeError("planned")


# call, get_attr, set_attr, render


def test_call_and_attributes(build):
    fleet = build([CounterEnv] * 3)
    fleet.reset()
    fleet.step([0, 0, 0])
    assert fleet.call("add", 10, b=5) == (16, 16, 16)
    assert fleet.get_attr("total_steps") == (1, 1, 1)
    fleet.set_attr("tag", "all")
    assert fleet.get_attr("tag") == ("all", "all", "all")
    fleet.set_attr("tag", [1, 2, 3])
    assert fleet.get_attr("tag") == (1, 2, 3)
    fleet.set_attr("tag", ("a", "b", "c"))
    assert fleet.get_attr("tag") == ("a", "b", "c")


def test_set_attr_with_the_wrong_number_of_values_is_refused(build):
    fleet = build([CounterEnv] * 2)
    text = (
        "Values must be a list or tuple with length equal to the number of environments. "
        "Got `3` values for 2 environments."
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        fleet.set_attr("tag", [1, 2, 3])
    assert fleet.get_attr("tag") == ("unset", "unset")


@not_on_ray
@differs("call-reserved", on=("sync",))
@pytest.mark.parametrize("name", ["reset", "step", "close"])
def test_call_does_not_go_past_the_fleet(build, name):
    fleet = build([CounterEnv] * 2)
    text = f"Trying to call function `{name}` with `call`, use `{name}` directly instead."
    with pytest.raises(ValueError, match=re.escape(text)):
        fleet.call(name)


def test_render_gives_a_frame_per_env(build):
    fleet = build([CounterEnv] * 3)
    fleet.reset()
    fleet.step([0, 0, 0])
    frames = fleet.render()
    assert isinstance(frames, tuple)
    assert [frame.tolist() for frame in frames] == [np.full((4, 5, 3), 1).tolist()] * 3


# Attributes


def test_metadata_and_render_mode_are_the_first_envs(build):
    fleet = build([CounterEnv] * 2, autoreset_mode="SameStep")
    assert fleet.metadata == {
        "render_modes": ["rgb_array"],
        "render_fps": 7,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }
    assert "autoreset_mode" not in CounterEnv.metadata
    assert fleet.render_mode == "rgb_array"
    assert fleet.spec is None
    assert fleet.num_envs == 2
    assert not fleet.closed
    assert repr(fleet) == f"{type(fleet).__name__}(num_envs=2)"
    assert fleet.unwrapped is fleet
    assert isinstance(fleet, VectorEnv)


@only_processes
def test_constructor_arguments_are_attributes(build):
    fns = [CounterEnv] * 2
    fleet = build(fns, copy=False, context="fork", daemon=False, max_concurrency=2)
    assert fleet.env_fns is fns
    assert (fleet.copy, fleet.context, fleet.daemon) == (False, "fork", False)
    assert (fleet.shared_memory, fleet.max_concurrency, fleet.worker) == (True, 2, None)
    assert fleet.observation_mode == "same"
    assert fleet.autoreset_mode is AutoresetMode.NEXT_STEP
    assert all(not process.daemon for process in fleet.processes)
    assert [process.name for process in fleet.processes] == [
        f"Worker<{type(fleet).__name__}>-{i}" for i in range(2)
    ]


@only_processes
@pytest.mark.parametrize("shared_memory", [True, False])
def test_the_current_observations_are_an_attribute(build, shared_memory):
    fleet = build([CounterEnv] * 2, shared_memory=shared_memory)
    fleet.reset()
    fleet.step([0, 0])
    assert fleet.observations.tolist() == [[1, 1], [1, 1]]


def test_an_unknown_autoreset_mode_is_refused(build):
    with pytest.raises(ValueError, match="'never' is not a valid AutoresetMode"):
        build([CounterEnv], autoreset_mode="never")


@differs("no-pickle")
def test_a_fleet_cannot_be_pickled_and_says_what_to_do(build):
    with pytest.raises(TypeError, match="Pickle the factory"):
        pickle.dumps(build([CounterEnv] * 2))


# Not on Gymnasium's: a deep copy of AsyncVectorEnv closes the descriptors of the original.
@pytest.mark.engines("serial", "process")
def test_a_fleet_cannot_be_deep_copied_and_says_what_to_do(build):
    with pytest.raises(TypeError, match="Pickle the factory"):
        copy.deepcopy(build([CounterEnv] * 2))


# Spaces that differ


def box_env(high, shape=(2,)):
    return SpaceEnv(spaces.Box(0, high, shape, np.float32), spaces.Discrete(2))


def test_differing_spaces_are_refused_by_default(build, engine):
    text = {
        True: "SyncVectorEnv(..., observation_mode='same') however the sub-environments "
        "observation spaces are not equivalent. single_observation_space=Box(0.0, 1.0, (2,), "
        "float32), sub-environment observation_space=Box(0.0, 2.0, (2,), float32). If this is "
        "intentional, use `observation_mode='different'` instead.",
        False: "AsyncVectorEnv(..., observation_mode='same') however some of the sub-environments "
        "observation spaces are not equivalent. If this is intentional, use "
        "`observation_mode='different'` instead.",
    }[engine in IN_PROCESS]
    with pytest.raises(RuntimeError, match=re.escape(text)):
        build([partial(box_env, 1), partial(box_env, 1), partial(box_env, 2)])


def test_spaces_that_share_shape_and_dtype_batch_as_different(build):
    fns = [partial(box_env, high) for high in (1, 2, 3)]
    oracle = SyncVectorEnv(fns, observation_mode="different")
    fleet = build(fns, observation_mode="different")
    assert fleet.observation_space == oracle.observation_space
    compare(fleet, oracle)


def test_a_pair_of_spaces_is_batched_first_then_single(build):
    batched = spaces.Box(0, 9, (2, 2), np.float32)
    single = spaces.Box(0, 9, (2,), np.float32)
    fns = [partial(box_env, high) for high in (1, 2)]
    fleet = build(fns, observation_mode=(batched, single))
    assert fleet.observation_space is batched
    assert fleet.single_observation_space is single
    compare(fleet, SyncVectorEnv(fns, observation_mode=(batched, single)))


@pytest.mark.parametrize("mode", ["different", "pair"])
def test_spaces_of_other_shapes_never_batch(build, engine, mode):
    text = "AsyncVectorEnv" if engine not in IN_PROCESS else "SyncVectorEnv"
    pair = (spaces.Box(0, 1, (2, 2), np.float32), spaces.Box(0, 1, (2,), np.float32))
    fns = [partial(box_env, 1), partial(box_env, 1, (3,))]
    error = ValueError if mode == "different" else RuntimeError
    with pytest.raises(error, match="shape" if mode == "different" else re.escape(text)):
        build(fns, observation_mode=pair if mode == "pair" else mode)


def test_an_unknown_observation_mode_is_refused(build):
    text = (
        "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and batch "
        "observation space, actual got other"
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        build([CounterEnv] * 2, observation_mode="other")


def test_a_pair_of_something_else_is_refused(build):
    with pytest.raises(TypeError, match="Expected both elements of observation_mode to be Spaces"):
        build([CounterEnv] * 2, observation_mode=(1, 2))


def test_differing_action_spaces_are_refused(build, engine):
    fns = [partial(SpaceEnv, spaces.Discrete(2), spaces.Discrete(n)) for n in (2, 3)]
    text = {
        True: "Sub-environment action space doesn't make the `single_action_space`, "
        "action_space=Discrete(3), single_action_space=Discrete(2)",
        False: "Some environments have an action space different from `Discrete(2)`. In order to "
        "batch actions, the action spaces from all environments must be equal.",
    }[engine in IN_PROCESS]
    with pytest.raises(RuntimeError, match=re.escape(text)):
        build(fns)


# Asynchronous calls


@only_async
def test_asynchronous_calls(build):
    fleet = build([CounterEnv] * 3)
    fleet.reset_async(seed=4)
    assert fleet.reset_wait()[0].tolist() == [[1, 0]] * 3
    fleet.step_async([0, 0, 0])
    assert fleet.step_wait(timeout=20)[0].tolist() == [[1, 1]] * 3
    fleet.call_async("add", 2)
    assert fleet.call_wait(timeout=20) == (3, 3, 3)


@only_here
@pytest.mark.parametrize("pending", ["reset", "step", "call"])
@pytest.mark.parametrize("second", ["reset_async", "step_async", "call_async", "set_attr"])
def test_a_second_call_while_one_is_pending_is_refused(build, pending, second):
    args = {
        "reset_async": (),
        "step_async": ([0, 0],),
        "call_async": ("add", 1),
        "set_attr": ("tag", 1),
    }
    fleet = build([CounterEnv] * 2)
    fleet.reset()
    getattr(fleet, f"{pending}_async")(*args[f"{pending}_async"])
    end = "" if second == "reset_async" else "."
    text = f"Calling `{second}` while waiting for a pending call to `{pending}` to complete{end}"
    with pytest.raises(AlreadyPendingCallError, match=f"^{re.escape(text)}$") as caught:
        getattr(fleet, second)(*args[second])
    assert caught.value.name == pending
    getattr(fleet, f"{pending}_wait")()
    assert fleet.get_attr("tag") == ("unset", "unset")


@only_async
@pytest.mark.parametrize("name", ["reset", "step", "call"])
def test_waiting_for_nothing_is_refused(build, name):
    text = f"Calling `{name}_wait` without any prior call to `{name}_async`."
    with pytest.raises(NoAsyncCallError, match=f"^{re.escape(text)}$") as caught:
        getattr(build([CounterEnv] * 2), f"{name}_wait")()
    assert caught.value.name == name


@only_elsewhere
@pytest.mark.parametrize("name", ["reset", "step", "call"])
def test_a_wait_that_runs_out_says_so(build, name):
    args = {"reset": (), "step": ([0, 0],), "call": ("nap",)}
    fleet = build([Sleeper] * 2)
    if name == "step":
        fleet.reset()
    getattr(fleet, f"{name}_async")(*args[name])
    text = f"The call to `{name}_wait` has timed out after 0.01 second(s)."
    with pytest.raises(multiprocessing.TimeoutError, match=f"^{re.escape(text)}"):
        getattr(fleet, f"{name}_wait")(timeout=0.01)


class Sleeper(CounterEnv):
    def nap(self):
        import time  # noqa: PLC0415

        time.sleep(1.0)

    def reset(self, **kwargs):
        self.nap()
        return super().reset(**kwargs)

    def step(self, action):
        self.nap()
        return super().step(action)


@only_elsewhere
@differs("late-reply", on=("async",))
def test_a_late_reply_is_never_served_as_new(build):
    fleet = build([CounterEnv, partial(CounterEnv, sleep=1.0)])
    fleet.reset()
    fleet.step_async([0, 0])
    with pytest.raises(multiprocessing.TimeoutError):
        fleet.step_wait(timeout=0.01)
    assert fleet.reset()[0].tolist() == [[2, 0], [2, 0]]
    assert fleet.step([0, 0])[0].tolist() == [[2, 1], [2, 1]]


@only_elsewhere
@differs("wait-again", on=("async",))
def test_a_call_that_timed_out_may_be_waited_for_again(build):
    fleet = build([CounterEnv, partial(CounterEnv, sleep=1.0)])
    fleet.reset()
    fleet.step_async([0, 0])
    with pytest.raises(multiprocessing.TimeoutError):
        fleet.step_wait(timeout=0.01)
    with pytest.raises(AlreadyPendingCallError):
        fleet.step_async([0, 0])
    assert fleet.step_wait()[0].tolist() == [[1, 1], [1, 1]]


# Closing


@differs("closed-serial", on=("sync",))
@pytest.mark.parametrize(
    "use",
    [
        lambda fleet: fleet.reset(),
        lambda fleet: fleet.step([0, 0]),
        lambda fleet: fleet.call("add", 1),
        lambda fleet: fleet.get_attr("tag"),
        lambda fleet: fleet.set_attr("tag", 1),
        lambda fleet: fleet.render(),
    ],
    ids=["reset", "step", "call", "get_attr", "set_attr", "render"],
)
def test_a_closed_fleet_refuses_every_call(build, use):
    fleet = build([CounterEnv] * 2)
    fleet.close()
    fleet.close()
    assert fleet.closed
    text = f"Trying to operate on `{type(fleet).__name__}`, after a call to `close()`."
    with pytest.raises(ClosedEnvironmentError, match=re.escape(text)):
        use(fleet)


@only_here
@pytest.mark.parametrize("arguments", [{}, {"timeout": 20}, {"terminate": True}], ids=str)
def test_closing_while_a_call_is_pending_warns(build, arguments):
    fleet = build([CounterEnv] * 2)
    fleet.reset()
    fleet.step_async([0, 0])
    text = "Calling `close` while waiting for a pending call to `step` to complete."
    pids = [process.pid for process in fleet.processes]
    with pytest.warns(UserWarning, match=re.escape(text)):
        fleet.close(**arguments)
    assert fleet.closed
    assert not any(psutil.pid_exists(pid) for pid in pids)


@only_here
def test_closing_ends_a_stuck_env(build):
    fleet = build([CounterEnv, partial(CounterEnv, sleep=3600)])
    fleet.reset()
    fleet.step_async([0, 0])
    pids = [process.pid for process in fleet.processes]
    with pytest.warns(UserWarning, match="Calling `close` while waiting"):
        fleet.close(timeout=0.1)
    assert not any(psutil.pid_exists(pid) for pid in pids)


# Processes


@only_elsewhere
@differs("shared-process", on=("async",))
def test_several_envs_share_a_worker(build):
    pids = build([CounterEnv] * 5, workers=2).call("pid")
    assert len(set(pids[:3])) == len(set(pids[3:])) == 1
    assert len(set(pids)) == 2
    assert os.getpid() not in pids


@only_elsewhere
def test_one_worker_per_env_gives_each_a_process_of_its_own(build):
    pids = build([CounterEnv] * 3, workers=3).call("pid")
    assert len({*pids, os.getpid()}) == 4


@only_here
@differs("max-concurrency", on=("async",))
def test_max_concurrency_bounds_the_workers(build):
    assert len(set(build([CounterEnv] * 3, workers=3, max_concurrency=1).call("pid"))) == 1


@only_here
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "`max_concurrency` must be a positive or None, got 0."),
        (1.5, "`max_concurrency` must be an integer or None, got <class 'float'>."),
    ],
)
def test_a_bad_max_concurrency_is_refused(build, value, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        build([CounterEnv] * 2, max_concurrency=value)


@only_elsewhere
@differs("no-env-in-caller", on=("async",))
def test_no_env_is_built_in_the_calling_process(build):
    build([partial(NotIn, os.getpid())] * 2)


class NotIn(CounterEnv):
    def __init__(self, pid):
        assert os.getpid() != pid
        super().__init__()


@only_async
@differs("global-random", on=("async",))
def test_the_global_generators_differ_between_workers(build):
    random.seed(1)
    np.random.seed(1)
    numbers = build([GlobalDice] * 3, workers=3).call("roll")
    assert len({python for python, _ in numbers}) == 3
    assert len({numpy for _, numpy in numbers}) == 3


class GlobalDice(CounterEnv):
    def roll(self):
        return random.random(), float(np.random.random())


@only_async
@differs("worker-class", on=("async",))
def test_worker_takes_a_kind_of_host(build):
    fleet = build([CounterEnv] * 3, worker=GreetingHost)
    assert fleet.get_attr("tag") == ("hello 0", "hello 1", "hello 2")


class GreetingHost(envfleet.EnvHost):
    def make_env(self, i, env_fn):
        env = super().make_env(i, env_fn)
        env.tag = f"hello {self.first + i}"
        return env


@only_processes
def test_mpi_variables_are_hidden_while_workers_start(build, monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    monkeypatch.setenv("PMI_RANK", "3")
    assert build([EnvironReader] * 2).call("mpi") == ([], [])
    assert os.environ["PMI_RANK"] == "3"


class EnvironReader(CounterEnv):
    def mpi(self):
        return [name for name in os.environ if name.startswith(("OMPI_", "PMI_"))]


def test_the_rows_of_the_documentation_are_the_marks_of_this_module(request):
    page = Path(__file__).parent.parent / "docs" / "differences.md"
    rows = re.findall(r"^\| `([a-z-]+)` \|", page.read_text(), flags=re.MULTILINE)
    source = Path(__file__).read_text()
    marks = set(re.findall(r"^@differs\(\"([a-z-]+)\"", source, flags=re.MULTILINE))
    marks |= set(re.findall(r"^ +row\(\"([a-z-]+)\"", source, flags=re.MULTILINE))
    assert sorted(rows) == sorted(marks)
