"""What both of our engines offer beyond Gymnasium's, and what they do when an env misbehaves."""

from __future__ import annotations

import os
import threading
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array
from gymnasium.wrappers import OrderEnforcing, TimeLimit

import envfleet
from fleet_envs import CounterEnv, CustomSpace, InfoEnv


@pytest.fixture(params=["serial", "process", "caller"])
def build(request):
    fleets = []

    def build(env_fns, **kwargs):
        if request.param == "serial":
            kwargs = {k: v for k, v in kwargs.items() if k != "shared_memory"}
            fleets.append(envfleet.SerialVectorEnv(env_fns, **kwargs))
        else:
            kwargs.update(context="fork", workers=2, caller_steps=request.param == "caller")
            fleets.append(envfleet.ProcessVectorEnv(env_fns, **kwargs))
        return fleets[-1]

    yield build
    for fleet in fleets:
        fleet.close()
    fleets.clear()


def test_call_on_and_render_on_ask_some_envs_in_the_order_given(build):
    fleet = build([partial(CounterEnv, tag=i) for i in range(5)])
    fleet.reset()
    fleet.step([0] * 5)
    assert fleet.call_on([4, 0, 2], "tag") == (4, 0, 2)
    assert fleet.call_on(np.array([1, 3]), "add", 5) == (6, 6)
    assert fleet.call_on([], "tag") == ()
    assert [frame.shape for frame in fleet.render_on((3,))] == [(4, 5, 3)]
    assert fleet.call_on([1], "add", 1, b=2) == (4,)


def test_arguments_named_like_our_own_reach_the_env(build):
    class Taker(CounterEnv):
        def take(self, env_ids=None, name=None):
            return env_ids, name

    fleet = build([Taker] * 2)
    assert fleet.call("take", env_ids=3) == ((3, None), (3, None))
    assert fleet.call(name="tag") == ("unset", "unset")
    assert fleet.call_on([1], "take", env_ids=3, name="x") == ((3, "x"),)


@pytest.mark.parametrize(
    ("env_ids", "error"), [([0, 5], IndexError), ([-1], IndexError), ([1, 1], ValueError)]
)
def test_bad_env_ids_are_refused(build, env_ids, error):
    with pytest.raises(error, match="env_ids"):
        build([CounterEnv] * 5).call_on(env_ids, "tag")


def test_a_fleet_is_a_context_manager(build):
    with build([CounterEnv] * 2) as fleet:
        fleet.reset()
    assert fleet.closed


def test_env_fns_may_be_any_iterable_but_not_empty(build):
    fleet = build(CounterEnv for _ in range(2))
    assert fleet.num_envs == 2
    with pytest.raises(ValueError, match="at least one env"):
        build([])


def test_actions_may_be_an_iterator_or_a_cpu_tensor(build):
    torch = pytest.importorskip("torch")
    fleet = build([CounterEnv] * 2)
    fleet.reset()
    fleet.step(iter([0, 2]))
    assert fleet.call("first_action") == (0, 2)
    fleet.step(torch.tensor([1, 0]))
    assert fleet.get_attr("steps") == (2, 2)


def test_batched_actions_of_the_wrong_kind_are_refused_before_any_env_moves(build):
    fleet = build([CounterEnv] * 2)
    fleet.reset()
    for actions in ([0.5, 1.5], np.array([0, None]), ["a", "b"], [[0], [0]]):
        with pytest.raises((TypeError, ValueError), match="actions"):
            fleet.step(actions)
    assert fleet.get_attr("total_steps") == (0, 0)


def test_an_error_names_env_phase_and_the_others_that_failed(build):
    fleet = build([CounterEnv, *[partial(CounterEnv, fail_at=1)] * 3])
    fleet.reset()
    with pytest.raises(ValueError, match="planned") as caught:
        fleet.step([0] * 4)
    notes = "\n".join(caught.value.__notes__)
    assert "raised by env 1 in step" in notes
    assert "env 2 also raised ValueError in step" in notes
    assert "env 3 also raised ValueError in step" in notes


