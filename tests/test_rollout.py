"""Rollouts against a brute-force reference, at every kind of end, under every autoreset mode."""

from __future__ import annotations

import csv
import math
import os
import signal
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.wrappers import RecordEpisodeStatistics
from gymnasium.wrappers.vector import DictInfoToList, TransformReward
from gymnasium.wrappers.vector import RecordEpisodeStatistics as VectorStatistics

import envfleet
from envfleet import Collector
from envfleet.rollout.nested import is_channels_last
from envfleet.testing import Fault, FaultEnv
from rollout_envs import ENGINES, MODES, SCRIPTS, Chooser, Formula, ScriptedEnv, SeedAgent, fleet

GAMMA, LAMBDA = 0.9, 0.8


def reference(script, index, rows, mode):
    """Every transition of one env in a rollout of so many rows; advantages by definition."""
    env, agent = ScriptedEnv(script, index), Formula()
    transitions, observation, used = [], env.reset()[0], 0
    while used < rows:
        action, log_prob, value = (x[0] for x in agent.act(torch.tensor(observation)[None]))
        after, reward, terminated, truncated, _ = env.step(action)
        following = 0.0 if terminated else float(agent._value(torch.tensor(after)[None])[0])
        transitions.append(
            {
                "observation": observation.tolist(),
                "action": int(action),
                "log_prob": float(log_prob),
                "value": float(value),
                "reward": reward,
                "terminated": terminated,
                "truncated": truncated,
                "delta": reward + GAMMA * following - float(value),
            }
        )
        used += 1
        observation = after
        if terminated or truncated:
            observation = env.reset()[0]
            if mode == AutoresetMode.NEXT_STEP:
                used += 1
    for i, transition in enumerate(transitions):
        advantage, factor = 0.0, 1.0
        for later in transitions[i:]:
            advantage += factor * later["delta"]
            factor *= GAMMA * LAMBDA
            if later["terminated"] or later["truncated"]:
                break
        transition["advantage"] = advantage
    return transitions


def rows_of(rollout, env):
    """The valid rows of one env, as the reference has them."""
    advantages, _ = rollout.advantages(GAMMA, LAMBDA)
    return [
        {
            "observation": rollout.observations[t, env].tolist(),
            "action": int(rollout.actions[t, env]),
            "log_prob": float(rollout.log_probs[t, env]),
            "value": float(rollout.values[t, env]),
            "reward": float(rollout.rewards[t, env]),
            "terminated": bool(rollout.terminated[t, env]),
            "truncated": bool(rollout.truncated[t, env]),
            "advantage": float(advantages[t, env]),
        }
        for t in range(len(rollout.rewards))
        if rollout.valid[t, env]
    ]


def assert_rows(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for key, value in one.items():
            assert value == pytest.approx(other[key], rel=1e-5), (key, one, other)


# The numbers


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_transition_is_the_one_of_a_plain_loop(engine, name, mode):
    with Collector(fleet(engine, SCRIPTS[name], mode=mode), Formula(), 7) as collector:
        rollout = collector.collect()
        for env in range(3):
            assert_rows(rows_of(rollout, env), reference(SCRIPTS[name], env, 7, mode))


@pytest.mark.parametrize("name", SCRIPTS)
def test_finished_episodes_have_the_same_numbers_under_all_modes(name):
    found = {}
    for mode in MODES:
        with Collector(fleet("serial", SCRIPTS[name], mode=mode), Formula(), 14) as collector:
            rows = rows_of(collector.collect(), 1)
        ends = [i for i, row in enumerate(rows) if row["terminated"] or row["truncated"]]
        found[mode] = rows[: ends[-1] + 1] if ends else []
    shortest = min(map(len, found.values()))
    assert shortest > 0 or name == "never"
    for rows in found.values():
        assert_rows(rows[:shortest], found[AutoresetMode.SAME_STEP][:shortest])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SCRIPTS)
def test_short_rollouts_continue_where_the_last_one_ended(name, mode):
    with Collector(fleet(script=SCRIPTS[name], mode=mode), Formula(), 12) as collector:
        whole = collector_rows(collector.collect())
        steps = collector.total_steps
    with Collector(fleet(script=SCRIPTS[name], mode=mode), Formula(), 4) as collector:
        parts = [collector_rows(collector.collect()) for _ in range(3)]
        assert collector.total_steps == steps
    for env in range(3):
        joined = [row for part in parts for row in part[env]]
        for one, other in zip(joined, whole[env], strict=True):
            assert {**one, "advantage": 0} == {**other, "advantage": 0}


