"""make(): every form of env, every word of make_vec, and every refusal."""

from __future__ import annotations

import multiprocessing
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import ClipReward, TimeAwareObservation

import envfleet
from envfleet.testing import SpaceEnv, assert_same, compare
from fleet_envs import CounterEnv, MissionSpace


def test_isolate_rules_out_this_process():
    with envfleet.make("CartPole-v1", isolate=True) as envs:
        assert type(envs) is envfleet.ProcessVectorEnv
    with pytest.raises(ValueError, match="isolate"):
        envfleet.make("CartPole-v1", backend="serial", isolate=True)


@pytest.mark.parametrize(
    ("num_envs", "backend", "kind"),
    [
        (1, "auto", envfleet.SerialVectorEnv),
        (3, "process", envfleet.ProcessVectorEnv),
        (1, "process", envfleet.ProcessVectorEnv),
        (3, "serial", envfleet.SerialVectorEnv),
    ],
)
def test_the_backend_is_the_one_asked_for(num_envs, backend, kind):
    with envfleet.make("CartPole-v1", num_envs, backend=backend) as envs:
        assert type(envs) is kind
        assert envs.num_envs == num_envs
        assert envs.reset(seed=1)[0].shape == (num_envs, 4)


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_the_numbers_are_those_of_make_vec(backend):
    arguments = {"wrappers": (TimeAwareObservation,), "g": 1.62}
    peer = gym.make_vec("Pendulum-v1", 3, vectorization_mode="sync", **arguments)
    with envfleet.make("Pendulum-v1", 3, backend=backend, **arguments) as envs:
        assert_same(envs.reset(seed=2), peer.reset(seed=2))
        envs.action_space.seed(3)
        for _ in range(5):
            actions = envs.action_space.sample()
            assert_same(envs.step(actions), peer.step(actions))


@pytest.mark.parametrize(
    "env",
    [
        "CartPole-v1",
        gym.spec("CartPole-v1"),
        partial(gym.make, "CartPole-v1"),
        [partial(gym.make, "CartPole-v1")] * 2,
    ],
    ids=["id", "spec", "callable", "list"],
)
def test_every_form_of_env(env):
    num_envs = {} if isinstance(env, list) else {"num_envs": 2}
    with envfleet.make(env, **num_envs, wrappers=[TimeAwareObservation]) as envs:
        assert envs.reset(seed=1)[0].shape == (2, 5)


def test_env_kwargs_reach_a_callable():
    with envfleet.make(CounterEnv, 2, tag="given") as envs:
        assert envs.get_attr("tag") == ("given", "given")


def test_a_list_gives_every_env_its_own_arguments():
    with envfleet.make([partial(CounterEnv, tag=i) for i in range(3)]) as envs:
        assert envs.get_attr("tag") == (0, 1, 2)


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_a_list_among_the_arguments_goes_to_every_env_as_it_is(backend):
    with envfleet.make(CounterEnv, 2, backend=backend, tag=["a", "b"]) as envs:
        assert envs.get_attr("tag") == (["a", "b"], ["a", "b"])


class Level(CounterEnv):
    def __init__(self, level):
        super().__init__(tag=2**level)


def test_a_constructor_that_fails_on_a_list_is_told_that_lists_are_not_split():
    gym.register("Level-v0", Level)
    try:
        for env in (Level, "Level-v0"):
            with pytest.raises(TypeError) as caught:
                envfleet.make(env, 2, backend="serial", level=[1, 2])
            (hint,) = [note for note in caught.value.__notes__ if "level=[1, 2]" in note]
            assert "each of the 2 envs as it is" in hint
            with pytest.raises(TypeError) as caught:
                envfleet.make(env, 3, backend="serial", level=[1, 2])
            assert "as it is" not in "".join(caught.value.__notes__)
    finally:
        del gym.registry["Level-v0"]


MISSION = spaces.Dict(
    image=spaces.Box(0, 255, (7, 7, 3), np.uint8),
    mission=MissionSpace(lambda color: f"open the {color} box"),  # as many of MiniGrid's are
    word=spaces.Text(5),
)


@pytest.mark.parametrize("backend", ["serial", "process", "auto"])
def test_custom_spaces_go_by_pipe_and_the_plan_says_so(backend):
    fns = [partial(SpaceEnv, MISSION, spaces.Discrete(3))] * 3
    with envfleet.make(fns, backend=backend, isolate=backend == "auto") as envs:
        compare(envs, SyncVectorEnv(fns))
        if backend == "serial":
            assert envs.plan.by_pipe == ()
            return
        assert envs.shared_memory is True
        assert envs.plan.by_pipe == ("['mission'] (MissionSpace)", "['word'] (Text)")
        assert "by pipe: observation['mission'] (MissionSpace)" in str(envs.plan)