@pytest.mark.parametrize("error", [SystemExit(3), StopIteration(), KeyError()], ids=repr)
def test_errors_that_would_mislead_the_caller_are_told_as_env_error(build, error):
    fleet = build([CounterEnv, partial(CounterEnv, fail_at=1, error=error)])
    fleet.reset()
    expected = KeyError if isinstance(error, KeyError) else envfleet.EnvError
    with pytest.raises(expected) as caught:
        fleet.step([0, 0])
    if expected is envfleet.EnvError:
        assert (caught.value.env, caught.value.phase) == (1, "step")
        assert caught.value.type_name == type(error).__name__
        assert "fleet_envs.py" in caught.value.traceback


def test_errors_in_call_leave_every_env_usable(build):
    fleet = build([CounterEnv] * 2)
    fleet.reset()
    with pytest.raises(RuntimeError, match="called"):
        fleet.call("boom")
    assert fleet.step([0, 0])[0].tolist() == [[1, 1]] * 2


def test_an_env_that_raises_in_reset_waits_for_reset(build):
    class Moody(CounterEnv):
        def reset(self, *, seed=None, options=None):
            if options == {"fail": True}:
                raise ValueError("moody")
            return super().reset(seed=seed, options=options)

    fleet = build([Moody] * 3)
    fleet.reset()
    with pytest.raises(ValueError, match="moody"):
        fleet.reset(options=[None, {"fail": True}, None])
    with pytest.raises(ResetNeeded, match="envs 1 raised"):
        fleet.step([0, 0, 0])
    fleet.reset(options={"reset_mask": np.array([False, True, False])})
    assert fleet.step([0, 0, 0])[0].tolist() == [[2, 1], [2, 1], [2, 1]]


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize("space", [spaces.Discrete(50), spaces.Text(4)], ids=["fixed", "loose"])
def test_a_failure_of_one_env_leaves_no_stale_row_of_another(build, space, shared_memory):
    class Clock(CounterEnv):
        observation_space = space

        def _observe(self):
            return self.total_steps if isinstance(space, spaces.Discrete) else f"{self.total_steps}"

    fleet = build([Clock, partial(Clock, fail_at=2), Clock], shared_memory=shared_memory)
    fleet.reset()
    fleet.step([0] * 3)
    with pytest.raises(ValueError, match="planned"):
        fleet.step([0] * 3)
    observations, _ = fleet.reset(options={"reset_mask": np.array([False, True, False])})
    assert [int(value) for value in observations] == [2, 2, 2]


def test_an_env_that_ended_beside_a_failing_one_still_needs_its_reset(build):
    fns = [partial(CounterEnv, length=2), partial(CounterEnv, fail_at=2)]
    fleet = build(fns, autoreset_mode=AutoresetMode.DISABLED)
    fleet.reset()
    fleet.step([0, 0])
    with pytest.raises(ValueError, match="planned"):
        fleet.step([0, 0])
    fleet.reset(options={"reset_mask": np.array([False, True])})
    with pytest.raises(ResetNeeded, match="envs 0 ended"):
        fleet.step([0, 0])


def test_an_observation_that_cannot_be_read_is_its_envs_failure(build):
    class Odd:
        shape = (2,)

        def __len__(self):
            return 2

        def __array__(self, *args, **kwargs):
            raise RuntimeError("unreadable")

    class OddEnv(CounterEnv):
        def _observe(self):
            return Odd() if self.steps else super()._observe()

    fleet = build([CounterEnv, OddEnv])
    fleet.reset()
    with pytest.raises(RuntimeError, match="unreadable") as caught:
        fleet.step([0, 0])
    assert "raised by env 1" in caught.value.__notes__[0]


