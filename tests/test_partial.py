"""Partial batches: envs that are sent and received one by one, on every engine."""

from __future__ import annotations

import random
import signal
import time
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import (
    AlreadyPendingCallError,
    ClosedEnvironmentError,
    NoAsyncCallError,
    ResetNeeded,
)
from gymnasium.vector import AutoresetMode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import envfleet
from envfleet.testing import Fault, FaultEnv
from fleet_envs import CounterEnv
from waiting import gone, wait_until

Process = partial(envfleet.ProcessVectorEnv, context="fork")
ENGINES = {
    "serial": envfleet.SerialVectorEnv,
    "process": partial(Process, workers=2),
    "caller": partial(Process, workers=2, caller_steps=True),
    "each": partial(Process, workers=4),
    "piped": partial(Process, workers=2, shared_memory=False),
}
TWO_PLACES = ["serial", "process", "caller"]
MODES = list(AutoresetMode)


@pytest.fixture(params=ENGINES)
def engine(request):
    return ENGINES[request.param]


@pytest.fixture(params=TWO_PLACES)
def place(request):
    return ENGINES[request.param]


class Walk(gym.Env):
    """Draws everything it tells from its own generator and the actions it got."""

    def __init__(self, kind="box", naps=False):
        self.kind, self.naps = kind, naps
        box = spaces.Box(-9, 9, (3,), np.float32)
        self.observation_space = {
            "box": box,
            "nested": spaces.Dict({"a": box, "b": spaces.Tuple((spaces.Discrete(9), box))}),
            "loose": spaces.Dict({"text": spaces.Text(8, min_length=0), "box": box}),
            "actions": box,
        }[kind]
        self.action_space = spaces.Discrete(5)
        if kind == "actions":
            self.action_space = spaces.Dict({"n": spaces.Discrete(5), "say": spaces.Text(4)})

    def _observe(self):
        numbers = self.np_random.uniform(-9, 9, 3).astype(np.float32)
        numbers[0] = self.memory
        if self.kind == "nested":
            return {"a": numbers, "b": (int(self.np_random.integers(9)), numbers + 1)}
        if self.kind == "loose":
            return {"text": "x" * int(self.np_random.integers(8)), "box": numbers}
        return numbers

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.memory = 0.0 if options is None else options["memory"]
        self.left = int(self.np_random.integers(1, 6))
        return self._observe(), {"began": self.left}

    def step(self, action):
        if self.naps and self.np_random.random() < 0.2:
            time.sleep(0.002)
        if self.kind == "actions":
            action = action["n"] + len(action["say"])
        self.memory = (self.memory * 3 + float(action)) % 7
        self.left -= 1
        info = {"left": self.left} if self.left % 2 else {}
        ended, cut = self.left == 0, self.left == 0 and self.memory > 3
        return self._observe(), self.memory, ended and not cut, cut, info


def pieces(value):
    """A nested value as a list of numbers and strings."""
    if isinstance(value, dict):
        return [piece for key in sorted(value) for piece in pieces(value[key])]
    if isinstance(value, (tuple, list)):
        return [piece for part in value for piece in pieces(part)]
    if isinstance(value, np.ndarray):
        return value.tolist() if value.dtype != object else pieces(list(value))
    return [value]