def collector_rows(rollout):
    return [rows_of(rollout, env) for env in range(3)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reuse_array", [False, True])
@pytest.mark.parametrize("engine", ["serial", "process"])
def test_final_observations_are_those_of_the_end_and_not_of_the_next_beginning(
    engine, reuse_array, mode
):
    envs = fleet(engine, [(3, "trunc")], mode=mode, reuse_array=reuse_array)
    with Collector(envs, Formula(), 8) as collector:
        rollout = collector.collect()
    assert len(rollout.final_positions) == 6
    for (t, env), final, value in zip(
        rollout.final_positions.tolist(),
        rollout.final_observations,
        rollout.final_values,
        strict=True,
    ):
        assert rollout.truncated[t, env]
        assert final.tolist()[0] == env
        assert final.tolist()[2] == 3.0  # a reset shows 0
        assert value == Formula()._value(final[None])[0]
    assert rollout.final_positions.tolist() == sorted(rollout.final_positions.tolist())
    assert rollout.episode_counts.tolist() == [2, 2, 2]


def test_what_is_worth_nothing_after_both_flags():
    script = [(2, "term trunc")]
    with Collector(fleet(script=script, mode="SameStep"), Formula(), 2) as collector:
        rollout = collector.collect()
    assert rollout.terminated[1].all()
    assert rollout.truncated[1].all()
    assert rollout.final_values.tolist() == [0.0] * 3
    advantages, _ = rollout.advantages(GAMMA, LAMBDA)
    assert torch.allclose(advantages[1], rollout.rewards[1] - rollout.values[1])


def test_the_horizon_is_no_end():
    with Collector(fleet(script=SCRIPTS["never"]), Formula(), 5) as collector:
        rollout = collector.collect()
    assert not (rollout.terminated | rollout.truncated).any()
    assert len(rollout.final_positions) == 0
    assert rollout.final_observations.shape == (0, 3)
    assert torch.equal(rollout.last_values, Formula()._value(rollout.last_observations))
    assert rollout.last_observations[:, 2].tolist() == [5.0] * 3


def test_values_of_what_came_last_cost_one_call_per_rollout():
    agent = Formula()
    with Collector(fleet(script=[(2, "trunc")], mode="SameStep"), agent, 9) as collector:
        for calls in (1, 2):
            assert len(collector.collect().final_positions) > 3
            assert agent.value_calls == calls


def test_the_seeds_agents_work_as_they_are():
    rollouts = []
    for agent in (SeedAgent(), Formula()):
        with Collector(fleet(script=[(3, "trunc")]), agent, 7) as collector:
            rollouts.append(collector.collect())
    for one, other in zip(*(r.advantages() for r in rollouts), strict=True):
        assert torch.equal(one, other)


def test_sums_are_of_double_precision():
    class Tiny(ScriptedEnv):
        def step(self, action):
            observation, _, *rest = super().step(action)
            return observation, 1e8 if self.t == 1 else 0.125, *rest

    envs = envfleet.SerialVectorEnv([partial(Tiny, SCRIPTS["never"])] * 2)
    with Collector(envs, Formula(), 5) as collector:
        rollout = collector.collect()
    assert rollout.total_return == 2 * (1e8 + 4 * 0.125)
    assert rollout.rewards.dtype == torch.float32


# A worker that is replaced


@pytest.mark.parametrize("source", ["own", "info"])
@pytest.mark.parametrize("mode", MODES)
def test_restarts_in_every_mode_leave_only_true_transitions_and_episodes(mode, source):
    class KillOnce(Formula):
        steps = 0

        def act(self, observations, deterministic=False):
            self.steps += 1
            if self.steps == 9:
                os.kill(envs.processes[0].pid, signal.SIGKILL)
            return super().act(observations)

    def make(index):
        return RecordEpisodeStatistics(ScriptedEnv([(5, "trunc")], index))

    envs = envfleet.ProcessVectorEnv(
        [partial(make, index) for index in range(4)],
        workers=2,
        context="fork",
        on_failure="restart",
        autoreset_mode=mode,
    )
    with Collector(envs, KillOnce(), 20, episodes=source) as collector:
        rollout = collector.collect()
        found = collector.statistics.episodes
    assert {episode.length for episode in found} == {5}
    cut = (~rollout.valid & rollout.truncated).nonzero().tolist()
    assert cut == [[8, 0], [8, 1]]
    assert rollout.final_observations[:, 2].unique().tolist() == [5.0]
    for t, env in rollout.valid.nonzero().tolist():
        ended = rollout.terminated[t, env] or rollout.truncated[t, env]
        if not ended and t + 1 < 20:
            before, after = rollout.observations[t, env], rollout.observations[t + 1, env]
            assert (after - before).tolist() == [0, 0, 1]


def test_the_row_of_a_replaced_worker_is_no_transition_and_nothing_flows_over_it():
    class KillOnce(Formula):
        steps = 0

        def act(self, observations, deterministic=False):
            self.steps += 1
            if self.steps == 4:
                os.kill(envs.processes[0].pid, signal.SIGKILL)
            return super().act(observations)

    fns = [partial(ScriptedEnv, SCRIPTS["never"], index) for index in range(2)]
    envs = envfleet.ProcessVectorEnv(fns, workers=2, context="fork", on_failure="restart")
    with Collector(envs, KillOnce(), 8) as collector:
        rollout = collector.collect()
        assert collector.statistics.count == 0  # what was cut off is no finished episode
    assert rollout.valid[:, 1].all()
    # The cut, and the reset that follows it.
    assert rollout.valid[:, 0].tolist() == [True] * 3 + [False] * 2 + [True] * 3
    assert len(rollout.final_positions) == 0
    advantages, _ = rollout.advantages(GAMMA, LAMBDA)
    assert advantages[3:5, 0].tolist() == [0.0, 0.0]
    # The last transition before the cut is valued by what the agent saw then.
    expected = rollout.rewards[2, 0] + GAMMA * rollout.values[3, 0] - rollout.values[2, 0]
    assert advantages[2, 0] == pytest.approx(float(expected))
    assert_rows(rows_of(rollout, 1), reference(SCRIPTS["never"], 1, 8, AutoresetMode.NEXT_STEP))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("moment", [4, 5, 7])
def test_after_an_error_of_the_agent_everything_begins_anew(mode, moment):
    class Moody(Formula):
        asked = 0

        def act(self, observations, deterministic=False):
            self.asked += 1
            if self.asked == moment:
                raise RuntimeError("moody")
            return super().act(observations)

    with Collector(fleet(script=[(3, "term")], mode=mode), Moody(), 3) as collector:
        with pytest.raises(RuntimeError, match="moody"):
            [collector.collect() for _ in range(3)]
        known = collector.statistics.count
        with pytest.raises(ValueError, match="all envs must be reset now"):
            collector.reset(options={"reset_mask": np.array([True, False, False])})
        rollout = collector.collect()
        assert rollout.valid.all()
        assert rollout.observations[:, :, 2].T.tolist() == [[0.0, 1.0, 2.0]] * 3
        assert collector.statistics.count == known + 3
        assert {episode.length for episode in collector.statistics.episodes} == {3}


def test_after_an_error_of_an_env_one_resets_and_goes_on():
    envs = envfleet.SerialVectorEnv([partial(FaultEnv, {"step": Fault("raise", at=3)}), FaultEnv])
    agent = Constant(torch.ones(2, dtype=torch.long))
    with Collector(envs, agent, 2) as collector:
        collector.collect()
        with pytest.raises(Exception, match="planned"):
            collector.collect()
        rollout = collector.collect()
        assert rollout.valid.all()
        assert rollout.observations[0, :, 1].tolist() == [0.0, 0.0]  # from a reset on


# Actions


class Constant:
    """Answers what it was given."""

    def __init__(self, actions, log_probs=None, values=None):
        count = len(actions)
        self.answer = (
            actions,
            torch.zeros(count) if log_probs is None else log_probs,
            torch.zeros(count) if values is None else values,
        )

    def act(self, observations):
        return self.answer

    def get_values(self, observations):
        return torch.zeros(len(next(iter(leaves(observations)))))


def leaves(tree):
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    if isinstance(tree, tuple):
        return [leaf for branch in tree for leaf in leaves(branch)]
    return [tree]


class Keeper(gym.Env):
    """Keeps the last action; observes a sample of its space, told by the seed."""

    def __init__(self, action_space=None, observation_space=None):
        self.action_space = action_space or spaces.Discrete(2)
        self.observation_space = observation_space or spaces.Discrete(5)
        self.kept = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.observed = [self.observation_space.sample()]
        return self.observed[-1], {}

    def step(self, action):
        self.kept = action
        self.observed.append(self.observation_space.sample())
        return self.observed[-1], 1.0, False, False, {}


@pytest.mark.parametrize(
    ("space", "chosen", "sent"),
    [
        (spaces.Discrete(3), torch.tensor([0, 2]), [0, 2]),
        (spaces.Discrete(3, start=5), torch.tensor([0, 2]), [5, 7]),
        (spaces.Discrete(3), torch.tensor([0, 2], dtype=torch.int32), [0, 2]),
        (spaces.MultiDiscrete([2, 3]), torch.tensor([[1, 0], [0, 2]]), [[1, 0], [0, 2]]),
        (spaces.MultiBinary(2), torch.tensor([[1, 0], [1, 1]]), [[1, 0], [1, 1]]),
        (spaces.Box(-1, 1, (1,)), torch.tensor([[0.5], [-7.0]]), [[0.5], [-1.0]]),
        (spaces.Box(-1, 1, (2,), np.float64), torch.tensor([[0.5, 2.0]] * 2), [[0.5, 1.0]] * 2),
        (spaces.Box(-np.inf, np.inf, (1,)), torch.tensor([[50.0], [-7.0]]), [[50.0], [-7.0]]),
        (
            spaces.Box(np.float32([-1, -9]), np.float32([2, 0])),
            torch.tensor([[5.0, 5.0], [-5.0, -5.0]]),
            [[2.0, 0.0], [-1.0, -5.0]],
        ),
    ],
    ids=str,
)
def test_actions_are_stored_raw_and_sent_as_the_space_has_them(space, chosen, sent):
    envs = envfleet.SerialVectorEnv([partial(Keeper, space)] * 2)
    with Collector(envs, Constant(chosen), 2) as collector:
        rollout = collector.collect()
        kept = envs.get_attr("kept")
    assert rollout.actions.shape == (2, 2, *space.shape)
    assert rollout.actions.dtype == torch.from_numpy(np.zeros(0, space.dtype)).dtype
    assert rollout.actions[1].tolist() == chosen.tolist()
    assert np.asarray(kept).tolist() == sent
    assert all(space.contains(action) for action in kept)


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "MountainCarContinuous-v0"])
def test_envs_that_index_their_action_get_an_array(env_id):
    envs = envfleet.make(env_id, 2, backend="serial")
    with Collector(envs, Constant(torch.full((2, 1), 9.0)), 3) as collector:
        rollout = collector.collect()
    assert rollout.actions.tolist() == [[[9.0]] * 2] * 3