def test_envs_are_not_their_own_factories(build):
    with pytest.raises(TypeError, match=r"env_fns\[1\] must be a function.*got CounterEnv"):
        build([CounterEnv, CounterEnv()])


def test_a_wrapper_that_cannot_unpack_a_step_gets_a_note(build):
    fleet = build([CounterEnv, lambda: gym.wrappers.TimeLimit(Old(), 10)])
    fleet.reset()
    with pytest.raises(ValueError, match="unpack") as caught:
        fleet.step([0, 0])
    notes = " ".join(caught.value.__notes__)
    assert "`step` of env 1 does not return five values" in notes
    assert "old Gym API" in notes


def test_an_envs_own_error_is_not_taken_for_a_bad_answer(build):
    """Not even where the neighbour's answer was one, or its flags are odd but false."""

    class Odd(CounterEnv):
        def step(self, action):
            observation, reward, *_ = super().step(action)
            return [observation, reward, None, 0, {}]

    fleet = build([Odd, partial(CounterEnv, fail_at=1), Old, partial(CounterEnv, fail_at=1)])
    fleet.reset()
    with pytest.raises(ValueError, match=r"^planned") as caught:
        fleet.step([0] * 4)
    notes = caught.value.__notes__
    assert "env 2 also raised ValueError in step" in notes[1]
    assert "returned 4 values" in notes[1]
    assert "env 3 also raised ValueError in step" in notes[2]
    assert notes[2].endswith(": planned")


def test_an_error_of_an_env_that_has_no_python_lines_stays_what_it_is(build):
    class Compiled(CounterEnv):
        def __init__(self):
            super().__init__()
            self.step = partial(int, "x")

    for fns in ([Compiled, CounterEnv], [CounterEnv, CounterEnv, Compiled]):
        fleet = build(fns)
        fleet.reset()
        with pytest.raises(ValueError, match=r"^invalid literal for int\(\)"):
            fleet.step([0] * len(fns))


def test_what_is_refused_as_an_env_is_closed(build, tmp_path):
    class Closing(CounterEnv):
        metadata = None

        def close(self):
            (tmp_path / "closed").touch()

    with pytest.raises(TypeError, match="metadata"):
        build([CounterEnv, Closing])
    assert (tmp_path / "closed").exists()


class Old(CounterEnv):
    """Steps as in the old Gym API."""

    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


@pytest.mark.parametrize("reward", [10**400, np.ones(2), "much"])
def test_a_reward_that_is_no_number_is_its_envs_failure(build, reward):
    class Rewarding(CounterEnv):
        def step(self, action):
            observation, _, *rest = super().step(action)
            return observation, reward, *rest

    fleet = build([CounterEnv, Rewarding, CounterEnv])
    fleet.reset()
    with pytest.raises((ValueError, OverflowError)) as caught:
        fleet.step([0, 0, 0])
    assert "raised by env 1 in step" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("reward", "flag"), [(1, 0), (np.float32(0.5), np.bool_(0)), (True, False), (np.int8(3), 0)]
)
def test_rewards_and_flags_of_other_scalar_types_are_taken(build, reward, flag):
    class Plain(CounterEnv):
        def step(self, action):
            observation, *_ = super().step(action)
            return observation, reward, flag, flag, {}

    fleet = build([Plain] * 2)
    fleet.reset()
    _, rewards, terminated, truncated, _ = fleet.step([0, 0])
    assert rewards.dtype == np.float64
    assert rewards.tolist() == [float(reward)] * 2
    assert terminated.dtype == truncated.dtype == np.bool_
    assert not (terminated | truncated).any()


def test_info_that_is_no_dict_is_its_envs_failure(build):
    with pytest.raises(TypeError, match="info must be a dict, got list"):
        build([partial(InfoEnv, {}), partial(InfoEnv, ["no dict"])]).reset()


