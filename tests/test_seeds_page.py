"""docs/seeds.md: each pair of lines gives what a plain loop over the same envs gives."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

import envfleet
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
    rows = re.findall(r"^\| `(.*)` \| (.*) \|$", PAGE, flags=re.MULTILINE)
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