def test_shared_memory_that_was_asked_for_names_the_space_it_cannot_hold():
    fns = [partial(SpaceEnv, MISSION, spaces.Discrete(3))] * 2
    for build in (
        lambda: envfleet.ProcessVectorEnv(fns, workers=1),
        lambda: envfleet.make(fns, vector_kwargs={"shared_memory": True, "workers": 1}),
    ):
        with pytest.raises(
            ValueError, match=r"\['mission'\] has the custom space MissionSpace"
        ) as caught:
            build()
        assert "AsyncVector" not in str(caught.value)
        assert isinstance(caught.value.__cause__, gym.error.CustomSpaceError)
    with pytest.raises(ValueError, match="`shared_memory` must be True, False or 'auto'"):
        envfleet.ProcessVectorEnv(fns, shared_memory="no")


def test_a_plan_says_when_everything_goes_by_pipe():
    options = {"shared_memory": False, "workers": 1}
    with envfleet.make("CartPole-v1", 2, vector_kwargs=options) as envs:
        assert str(envs.plan).endswith("; by pipe: observation (Box)")
    with envfleet.make("CartPole-v1", 2, workers=1) as envs:
        assert "pipe" not in str(envs.plan)


@pytest.mark.parametrize("engine", [envfleet.SerialVectorEnv, envfleet.ProcessVectorEnv])
def test_vector_env_is_a_direct_base_where_wrap_env_of_skrl_looks_for_it(engine):
    assert VectorEnv in engine.__bases__


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_spec_and_repr_are_as_make_vec_sets_them(backend):
    mode = {"serial": "sync", "process": "async"}[backend]
    arguments = {"wrappers": (TimeAwareObservation,), "g": 1.62, "vector_kwargs": {"copy": False}}
    peer = gym.make_vec("Pendulum-v1", 2, vectorization_mode=mode, **arguments)
    with envfleet.make("Pendulum-v1", 2, backend=backend, **arguments) as envs:
        assert envs.spec == peer.spec
        assert repr(envs) == repr(peer).replace(type(peer).__name__, type(envs).__name__)
    peer.close()


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_gymnasium_builds_the_same_fleet_from_the_spec(backend):
    options = {"copy": False}
    if backend == "process":
        options["workers"] = 2
    with envfleet.make(
        "Pendulum-v1", 2, backend=backend, autoreset_mode="SameStep", vector_kwargs=options, g=1.62
    ) as envs:
        peer = gym.make_vec(envs.spec)
        assert peer.num_envs == 2
        assert peer.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
        assert not peer.copy
        assert_same(envs.reset(seed=2), peer.reset(seed=2))
        peer.close()
        with envfleet.make(envs.spec) as again:
            assert type(again) is type(envs)
            assert again.spec == envs.spec
            assert again.autoreset_mode == AutoresetMode.SAME_STEP


def test_vector_kwargs_go_to_the_engine():
    options = {"copy": False, "context": "fork", "daemon": False}
    with envfleet.make("CartPole-v1", 4, workers=2, vector_kwargs=options) as envs:
        assert (envs.copy, envs.context, envs.daemon, envs.workers) == (False, "fork", False, 2)
    with envfleet.make(
        "CartPole-v1", 2, vector_kwargs={"autoreset_mode": "Disabled", "workers": 1}
    ) as envs:
        assert (envs.autoreset_mode, envs.workers) == (AutoresetMode.DISABLED, 1)


def test_options_of_the_engine_are_taken_by_name_beside_those_of_the_env():
    options = {"caller_steps": True, "infos": "final", "copy": False}
    with envfleet.make("Pendulum-v1", 4, workers=2, g=1.62, **options) as envs:
        assert (envs.caller_steps, envs.infos, envs.copy, envs.workers) == (True, "final", False, 2)
        assert envs.get_attr("g") == (1.62,) * 4
    with envfleet.make("CartPole-v1", 2, on_failure="restart", step_timeout=9.0) as envs:
        assert (envs.on_failure, envs.step_timeout) == ("restart", 9.0)
    with envfleet.make("CartPole-v1", 2, backend="serial", infos="none") as envs:
        assert envs.infos == "none"