# Observations

NESTED = spaces.Dict(
    image=spaces.Box(0, 255, (8, 9, 3), np.uint8),
    rest=spaces.Tuple([spaces.Discrete(4), spaces.Box(-1, 1, (2,), np.float64)]),
)


@pytest.mark.parametrize(
    ("space", "shapes", "dtypes"),
    [
        (spaces.Box(-1, 1, (3,), np.float64), [(3,)], [torch.float32]),
        (spaces.Box(-1, 1, (3,), np.float16), [(3,)], [torch.float16]),
        (spaces.Box(0, 255, (4, 84, 84), np.uint8), [(4, 84, 84)], [torch.uint8]),
        (spaces.Box(0, 255, (84, 84, 3), np.uint8), [(3, 84, 84)], [torch.uint8]),
        (spaces.Discrete(4), [()], [torch.int64]),
        (spaces.MultiBinary(3), [(3,)], [torch.int8]),
        (NESTED, [(3, 8, 9), (), (2,)], [torch.uint8, torch.int64, torch.float32]),
    ],
    ids=str,
)
@pytest.mark.parametrize("engine", ["serial", "process"])
def test_observations_keep_their_dtype_and_shape(engine, space, shapes, dtypes):
    envs = ENGINES[engine]([partial(Keeper, observation_space=space)] * 2)
    with Collector(envs, Constant(torch.zeros(2, dtype=torch.long)), 3, seed=4) as collector:
        rollout = collector.collect()
        observed = envs.get_attr("observed")
    found = leaves(rollout.observations)
    assert [tuple(leaf.shape) for leaf in found] == [(3, 2, *shape) for shape in shapes]
    assert [leaf.dtype for leaf in found] == dtypes
    for env in range(2):
        for t in range(3):
            for leaf, value in zip(found, leaves(observed[env][t]), strict=True):
                expected = np.asarray(value)
                if expected.shape[2:] == (3,):
                    expected = np.moveaxis(expected, -1, 0)
                assert np.allclose(leaf[t, env].numpy(), expected)


