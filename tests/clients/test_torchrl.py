"""TorchRL on a fleet, without an adapter: ``GymWrapper(fleet)`` and its collector."""

from __future__ import annotations

from functools import partial

import gymnasium as gym
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from torchrl.collectors import Collector
from torchrl.envs import GymWrapper
from torchrl.envs.utils import RandomPolicy

import envfleet

SHORT = partial(gym.make, "CartPole-v1", max_episode_steps=12)
FLEETS = {
    "serial": {"backend": "serial"},
    "process": {"backend": "process", "workers": 2},
    "caller": {"backend": "process", "workers": 2, "caller_steps": True},
}


def collected(envs, frames=240):
    """What TorchRL collects from a vector env with random actions."""
    torch.manual_seed(0)
    env = GymWrapper(envs)
    env.set_seed(3)
    collector = Collector(
        env, RandomPolicy(env.action_spec), frames_per_batch=80, total_frames=frames
    )
    batches = [batch.clone() for batch in collector]
    collector.shutdown()
    return torch.cat(batches, -1)


@pytest.mark.parametrize("mode", ["SameStep", "Disabled"])
@pytest.mark.parametrize("engine", FLEETS)
def test_it_collects_what_it_collects_from_gymnasiums_own_engine(engine, mode):
    ours = collected(envfleet.make(SHORT, 4, autoreset_mode=mode, **FLEETS[engine]))
    theirs = collected(SyncVectorEnv([SHORT] * 4, autoreset_mode=gym.vector.AutoresetMode(mode)))
    keys = ["observation", "action", ("next", "observation"), ("next", "reward"), ("next", "done")]
    assert ours["next", "done"].sum() > 10
    for key in [*keys, ("next", "terminated"), ("next", "truncated")]:
        assert torch.equal(ours[key], theirs[key]), key


@pytest.mark.parametrize(("context", "knows"), [(None, False), ("fork", True)])
def test_importing_it_makes_spawn_the_start_method(monkeypatch, context, knows):
    monkeypatch.setattr(gym, "told_by_the_caller", 1, raising=False)  # what forked workers inherit

    def is_told(env):
        return hasattr(gym, "told_by_the_caller")

    with envfleet.make(SHORT, 2, backend="process", workers=1, context=context) as fleet:
        assert fleet.call(is_told) == (knows, knows)


def test_next_step_autoreset_is_refused_by_it():
    with (
        envfleet.make(SHORT, 2, backend="serial") as fleet,
        pytest.raises(RuntimeError, match="SAME_STEP or DISABLED"),
    ):
        GymWrapper(fleet)
