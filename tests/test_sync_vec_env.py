"""SyncVecEnv: the numbers of a plain loop, in its form; and what was wrong in such loops."""

from __future__ import annotations

import subprocess
import sys
import types
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.wrappers import RecordEpisodeStatistics
from PIL import Image

from envfleet.adapters import SyncVecEnv
from envfleet.testing import Fault, FaultEnv, SpaceEnv
from rollout_envs import SCRIPTS, ScriptedEnv, SeedAgent

SERIAL = {"backend": "serial"}
PROCESS = {"backend": "process", "context": "fork", "workers": 2}
CARTPOLE = partial(gym.make, "CartPole-v1")


class Sampler:
    """Samples actions of CartPole with torch's own random numbers."""

    state_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = spaces.Discrete(2)
    device = torch.device("cpu")

    def get_actions_and_values(self, states, actions=None):
        policy = torch.distributions.Categorical(logits=-3 * states[:, 2:])
        actions = policy.sample() if actions is None else actions
        return actions, policy.log_prob(actions), states[:, 0] + 0.5, policy.entropy()


class Fixed:
    """Takes one action always."""

    device = "cpu"

    def __init__(self, action, env=None):
        self.action = torch.as_tensor(action)
        if env is not None:
            self.state_space, self.action_space = env.observation_space, env.action_space

    def get_actions_and_values(self, states, actions=None):
        self.seen = states.clone()
        count = len(states)
        actions = self.action.expand(count, *self.action.shape)
        return actions, torch.zeros(count), torch.zeros(count), torch.zeros(count)