@pytest.mark.parametrize(
    ("shape", "last"),
    [
        ((84, 84, 3), True),
        ((210, 160, 3), True),
        ((96, 96, 1), True),
        ((84, 84, 4), True),
        ((64, 64, 12), True),
        ((4, 84, 84), False),
        ((3, 84, 84), False),
        ((12, 84, 84), False),
        ((1, 84, 84), False),
        ((3, 3, 3), False),
        ((10, 10, 10), False),
        ((84, 84), False),
        ((3,), False),
    ],
)
def test_where_an_image_has_its_channels(shape, last):
    assert is_channels_last(shape) == last


def test_turning_images_can_be_asked_for_and_refused():
    space = spaces.Box(0, 255, (10, 11, 12), np.uint8)
    for choice, shape in ((True, (12, 10, 11)), (False, (10, 11, 12))):
        envs = envfleet.SerialVectorEnv([partial(Keeper, observation_space=space)])
        agent = Constant(torch.zeros(1, dtype=torch.long))
        with Collector(envs, agent, 1, channels_first=choice) as collector:
            assert collector.collect().observations.shape == (1, 1, *shape)


def test_observations_without_a_fixed_shape_are_refused():
    space = spaces.Dict(text=spaces.Text(5))
    text = r"observations\['text'\] of type Text"
    with (
        envfleet.SerialVectorEnv([partial(Keeper, observation_space=space)]) as envs,
        pytest.raises(TypeError, match=text),
    ):
        Collector(envs, Formula(), 1)


def test_gradients_of_observations_are_there_on_request_only():
    for wanted in (False, True):
        with Collector(fleet(), Formula(), 3, requires_grad_observations=wanted) as collector:
            for _ in range(2):
                rollout = collector.collect()
                assert rollout.observations.requires_grad == wanted
                assert not rollout.values.requires_grad
                if wanted:
                    (rollout.observations**2).sum().backward()
                    assert torch.equal(rollout.observations.grad, 2 * rollout.observations)
    text = "needs observations of floats"
    with envfleet.SerialVectorEnv([Keeper]) as envs, pytest.raises(ValueError, match=text):
        Collector(envs, Formula(), 1, requires_grad_observations=True)


def test_the_agent_is_asked_without_gradients():
    class Learner(torch.nn.Linear):
        def act(self, observations):
            values = self(observations)[:, 0]
            assert not values.requires_grad
            return values.long() % 2, values, values

    with Collector(fleet(), Learner(3, 1), 2) as collector:
        assert not collector.collect().values.requires_grad
    assert torch.is_grad_enabled()


class Camera(ScriptedEnv):
    """Nested observations with an image, which is that of the step."""

    observation_space = NESTED

    def _observe(self):
        image = np.zeros((8, 9, 3), dtype=np.uint8)
        image[..., 1] = self.t
        return {"image": image, "rest": (self.episode % 4, np.full(2, self.t))}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("engine", ENGINES)
def test_final_observations_are_nested_and_turned_like_the_others(engine, mode):
    envs = ENGINES[engine]([partial(Camera, [(3, "trunc")])] * 2, autoreset_mode=mode)
    with Collector(envs, Constant(torch.zeros(2, dtype=torch.long)), 9) as collector:
        rollout = collector.collect()
    finals = rollout.final_observations
    assert finals["image"].shape == (len(rollout.final_positions), 3, 8, 9)
    assert finals["image"][:, 1].unique().tolist() == [3]
    assert finals["rest"][1].unique().tolist() == [3.0]
    assert finals["rest"][0].tolist()[:2] == [0, 0]
    assert rollout.last_observations["image"].shape == (2, 3, 8, 9)


