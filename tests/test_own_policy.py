"""Policies of the user's own: trained by torch's path, resumed, loaded; what they lack is named."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

import envfleet
from envfleet.cli.eval import Eval
from envfleet.training import command
from envfleet.training.folder import RunRecord
from envfleet.training.own_policy import OwnPolicy, make_own_policy
from envfleet.training.trainer import Run
from envfleet.training.trust import UntrustedError

torch.set_num_threads(1)  # else every later fork is warned of

QUICK: Any = {
    "num_envs": 4,
    "rollout_steps": 32,
    "batch_size": 64,
    "backend": "serial",
    "progress": False,
}


class Small(nn.Module):
    """One layer for all."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__()
        self.body = nn.Linear(observation_space.shape[0], 16)
        self.logits, self.value = nn.Linear(16, int(action_space.n)), nn.Linear(16, 1)
        self.evaluated = 0

    def _policy(self, observations: Any) -> tuple[Any, Any]:
        features = self.body(observations).tanh()
        chances = torch.distributions.Categorical(logits=self.logits(features))
        return chances, self.value(features)[:, 0]

    def act(self, observations: Any, deterministic: bool = False) -> Any:
        chances, values = self._policy(observations)
        actions = chances.mode if deterministic else chances.sample()
        return actions, chances.log_prob(actions), values

    def evaluate_actions(self, observations: Any, actions: Any) -> Any:
        self.evaluated += 1
        chances, values = self._policy(observations)
        return chances.log_prob(actions), values, chances.entropy()


def test_a_policy_of_ones_own_learns(tmp_path):
    result = envfleet.train(
        "CartPole-v1",
        policy=Small,
        total_steps=8_000,
        run_dir=tmp_path,
        seed=0,
        eval_every=30,
        epochs=10,
        learning_rate=5e-3,
        **QUICK,
    )
    assert result.policy.module.own.evaluated > 100
    assert result.statistics.window.returns.mean > 45  # a random policy has 22
    with envfleet.make("CartPole-v1", 4, backend="serial") as envs:
        assert envfleet.evaluate(result.policy, envs, 8, seed=0).mean > 60


def test_a_module_is_trained_in_place_resumed_exactly_and_loaded(tmp_path):
    space = envfleet.make("CartPole-v1", 1, backend="serial")
    shapes = space.single_observation_space, space.single_action_space
    space.close()
    module = Small(*shapes)
    before = module.body.weight.detach().clone()
    options = {"run_dir": tmp_path, "checkpoint_every": 1, "keep": 9, **QUICK}
    whole = envfleet.train("CartPole-v1", policy=module, total_steps=384, name="one", **options)
    assert not torch.equal(module.body.weight, before)
    with Run.resume(whole.folder, checkpoint="step_000000000256", policy=Small) as run:
        run.train()
        assert torch.equal(run.policy.own.body.weight, module.body.weight)
    loaded = envfleet.load(whole.folder, policy=Small)
    assert torch.equal(loaded.module.own.body.weight, module.body.weight)
    assert loaded.act(shapes[0].sample(), deterministic=True) in (0, 1)
    assert RunRecord.read(whole.folder).policy == f"{__name__}:Small"


def test_a_policy_of_a_module_is_imported_with_trust_only(tmp_path, capfd):
    options = {"run_dir": tmp_path, "total_steps": 128, **QUICK}
    result = envfleet.train("CartPole-v1", policy=Small, **options)
    untrusted = f"module '{__name__}' for its policy '{__name__}:Small'.*--trust"
    with pytest.raises(UntrustedError, match=untrusted):
        envfleet.load(result.folder)
    with pytest.raises(UntrustedError, match=untrusted):
        Run.resume(result.folder)
    assert Eval(result.folder, episodes=2, num_envs=2).run() == 2
    assert "--trust" in capfd.readouterr().err
    loaded = envfleet.load(result.folder, trust=True)
    assert torch.equal(loaded.module.own.body.weight, result.policy.module.own.body.weight)
    assert Eval(result.folder, episodes=2, num_envs=2, trust=True).run() == 0
    with Run.resume(result.folder, trust=True, total_steps=256) as run:
        assert run.train()
        assert type(run.policy.own) is Small
        assert command.of_run("eval", run.folder, run.record).endswith(" --trust")


class Wide(Small):
    """Is not made of two spaces."""

    def __init__(self, observation_space: Any, action_space: Any, width: int) -> None:
        super().__init__(observation_space, action_space)
        self.width = width