def test_wrappers_may_be_none_and_are_applied_inside_out():
    with envfleet.make("CartPole-v1", wrappers=None) as envs:
        assert envs.reset()[0].shape == (1, 4)
    clip = partial(ClipReward, max_reward=0.25)
    with envfleet.make("CartPole-v1", wrappers=[clip, TimeAwareObservation]) as envs:
        envs.reset()
        observations, rewards, *_ = envs.step([0])
        assert observations.shape == (1, 5)
        assert rewards.tolist() == [0.25]
        assert isinstance(envs.envs[0], TimeAwareObservation)


def test_an_id_may_name_its_module():
    with envfleet.make("gymnasium.envs:CartPole-v1", np.int64(2), backend="serial") as envs:
        assert envs.num_envs == 2


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (
            {"env": "CartPole-v1", "backend": "serial", "shared_memory": True},
            TypeError,
            "backend='serial' has no option shared_memory",
        ),
        (
            {"env": "CartPole-v1", "copy": False, "vector_kwargs": {"copy": True}},
            ValueError,
            "copy: given twice",
        ),
        (
            {"env": "CartPole-v1", "isolate": True, "caller_steps": True},
            ValueError,
            "isolate=True forbids caller_steps=True",
        ),
        ({"env": "CartPole-v1", "vectorization_mode": "async"}, TypeError, "backend="),
        ({"env": "CartPole-v1", "backend": "thread"}, ValueError, "'auto', 'serial', 'process'"),
        ({"env": "CartPole-v1", "num_envs": 0}, ValueError, "`num_envs` must be a positive"),
        ({"env": "CartPole-v1", "autoreset_mode": "never"}, ValueError, "AutoresetMode"),
        ({"env": 3}, TypeError, "`env` must be an id"),
        ({"env": CounterEnv()}, TypeError, "a function that builds an env"),
        ({"env": []}, TypeError, "`env` must be an id"),
        ({"env": [CounterEnv] * 2, "num_envs": 3}, ValueError, "the list has 2 factories"),
        (
            {"env": "CartPole-v1", "backend": "serial", "workers": 2},
            TypeError,
            "backend='serial' has no option workers",
        ),
        (
            {"env": "CartPole-v1", "workers": 2, "vector_kwargs": {"workers": 3}},
            ValueError,
            "given twice",
        ),
        ({"env": "CartPool-v1"}, gym.error.NameNotFound, "CartPole"),
    ],
)
def test_refusals_say_what_to_do(arguments, error, text):
    with pytest.raises(error, match=None) as caught:
        envfleet.make(**arguments)
    assert text in str(caught.value)


def test_a_spec_without_an_entry_point_is_refused():
    with pytest.raises(gym.error.Error, match="doesn't have an entry point defined"):
        envfleet.make(gym.envs.registration.EnvSpec("Nothing-v0"))


def describe_fleet(queue, **options):
    """What ``make`` gives in a process that may not have children."""
    try:
        with envfleet.make("CartPole-v1", 4, **options) as envs:
            envs.reset()
            envs.step([0] * 4)
            queue.put((type(envs).__name__, str(envs.plan)))
    except ValueError as error:
        queue.put(("ValueError", str(error)))


@pytest.mark.parametrize(
    ("options", "kind"),
    [({}, "SerialVectorEnv"), ({"isolate": True}, "ValueError"), ({"workers": 2}, "ValueError")],
)
def test_auto_is_serial_in_a_daemonic_process_and_says_so(options, kind):
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=describe_fleet, args=(queue,), kwargs=options, daemon=True)
    process.start()
    found, text = queue.get()
    assert found == kind
    assert "daemonic" in text
    process.join()
    process.close()
    queue.close()


@pytest.mark.parametrize(
    ("options", "workers", "caller"),
    [
        ({"workers": 5}, 2, False),
        ({"workers": 5, "max_concurrency": 1}, 1, False),
        ({"max_concurrency": 1}, 1, False),
        ({"workers": 2, "caller_steps": True}, 2, True),
    ],
)
@pytest.mark.parametrize("backend", ["process", "auto"])
def test_the_plan_is_what_was_built(backend, options, workers, caller):
    if backend == "auto" and options.keys() == {"max_concurrency"}:
        options = {**options, "on_failure": "restart"}  # leaves no choice but processes
    with envfleet.make(CounterEnv, 2, backend=backend, **options) as envs:
        plan = envs.plan
        assert (plan.backend, plan.workers, plan.caller_steps) == ("process", workers, caller)
        assert len(envs.processes) == workers - caller
        assert envs.workers == workers