def test_what_comes_next_is_in_memory_of_its_own():
    with Collector(fleet(script=SCRIPTS["never"]), Formula(), 2) as collector:
        rollout = collector.collect()
        last = rollout.last_observations.tolist()
        collector.collect()
    assert rollout.last_observations.tolist() == last


@pytest.mark.parametrize("at_once", [4, 10**6])
@pytest.mark.parametrize("mode", MODES)
def test_agents_may_choose_first_and_judge_later(mode, at_once, monkeypatch):
    monkeypatch.setattr("envfleet.rollout.inference.EVALUATED_AT_ONCE", at_once)
    script = SCRIPTS["both"]
    with Collector(fleet(script=script, mode=mode), Chooser(), 7) as collector:
        for _ in range(2):
            rollout = collector.collect()
    with Collector(fleet(script=script, mode=mode), Formula(), 7) as collector:
        for _ in range(2):
            expected = collector.collect()
    for name in ("observations", "actions", "log_probs", "values", "last_values", "final_values"):
        assert torch.equal(getattr(rollout, name), getattr(expected, name)), name


# Bad agents and engines

LONG = torch.zeros(3, dtype=torch.long)


class Returning:
    def __init__(self, answer):
        self.answer = answer

    def get_actions_and_values(self, observations, actions=None):
        return self.answer


@pytest.mark.parametrize(
    ("agent", "error", "text"),
    [
        (Constant(LONG[:2]), ValueError, r"agent's actions have shape \(2,\), expected \(3,\)"),
        (Constant(LONG[:, None]), ValueError, r"agent's actions have shape \(3, 1\)"),
        (Constant(LONG, torch.zeros(3, 1)), ValueError, r"log_probs have shape \(3, 1\)"),
        (Constant(LONG, None, torch.zeros(3, 1)), ValueError, r"values have shape \(3, 1\)"),
        (Constant(LONG, torch.tensor([0, np.nan, 0])), ValueError, r"log_probs of envs \[1\]"),
        (Constant(LONG, None, torch.tensor([0, 0, np.inf])), ValueError, r"values of envs \[2\]"),
        (Constant(LONG.float()), TypeError, "agent's actions have dtype torch.float32"),
        (Constant(LONG + 2), ValueError, "actions are between 2 and 2, the space has 0 to 1"),
        (Constant(LONG, LONG), TypeError, "log_probs have dtype torch.int64, floats"),
        (Constant(LONG, torch.zeros(3, dtype=torch.cfloat)), TypeError, "log_probs have dtype"),
        (Returning(None), TypeError, "must return .* got a NoneType"),
        (Returning((LONG, LONG)), TypeError, "must return .* got a tuple of 2"),
        (Constant(LONG, torch.zeros(3, device="meta")), ValueError, "log_probs are on device"),
        (Constant(LONG.numpy()), TypeError, "agent's actions must be a tensor, got ndarray"),
        (Constant(LONG, [0, 0, 0]), TypeError, "agent's log_probs must be a tensor, got list"),
        (object(), TypeError, "object is not an agent"),
    ],
)
def test_an_agent_that_answers_nonsense_is_told_what_is_wrong(agent, error, text):
    with fleet() as envs:
        with pytest.raises(error, match=text):
            Collector(envs, agent, 5).collect()
        assert envs.get_attr("t") == (0, 0, 0)  # no env has moved


@pytest.mark.parametrize(
    ("values", "error", "text"),
    [
        (lambda o: torch.zeros(len(o), 1), ValueError, r"values have shape \(3, 1\)"),
        (lambda o: np.zeros(len(o)), TypeError, "values must be a tensor, got ndarray"),
        (lambda o: torch.full((len(o),), np.nan), ValueError, "values of envs .* are NaN"),
    ],
)
def test_values_of_what_came_last_are_checked_too(values, error, text):
    agent = Formula()
    agent.get_values = values
    with fleet() as envs, pytest.raises(error, match=text):
        Collector(envs, agent, 2).collect()


def test_an_answer_of_another_shape_is_refused_at_any_step():
    class Shrinking(Formula):
        asked = 0

        def act(self, observations, deterministic=False):
            self.asked += 1
            actions, log_probs, values = super().act(observations)
            return actions, log_probs, values if self.asked < 3 else values[:1]

    with fleet() as envs, pytest.raises(ValueError, match=r"values have shape \(1,\)"):
        Collector(envs, Shrinking(), 5).collect()


@pytest.mark.parametrize(
    ("method", "answer", "error", "text"),
    [
        ("choose", LONG, TypeError, "choose must return a NumPy array, got a Tensor"),
        ("choose", LONG.numpy()[:2], ValueError, r"actions have shape \(2,\), expected \(3,\)"),
        ("choose", LONG.numpy() + 5, ValueError, "actions are between 5 and 5"),
        ("get_actions_and_values", (LONG, torch.zeros(6, 1), None), ValueError, "log_probs have"),
        (
            "get_actions_and_values",
            (LONG, torch.zeros(6), torch.tensor([0, 0, 0, 0, 0, np.nan])),
            ValueError,
            r"values of rows \[5\]",
        ),
        ("get_actions_and_values", None, TypeError, "needs evaluate_actions"),
    ],
)
def test_agents_that_choose_nonsense_are_told_so(method, answer, error, text):
    agent = Chooser()
    setattr(agent, method, None if answer is None else lambda *_, **__: answer)
    with fleet() as envs, pytest.raises(error, match=text):
        Collector(envs, agent, 2).collect()