def test_final_info_is_the_callers_own(build):
    class Reuser(CounterEnv):
        def __init__(self):
            super().__init__(length=2)
            self.position = np.zeros(2)
            self.nested = {"at": self.position}

        def reset(self, **kwargs):
            self.position[:] = -1
            return super().reset(**kwargs)

        def step(self, action):
            observation, reward, terminated, truncated, _ = super().step(action)
            self.position[:] = self.steps
            return observation, reward, terminated, truncated, {"deep": self.nested}

    fleet = build([Reuser] * 2, autoreset_mode="SameStep")
    fleet.reset()
    fleet.step([0, 0])
    infos = fleet.step([0, 0])[4]
    assert infos["final_info"]["deep"]["at"].tolist() == [[2, 2], [2, 2]]


@pytest.mark.parametrize("space", [spaces.Sequence(spaces.Box(0, 9, (2,))), CustomSpace()])
def test_loose_actions_are_the_envs_own_too(build, space):
    class Keeper(CounterEnv):
        action_space = space

    fleet = build([Keeper] * 2)
    fleet.reset()
    actions = list(batch_space(space, 2).sample())
    if isinstance(space, spaces.Sequence):
        actions = [(np.full(2, 3, dtype=np.float32),)] * 2
        fleet.step(actions)
        actions[0][0][:] = 7
        assert fleet.call("first_action")[0][0].tolist() == [3, 3]
    else:
        left = actions[0].left
        fleet.step(actions)
        actions[0].left = -1
        assert fleet.call("first_action")[0].left == left


class VectorSpace(gym.Space):
    """A custom space for which Gymnasium's functions were registered."""

    def __eq__(self, other):
        return isinstance(other, VectorSpace)

    __hash__ = None


def test_a_custom_space_is_batched_as_registered(build):
    create_empty_array.register(VectorSpace)(lambda space, n=1, fn=np.zeros: fn((n, 2)))
    concatenate.register(VectorSpace)(lambda space, items, out: np.stack(list(items), out=out))
    batch_space.register(VectorSpace)(lambda space, n=1: spaces.Box(-9, 9, (n, 2), np.float64))

    class VectorEnv(CounterEnv):
        observation_space = VectorSpace()

        def _observe(self):
            return np.array([self.resets, self.steps], dtype=np.float64)

    fleet = build([VectorEnv] * 3, shared_memory=False)
    observations, _ = fleet.reset()
    assert observations in fleet.observation_space
    assert observations.tolist() == [[1, 0]] * 3


def test_final_observations_have_the_dtype_of_their_space(build):
    class Wide(CounterEnv):
        def _observe(self):
            return super()._observe().astype(np.float64)

    fleet = build([partial(Wide, length=1)] * 2, autoreset_mode="SameStep")
    fleet.reset()
    observations, *_, infos = fleet.step([0, 0])
    assert infos["final_obs"][0].dtype == observations.dtype == np.float32


@pytest.mark.parametrize("value", [2, np.int64(2), np.int32(2)], ids=lambda v: type(v).__name__)
def test_a_final_number_is_of_the_type_that_the_env_returned(build, value):
    class Counting(CounterEnv):
        observation_space = spaces.Dict({"n": spaces.Discrete(4), "x": spaces.Box(0, 9, (1,))})

        def _observe(self):
            return {"n": value, "x": np.array([3.0])}

    fleet = build([partial(Counting, length=1)] * 3, autoreset_mode="SameStep")
    fleet.reset()
    finals = fleet.step([0, 0, 0])[4]["final_obs"]
    assert [type(final["n"]) for final in finals] == [type(value)] * 3
    assert [final["x"].dtype for final in finals] == [np.float32] * 3


# Infos as the envs gave them