class Screen(gym.Env):
    """An image whose pixels tell channel, episode and time, in one array; renders into another."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012
    observation_space = spaces.Box(0, 255, (4, 6, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def __init__(self, length=3, render_mode="rgb_array"):
        self.length, self.render_mode = length, render_mode
        self.episode, self.t, self.closed = -1, 0, False
        self.state = np.zeros((4, 6, 3), dtype=np.uint8)
        self.image = np.zeros((40, 60, 3), dtype=np.uint8)

    def _observe(self):
        self.state[...] = [7, self.episode, self.t]
        return self.state

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._observe(), {}

    def step(self, action):
        self.t += 1
        return self._observe(), 1.0, self.t >= self.length, False, {}

    def render(self):
        self.image[...] = [self.t, self.episode, 0]
        return self.image


@pytest.fixture
def build():
    """Builds a SyncVecEnv that is closed afterwards."""
    built = []

    def build(*args, **kwargs):
        built.append(SyncVecEnv(*args, **{**SERIAL, **kwargs}))
        return built[-1]

    yield build
    while built:
        built.pop().close()


# The oracle


class PlainLoop:
    """What rollout() does, an env and a step at a time, with end states kept before the reset."""

    def __init__(self, env_fn, count, steps, agent, seed=None):
        self.envs = [env_fn() for _ in range(count)]
        self.steps, self.agent = steps, agent
        if seed is None:
            self.envs[0].reset()
        seeds = [None if seed is None else seed + i for i in range(count)]
        self.now = [env.reset(seed=s)[0].copy() for env, s in zip(self.envs, seeds, strict=True)]
        self.running = [[0.0, 0] for _ in range(count)]
        self.episodes = []

    def rollout(self):
        rows = {name: [] for name in ("states", "actions", "rewards", "done_flags", "trunc_flags")}
        rows |= {"values": [], "log_probs": []}
        ends = [[] for _ in self.envs]
        for t in range(self.steps):
            states = torch.tensor(np.stack(self.now), dtype=torch.float32)
            actions, log_probs, values, _ = self.agent.get_actions_and_values(states)
            rewards, done_flags, trunc_flags = [], [], []
            for i, env in enumerate(self.envs):
                state, reward, done, trunc, _ = env.step(actions[i].numpy())
                self.now[i] = state.copy()
                self.running[i][0] += reward
                self.running[i][1] += 1
                if done or trunc:
                    ends[i].append(state.copy())
                    self.episodes.append((i, *self.running[i]))
                    self.running[i] = [0.0, 0]
                    self.now[i] = env.reset()[0].copy()
                elif t == self.steps - 1:
                    trunc = True
                    ends[i].append(state.copy())
                rewards.append(reward)
                done_flags.append(int(done))
                trunc_flags.append(int(trunc))
            row = (states, actions, rewards, done_flags, trunc_flags, values, log_probs)
            for kept, value in zip(rows.values(), row, strict=True):
                kept.append(torch.as_tensor(value))
        found = {name: torch.stack(kept) for name, kept in rows.items()}
        found["end_states"] = torch.tensor(np.stack([end for each in ends for end in each]))
        found["ep_counts"] = torch.tensor([len(each) for each in ends])
        found["t_states"] = torch.tensor(np.stack(self.now))
        return found


FORMS = {"plain": (), "with videos": (0, 30.0)}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("engine", [SERIAL, PROCESS], ids=["serial", "process"])
def test_three_rollouts_have_a_plain_loops_numbers(build, form, engine):
    torch.manual_seed(5)
    plain = PlainLoop(CARTPOLE, 3, 25, Sampler(), seed=9)
    expected = [plain.rollout() for _ in range(3)]
    torch.manual_seed(5)
    env = build(CARTPOLE, 3, 25, *FORMS[form], Sampler(), seed=9, **engine)
    for each in expected:
        env.rollout()
        for name, tensor in each.items():
            ours = getattr(env, name)
            assert torch.equal(ours.detach().double(), tensor.double()), name
        assert env.total_return == each["rewards"].sum()
    assert env.global_steps == 3 * 3 * 25
    assert len(plain.episodes) > 6
    returns = [r for _, r, _ in plain.episodes]
    assert env.max_ep_return == max(returns)
    assert np.isclose(env.mean_ep_return, np.mean(returns))
    assert np.isclose(env.upper_ep_return, np.percentile(returns, 95))
    assert np.isclose(env.lower_ep_return, np.percentile(returns, 5))
    assert env.median_ep_return == np.median(returns)
    assert env.median_ep_length == np.median([length for *_, length in plain.episodes])
    assert np.isclose(env.mean_ep_length, np.mean([length for *_, length in plain.episodes]))


class SelfSeeding(gym.Wrapper):
    """Seeds its env at the first reset, as programs do whose resets take no seed."""

    has_been_reset = False

    def reset(self, *, seed=None, options=None):
        seed = seed if self.has_been_reset else 4
        self.has_been_reset = True
        return self.env.reset(seed=seed, options=options)


def test_envs_that_seed_themselves_are_reset_as_often_as_in_a_plain_loop(build):
    def env_fn():
        return SelfSeeding(CARTPOLE())

    torch.manual_seed(1)
    expected = PlainLoop(env_fn, 2, 30, Sampler()).rollout()
    torch.manual_seed(1)
    env = build(env_fn, 2, 30, Sampler())
    env.rollout()
    assert torch.equal(env.states.detach(), expected["states"])


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_every_flag_has_the_state_that_its_episode_ended_with(build, script):
    env_fn = partial(ScriptedEnv, script, reuse_array=True)
    plain = PlainLoop(env_fn, 3, 7, SeedAgent())
    env = build(env_fn, 3, 7, SeedAgent())
    for _ in range(2):
        env.rollout()
        expected = plain.rollout()
        for name, tensor in expected.items():
            assert torch.equal(getattr(env, name).detach().double(), tensor.double()), name
        flags = (env.done_flags + env.trunc_flags).T
        assert len(env.end_states) == flags.count_nonzero() == env.ep_counts.sum()
        for (n, t), end in zip(flags.nonzero().tolist(), env.end_states, strict=True):
            assert end[2] == env.states[t, n, 2] + 1


# Form


def test_dtypes_and_shapes(build):
    env = build(CARTPOLE, 2, 5, Sampler())
    assert np.isnan(env.mean_ep_return)
    env.rollout()
    assert env.states.shape == (5, 2, 4)
    assert env.states.dtype == torch.float32
    assert env.states.requires_grad
    assert env.states.is_leaf
    assert env.action_dtype == env.actions.dtype == torch.int32
    assert {env.done_flags.dtype, env.trunc_flags.dtype, env.ep_counts.dtype} == {torch.int32}
    assert {env.rewards.dtype, env.values.dtype, env.log_probs.dtype} == {torch.float32}
    assert isinstance(env.total_return, np.float32)
    assert env.state_shape == (4,)
    assert env.device == env.states.device


@pytest.mark.parametrize("env_fn", [CARTPOLE, Screen], ids=["small", "images"])
def test_tensors_of_a_rollout_stay_as_they_are(build, env_fn):
    env = build(env_fn, 2, 5, Fixed(1))
    env.rollout()
    names = ("states", "actions", "rewards", "values", "log_probs", "end_states", "t_states")
    tensors = [getattr(env, name) for name in names]
    before = [tensor.detach().clone() for tensor in tensors]
    env.rollout()
    env.vec_step(torch.ones(2, dtype=torch.int32))
    for name, tensor, kept in zip(names, tensors, before, strict=True):
        assert torch.equal(tensor.detach(), kept), name


def test_gradients_reach_the_states(build):
    env = build(CARTPOLE, 2, 5, Sampler())
    env.rollout()
    (env.states**2).sum().backward()
    assert torch.equal(env.states.grad, 2 * env.states.detach())


def test_images_get_their_channels_first_and_do_not_alias_one_array(build):
    env = build(Screen, 2, 4, Fixed(1))
    assert env.state_shape == (3, 4, 6)
    assert env.permute_state(np.zeros((4, 6, 3))).shape == (3, 4, 6)
    env.rollout()
    assert env.states.shape == (4, 2, 3, 4, 6)
    assert env.states.dtype == torch.float32
    assert env.states[:, 1, 0].unique().tolist() == [7]
    assert env.states[:, 1, 2, 0, 0].tolist() == [0, 1, 2, 0]
    assert env.end_states[:, 2, 0, 0].tolist() == [3, 1, 3, 1]


def test_with_videos_states_are_as_the_agents_space_says(build):
    env = build(Screen, 2, 4, 0, 30, Fixed(1, Screen()))
    env.rollout()
    assert env.states.shape == (4, 2, 4, 6, 3)
    assert env.state_space == Screen.observation_space


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "MountainCarContinuous-v0"])
def test_continuous_actions_keep_their_shape_and_arrive_clipped(build, env_id):
    env = build(partial(gym.make, env_id), 2, 3, Fixed([50.0]))
    env.rollout()
    assert env.action_dtype == env.actions.dtype == torch.float32
    assert env.actions.tolist() == [[[50.0]] * 2] * 3
    expected = build(partial(gym.make, env_id), 2, 3, Fixed(env.action_space.high), seed=1)
    env = build(partial(gym.make, env_id), 2, 3, Fixed([50.0]), seed=1)
    env.rollout()
    expected.rollout()
    assert torch.equal(env.states, expected.states)


def test_other_actions_are_integers(build):
    space = spaces.MultiDiscrete([3, 4])
    env = build(partial(SpaceEnv, spaces.Box(-1, 1, (2,)), space), 2, 3, Fixed([2, 3]))
    env.rollout()
    assert env.action_dtype == env.actions.dtype == torch.int32
    assert env.actions.tolist() == [[[2, 3]] * 2] * 3


class Counting(ScriptedEnv):
    """Its actions begin at 5, and it shows the last one."""

    action_space = spaces.Discrete(2, start=5)

    def step(self, action):
        state, *rest = super().step(action)
        state[0] = action
        return state, *rest


def test_discrete_actions_are_counted_from_0_and_arrive_from_their_start(build):
    env = build(partial(Counting, SCRIPTS["never"]), 2, 3, Fixed(1))
    env.rollout()
    assert env.actions.unique().tolist() == [1]
    assert env.states[1:, :, 0].unique().tolist() == [6.0]
    assert env.vec_step(torch.zeros(2, dtype=torch.int32))[0][:, 0].tolist() == [5.0, 5.0]


def test_arguments_tell_the_two_forms_apart(build):
    plain = build(env_fn=CARTPOLE, num_envs=2, steps_per_env=3, agent=Sampler())
    videos = build(CARTPOLE, 2, 3, render_every=0, render_fps=30, agent=Sampler())
    assert not hasattr(plain, "render_every")
    assert videos.render_fps == 30
    assert not videos.can_record
    mixed = build(CARTPOLE, 2, 3, -1, agent=Sampler(), render_fps=30)
    assert not mixed.can_record


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((), {}, "agent missing"),
        ((1, 30.0), {}, "agent missing"),
        ((1, 30.0, Sampler(), 5), {}, "too many"),
        ((Sampler(),), {"agent": Sampler()}, "agent given twice"),
        ((5,), {}, "get_actions_and_values"),
        ((0, 30.0, SeedAgent()), {}, "lacks state_space, action_space"),
    ],
)
def test_other_arguments_are_refused(args, kwargs, text):
    with pytest.raises(TypeError, match=text):
        SyncVecEnv(CARTPOLE, 2, 3, *args, **kwargs, **SERIAL)


def test_what_has_no_place_in_one_tensor_is_refused_and_nothing_stays_open():
    env_fn = partial(SpaceEnv, spaces.Dict(a=spaces.Discrete(2)))
    with pytest.raises(TypeError, match="FlattenObservation"):
        SyncVecEnv(env_fn, 2, 3, Sampler(), **PROCESS)
    with pytest.raises(ValueError, match="agent's state_space is"):
        SyncVecEnv(partial(gym.make, "Acrobot-v1"), 2, 3, 0, 30, Sampler(), **PROCESS)
    with pytest.raises(ValueError, match="steps must be at least 1"):
        SyncVecEnv(CARTPOLE, 2, 0, Sampler(), **PROCESS)


# Single steps and resets


def test_vec_step_resets_nothing_and_the_next_rollout_resets_what_is_over(build):
    env = build(partial(ScriptedEnv, [(2, "term"), (9, "term")]), 2, 3, SeedAgent(), seed=0)
    actions = torch.zeros(2, 1, dtype=torch.int32)
    start = env.t_states.clone()
    states, rewards, done_flags, trunc_flags = env.vec_step(actions)
    assert torch.equal(states, start + torch.tensor([0.0, 0.0, 1.0]))
    assert torch.equal(states, env.t_states)
    assert (rewards.dtype, done_flags.dtype, trunc_flags.dtype) == (
        torch.float32,
        torch.int32,
        torch.int32,
    )
    assert done_flags.tolist() == [0, 0]
    states, _, done_flags, _ = env.vec_step(actions)
    assert done_flags.tolist() == [1, 1]
    assert states[:, 2].tolist() == [2.0, 2.0]
    assert env.env_reset(1).tolist() == [0.0, states[1, 1] + 1, 0.0]
    assert env.t_states[:, 2].tolist() == [2.0, 0.0]
    with pytest.raises(gym.error.ResetNeeded):
        env.vec_step(actions)
    env.rollout()
    assert env.states[:, :, 2].tolist() == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]
    assert [len(each) for each in env.rolling_ep_returns] == [1, 1]
    assert env.global_steps == 6


def test_a_rollout_goes_on_from_single_steps(build):
    env = build(partial(ScriptedEnv, SCRIPTS["never"]), 2, 3, SeedAgent())
    env.vec_step(torch.zeros(2, dtype=torch.int32))
    env.rollout()
    assert env.states[:, 0, 2].tolist() == [1.0, 2.0, 3.0]
    env.vec_reset()
    env.rollout()
    assert env.states[:, 0, 2].tolist() == [0.0, 1.0, 2.0]


def test_what_methods_return_may_be_assigned_to_t_states_and_nothing_else(build):
    env = build(CARTPOLE, 2, 3, Sampler())
    env.t_states = env.vec_reset()
    states = env.vec_step(torch.zeros(2, dtype=torch.int32))[0]
    states[0] = env.env_reset(0)
    env.t_states = states
    with pytest.raises(ValueError, match="what the envs show"):
        env.t_states = states / 2


def test_single_steps_with_wrong_actions_move_nothing(build):
    env = build(CARTPOLE, 2, 3, Sampler())
    before = env.t_states.clone()
    with pytest.raises(ValueError, match="the space has"):
        env.vec_step(torch.tensor([0, 2]))
    env.rollout()
    assert torch.equal(env.states[0].detach(), before)


@pytest.mark.parametrize("engine", [SERIAL, PROCESS], ids=["serial", "process"])
def test_envs_are_used_like_envs_wherever_they_are(build, engine):
    env = build(CARTPOLE, 2, 3, Sampler(), **engine)
    first, second = env.envs
    assert first.spec.id == "CartPole-v1"
    assert first.get_wrapper_attr("x_threshold") == 2.4
    first.gravity = 1.0
    assert (first.gravity, second.gravity) == (1.0, 9.8)
    assert not hasattr(first, "return_queue")
    with pytest.raises(AttributeError, match=r"use env_reset\(1\)"):
        second.reset()
    env.close()
    assert env.envs is None
    env.close()


def test_close_closes_the_envs():
    env = SyncVecEnv(Screen, 2, 3, Fixed(1), **SERIAL)
    envs = env.fleet.envs
    closed = []
    for each in envs:
        each.close = partial(closed.append, each)
    env.close()
    assert closed == envs


# Statistics


def test_ten_episodes_per_env_are_kept(build):
    env = build(partial(ScriptedEnv, [(1, "term"), (2, "term")]), 2, 40, SeedAgent())
    env.rollout()
    assert {len(each) for each in env.rolling_ep_lengths} == {10}
    assert {len(each) for each in env.rolling_ep_returns} == {10}
    assert env.mean_ep_length == 1.5
    assert env.mean_ep_return == np.mean(env.rolling_ep_returns, dtype=np.float32)
    assert env.mean_ep_return.dtype == np.float32


def test_with_videos_the_numbers_are_of_the_last_hundred_episodes(build):
    agent = Fixed(0, ScriptedEnv(()))
    env = build(partial(ScriptedEnv, [(1, "term")] * 80 + [(2, "term")] * 80), 2, 240, 0, 30, agent)
    env.rollout()
    assert env.median_ep_length == 2.0
    assert env.lower_ep_return > 800


@pytest.mark.parametrize("engine", [SERIAL, PROCESS], ids=["serial", "process"])
def test_reports_of_the_envs_are_taken_and_whatever_is_around_them(build, engine):
    def env_fn():
        reported = RecordEpisodeStatistics(ScriptedEnv([(3, "term")]))
        return gym.wrappers.TransformReward(reported, lambda reward: 0.0)

    env = build(env_fn, 2, 7, SeedAgent(), **engine)
    env.rollout()
    assert env.total_return == 0.0
    assert env.mean_ep_return > 0.0
    assert env.mean_ep_length == 3.0


def test_numbers_stay_where_no_episode_has_finished(build):
    agent = Fixed(0, ScriptedEnv(()))
    env = build(partial(ScriptedEnv, [(3, "term"), (99, "term")]), 1, 4, 0, 30.0, agent)
    env.rollout()
    before = env.median_ep_return
    env.rollout()
    assert env.median_ep_return == before
    assert env.ep_counts.tolist() == [1]


# The agent


def test_an_agents_other_methods_are_left_alone(build):
    class Busy(Sampler):
        def act(self, state):
            raise AssertionError

        get_values = choose = act

    env = build(CARTPOLE, 2, 3, Busy())
    env.rollout()
    env.agent = Fixed(1)
    env.rollout()
    assert env.actions.unique().tolist() == [1]
    with pytest.raises(TypeError, match="is not an agent"):
        env.agent = None


def test_distributions_are_checked_at_the_first_step_of_a_rollout(build):
    distribution = torch.distributions.Distribution
    seen = []

    class Broken(Sampler):
        def get_actions_and_values(self, states, actions=None):
            seen.append(distribution._validate_args)
            if self.is_broken:
                torch.distributions.Normal(states * np.nan, 1.0)
            return super().get_actions_and_values(states, actions)

        is_broken = False

    env = build(CARTPOLE, 2, 3, Broken())
    env.rollout()
    assert seen == [True, False, False]
    assert distribution._validate_args
    env.agent.is_broken = True
    with pytest.raises(ValueError, match="loc"):
        env.rollout()
    assert distribution._validate_args
    env.agent.is_broken = False
    env.rollout()


def test_an_env_that_is_replaced_has_a_flag_and_an_end_state(build):
    env_fn = partial(FaultEnv, {"step": Fault("raise", at=3)})
    agent = Fixed(0)
    env = build(env_fn, 2, 5, agent, **PROCESS, on_failure="restart", restarts=(9, 60.0))
    env.rollout()
    flags = env.done_flags + env.trunc_flags
    assert flags.count_nonzero() == len(env.end_states) == env.ep_counts.sum() == 4
    assert env.ep_counts.tolist() == [2, 2]


# Looking at an agent


@pytest.mark.parametrize("engine", [SERIAL, PROCESS], ids=["serial", "process"])
def test_a_test_shows_images_and_leaves_no_trace(build, engine):
    env = build(partial(Screen, 3), 2, 8, Fixed(1), **engine)
    env.rollout()
    numbers = (env.mean_ep_return, env.rolling_ep_lengths, env.global_steps)
    env.test_agent(2)
    assert [len(images) for images in env.images] == [4, 4]
    assert isinstance(env.images[0][0], Image.Image)
    reds = [np.asarray(image)[0, 0, 0] for image in env.images[1]]
    assert reds == [0, 2, 1, 3]  # an end is shown, then the env is reset
    assert env.t_states[:, 2, 0, 0].tolist() == [0.0, 0.0]
    assert (env.mean_ep_return, env.rolling_ep_lengths, env.global_steps) == numbers
    first = env.t_states.clone()
    env.rollout()
    assert torch.equal(env.states[0].detach(), first)


def test_a_test_needs_images_and_draws_no_random_numbers_of_training(build):
    env = build(partial(gym.make, "CartPole-v1", render_mode="rgb_array"), 1, 2, Sampler())
    state = torch.get_rng_state()
    env.test_agent(1)
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(ValueError, match="render_every must be at least 1"):
        env.test_agent(0)
    with pytest.raises(ValueError, match="render_mode='rgb_array'"):
        build(CARTPOLE, 1, 2, Sampler()).test_agent(1)


# Videos


def test_videos_of_env_0(build, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = build(partial(Screen, 5), 2, 4, 16, 25.0, Fixed(1, Screen()))
    assert (env.can_record, env.is_recording, env.ready_to_record) == (True, True, False)
    assert env.render_folder == str(tmp_path / "renders" / "misc")
    env.rollout()
    assert (env.is_recording, env.record_episode, env.record_total_reward) == (True, 0, 4.0)
    env.rollout()  # the episode of 5 steps is over, the next one is not recorded
    assert (env.is_recording, env.record_episode, env.record_total_reward) == (False, 1, 5.0)
    assert env.ready_to_record  # 16 steps of both envs are made
    env.rollout()
    assert (env.is_recording, env.ready_to_record, env.record_episode) == (True, False, 1)
    env.close()
    names = sorted(path.name for path in (tmp_path / "renders" / "misc").iterdir())
    assert names == ["render_0.gif", "render_1.gif"]
    with Image.open(tmp_path / "renders" / "misc" / "render_0.gif") as video:
        assert video.n_frames >= 5
        assert video.info["duration"] == 40


def test_videos_are_in_the_folder_of_a_run_and_never_overwrite(build, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = types.SimpleNamespace(project="games", name="first")
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(run=run))
    for number in range(2):
        env = build(partial(Screen, 5), 1, 6, 100, 25.0, Fixed(1, Screen()))
        assert env.record_episode == number
        env.rollout()
        env.close()
    folder = tmp_path / "renders" / "games" / "first"
    assert sorted(path.name for path in folder.iterdir()) == ["render_0.gif", "render_1.gif"]


def test_another_folder_for_videos(build, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = build(partial(Screen, 3), 1, 8, 4, 25.0, Fixed(1, Screen()))
    env.render_folder = "elsewhere"
    env.rollout()
    env.close()
    assert list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("render_every", [0, -5])
def test_videos_that_are_off(build, tmp_path, monkeypatch, render_every):
    monkeypatch.chdir(tmp_path)
    env = build(CARTPOLE, 1, 8, render_every, 25.0, Sampler())
    env.rollout()
    assert (env.can_record, env.is_recording, env.ready_to_record) == (False, False, False)
    assert not list(tmp_path.iterdir())


def test_videos_need_envs_that_render():
    with pytest.raises(ValueError, match="render_mode='rgb_array'"):
        SyncVecEnv(CARTPOLE, 1, 8, 10, 25.0, Sampler(), **SERIAL)


def test_without_torch_one_is_told_what_to_install():
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import envfleet.adapters\n"
        "try: envfleet.adapters.SyncVecEnv\n"
        "except ImportError as error: print(error)\n"
        "print(hasattr(envfleet.adapters, 'Nothing'), 'SyncVecEnv' in dir(envfleet.adapters))"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert "envfleet.adapters.SyncVecEnv needs torch: pip install 'envfleet[train]'" in output
    assert output.endswith("False True\n")