def test_a_layer_called_act_is_no_method():
    class Net(torch.nn.Module, SeedAgent):
        def __init__(self):
            super().__init__()
            self.act = torch.nn.ReLU()

    with Collector(fleet(), Net(), 2) as collector:
        assert collector.collect().valid.all()


def test_infos_in_a_list_are_refused():
    envs = DictInfoToList(fleet(script=[(1, "term")], mode="SameStep"))
    with Collector(envs, Formula(), 2) as collector, pytest.raises(TypeError, match="are a dict"):
        collector.collect()


def test_what_an_engine_does_at_an_end_must_be_known():
    envs = fleet(mode="SameStep")
    del envs.metadata["autoreset_mode"]
    with pytest.raises(ValueError, match="pass autoreset_mode="):
        Collector(envs, Formula(), 3)
    with Collector(envs, Formula(), 3, autoreset_mode="SameStep") as collector:
        assert collector.collect().valid.all()
    with fleet() as envs, pytest.raises(ValueError, match="the fleet says 'NextStep'"):
        Collector(envs, Formula(), 3, autoreset_mode="SameStep")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"window": 0}, "window must be at least 1"),
        ({"episodes": "some"}, "episodes must be"),
        ({"channels_first": "no"}, "channels_first must be"),
        ({"torch_threads": 0}, "torch_threads must be"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, text):
    with fleet() as envs, pytest.raises(ValueError, match=text):
        Collector(envs, Formula(), **{"steps": 3, **options})


def test_a_closed_collector_has_closed_its_fleet_and_collects_no_more():
    envs = fleet("process")
    collector = Collector(envs, Formula(), 2)
    collector.collect()
    collector.close()
    collector.close()
    assert envs.closed
    with pytest.raises(RuntimeError, match="closed"):
        collector.collect()


# Memory, seeds and threads


def test_rollouts_share_their_memory_unless_told_otherwise():
    for reuse in (True, False):
        with Collector(fleet(), Formula(), 4, reuse=reuse) as collector:
            first = collector.collect()
            before = first.observations.clone()
            second = collector.collect()
            assert (first.observations.data_ptr() == second.observations.data_ptr()) == reuse
            assert torch.equal(first.observations, before) != reuse


@pytest.mark.parametrize("engine", ["serial", "process", "gymnasium"])
def test_some_envs_can_be_reset_between_rollouts(engine):
    envs = fleet(engine, script=[(3, "term"), (5, "term")], count=2)
    with Collector(envs, Formula(), 3) as collector:
        collector.collect()  # both have just ended
        collector.reset(options={"reset_mask": np.array([False, True])})
        rollout = collector.collect()
        assert rollout.valid[0].tolist() == [False, True]
        collector.collect()
        collector.collect()
        lengths = [(e.env, e.length) for e in collector.statistics.episodes]
    assert lengths == [(0, 3), (1, 3), (1, 5), (0, 5), (1, 3)]


@pytest.mark.parametrize("mode", MODES)
def test_engines_that_share_their_memory_are_copied_from(mode):
    envs = envfleet.ProcessVectorEnv(
        [partial(ScriptedEnv, SCRIPTS["both"], index) for index in range(3)],
        workers=2,
        context="fork",
        copy=False,
        autoreset_mode=mode,
    )
    with Collector(envs, Formula(), 7) as collector:
        rollout = collector.collect()
        for env in range(3):
            assert_rows(rows_of(rollout, env), reference(SCRIPTS["both"], env, 7, mode))


@pytest.mark.parametrize("mode", MODES)
def test_gymnasiums_own_processes_work_too(mode):
    fns = [partial(ScriptedEnv, SCRIPTS["truncated"], index) for index in range(2)]
    envs = AsyncVectorEnv(fns, autoreset_mode=mode, context="fork")
    with Collector(envs, Formula(), 7) as collector:
        rollout = collector.collect()
        for env in range(2):
            assert_rows(rows_of(rollout, env), reference(SCRIPTS["truncated"], env, 7, mode))


def test_native_vector_envs_work_too():
    envs = gym.make_vec("CartPole-v1", num_envs=4, vectorization_mode="vector_entry_point")
    with Collector(envs, Constant(torch.zeros(4, dtype=torch.long)), 60, seed=1) as collector:
        rollout = collector.collect()
        assert rollout.episodes.n == len(rollout.final_positions) > 8
        assert rollout.episodes.lengths.mean == rollout.episodes.returns.mean


def test_an_explicit_first_reset_has_the_seed_too():
    with Collector(envfleet.make("CartPole-v1", 2, backend="serial"), Formula(), 1, seed=7) as c:
        c.reset()
        assert c.envs.np_random_seed == (7, 8)


def test_env_i_gets_the_seed_plus_i_at_the_first_reset_only():
    def random_start(seed):
        envs = envfleet.make("CartPole-v1", 2, backend="serial")
        with Collector(envs, Constant(torch.zeros(2, dtype=torch.long)), 1, seed=seed) as collector:
            seeds = []
            for _ in range(2):
                collector.collect()
                seeds.append(envs.np_random_seed)
            return collector.collect().observations, seeds

    one, seeds = random_start(7)
    assert seeds == [(7, 8), (7, 8)]
    assert torch.equal(one, random_start(7)[0])
    assert not torch.equal(one, random_start(8)[0])