def test_a_list_of_infos_has_the_envs_own_values(build):
    given = [
        {"a": 1, "_a": "beside it", 7: (1, 2)},
        {"a": np.float32(0.5), "deep": {"b": [1, 2]}},
        {},
        {"a": 2, 7: None},
    ]
    fleet = build([partial(InfoEnv, info) for info in given], info_format="list")
    for infos in (fleet.reset()[1], fleet.step([0] * 4)[4]):
        assert infos == given
        assert [type(info.get("a")) for info in infos] == [int, np.float32, type(None), int]
        infos[0].clear()  # the caller's own: the next one is whole again


def test_a_list_of_infos_is_as_long_as_the_fleet_when_nobody_tells_anything(build):
    fleet = build([CounterEnv] * 3, info_format="list")
    assert fleet.reset()[1] == [{}, {}, {}]
    assert fleet.step([0] * 3)[4] == [{}, {}, {}]
    assert fleet.reset(options={"reset_mask": np.array([True, False, False])})[1] == [{}, {}, {}]


@pytest.mark.parametrize("infos", ["all", "final", "none"])
def test_a_list_of_infos_has_what_an_episode_ended_with(build, infos):
    class Telling(CounterEnv):
        def step(self, action):
            *answer, _ = super().step(action)
            return *answer, {"at": self.steps}

    env_fns = [partial(Telling, length=length) for length in (1, 2, 1)]
    fleet = build(env_fns, autoreset_mode="SameStep", info_format="list", infos=infos)
    fleet.reset()
    listed = fleet.step([0] * 3)[4]
    for env in (0, 2):
        assert listed[env].pop("final_obs").tolist() == [1, 1]
        assert listed[env] == ({} if infos == "none" else {"final_info": {"at": 1}})
    assert listed[1] == ({"at": 1} if infos == "all" else {})


def test_unknown_formats_of_infos_are_refused(build):
    with pytest.raises(ValueError, match="`info_format` must be 'columns' or 'list', got 'rows'"):
        build([CounterEnv], info_format="rows")


# Some envs only


def test_set_attr_on_a_layer(build):
    def layers(env):
        return [vars(layer).get("tag") for layer in (env, env.env, env.unwrapped)]

    env_fns = [lambda: TimeLimit(OrderEnforcing(CounterEnv()), 9)] * 2
    fleet = build(env_fns)
    inside = fleet.call(layers)[0][2]
    fleet.set_attr("tag", 1, on="outermost")
    assert fleet.call(layers) == ([1, None, inside], [1, None, inside])
    fleet.set_attr("tag", [2, 3], on="unwrapped")
    assert fleet.call(layers) == ([1, None, 2], [1, None, 3])
    fleet.set_attr("tag", 4)
    assert fleet.call(layers) == ([4, None, 2], [4, None, 3])
    with pytest.raises(ValueError, match="on must be one of"):
        fleet.set_attr("tag", 1, on="inside")


def test_set_attr_of_some_envs(build):
    fleet = build([CounterEnv] * 4)
    fleet.set_attr("tag", [3, 1], env_ids=[3, 1])
    fleet.set_attr("length", 5, env_ids=(0,))
    fleet.set_attr("sleep", 0.5, env_ids=[])
    assert fleet.get_attr("tag") == ("unset", 1, "unset", 3)
    assert fleet.get_attr("length") == (5, 10**9, 10**9, 10**9)
    assert fleet.get_attr("sleep") == (0.0,) * 4
    for wrong, ids, error in (
        ([1], [0, 1], ValueError),
        (1, [4], IndexError),
        (1, [0, 0], ValueError),
    ):
        with pytest.raises(error):
            fleet.set_attr("tag", wrong, env_ids=ids)
    assert fleet.get_attr("tag") == ("unset", 1, "unset", 3)


def module_level(env, factor, *, plus=0):
    return env.unwrapped.tag * factor + plus, type(env).__name__