def test_what_cannot_be_imported_is_named_by_the_error(tmp_path):
    class Local(Small):
        """Lives here only."""

    options = {"run_dir": tmp_path, "total_steps": 128, **QUICK}
    folder = envfleet.train("CartPole-v1", policy=Local, **options).folder
    for attempt in (envfleet.load, Run.resume):
        for trust in (False, True):
            with pytest.raises(
                ValueError, match=r"<locals>.Local.* cannot be imported: pass .*policy="
            ):
                attempt(folder, trust=trust)
    assert envfleet.load(folder, policy=Local).act(np.zeros(4, np.float32)) in (0, 1)
    folder = envfleet.train("CartPole-v1", policy=partial(Wide, width=3), **options).folder
    with pytest.raises(ValueError, match=r"Wide is not made of two spaces .*width.*: pass .*Wide"):
        envfleet.load(folder, trust=True)
    config = folder / "config.json"
    config.write_text(config.read_text().replace(":Wide", ":Gone"))
    with pytest.raises(ValueError, match=r":Gone of this run is not there .*: pass .*:Gone"):
        envfleet.load(folder, trust=True)


def test_a_policy_of_ours_has_no_name(tmp_path):
    folder = envfleet.train("CartPole-v1", run_dir=tmp_path, total_steps=128, **QUICK).folder
    assert RunRecord.read(folder).policy is None
    assert envfleet.load(folder).act(np.zeros(4, np.float32)) in (0, 1)


class Masking(Small):
    """Takes masks."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__(spaces.Box(0, 1, (500,)), action_space)
        self.masked = 0

    def _masked(self, observations: Any, masks: Any) -> tuple[Any, Any]:
        self.masked += masks is not None
        chances, values = self._policy(nn.functional.one_hot(observations, 500).float())
        logits = chances.logits if masks is None else chances.logits.masked_fill(~masks, -1e30)
        return torch.distributions.Categorical(logits=logits), values

    def act(self, observations: Any, deterministic: bool = False, action_masks: Any = None) -> Any:
        chances, values = self._masked(observations, action_masks)
        actions = chances.mode if deterministic else chances.sample()
        assert action_masks is None or action_masks.gather(1, actions[:, None]).all()
        return actions, chances.log_prob(actions), values

    def evaluate_actions(self, observations: Any, actions: Any, action_masks: Any = None) -> Any:
        chances, values = self._masked(observations, action_masks)
        return chances.log_prob(actions), values, chances.entropy()


def test_it_is_given_masks_if_it_takes_them(tmp_path):
    options = {"run_dir": tmp_path, "total_steps": 128, "epochs": 1, **QUICK}
    result = envfleet.train("Taxi-v4", policy=Masking, **options)
    assert result.policy.module.own.masked >= 32 + 2
    result = envfleet.train("Taxi-v4", policy=Masking, mask_key=None, **options)
    assert result.policy.module.own.masked == 0


class Actor(nn.Linear):
    """Cannot evaluate."""

    def act(self, observations: Any) -> Any:
        return observations


class Halves(Small):
    """Takes masks in one method."""

    def act(self, observations: Any, deterministic: bool = False, action_masks: Any = None) -> Any:
        return super().act(observations)


def frozen(*shapes: Any) -> nn.Module:
    return Small(*shapes).requires_grad_(False)


@pytest.mark.parametrize(
    ("policy", "error", "text"),
    [
        (nn.Linear(4, 2), TypeError, r"no act\(obs.* and no evaluate_actions\(observations"),
        (Actor(4, 2), TypeError, r"cannot train Actor: it has no evaluate_actions\("),
        (Halves, TypeError, "in act, but not in evaluate_actions"),
        (frozen, ValueError, "Small has no parameters to train"),
        (3, TypeError, r"torch.nn.Module, or a function .*got a int"),
        (lambda *_: 3, TypeError, r"torch.nn.Module, got a int"),
    ],
    ids=["neither", "one", "masks", "frozen", "number", "makes-a-number"],
)
def test_what_it_lacks_is_named_before_anything_is_written(policy, error, text, tmp_path):
    with pytest.raises(error, match=text):
        envfleet.train("CartPole-v1", policy=policy, run_dir=tmp_path, **QUICK)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (torch.zeros, TypeError, "must return .*got a Tensor"),
        (lambda n: (torch.zeros(n), 1.0, 2.0), TypeError, "its values are a float"),
        (
            lambda n: (torch.zeros(n), torch.zeros(n, 1), torch.zeros(n)),
            ValueError,
            r"its values have shape \(3, 1\) for 3 rows",
        ),
        (lambda n: (torch.zeros(n),) * 3, ValueError, "with gradients"),
    ],
    ids=["no-tuple", "numbers", "shape", "no-gradient"],
)
def test_answers_that_cannot_be_learnt_from_are_refused(answer, error, text):
    class Odd(Small):
        def evaluate_actions(self, observations: Any, actions: Any) -> Any:
            return answer(len(actions))

    policy = make_own_policy(Odd, spaces.Box(0, 1, (4,)), spaces.Discrete(2))
    assert isinstance(policy, OwnPolicy)
    with pytest.raises(error, match=text):
        policy.evaluate_actions(torch.zeros(3, 4), torch.zeros(3))
