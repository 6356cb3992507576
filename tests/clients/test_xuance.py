"""XuanCe 1.4.4 itself: its PPO on our engines gives bit for bit what its own Dummy ones give.

`make test-clients` runs this, in an environment of its own.
"""

from __future__ import annotations

from argparse import Namespace
from importlib.resources import files

import numpy as np
import pytest
import torch

from envfleet.adapters.xuance import registration

pytestmark = pytest.mark.filterwarnings("ignore")  # of its own code, about newer libraries

STEPS, ENVS = 2000, 4
SMALL = {"parallels": ENVS, "horizon_size": 50, "n_epochs": 2, "n_minibatch": 2}
# As published, XuanCe's Atari_Env draws its no-ops from np.random, which the agent uses as well and
# which a worker has not: with at most one no-op it draws nothing.
ATARI = {"noop_max": 1, "env_id": "BreakoutNoFrameskip-v4", "img_size": [84, 84]}


@pytest.fixture
def registries():
    """XuanCe's registries, as they were again afterwards."""
    from xuance.environment import REGISTRY_ENV, REGISTRY_VEC_ENV  # noqa: PLC0415

    before = dict(REGISTRY_ENV), dict(REGISTRY_VEC_ENV)
    yield REGISTRY_ENV, REGISTRY_VEC_ENV
    for registry, content in zip((REGISTRY_ENV, REGISTRY_VEC_ENV), before, strict=True):
        registry.clear()
        registry.update(content)


def configuration(page, **changes):
    from xuance import load_yaml  # noqa: PLC0415

    folder = files("xuance") / "configs"
    basic, ppo = load_yaml(str(folder / "basic.yaml")), load_yaml(str(folder / "ppo" / page))
    return Namespace(**{**basic, **ppo, **SMALL, "render": False, **changes})


def without_aliases(engine):
    """Its Dummy engine with a new buf_obs at each step, as the Subproc ones have.

    It writes into the one that it has, which the agent's first transition still holds where
    observations are not normalised: what is learned from that transition is then wrong.
    """

    class Copying(engine):
        def step_wait(self):
            self.buf_obs = self.buf_obs.copy()
            return super().step_wait()

    return Copying


def train(config):
    """What PPO has learned, and how: parameters, and the statistics of what it has seen."""
    from xuance.environment import make_envs  # noqa: PLC0415
    from xuance.torch.agents import PPO_Agent  # noqa: PLC0415

    np.random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    envs = make_envs(config)
    agent = PPO_Agent(config, envs)
    info = agent.train(STEPS // ENVS)
    agent.finish()
    envs.close()
    statistics = [agent.obs_rms.mean, agent.obs_rms.var, agent.ret_rms.mean, agent.ret_rms.var]
    numbers = {key: value for key, value in info.items() if isinstance(value, float)}
    return type(envs), agent.policy.state_dict(), statistics, numbers, agent.current_episode


def assert_same(ours, theirs):
    parameters, statistics, numbers, episodes = ours
    assert list(parameters) == list(theirs[0])
    assert all(torch.equal(parameters[name], theirs[0][name]) for name in parameters)
    for mine, other in zip(statistics, theirs[1], strict=True):
        np.testing.assert_array_equal(mine, other)
    assert numbers == theirs[2]
    assert numbers
    assert episodes.tolist() == theirs[3].tolist()
    assert episodes.sum() > 0


@pytest.mark.parametrize(
    ("dummy", "vectorize", "page", "changes"),
    [
        ("DummyVecEnv", "DummyVecEnv", "classic_control/CartPole-v1.yaml", {}),
        ("DummyVecEnv", "SubprocVecEnv", "classic_control/CartPole-v1.yaml", {}),
        ("Dummy_Atari", "Dummy_Atari", "atari.yaml", ATARI),
        ("Dummy_Atari", "Subproc_Atari", "atari.yaml", ATARI),
    ],
)
@pytest.mark.parametrize("envs", [False, True], ids=["its envs", "our envs"])
def test_ppo_learns_bit_for_bit_what_it_learns_on_its_own_dummy_engine(
    registries, tmp_path, monkeypatch, dummy, vectorize, page, changes, envs
):
    monkeypatch.chdir(tmp_path)  # it writes logs to where it is
    of_envs, of_engines = registries
    own = of_engines[dummy] if dummy == "DummyVecEnv" else without_aliases(of_engines[dummy])
    registration.register(envs=envs)
    ours, *learned = train(configuration(page, vectorize=vectorize, **changes))
    assert ours is registration.ENGINES[vectorize]
    of_engines[dummy] = own
    theirs, *expected = train(configuration(page, vectorize=dummy, **changes))
    assert theirs is own
    assert_same(learned, expected)
    assert (of_envs["Atari"] is registration.ENVS["Atari"]) == envs