def test_threads_of_torch_are_as_before():
    torch.set_num_threads(3)

    class Asking(Formula):
        def act(self, observations):
            assert torch.get_num_threads() == 1
            return super().act(observations)

    with Collector(fleet(), Asking(), 2) as collector:
        collector.collect()
    assert torch.get_num_threads() == 3
    torch.set_num_threads(1)


# Batches


def test_minibatches_have_every_transition_once():
    with Collector(fleet(script=[(2, "term")]), Formula(), 9) as collector:
        rollout = collector.collect()
    advantages, returns = rollout.advantages()
    flat = rollout.flatten(advantages, returns)
    assert len(flat) == rollout.steps < 27
    assert torch.equal(flat.observations, rollout.observations[rollout.valid])

    def batches(seed):
        generator = torch.Generator().manual_seed(seed)
        return list(rollout.minibatches(4, generator, advantages=advantages, returns=returns))

    found = batches(1)
    assert [len(batch) for batch in found[:-1]] == [4] * (len(found) - 1)
    for name in ("observations", "actions", "log_probs", "values", "advantages", "returns"):
        rows = torch.cat([getattr(batch, name) for batch in found]).reshape(len(flat), -1)
        expected = getattr(flat, name).reshape(len(flat), -1)
        assert sorted(rows.tolist()) == sorted(expected.tolist())
    for batch in found:  # the columns of a row stay together
        assert torch.allclose(batch.returns, batch.advantages + batch.values)
        assert torch.allclose(batch.values, Formula()._value(batch.observations))
    assert all(torch.equal(a.returns, b.returns) for a, b in zip(found, batches(1), strict=True))
    assert not all(
        torch.equal(a.returns, b.returns) for a, b in zip(found, batches(2), strict=True)
    )
    with pytest.raises(ValueError, match="size must be"):
        rollout.minibatches(0)


def test_every_minibatch_has_gradients_of_its_own():
    options = {"requires_grad_observations": True}
    with Collector(fleet(), Formula(), 6, **options) as collector:
        rollout = collector.collect()
    for batch in rollout.minibatches(4):
        (batch.observations**2).sum().backward()
    kept = rollout.valid[..., None]
    assert torch.equal(rollout.observations.grad, 2 * rollout.observations * kept)


def test_a_rollout_moves_as_a_whole():
    envs = envfleet.SerialVectorEnv([partial(Keeper, observation_space=NESTED)] * 2)
    with Collector(envs, Constant(torch.zeros(2, dtype=torch.long)), 2) as collector:
        rollout = collector.collect()
    assert rollout.to("cpu") is rollout
    moved = rollout.to("meta")
    parts = [moved.observations, moved.actions, moved.final_positions, moved.last_observations]
    assert {leaf.device.type for part in parts for leaf in leaves(part)} == {"meta"}
    assert moved.total_return == rollout.total_return


