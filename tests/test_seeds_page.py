"""docs/seeds.md: every name has its row, rows are true, and lines give a plain loop's numbers."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState

import envfleet
from envfleet.adapters import SyncVecEnv
from rollout_envs import MODES, SCRIPTS, ScriptedEnv, SeedAgent, fleet

PAGE = (Path(__file__).parent.parent / "docs/seeds.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
STEPS = 7


def block(word):
    """The few lines that give a name."""
    (found,) = [b for b in BLOCKS if re.search(rf"^{word}\b", b, flags=re.MULTILINE)]
    assert len(ast.parse(found).body) <= 3
    return found


CASES = [(script, mode) for script in ("truncated", "at-the-horizon") for mode in MODES]


@pytest.fixture(params=CASES, ids=str)
def names(request):
    script, mode = request.param
    envs = fleet(script=SCRIPTS[script], mode=mode)
    agent = SeedAgent()
    names = {"envfleet": envfleet, "torch": torch, "np": np, "envs": envs, "agent": agent}
    names |= {"script": SCRIPTS[script], "mode": mode}
    names |= {"steps_per_env": STEPS, "env_id": 1, "actions": torch.zeros(3, dtype=torch.long)}
    exec(block("rollout = collector"), names)
    yield names
    envs.close()


def plain_loop(script, mode):
    """What the seeds' rollout() has, env by env, with end states as they should have been.

    Under next-step autoreset a reset takes a row.
    """
    found = {"done": [], "trunc": [], "ends": [], "counts": []}
    for index in range(3):
        env, agent = ScriptedEnv(script, index), SeedAgent()
        state = env.reset()[0]
        done_flags, trunc_flags, ends = [], [], []
        over = False
        for t in range(STEPS):
            if over and mode == AutoresetMode.NEXT_STEP:
                over = False
                done_flags.append(0)
                trunc_flags.append(0)
                continue
            action = agent.get_actions_and_values(torch.tensor(state)[None])[0][0]
            state, _, done, trunc, _ = env.step(action)
            over = done or trunc
            if not over and t == STEPS - 1:
                trunc = over = True
            if over:
                ends.append(state)
                state = env.reset()[0]
            done_flags.append(int(done))
            trunc_flags.append(int(trunc))
        found["done"].append(done_flags)
        found["trunc"].append(trunc_flags)
        found["ends"] += ends
        found["counts"].append(len(ends))
    return found


def test_every_name_of_the_table_is_there(names):
    collector, rollout = names["collector"], names["rollout"]
    table = PAGE.split("## From `SyncVecEnv` to `Collector`")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(.*)` \| (.*) \|$", table, flags=re.MULTILINE)
    assert len(rows) >= 18
    places = {"rollout": rollout, "collector": collector, "envs": collector.envs}
    places["envfleet"] = envfleet
    checked = 0
    for _, text in rows:
        for path in re.findall(r"`((?:rollout|collector|envs|envfleet)\.[\w.]+)", text):
            value = places[path.split(".")[0]]
            for name in path.split(".")[1:]:
                value = getattr(value, name)
            checked += 1
    assert checked >= 18


def test_flags_end_states_and_counts(names):
    expected = plain_loop(names["script"], names["mode"])
    for word in ("done_flags, trunc_flags = rollout", "end_states", "ep_counts"):
        exec(block(word), names)
    assert names["done_flags"].T.tolist() == expected["done"]
    assert names["trunc_flags"].T.tolist() == expected["trunc"]
    assert names["end_states"].tolist() == [end.tolist() for end in expected["ends"]]
    assert names["ep_counts"].tolist() == expected["counts"]


def test_states_with_gradients(names):
    exec(block("states = collector"), names)
    assert names["states"].requires_grad
    assert names["states"].shape == (STEPS, 3, 3)


def test_steps_and_resets_with_tensors(names):
    exec(block("results"), names)
    assert names["states"].shape == (3, 3)
    assert names["done_flags"].dtype == torch.bool
    exec(block("collector.reset"), names)
    assert names["collector"].collect().observations[0, 1, 2] == 0.0  # just reset


def test_statistics(names):
    exec(block("returns, lengths"), names)
    exec(block("rolling_ep_returns"), names)
    returns = [r for each in names["rolling_ep_returns"] for r in each]
    assert len(returns) == names["rollout"].episodes.n >= 3
    assert names["median_ep_return"] == pytest.approx(np.median(returns))
    assert names["upper_ep_return"] == pytest.approx(np.percentile(returns, 95))
    assert names["mean_ep_length"] == names["script"][0][0]


# Every name has its row

SYNC_VEC_ENV = re.findall(
    r"\w+",
    """
    env_fn num_envs steps_per_env render_every render_fps agent rollout vec_reset env_reset
    vec_step test_agent permute_state close states actions rewards done_flags trunc_flags
    values log_probs end_states ep_counts total_return t_states global_steps
    rolling_ep_returns rolling_ep_lengths mean_ep_return lower_ep_return median_ep_return
    upper_ep_return max_ep_return mean_ep_length median_ep_length images envs device
    state_space action_space state_shape action_dtype permute_state_fn can_record
    ready_to_record is_recording record_episode record_buffer record_total_reward
    render_folder
    """,
)
ASYNC_VECTOR_ENV = re.findall(
    r"\w+",
    """
    AsyncVectorEnv AsyncState DEFAULT WAITING_RESET WAITING_STEP WAITING_CALL env_fns
    shared_memory copy context daemon worker observation_mode autoreset_mode num_envs
    metadata render_mode single_observation_space single_action_space observation_space
    action_space observations parent_pipes processes error_queue _state closed reset
    reset_async reset_wait step step_async step_wait call call_async call_wait render
    get_attr set_attr close close_extras np_random np_random_seed _poll_pipe_envs
    _check_spaces _assert_is_running _raise_if_errors __del__ _async_worker index env_fn
    pipe parent_pipe error_queue
    """,
)
XUANCE_ENVS = re.findall(
    r"\w+",
    """
    Gym_Env MountainCar Atari_Env LazyFrames env_id seed render_mode max_episode_steps
    image_size obs_type observation reward
    """,
)


def section(title):
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def cells(title):
    """The rows of a section's tables: the names of each, and the rest of it."""
    rows = re.findall(r"^\| (.+?) \| (.*) \|$", section(title), flags=re.MULTILINE)
    return [(set(re.findall(r"\w+", name)), rest) for name, rest in rows if "`" in name]