def row_of(space, observations, k):
    if isinstance(space, spaces.Dict):
        return {key: row_of(sub, observations[key], k) for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(row_of(sub, observations[i], k) for i, sub in enumerate(space.spaces))
    return observations[k]


def story(space, result, k, infos):
    """All that one row of a step or batch says, as plain values."""
    observations, rewards, terminations, truncations = result
    told = {key: value for key, value in infos[k].items() if key != "final_obs"}
    final = pieces(infos[k]["final_obs"]) if "final_obs" in infos[k] else None
    row = pieces(row_of(space, observations, k))
    return row, float(rewards[k]), bool(terminations[k]), bool(truncations[k]), str(told), final


def action_for(space, env, turn):
    """The action of an env's so-many-th step, whoever asks."""
    rng = np.random.default_rng([env, turn])
    if isinstance(space, spaces.Dict):
        return {"n": int(rng.integers(5)), "say": "abcd"[: int(rng.integers(1, 5))]}
    return int(rng.integers(5))


def batched(space, actions):
    if isinstance(space, spaces.Dict):
        return {"n": [a["n"] for a in actions], "say": [a["say"] for a in actions]}
    return actions


def lockstep_stories(make, num_envs, turns, mode):
    """What each env says when all are stepped together."""
    with make() as envs:
        single = envs.single_observation_space
        observations, infos = envs.reset(seed=5)
        nothing = np.zeros(num_envs), np.zeros(num_envs, bool), np.zeros(num_envs, bool)
        told = [[story(single, (observations, *nothing), e, infos)] for e in range(num_envs)]
        done = np.zeros(num_envs, dtype=bool)
        for turn in range(turns):
            if mode is AutoresetMode.DISABLED and done.any():
                (ids,) = np.nonzero(done)
                observations, infos = envs.reset(env_ids=ids)
                for k, env in enumerate(ids):
                    told[env].append(story(single, (observations, *nothing), k, infos))
            actions = [action_for(envs.single_action_space, e, turn) for e in range(num_envs)]
            *result, infos = envs.step(batched(envs.single_action_space, actions))
            for env in range(num_envs):
                told[env].append(story(single, result, env, infos))
            done = result[2] | result[3]
    return told


def flowing_stories(make, num_envs, turns, mode, rng):
    """What each env says when whoever is ready goes on."""
    with make() as envs:
        single, told, turn = envs.single_observation_space, [[] for _ in range(num_envs)], {}
        envs.send_reset(seed=5)
        while len(envs.outstanding):
            least = rng.randint(0, len(envs.outstanding))
            most = rng.choice([None, max(1, least), max(1, least) + 1])
            batch = envs.recv(least, most, timeout=30)
            assert batch.env_ids.tolist() == sorted(set(batch.env_ids.tolist()))
            assert least <= len(batch.env_ids) <= (most or num_envs)
            again, reset = [], []
            for k, env in enumerate(batch.env_ids.tolist()):
                told[env].append(story(single, batch[1:5], k, batch.infos))
                ended = batch.terminations[k] or batch.truncations[k]
                waits = mode is AutoresetMode.DISABLED and ended
                if turn.get(env, 0) < turns:
                    (reset if waits else again).append(env)
            rng.shuffle(again)
            for part in (again[: len(again) // 2], again[len(again) // 2 :]):
                space = envs.single_action_space
                actions = [action_for(space, env, turn.get(env, 0)) for env in part]
                envs.send(batched(space, actions), part)
                for env in part:
                    turn[env] = turn.get(env, 0) + 1
            if reset:
                envs.send_reset(reset)
        counts = envs.flow()
        assert counts.env_steps.tolist() == [len(each) for each in told]
    return told


@given(
    kind=st.sampled_from(["box", "nested", "loose", "actions"]),
    mode=st.sampled_from(MODES),
    workers=st.integers(1, 4),
    options=st.sampled_from([{}, {"caller_steps": True}, {"shared_memory": False}, None]),
    seed=st.integers(0, 2**32),
)
@settings(
    max_examples=25,
    deadline=None,
    derandomize=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_each_env_tells_the_same_story_whoever_goes_first(kind, mode, workers, options, seed):
    num_envs, turns = 4, 12
    env_fns = [partial(Walk, kind, naps=env == 1) for env in range(num_envs)]
    common = {"autoreset_mode": mode, "info_format": "list"}
    serial = partial(envfleet.SerialVectorEnv, env_fns, **common)
    make = serial
    if options is not None:
        make = partial(Process, env_fns, workers=workers, **options, **common)
    expected = lockstep_stories(serial, num_envs, turns, mode)
    assert flowing_stories(make, num_envs, turns, mode, random.Random(seed)) == expected


# The contract


def test_a_batch_has_rows_sorted_by_env_and_a_reset_has_reward_0(engine):
    with engine([CounterEnv] * 4) as envs:
        envs.send_reset([3, 1], seed=[7, None], options=[{"a": 1}, None])
        batch = envs.recv()
        assert isinstance(batch, envfleet.Batch)
        assert batch.env_ids.tolist() == [1, 3]
        assert batch.observations.tolist() == [[1, 0], [1, 0]]
        assert batch.rewards.tolist() == [0, 0]
        assert not batch.terminations.any()
        assert not batch.truncations.any()
        assert envs.call_on([1, 3], "last_options") == (None, {"a": 1})
        assert envs.call_on([3], "np_random_seed") == (7,)


def test_seeds_count_from_the_env_and_not_from_its_place_in_the_list(place):
    with place([CounterEnv] * 4) as envs:
        envs.reset(env_ids=[2, 0], seed=10)
        envs.reset(env_ids=[3, 1], seed=[5, 6])
        assert envs.np_random_seed == (10, 6, 12, 5)


def test_rows_that_were_handed_out_stay_as_they_were(engine):
    with engine([CounterEnv] * 4, copy=False) as envs:
        envs.send_reset()
        first = envs.recv()
        kept = [array.copy() for array in first[:5]]
        for _ in range(5):
            envs.send([0] * 4)
            envs.recv()
        for array, before in zip(first[:5], kept, strict=True):
            np.testing.assert_array_equal(array, before)


def test_a_batch_keeps_its_ids_whatever_becomes_of_those_asked_for(place):
    with place([CounterEnv] * 4) as envs:
        envs.reset()
        envs.send([0] * 4)
        asked = np.array([2, 0], dtype=np.intp)
        batch = envs.recv(env_ids=asked)
        asked[:] = 3
        assert batch.env_ids.tolist() == [2, 0]


def test_an_action_that_an_env_keeps_stays_as_it_was(engine):
    with engine([CounterEnv] * 4) as envs:
        envs.reset()
        for action in (1, 2, 0):
            envs.send([action] * 4)
            envs.recv()
        assert envs.get_attr("last_action") == (1, 1, 1, 1)


def test_some_envs_in_one_call_have_rows_in_the_order_asked(engine):
    with engine([CounterEnv] * 4) as envs:
        observations, infos = envs.reset(env_ids=[2, 0])
        assert observations.shape == (2, 2)
        assert infos == {}
        envs.reset()
        envs.step([1, 1], env_ids=[3, 1])
        observations, rewards, *flags, _ = envs.step([1, 1, 1], env_ids=[3, 0, 1])
        assert observations[:, 1].tolist() == rewards.tolist() == [2, 1, 2]
        assert [flag.shape for flag in flags] == [(3,), (3,)]
        assert envs.step([0] * 4)[1].tolist() == [2, 3, 1, 3]


def test_nothing_happens_to_no_envs(place):
    with place([CounterEnv] * 2) as envs:
        envs.reset()
        envs.send([], [])
        assert envs.step([], env_ids=[])[1].shape == (0,)
        assert envs.reset(env_ids=[])[0].shape == (0, 2)
        envs.send([0, 0])
        envs.recv()
        assert len(envs.outstanding) == 0


def test_a_finished_env_holds_up_nobody_when_autoreset_is_disabled(place):
    lengths = [1, 5, 5]
    env_fns = [partial(CounterEnv, length=length) for length in lengths]
    with place(env_fns, autoreset_mode=AutoresetMode.DISABLED) as envs:
        envs.reset()
        assert envs.step([0] * 3)[2].tolist() == [True, False, False]
        assert envs.step([0, 0], env_ids=[1, 2])[1].tolist() == [2, 2]
        envs.send([0], [2])
        assert envs.recv().env_ids.tolist() == [2]
        with pytest.raises(ResetNeeded, match="envs 0 ended their episode"):
            envs.send([0, 0], [1, 0])
        assert len(envs.outstanding) == 0
        envs.reset(env_ids=[0])
        assert envs.step([0] * 3)[1].tolist() == [1, 3, 4]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([0, 0], [1, 1]), r"envs \[1\] more than once"),
        (([0], [-1]), r"\[-1\] are not among the envs 0 to 3"),
        (([0, 0], [0, 4]), r"\[4\] are not among"),
        (([0, 0, 0], [0, 1]), "expected one action per env, 2 in all, got 3"),
        (([0] * 3, None), "expected one action per env, 4 in all, got 3"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_moves(place, arguments, text):
    with place([CounterEnv] * 4) as envs:
        envs.reset()
        for method in (envs.send, envs.step):
            with pytest.raises(ValueError, match=text):
                method(arguments[0], env_ids=arguments[1])
        assert len(envs.outstanding) == 0
        assert envs.step([0] * 4)[1].tolist() == [1, 1, 1, 1]


def test_ids_that_are_no_numbers_are_refused(place):
    with place([CounterEnv] * 2) as envs:
        envs.reset()
        for wrong in ([0.5], np.array([True, False]), np.array([[0]])):
            with pytest.raises(TypeError):
                envs.send([0], wrong)
        with pytest.raises(ValueError, match="both say whom to reset"):
            envs.send_reset([0], options={"reset_mask": np.array([True, False])})
        for seeds in ([1, 2, 3], [1]):
            with pytest.raises(ValueError, match=r"len\(env_ids\)=2"):
                envs.send_reset([0, 1], seed=seeds)
        assert len(envs.outstanding) == 0


def test_more_than_is_outstanding_cannot_be_received(place):
    with place([CounterEnv] * 4) as envs:
        envs.reset()
        for least in (None, 0, 1):
            with pytest.raises(NoAsyncCallError, match="no env outstanding"):
                envs.recv(least)
        envs.send([0, 0], [1, 3])
        for bounds, text in [
            ((3,), "min_envs=3 is more than the 2 envs"),
            ((2, 1), "max_envs=1 is less than min_envs=2"),
            ((-1,), "min_envs must be 0 or more"),
            ((0, 0), "max_envs must be 1 or more"),
        ]:
            with pytest.raises(ValueError, match=text):
                envs.recv(*bounds)
        assert envs.recv(max_envs=3).env_ids.tolist() == [1, 3]


def test_outstanding_envs_are_busy_and_the_others_are_not(place):
    with place([CounterEnv] * 4) as envs:
        envs.reset()
        envs.send([0, 0], [1, 2])
        for refused in (
            lambda: envs.send([0, 0], [0, 2]),
            lambda: envs.step([0] * 4),
            lambda: envs.step([0], env_ids=[2]),
            lambda: envs.send_reset([2]),
            lambda: envs.reset(env_ids=[2, 3]),
            lambda: envs.call_on([2], "total_steps"),
            lambda: envs.set_attr("tag", 1, env_ids=[2]),
        ):
            with pytest.raises(AlreadyPendingCallError, match=r"envs (2|1-2) are outstanding"):
                refused()
        for refused in (envs.reset, envs.render, lambda: envs.call("tag"), envs.reset_async):
            with pytest.raises(AlreadyPendingCallError, match="envs 1-2 are outstanding"):
                refused()
        assert envs.call_on([0, 3], "total_steps") == (0, 0)
        envs.set_attr("tag", "x", env_ids=[3])
        assert envs.step([0, 0], env_ids=[3, 0])[1].tolist() == [1, 1]
        assert envs.reset(env_ids=[3])[0].tolist() == [[2, 0]]
        assert envs.recv().env_ids.tolist() == [1, 2]
        assert envs.step([0] * 4)[1].tolist() == [2, 2, 2, 1]
        assert envs.call_on([3], "tag") == ("x",)


def test_a_pending_call_is_busy_for_send(place):
    with place([CounterEnv] * 2) as envs:
        envs.reset()
        envs.step_async([0, 0])
        with pytest.raises(AlreadyPendingCallError):
            envs.send([0], [0])
        with pytest.raises(NoAsyncCallError):
            envs.recv()
        assert envs.step_wait()[1].tolist() == [1, 1]


def test_at_most_so_many_and_those_that_have_waited_longest_come_first():
    """One worker moves its envs in the order in which it found them asked.

    It may find env 0 together with those sent before it, but the second step of env 0 only after
    them: they are ready then, and since an earlier time than whatever is sent later.
    """
    with Process([CounterEnv] * 6, workers=1) as envs:
        envs.reset()
        for later in ([3, 4, 5], [1, 2]):
            envs.send([0] * len(later), later)
            envs.step([0], env_ids=[0])
            envs.step([0], env_ids=[0])
        assert envs.recv(max_envs=3).env_ids.tolist() == [3, 4, 5]
        assert envs.recv().env_ids.tolist() == [1, 2]


def test_a_poll_takes_what_is_there(place):
    with place([CounterEnv] * 3) as envs:
        envs.reset()
        envs.send([0] * 3)
        seen = []
        while len(seen) < 3:
            batch = envs.recv(min_envs=0)
            assert len(batch.rewards) == len(batch.observations) == len(batch.env_ids)
            seen += batch.env_ids.tolist()
        assert sorted(seen) == [0, 1, 2]


def test_what_a_timeout_leaves_is_received_later():
    naps = [0.0, 0.0, 3.0, 0.0]
    env_fns = [partial(CounterEnv, sleep=nap) for nap in naps]
    with Process(env_fns, workers=4) as envs:
        envs.reset()
        envs.send([0] * 4)
        envs.recv(3, 3)
        with pytest.raises(envfleet.WaitTimeout, match=r"0 of at least 1 .*Late envs: 2\."):
            envs.recv(timeout=0.01)
        envs.send([0] * 3, [0, 1, 3])
        with pytest.raises(envfleet.WaitTimeout, match=r"Late envs: 2\."):
            envs.recv(4, timeout=1.0)
        batch = envs.recv(timeout=30)
        assert batch.env_ids.tolist() == [0, 1, 2, 3]
        assert batch.rewards.tolist() == [2, 2, 1, 2]


class GatedStep(CounterEnv):
    """Its steps wait for a file."""

    def __init__(self, gate):
        super().__init__()
        self.gate = gate

    def step(self, action):
        wait_until(self.gate.exists)
        return super().step(action)


def test_a_slow_env_keeps_nobody_from_going_on(tmp_path):
    gate = tmp_path / "gate"
    with Process([CounterEnv, partial(GatedStep, gate), CounterEnv], workers=3) as envs:
        envs.reset()
        envs.send([0] * 3)
        for _ in range(50):
            batch = envs.recv(min_envs=1)
            assert 1 not in batch.env_ids
            envs.send([0] * len(batch.env_ids), batch.env_ids)
        gate.touch()
        assert envs.recv().env_ids.tolist() == [0, 1, 2]


def test_envs_of_one_worker_are_told_of_one_by_one():
    """The quick one is received while its slow neighbour, sent after it, still sleeps."""
    with Process([CounterEnv, partial(CounterEnv, sleep=1.0)], workers=1) as envs:
        envs.reset()
        envs.send([0, 0], [0, 1])
        assert envs.recv(min_envs=1, timeout=30).env_ids.tolist() == [0]
        envs.send([0], [0])
        assert envs.recv().rewards.tolist() == [2, 1]


class GatedReset(CounterEnv):
    """A reset, from the second on, waits for a file."""

    def __init__(self, gate, length):
        super().__init__(length=length)
        self.gate = gate

    def reset(self, **kwargs):
        if self.resets:
            wait_until(self.gate.exists)
        return super().reset(**kwargs)


def test_quick_steps_are_told_of_before_a_slow_autoreset_of_the_same_worker(tmp_path):
    """Env 3's episode has ended: its next step is a reset."""
    gate = tmp_path / "gate"
    with Process([*[CounterEnv] * 3, partial(GatedReset, gate, 1)], workers=1) as envs:
        envs.reset()
        for _ in range(50):  # they are quick, and move together
            envs.step([0] * 3, env_ids=[0, 1, 2])
        envs.step([0], env_ids=[3])
        envs.send([0] * 4)
        try:
            assert envs.recv(3, timeout=20).env_ids.tolist() == [0, 1, 2]
        finally:
            gate.touch()
        batch = envs.recv()
        assert batch.env_ids.tolist() == [3]
        assert batch.observations.tolist() == [[2, 0]]


def test_no_more_envs_of_the_calling_process_move_than_are_missing():
    with envfleet.SerialVectorEnv([CounterEnv] * 8) as envs:
        envs.reset()
        for _ in range(50):  # they are quick, and would move together
            envs.step([0] * 8, env_ids=range(8))
        envs.send([0] * 8)
        assert envs.recv(1).env_ids.tolist() == [0]
        assert envs.recv(2).env_ids.tolist() == [1, 2]
        assert envs.recv().env_ids.tolist() == [3, 4, 5, 6, 7]


def test_those_that_have_waited_longest_come_first_in_the_calling_process_too():
    """A time-out leaves what has moved ready: env 5, then one or two more."""
    with envfleet.SerialVectorEnv([CounterEnv] * 6) as envs:
        envs.reset()
        envs.send([0], [5])
        envs.send([0] * 3, [0, 1, 2])
        for _ in range(2):
            with pytest.raises(envfleet.WaitTimeout):
                envs.recv(4, timeout=0)
        assert envs.recv(max_envs=1).env_ids.tolist() == [5]
        assert envs.recv().env_ids.tolist() == [0, 1, 2]


@pytest.mark.parametrize("pause", [0.0, 0.001])
def test_nobody_starves_behind_others_that_are_always_sent_again(place, pause):
    """With a pause the worker's envs are always ready, without one the caller's own are quicker."""
    with place([CounterEnv] * 4) as envs:
        envs.reset()
        envs.send([0] * 4)
        counts = np.zeros(4, dtype=int)
        for _ in range(100_000):
            batch = envs.recv(1, 1)
            counts[batch.env_ids] += 1
            if counts.min() >= 10:
                return
            time.sleep(pause)
            envs.send([0], batch.env_ids)
    raise AssertionError(f"some envs starve: {counts}")


class TellsNowAndThen(gym.Env):
    """Has an info in every other step, with the number of that step."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self):
        self._steps = 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self._steps += 1
        info = {"note": f"step {self._steps}"} if self._steps % 2 else {}
        return np.zeros(1, np.float32), float(self._steps), False, False, info


def test_infos_are_read_while_other_envs_write_theirs():
    """Looking at everybody's notes failed within a hundred batches: NumPy saw them change."""
    with Process([TellsNowAndThen] * 256, workers=2) as envs:
        envs.reset()
        envs.send([0] * 256)
        for _ in range(1500):
            batch = envs.recv(1)
            expected = [f"step {r:.0f}" if r % 2 else None for r in batch.rewards]
            notes = batch.infos.get("note", [None] * len(expected))
            assert list(notes) == expected
            envs.send([0] * len(expected), batch.env_ids)


def test_infos_are_over_the_batch(engine):
    class Named(CounterEnv):
        def step(self, action):
            *answer, _ = super().step(action)
            return *answer, {"n": self.steps, "big": np.arange(1000)} if action else {}

    with engine([Named] * 4) as envs:
        envs.reset()
        envs.send([1, 0, 1], [3, 2, 0])
        batch = envs.recv()
        assert batch.infos["n"].tolist() == [1, 0, 1]
        assert batch.infos["_n"].tolist() == [True, False, True]
        assert batch.infos["big"].shape == (3, 1000)
        assert envs.step([1, 0], env_ids=[3, 0])[4]["n"].tolist() == [2, 0]


def test_flow_counts_what_was_received(place):
    with place([CounterEnv] * 4) as envs:
        assert envs.flow().batches == 0
        envs.reset()
        envs.send([0] * 4)
        for _ in range(3):
            batch = envs.recv(2, 2)
            envs.send([0, 0], batch.env_ids)
        envs.recv()
        counts = envs.flow()
        assert (counts.batches, counts.mean_batch, counts.partial) == (4, 2.5, 0.75)
        assert counts.env_steps.sum() == 10
        assert counts.ready_to_received >= 0
        assert counts.received_to_sent > 0
        assert "4 batches of 2.5 envs, 75% partial" in str(counts)
        again = envs.flow()
        assert again.batches == 0
        assert np.isnan(again.mean_batch)


def test_a_call_for_some_envs_is_a_partial_batch_while_others_are_outstanding(place):
    with place([CounterEnv] * 4) as envs:
        envs.reset()
        envs.step([0, 0], env_ids=[0, 1])
        assert envs.flow().partial == 0
        envs.send([0] * 3, [1, 2, 3])
        envs.step([0], env_ids=[0])
        envs.reset(env_ids=[0])
        assert envs.flow().partial == 1
        envs.recv()
        assert envs.flow().partial == 0


@pytest.mark.parametrize("engine", ["serial", "one worker"])
def test_an_env_that_is_ready_waits_until_it_is_received(engine):
    """Env 0 is ready before env 1 begins its step, which the caller waits for first."""
    make = ENGINES["serial"] if engine == "serial" else partial(Process, workers=1)
    with make([CounterEnv, partial(CounterEnv, sleep=0.2)]) as envs:
        envs.reset()
        begin = time.perf_counter()
        envs.send([0, 0])
        envs.recv(2)
        end = time.perf_counter()
        assert 0.2 / 2 <= envs.flow().ready_to_received <= end - begin


def test_the_time_to_sent_on_is_the_callers_between_recv_and_send(place):
    with place([CounterEnv] * 2) as envs:
        envs.reset()
        envs.send([0, 0])
        begin = time.perf_counter()
        envs.recv()
        time.sleep(0.1)
        envs.send([0], [0])
        middle = time.perf_counter()
        assert 0.1 <= envs.flow().received_to_sent <= middle - begin
        time.sleep(0.1)
        envs.send([0], [1])
        assert 0.2 <= envs.flow().received_to_sent <= time.perf_counter() - begin


@pytest.mark.parametrize("move", ["step", "reset"])
def test_time_in_which_the_whole_fleet_moves_is_not_the_time_to_sent_on(place, move):
    with place([CounterEnv] * 2) as envs:
        envs.reset()
        envs.send([0, 0])
        envs.recv()
        with pytest.raises(NoAsyncCallError):
            envs.recv()
        envs.step([0, 0]) if move == "step" else envs.reset()
        envs.flow()
        envs.send([0, 0])
        assert np.isnan(envs.flow().received_to_sent)


def test_time_in_which_an_env_fails_is_not_the_time_to_sent_on(place):
    with place([partial(CounterEnv, fail_at=2), CounterEnv]) as envs:
        envs.reset()
        envs.step([0], env_ids=[0])
        envs.send([0], [0])
        with pytest.raises(ValueError, match="planned"):
            envs.recv()
        envs.flow()
        envs.send_reset([0])
        assert np.isnan(envs.flow().received_to_sent)


@pytest.mark.parametrize("sleep", [0.0, 60.0])
def test_closing_with_envs_outstanding_leaves_nothing(sleep):
    envs = Process([CounterEnv, partial(CounterEnv, sleep=sleep)], workers=2)
    envs.reset()
    pids = [process.pid for process in envs.processes]
    envs.send([0, 0])
    envs.recv(min_envs=1)
    envs.close(timeout=2 if sleep else None)
    assert gone(pids)
    for call in (envs.recv, lambda: envs.send([0, 0]), lambda: envs.outstanding):
        with pytest.raises(ClosedEnvironmentError):
            call()


def test_without_signals_all_goes_by_wire(monkeypatch):
    monkeypatch.setattr("envfleet.vector.process.CAN_SPIN", False)
    env_fns = [partial(Walk, "nested")] * 4
    common = {"autoreset_mode": AutoresetMode.SAME_STEP, "info_format": "list"}
    expected = lockstep_stories(
        partial(envfleet.SerialVectorEnv, env_fns, **common), 4, 10, AutoresetMode.SAME_STEP
    )
    make = partial(Process, env_fns, workers=2, **common)
    told = flowing_stories(make, 4, 10, AutoresetMode.SAME_STEP, random.Random(1))
    assert told == expected


# Faults


@pytest.mark.parametrize("kind", ["raise", "unpicklable", "system_exit"])
def test_what_an_env_raises_is_raised_and_the_others_flow_on(engine, kind):
    kinds = {
        "raise": ValueError("planned"),
        "unpicklable": Unpicklable(),
        "system_exit": SystemExit,
    }
    bad = partial(CounterEnv, fail_at=1, error=kinds[kind])
    with engine([CounterEnv, bad, CounterEnv, CounterEnv]) as envs:
        envs.reset()
        envs.send([0] * 4)
        seen = []
        with pytest.raises((ValueError, envfleet.EnvError, Unpicklable)) as caught:
            receive_forever(envs, seen)
        assert "env 1" in "".join([str(caught.value), *caught.value.__notes__])
        seen += envs.recv().env_ids.tolist() if len(envs.outstanding) else []
        assert sorted(seen) == [0, 2, 3]
        with pytest.raises(ResetNeeded, match="envs 1 raised an error"):
            envs.send([0, 0], [0, 1])
        envs.reset(env_ids=[1])
        assert envs.step([0] * 4)[1].tolist() == [2, 1, 2, 2]


def receive_forever(envs, seen):
    while True:
        seen += envs.recv(min_envs=1).env_ids.tolist()


class Unpicklable(Exception):  # noqa: N818
    def __reduce__(self):
        raise TypeError("not me")


def test_an_error_in_a_step_of_some_envs_comes_after_all_of_them_moved(place):
    bad = partial(CounterEnv, fail_at=1)
    with place([bad, CounterEnv, bad, CounterEnv]) as envs:
        envs.reset()
        with pytest.raises(ValueError, match="planned") as caught:
            envs.step([0] * 3, env_ids=[2, 1, 0])
        assert "raised by env 0 in step" in caught.value.__notes__[0]
        assert "env 2 also raised" in caught.value.__notes__[1]
        assert len(envs.outstanding) == 0
        envs.reset(env_ids=[0, 2])
        assert envs.step([0] * 4)[1].tolist() == [1, 2, 1, 1]


def test_actions_and_options_that_cannot_be_pickled_move_nobody():
    with Process([partial(Walk, "actions")] * 2, workers=2) as envs:
        envs.reset()
        with pytest.raises(Exception, match="pickle"):
            envs.send_reset(options=[None, {"memory": (i for i in ())}])
        assert len(envs.outstanding) == 0
        envs.send({"n": [0, 0], "say": ["a", "b"]})
        assert envs.recv().env_ids.tolist() == [0, 1]


def test_after_a_reset_that_could_not_be_pickled_envs_step():
    """Their actions are in memory, and workers wait for no message that was never sent."""
    with Process([CounterEnv] * 2, workers=2) as envs:
        envs.reset()
        with pytest.raises(Exception, match="pickle"):
            envs.send_reset(options=[None, {"memory": (i for i in ())}])
        envs.send([0, 0])
        assert envs.recv(timeout=30).rewards.tolist() == [1, 1]


@pytest.mark.parametrize("kind", ["sigkill", "sigsegv", "exit"])
def test_a_worker_that_dies_is_told_with_its_envs(kind):
    env_fns = [FaultEnv, FaultEnv, partial(FaultEnv, {"step": Fault(kind, at=2)}), FaultEnv]
    with Process(env_fns, workers=2) as envs:
        envs.reset()
        envs.send([0] * 4)
        envs.recv()
        envs.send([0] * 4)
        with pytest.raises(envfleet.WorkerDied, match=r"envs 2-3.*during step"):
            receive_forever(envs, [])
        with pytest.raises(envfleet.FleetBroken):
            envs.recv()
        with pytest.raises(envfleet.FleetBroken):
            envs.send([0], [0])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_worker_that_dies_is_replaced_and_the_others_flow_on(tmp_path, mode, shared_memory):
    """Env 2 kills its worker, which env 3 shares: 3 had been received, or was outstanding too."""
    bad = partial(FaultEnv, {"step": Fault("sigkill", at=3, once=str(tmp_path / "once"))})
    options = {"autoreset_mode": mode, "shared_memory": shared_memory}
    with Process(
        [FaultEnv, FaultEnv, bad, FaultEnv], workers=2, on_failure="restart", **options
    ) as envs:
        envs.reset(seed=1)
        cut, rows = [], dict.fromkeys(range(4), 0)
        envs.send([0] * 4)
        while min(rows.values()) < 8:
            batch = envs.recv(min_envs=1, timeout=60)
            again = []
            for k, env in enumerate(batch.env_ids.tolist()):
                rows[env] += 1
                if batch.truncations[k]:
                    cut.append(env)
                    assert batch.infos["worker_restarted"][k]
                    assert batch.rewards[k] == 0
                if mode is AutoresetMode.DISABLED and batch.truncations[k]:
                    envs.send_reset([env])
                else:
                    again.append(env)
            envs.send([0] * len(again), again)
        assert sorted(cut) == [2, 3]
        assert envs.restart_count == 1


def test_a_reset_that_kills_its_worker_is_repeated(tmp_path):
    bad = partial(FaultEnv, {"reset": Fault("sigkill", at=2, once=str(tmp_path / "once"))})
    with Process([FaultEnv, bad], workers=2, on_failure="restart") as envs:
        envs.reset(seed=1)
        envs.send_reset(seed=5)
        batch = envs.recv()
        assert batch.env_ids.tolist() == [0, 1]
        assert not batch.truncations.any()
        assert envs.np_random_seed == (5, 6)
        assert envs.restart_count == 1


def test_what_had_been_reported_before_the_worker_died_is_received(tmp_path):
    """Env 0 has reported its step, and is not received, when its worker dies in env 1's."""
    bad = partial(FaultEnv, {"step": Fault("sigkill", at=1, once=str(tmp_path / "once"))})
    with Process([FaultEnv, bad, FaultEnv], workers=1, on_failure="restart") as envs:
        envs.reset(seed=1)
        envs.send([0], [0])
        envs.step([0], env_ids=[2])  # after env 0, in the same worker
        assert envs.step([0], env_ids=[1])[3].tolist() == [True]
        batch = envs.recv()
        assert batch.observations[0].tolist() == [1, 1, 1]
        assert not batch.truncations.any()
        _, _, _, truncated, infos = envs.step([0, 0], env_ids=[2, 0])
        assert truncated.tolist() == infos["worker_restarted"].tolist() == [True, True]


def test_an_env_that_raises_is_replaced_and_reports_a_cut(tmp_path):
    bad = partial(FaultEnv, {"step": Fault("raise", at=2, once=str(tmp_path / "once"))})
    with Process([FaultEnv, bad, FaultEnv], workers=1, on_failure="restart") as envs:
        envs.reset(seed=1)
        cut = []
        envs.send([0] * 3)
        for _ in range(20):
            batch = envs.recv(min_envs=1)
            cut += batch.env_ids[batch.truncations].tolist()
            envs.send([0] * len(batch.env_ids), batch.env_ids)
        assert cut == [1]
        assert envs.restart_count == 1


def test_a_budget_that_is_spent_gives_the_env_s_own_error():
    bad = partial(FaultEnv, {"step": Fault("raise", at=1)})
    with Process([FaultEnv, bad], workers=2, on_failure="restart", restarts=(0, 60.0)) as envs:
        envs.reset()
        envs.send([0, 0])
        with pytest.raises(ValueError, match="planned") as caught:
            receive_forever(envs, [])
        assert any("allows no further restart" in note for note in caught.value.__notes__)


def test_an_env_that_hangs_is_killed_and_the_others_flow_on(tmp_path):
    bad = partial(FaultEnv, {"step": Fault("hang", at=1, once=str(tmp_path / "once"))})
    with Process(
        [FaultEnv, bad, FaultEnv], workers=3, on_failure="restart", step_timeout=1.0
    ) as envs:
        envs.reset(seed=1)
        envs.send([0] * 3)
        quick = [envs.recv(2, 2) for _ in range(1)]
        assert [batch.env_ids.tolist() for batch in quick] == [[0, 2]]
        batch = envs.recv(timeout=60)
        assert batch.env_ids.tolist() == [1]
        assert batch.truncations.tolist() == [True]


def test_a_worker_that_dies_in_a_call_takes_outstanding_neighbours_with_it(tmp_path):
    bad = partial(FaultEnv, {"call": Fault("sigkill", at=1, once=str(tmp_path / "once"))})
    with Process([bad, FaultEnv], workers=1, on_failure="restart") as envs:
        envs.reset(seed=1)
        envs.send([0], [1])
        with pytest.raises(envfleet.WorkerDied):
            envs.call_on([0], "ping")
        assert envs.recv(timeout=60).env_ids.tolist() == [1]
        assert envs.step([0], env_ids=[0])[3].tolist() == [True]


class Alarm(Exception):  # noqa: N818 - what a user's time-out might be called
    """Raised by a signal handler, and by nobody else."""


class Actor:
    """Sends all idle envs on and receives who is ready; each env's rows must count its steps."""

    def __init__(self, envs):
        self.envs, self.counts = envs, [0] * envs.num_envs
        self.is_on = False

    def ring(self, *_):
        if self.is_on:
            self.is_on = False
            raise Alarm

    def idle(self):
        return sorted(set(range(self.envs.num_envs)) - set(self.envs.outstanding.tolist()))

    def go_on(self):
        self.is_on = True
        idle = self.idle()
        self.envs.send([0] * len(idle), idle)
        batch = self.envs.recv(min_envs=1, timeout=60)
        self.is_on = False
        self.check(batch)

    def check(self, batch):
        cut = batch.infos.get("worker_restarted", np.zeros(len(batch.env_ids), bool))
        for env, row, is_cut in zip(batch.env_ids.tolist(), batch.observations, cut, strict=True):
            if is_cut:
                self.counts[env] = -1  # the next row is that of a reset
                continue
            assert row[1] == self.counts[env] + 1, "a row was lost, or came twice"
            self.counts[env] += 1


# Python drops what a handler raises in a weak reference's callback, or in the garbage collector's.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.untraced  # a handler that raises while coverage holds its lock leaves it locked
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"caller_steps": True},
        {"shared_memory": False},
        {"on_failure": "restart", "restarts": (1000, 60.0)},
        {"on_failure": "restart", "restarts": (1000, 60.0), "shared_memory": False},
    ],
)
def test_alarms_at_any_moment_lose_nothing(options):
    rng = random.Random(3)
    alarms = torn = 0
    with Process([FaultEnv] * 4, workers=2, **options) as envs:
        actor = Actor(envs)
        before = signal.signal(signal.SIGALRM, actor.ring)
        try:
            envs.reset()
            while alarms < 200:
                signal.setitimer(signal.ITIMER_REAL, rng.expovariate(1 / 0.001) + 1e-6)
                try:
                    for _ in range(20):
                        actor.go_on()
                except Alarm:
                    alarms += 1
                except ResetNeeded:  # the step of an env in this process was torn
                    actor.is_on = False
                    torn += 1
                    for env in (idle := actor.idle()):
                        actor.counts[env] = 0
                    envs.reset(env_ids=idle)
                except envfleet.FleetBroken as error:
                    if "cut a message" not in str(error):
                        raise
                    break
        finally:
            actor.is_on = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    assert alarms > 20
    assert torn == 0 or options == {"caller_steps": True}