# Statistics


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("wrapped", ["no", "each", "vector"])
def test_three_step_episodes_are_counted_right(wrapped, mode):
    class Three(ScriptedEnv):
        def step(self, action):
            observation, _, *rest = super().step(action)
            return observation, 2.0, *rest

    def make():
        env = Three([(3, "term")])
        return RecordEpisodeStatistics(env) if wrapped == "each" else env

    envs = envfleet.SerialVectorEnv([make] * 2, autoreset_mode=mode)
    if wrapped == "vector":
        envs = VectorStatistics(envs)
    with Collector(envs, Formula(), 25, window=5) as collector:
        rollout = collector.collect()
        statistics = collector.statistics
        loses_count = wrapped == "vector" and mode == AutoresetMode.DISABLED
        assert collector._meter.source == ("own" if wrapped == "no" or loses_count else "info")
    expected = 2 * (25 // (4 if mode == AutoresetMode.NEXT_STEP else 3))
    assert rollout.episodes.n == statistics.count == expected
    assert {(e.episode_return, e.length) for e in statistics.rollout_episodes} == {(6.0, 3)}
    assert statistics.window.n == 5
    assert statistics.window.returns.mean == 6.0
    assert statistics.window.lengths.p95 == 3.0


def test_the_window_is_one_over_all_envs_and_the_best_is_remembered():
    with Collector(fleet(script=[(2, "term"), (1, "term")]), Formula(), 30, window=4) as collector:
        collector.collect()
        statistics = collector.statistics
        everything = statistics.rollout_episodes
    assert statistics.episodes == everything[-4:]
    returns = [episode.episode_return for episode in everything[-4:]]
    assert statistics.window.returns.p50 == np.percentile(returns, 50)
    assert statistics.window.returns.max == max(returns)
    assert statistics.best_return == max(episode.episode_return for episode in everything)
    assert {episode.env for episode in everything} == {0, 1, 2}


@pytest.mark.parametrize("mode", MODES)
def test_episodes_that_span_rollouts_have_their_whole_return(mode):
    with Collector(fleet(script=[(5, "term")], mode=mode), Formula(), 3) as collector:
        parts = [collector.collect() for _ in range(4)]
        found = collector.statistics.episodes
    assert [episode.length for episode in found] == [5] * len(found)
    expected = sum(row["reward"] for row in reference([(5, "term")], 1, 5, mode)[:5])
    assert next(e.episode_return for e in found if e.env == 1) == pytest.approx(expected)
    assert sum(part.episodes.n for part in parts) == len(found) >= 3


def test_an_episode_with_a_broken_reward_spoils_no_other():
    class Broken(ScriptedEnv):
        def step(self, action):
            observation, _, *rest = super().step(action)
            return observation, np.nan if self.episode == 1 else 0.1, *rest

    envs = envfleet.SerialVectorEnv([partial(Broken, [(3, "term")])], autoreset_mode="SameStep")
    with Collector(envs, Formula(), 20) as collector:
        collector.collect()
        returns = [episode.episode_return for episode in collector.statistics.episodes]
    assert math.isnan(returns.pop(1))
    assert set(returns) == {np.full(3, 0.1).sum()}


def test_what_a_wrapper_pays_for_a_reset_is_no_reward():
    paid = TransformReward(fleet(script=[(3, "term")], count=1), lambda rewards: rewards * 0 - 1.0)
    with Collector(paid, Formula(), 12) as collector:
        rollout = collector.collect()
        returns = [episode.episode_return for episode in collector.statistics.episodes]
    assert returns == [-3.0] * 3
    assert rollout.total_return == -9.0


@pytest.mark.parametrize("case", ["no infos", "outside", "other key"])
def test_reports_that_never_come_are_not_waited_for(case, monkeypatch):
    monkeypatch.setattr("envfleet.rollout.statistics.SILENT_ENDS", 5)

    def make():
        env = RecordEpisodeStatistics(ScriptedEnv(SCRIPTS["never"]))
        return gym.wrappers.TimeLimit(env, 3)

    if case == "no infos":
        envs = envfleet.SerialVectorEnv([make], infos="none")
    elif case == "outside":
        envs = envfleet.SerialVectorEnv([make])
    else:
        envs = VectorStatistics(fleet(script=[(3, "term")]), stats_key="other")
    with Collector(envs, Formula(), 40) as collector:
        if case == "no infos":
            assert collector.collect().episodes.n > 5
            return
        with pytest.warns(UserWarning, match="reported none"):
            collector.collect()
        assert collector.collect().episodes.n > 5


def test_where_nothing_finished_there_are_no_numbers():
    with Collector(fleet(script=[(4, "term")]), Formula(), 2) as collector:
        assert collector.collect().episodes.n == 0
        assert collector.statistics.window.n == 0
        assert math.isnan(collector.statistics.window.returns.p50)
        assert math.isnan(collector.statistics.best_return)
        assert (
            all(math.isnan(v) for k, v in collector.collect().episodes.flat().items() if k != "n")
            is False
        )
        assert collector.collect().episodes.n == 0  # the window has some, this rollout has none
        assert collector.statistics.window.n == 3


def test_every_episode_is_a_row_of_the_file(tmp_path):
    path = tmp_path / "runs" / "episodes.csv"
    for _ in range(2):  # the second one appends
        with Collector(fleet(script=[(2, "term")]), Formula(), 3, episodes_csv=path) as collector:
            collector.collect()
            collector.collect()
            rows = list(csv.DictReader(path.read_text().splitlines()))  # while it is open
    assert len(rows) == 2 * 6
    assert [row["total_steps"] for row in rows[:6]] == ["6"] * 3 + ["12"] * 3
    assert rows[0] == {"total_steps": "6", "env": "0", "return": rows[0]["return"], "length": "2"}
    assert float(rows[0]["return"]) == pytest.approx(3.0, abs=0.3)


# Single steps


@pytest.mark.parametrize("mode", MODES)
def test_single_steps_are_part_of_what_a_rollout_goes_on_from(mode):
    envs = fleet(script=[(2, "term"), (9, "term")], mode=mode)
    collector = Collector(envs, Formula(), 2)
    with pytest.raises(RuntimeError, match=r"reset\(\) the collector"):
        collector.step(torch.zeros(3, dtype=torch.long))
    collector.reset()
    assert collector.observations[:, 2].tolist() == [0.0] * 3
    for _ in range(2):
        rewards, terminated, truncated = collector.step(torch.zeros(3, dtype=torch.long))
    assert terminated.all()
    assert not truncated.any()
    assert rewards.tolist() == [2.0] * 3
    assert collector.statistics.count == 3
    assert collector.total_steps == 6
    rollout = collector.collect()
    rows = rollout.observations[:, 0, 2].tolist()
    assert rows == ([2.0, 0.0] if mode == AutoresetMode.NEXT_STEP else [0.0, 1.0])
    assert rollout.valid[:, 0].tolist() == [mode != AutoresetMode.NEXT_STEP, True]
    assert rollout.observations[1, 0, 1] == 1.0
    collector.close()
    with pytest.raises(RuntimeError, match="closed"):
        collector.step(torch.zeros(3, dtype=torch.long))


def test_observations_in_another_dtype():
    class Double(Formula):
        def act(self, observations, deterministic=False):
            assert observations.dtype == torch.float64
            return super().act(observations.float(), deterministic)

        def get_values(self, observations):
            return observations[:, 0]

    with Collector(fleet(), Double(), 2, observation_dtype=torch.float64) as collector:
        assert collector.collect().observations.dtype == torch.float64
        assert collector.observations.dtype == torch.float64