@pytest.mark.parametrize(
    ("title", "names"),
    [
        ("`SyncVecEnv`", SYNC_VEC_ENV),
        ("`AsyncVectorEnv`", ASYNC_VECTOR_ENV),
        ("XuanCe's environments", XUANCE_ENVS),
    ],
)
def test_every_name_has_its_row(title, names):
    found = set().union(*(row for row, _ in cells(title)))
    assert not set(names) - found


def gone(title):
    return set().union(*(row for row, rest in cells(title) if rest.startswith("gone")))


def screen():
    return gym.make("CartPole-v1", render_mode="rgb_array")


class Recorded(SeedAgent):
    """An agent with spaces, which the form with videos asks for."""

    state_space, action_space = screen().observation_space, screen().action_space

    def get_actions_and_values(self, observations, actions=None):
        return super().get_actions_and_values(observations[:, :3])


def test_a_sync_vec_env_has_every_name_that_is_not_gone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = SyncVecEnv(screen, 2, 3, 5, 30.0, Recorded(), backend="serial")
    env.rollout()
    env.test_agent(2)
    assert gone("`SyncVecEnv`") == {"permute_state_fn", "record_buffer"}
    arguments = {"env_fn"}
    for name in set(SYNC_VEC_ENV) - gone("`SyncVecEnv`") - arguments:
        assert hasattr(env, name), name
    assert not any(hasattr(env, name) for name in gone("`SyncVecEnv`"))
    env.close()