def test_a_function_is_called_with_each_env_where_it_lives(build):
    def wrapped(tag):
        return gym.wrappers.TimeLimit(CounterEnv(tag=tag), 5)

    fleet = build([partial(wrapped, i) for i in range(3)])
    limit = gym.wrappers.TimeLimit
    assert fleet.call_on([2, 0], module_level, 10, plus=1) == ((21, "TimeLimit"), (1, "TimeLimit"))
    assert fleet.call(lambda env: isinstance(env, limit)) == (True,) * 3
    pids = fleet.call_on([0, 2], lambda _: os.getpid())
    assert pids == fleet.call_on([0, 2], "pid")

    def failing(env):
        raise LookupError(env.unwrapped.tag)

    with pytest.raises(LookupError, match="1") as caught:
        fleet.call_on([1], failing)
    assert "raised by env 1 in call of" in caught.value.__notes__[0]
    with pytest.raises(TypeError, match="a method's name, or a function that takes an env"):
        fleet.call_on([0], 3)


# The mode


@pytest.mark.parametrize("mode", AutoresetMode)
def test_the_mode_may_be_changed_until_the_first_reset(build, mode):
    env_fns = [partial(CounterEnv, length=length) for length in (2, 3, 2)]
    changed, built = build(env_fns), build(env_fns, autoreset_mode=mode)
    changed.set_attr("tag", "kept")
    changed.autoreset_mode = mode.value
    assert changed.autoreset_mode is changed.metadata["autoreset_mode"] is mode
    for fleet in (changed, built):
        fleet.reset(seed=1)
    steps = 2 if mode is AutoresetMode.DISABLED else 6
    for _ in range(steps):
        ours, theirs = changed.step([0] * 3), built.step([0] * 3)
        for one, other in zip(ours[:4], theirs[:4], strict=True):
            assert one.tolist() == other.tolist()
        assert str(ours[4]) == str(theirs[4])
    assert changed.get_attr("tag") == ("kept",) * 3
    changed.autoreset_mode = mode  # the same one is no change
    for other in set(AutoresetMode) - {mode}:
        with pytest.raises(RuntimeError, match=f"been reset in mode {mode.value}"):
            changed.autoreset_mode = other


def test_modes_that_do_not_exist_are_refused(build):
    fleet = build([CounterEnv])
    with pytest.raises(ValueError, match="Sometimes"):
        fleet.autoreset_mode = "Sometimes"
    assert fleet.autoreset_mode is AutoresetMode.NEXT_STEP
    fleet.close()
    with pytest.raises(gym.error.ClosedEnvironmentError):
        fleet.autoreset_mode = "SameStep"


# The host


class Labelling(envfleet.EnvHost):
    """Tells each env its index in the fleet, and how often it was closed."""

    def make_env(self, i, env_fn):
        env = super().make_env(i, env_fn)
        env.tag = self.first + i, self.autoreset_mode
        return env


def test_every_engine_takes_a_host_of_ones_own(build):
    fleet = build([CounterEnv] * 3, worker=Labelling, autoreset_mode="Disabled")
    assert fleet.get_attr("tag") == tuple((i, AutoresetMode.DISABLED) for i in range(3))
    with pytest.raises(TypeError, match=r"subclass of envfleet\.EnvHost"):
        build([CounterEnv], worker=lambda *args: None)


def test_nothing_of_ours_is_set_on_an_env(build):
    fleet = build([partial(CounterEnv, length=1)] * 3, autoreset_mode="SameStep")
    before = set(vars(CounterEnv()))
    fleet.reset(seed=1)
    fleet.keep_final_frames([0, 1])
    fleet.step([0] * 3)
    own = fleet.call(lambda env: sorted(vars(env)))
    assert [set(names) - before for names in own] == [{"_np_random", "_np_random_seed"}] * 3


def test_a_fleet_that_is_dropped_without_close_leaves_nothing(build):
    build([CounterEnv] * 2).reset()  # the leak check and the fixture see to the rest


def test_no_thread_is_started_in_the_caller(build):
    before = threading.active_count()
    build([CounterEnv] * 2).reset()
    assert threading.active_count() == before