# AsyncVectorEnv


def test_a_process_vector_env_has_every_name_that_is_not_gone():
    with envfleet.ProcessVectorEnv([screen] * 2, context="fork", workers=1) as envs:
        others = {"AsyncVectorEnv", "AsyncState", "_async_worker", "env_fn", "index", "pipe"}
        others |= {"parent_pipe"} | {state.name for state in AsyncState}
        names = set(ASYNC_VECTOR_ENV) - others - gone("`AsyncVectorEnv`")
        assert len(names) >= 35
        for name in names:
            assert hasattr(envs, name), name
        assert len(envs.processes) == 1
    for name in gone("`AsyncVectorEnv`") - {"__del__"}:
        assert not hasattr(envfleet.ProcessVectorEnv, name), name
    with pytest.raises(ClosedEnvironmentError):
        envs._assert_is_running()


def test_errors_name_what_is_pending_in_the_words_of_async_state():
    with envfleet.ProcessVectorEnv([screen], context="fork") as envs:
        pending = {
            AsyncState.WAITING_RESET: (envs.reset_async, envs.reset_wait),
            AsyncState.WAITING_STEP: (lambda: envs.step_async(np.array([0])), envs.step_wait),
            AsyncState.WAITING_CALL: (lambda: envs.call_async("spec"), envs.call_wait),
        }
        for state, (begin, wait) in pending.items():
            with pytest.raises(NoAsyncCallError) as missing:
                wait()
            begin()
            with pytest.raises(AlreadyPendingCallError) as busy:
                begin()
            wait()
            assert missing.value.name == busy.value.name == state.value


def near_worker(index, env_fn, pipe, parent_pipe, shared_memory, error_queue, *_):
    """The page's function, without the commands that nobody gives here."""
    env, over = env_fn(), False
    env.unwrapped.gravity = 9.8 + index
    parent_pipe.close()
    while True:
        command, data = pipe.recv()
        answer = None
        if command == "reset":
            answer = env.reset(**data)
        elif command == "step" and over:
            observation, info = env.reset(options={"low": -0.01, "high": 0.01})
            answer, over = (observation, 0, False, False, info), False
        elif command == "step":
            answer = env.step(data)
            over = answer[2] or answer[3]
        elif command == "_call":
            answer = env.get_wrapper_attr(data[0])
        elif command == "_check_spaces":
            answer = True, True
        pipe.send((answer, True))
        if command == "close":
            env.close()
            return


@pytest.mark.parametrize("engine", [envfleet.SerialVectorEnv, envfleet.ProcessVectorEnv])
def test_an_env_host_does_what_a_worker_function_did(engine):
    (code,) = [b for b in BLOCKS if b.startswith("class Near")]
    space = {"envfleet": envfleet, "gymnasium": gym, "partial": lambda make, name: screen}
    exec(code, space)
    options = {"context": "fork"} if engine is envfleet.ProcessVectorEnv else {}
    with engine([screen] * 2, worker=space["Near"], **options) as ours:
        theirs = AsyncVectorEnv(
            [screen] * 2, shared_memory=False, worker=near_worker, context="fork"
        )
        assert ours.get_attr("gravity") == theirs.get_attr("gravity") == (9.8, 10.8)
        assert np.array_equal(ours.reset(seed=3)[0], theirs.reset(seed=3)[0])
        resets = 0
        for _ in range(30):
            step, expected = (envs.step(np.array([0, 1])) for envs in (ours, theirs))
            for a, b in zip(step[:4], expected[:4], strict=True):
                assert np.array_equal(a, b)
            resets += np.count_nonzero(step[1] == 0)
        assert resets >= 4
        theirs.close()


def test_a_worker_function_is_the_one_argument_that_is_refused():
    with pytest.raises(TypeError, match=r"subclass of envfleet\.EnvHost"):
        envfleet.ProcessVectorEnv([screen], worker=near_worker)
