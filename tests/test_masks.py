"""Action masks: never chosen, never learnt from, whatever happens to episodes and workers."""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

import envfleet
from envfleet.cli.eval import Eval
from envfleet.envs import SendMasks
from envfleet.rollout.buffer import Batch
from envfleet.rollout.masks import ActionMasks
from envfleet.training.config import RunOptions, TrainConfig
from envfleet.training.loading import TrainedPolicy
from envfleet.training.policy import Policy
from envfleet.training.ppo import PPO, TorchLearner
from envfleet.training.trainer import Run
from rollout_envs import ENGINES, MODES, Formula

OURS = [name for name in ENGINES if name != "gymnasium"]
WAYS = [{}, {"overlap": True}, {"min_envs": 1}, {"min_envs": 3}]


class Picky(gym.Env):
    """Allows few actions, others in every step, and raises at any other one.

    The mask depends on what is observed, so that rows can be checked afterwards. The last state of
    an episode allows nothing at all.
    """

    observation_space = spaces.Box(0, 9, (2,), np.float32)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self, index: int = 0, several: bool = False, form: str = "array") -> None:
        self.index, self.form, self.t = index, form, 0
        self.counts = [3, 2, 4] if several else [5]
        self.action_space: Any = spaces.Discrete(5)
        if several:
            self.action_space = spaces.MultiDiscrete(self.counts)

    def _told(self, over: bool = False) -> tuple[Any, dict[str, Any]]:
        observation = np.array([self.index, self.t], dtype=np.float32)
        self.mask = allowed(observation, self.counts)
        told: Any = np.zeros_like(self.mask) if over else self.mask.copy()
        if self.form == "tuple":
            told = tuple(np.split(told.astype(np.int8), np.cumsum(self.counts)[:-1]))
        elif self.form == "list":
            told = told.tolist()
        elif self.form == "method":
            return observation, {}
        return observation, {"action_mask": told}

    def action_masks(self) -> Any:
        return self.mask

    def render(self) -> Any:
        return np.full((8, 8, 3), self.t, dtype=np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._told()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        chosen = np.atleast_1d(action) + np.cumsum([0, *self.counts[:-1]])
        assert self.mask[chosen].all(), f"{action} is forbidden by {self.mask}"
        self.t += 1
        over = self.t == 3 + self.index % 3
        observation, info = self._told(over)
        return observation, 1.0, over and self.index % 2 == 0, over and self.index % 2 == 1, info


def allowed(observation: Any, counts: list[int]) -> Any:
    """Which actions ``Picky`` allows where it observes this."""
    parts = []
    for count in counts:
        mask = np.zeros(count, dtype=bool)
        mask[int(observation.sum()) % count] = mask[int(observation.prod()) % count] = True
        parts.append(mask)
    return np.concatenate(parts)


def picky_fleet(engine: str, mode: Any, count: int = 5, **options: Any) -> Any:
    fns = [partial(Picky, index, **options) for index in range(count)]
    return ENGINES[engine](fns, autoreset_mode=mode)


def policy_of(envs: Any, **options: Any) -> Policy:
    torch.manual_seed(0)
    return Policy(envs.single_observation_space, envs.single_action_space, **options)


def agent_of(envs: Any) -> Any:
    """What trains there: the NumPy path where that can be, which asks for actions first."""
    return PPO(policy_of(envs), TrainConfig()).learner


def check_rows(rollout: Any, counts: list[int]) -> None:
    """Every row has the mask of its observation, unless its action was ignored."""
    starts = np.cumsum([0, *counts[:-1]])
    assert rollout.action_masks.shape[:2] == rollout.actions.shape[:2]
    for t, env in np.argwhere(rollout.valid.numpy()):
        mask = rollout.action_masks[t, env].numpy()
        np.testing.assert_array_equal(
            mask, allowed(rollout.observations[t, env].numpy(), counts), f"row {t} of env {env}"
        )
        assert mask[np.atleast_1d(rollout.actions[t, env].numpy()) + starts].all()


@pytest.mark.parametrize("several", [False, True], ids=["Discrete", "MultiDiscrete"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_masked_is_never_chosen(engine, mode, several):
    envs = picky_fleet(engine, mode, several=several)
    with envfleet.Collector(envs, agent_of(envs), 11) as collector:
        for _ in range(3):
            check_rows(collector.collect(), [3, 2, 4] if several else [5])
        collector.reset()
        check_rows(collector.collect(), [3, 2, 4] if several else [5])


@pytest.mark.parametrize("way", WAYS[1:], ids=str)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("engine", ["serial", "process"])
def test_masks_flow_with_their_envs(engine, mode, way):
    for several in (False, True):
        envs = picky_fleet(engine, mode, several=several)
        with envfleet.Collector(envs, agent_of(envs), 8, **way) as collector:
            for _ in range(2):
                check_rows(collector.collect(), [3, 2, 4] if several else [5])


@pytest.mark.parametrize("mode", MODES)
def test_masks_are_heeded_beside_steps_of_ones_own(mode):
    envs = picky_fleet("serial", mode)
    policy = policy_of(envs)
    with envfleet.Collector(envs, policy, 4) as collector:
        collector.collect()
        for _ in range(7):
            seen = collector.observations
            masks = torch.tensor(np.stack([allowed(row.numpy(), [5]) for row in seen]))
            _, terminated, truncated = collector.step(policy.act(seen, action_masks=masks)[0])
            if mode == AutoresetMode.DISABLED and (terminated | truncated).any():
                collector.reset(options={"reset_mask": terminated | truncated})
        check_rows(collector.collect(), [5])


@pytest.mark.parametrize("form", ["tuple", "list"])
@pytest.mark.parametrize("several", [False, True], ids=["Discrete", "MultiDiscrete"])
def test_masks_may_be_lists_or_tuples(form, several):
    if form == "tuple" and not several:
        form = "list"
    envs = picky_fleet("process", "SameStep", several=several, form=form)
    with envfleet.Collector(envs, agent_of(envs), 8) as collector:
        check_rows(collector.collect(), [3, 2, 4] if several else [5])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("deterministic", [False, True])
def test_evaluation_heeds_masks(mode, deterministic):
    envs = picky_fleet("serial", mode)
    result = envfleet.evaluate(policy_of(envs), envs, 12, deterministic, seed=0)
    assert result.lengths.max() == 5  # and no env has raised


@pytest.mark.parametrize("mode", MODES)
def test_recording_heeds_masks(mode):
    envs = picky_fleet("serial", mode)
    frames = envfleet.record_agent(policy_of(envs), envs, steps=9, grid=False, overlay=False)
    assert [len(of_env) for of_env in frames] == [10] * 5  # and no env has raised


def by_method(render_mode: str | None = None) -> Picky:
    return Picky(1, form="method")


@pytest.mark.parametrize("on_failure", ["raise", "restart"])
def test_runs_find_the_masks_of_envs_by_themselves(tmp_path, capfd, on_failure):
    config = TrainConfig(
        "test_masks:by_method", num_envs=2, rollout_steps=16, batch_size=16, total_steps=96
    )
    options = RunOptions(on_failure=on_failure, checkpoint_every=2)
    with Run.start(tmp_path / "run", config, options) as run:
        assert run.train()
    with Run.resume(tmp_path / "run", trust=True) as run:
        run.collector.reset()
        check_rows(run.collector.collect(), [5])
    assert Eval(tmp_path / "run", episodes=4, trust=True, sample=True).run() == 0
    assert "4 episodes" in capfd.readouterr().out


def test_what_action_masks_returns_travels_with_the_step():
    with envfleet.make(
        [partial(Picky, index, form="method") for index in range(3)],
        wrappers=[SendMasks()],
        backend="process",
        autoreset_mode="SameStep",
    ) as envs:
        collector = envfleet.Collector(envs, agent_of(envs), 9)
        check_rows(collector.collect(), [5])


class Dying(Picky):
    """Ends its worker in one of its steps."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.t == 2 and self.np_random.random() < 0.2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


@pytest.mark.parametrize("way", WAYS[:3], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_masks_are_right_after_workers_were_replaced(mode, way):
    envs = envfleet.ProcessVectorEnv(
        [partial(Dying, index) for index in range(4)],
        workers=2,
        context="fork",
        autoreset_mode=mode,
        on_failure="restart",
        restarts=(1000, 60.0),
    )
    with envfleet.Collector(envs, agent_of(envs), 30, seed=1, **way) as collector:
        rollout = collector.collect()
        assert envs.restart_count > 0
        assert not rollout.valid.all()
        check_rows(rollout, [5])


# What is learnt


@pytest.mark.parametrize("several", [False, True], ids=["Discrete", "MultiDiscrete"])
def test_masked_actions_have_no_gradient(several):
    envs = picky_fleet("serial", "SameStep", count=1, several=several)
    policy = policy_of(envs)
    never = torch.ones(policy.head.size, dtype=torch.bool)
    never[[1, -1]] = False
    seen = torch.rand(64, 2)
    masks = never.expand(64, -1)
    actions, log_probs, values = policy.act(seen, action_masks=masks)
    rows = Batch(
        observations=seen,
        actions=actions,
        rewards=torch.zeros(64),
        terminated=torch.zeros(64, dtype=torch.bool),
        truncated=torch.zeros(64, dtype=torch.bool),
        values=values.detach(),
        log_probs=log_probs.detach(),
        advantages=torch.randn(64),
        returns=torch.randn(64),
        action_masks=masks,
    )
    learner = TorchLearner(policy, TrainConfig(entropy_coef=0.1))
    metrics = learner.step(rows, 0.2, report=True)
    assert float(metrics.kl) == pytest.approx(0.0, abs=1e-6)  # the ratio is 1
    last = policy.actor[-1]
    assert (last.weight.grad[~never] == 0).all()
    assert (last.bias.grad[~never] == 0).all()
    assert (last.weight.grad[never].abs().sum(1) > 0).all()


def test_entropy_and_chances_are_those_of_what_is_allowed():
    envs = picky_fleet("serial", "SameStep", count=1)
    policy = policy_of(envs)
    seen = torch.rand(2000, 2)
    masks = torch.tensor([True, False, True, False, False]).expand(2000, -1)
    actions, log_probs, _, entropy = policy.get_actions_and_values(seen, action_masks=masks)
    assert set(actions.tolist()) == {0, 2}
    chosen = policy.actor(seen)[:, [0, 2]]
    expected = torch.distributions.Categorical(logits=chosen)
    assert torch.allclose(log_probs, expected.log_prob(actions // 2), atol=1e-5)
    assert torch.allclose(entropy, expected.entropy(), atol=1e-5)
    best = policy.act(seen, deterministic=True, action_masks=masks)[0]
    assert torch.equal(best // 2, chosen.argmax(1))


def test_both_paths_learn_the_same_from_masked_rollouts():
    envs = picky_fleet("serial", "SameStep")
    config = TrainConfig(batch_size=32, epochs=1, entropy_coef=0.01)
    quick = PPO(policy_of(envs), config)
    slow = TorchLearner(policy_of(envs), config)
    assert not isinstance(quick.learner, TorchLearner)
    with envfleet.Collector(envs, quick.learner, 12) as collector:
        rollout = collector.collect()
    given = rollout, torch.randn(12, 5), torch.randn(12, 5)
    reports = []
    for learner in (quick.learner, slow):
        batch = next(learner.minibatches(*given, np.random.default_rng(0)))
        reports.append(learner.step(batch, 0.2, report=True))
    np.testing.assert_allclose(*map(np.asarray, reports), rtol=1e-3, atol=1e-5)
    for one, other in zip(quick.policy.parameters(), slow.policy.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


# What is refused, and what is left alone


def test_agents_without_masks_are_asked_as_before():
    class Plain(Formula):
        def act(self, observations: torch.Tensor, deterministic: bool = False) -> Any:
            actions = torch.zeros(len(observations), dtype=torch.long)
            return actions, actions.float(), actions.float()

        def get_values(self, observations: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(observations))

    envs = gym.make_vec("Taxi-v4", 2, vectorization_mode="sync")
    with envfleet.Collector(envs, Plain(), 3) as collector:
        assert collector.collect().action_masks is None
    with pytest.raises(TypeError, match=r"Plain takes no action masks.*action_masks=None"):
        envfleet.Collector(picky_keyed(), Plain(), 3, mask_key="legal").collect()


class Keyed(Picky):
    """Has its masks under another key."""

    def _told(self, over: bool = False) -> tuple[Any, dict[str, Any]]:
        observation, info = super()._told(over)
        return observation, {"legal": info["action_mask"]}


def picky_keyed() -> Any:
    return envfleet.SerialVectorEnv([Keyed, partial(Keyed, 1)], autoreset_mode="SameStep")


def test_masks_are_found_under_the_key_that_is_named_or_not_at_all():
    envs = picky_keyed()
    with envfleet.Collector(envs, agent_of(envs), 9, mask_key="legal") as collector:
        check_rows(collector.collect(), [5])
    with envfleet.make("Taxi-v4", 2, backend="serial") as envs:
        agent = agent_of(envs)
        assert envfleet.Collector(envs, agent, 3, mask_key=None).collect().action_masks is None
        assert envfleet.Collector(envs, agent, 3).collect().action_masks.shape == (3, 2, 6)
        with pytest.raises(ValueError, match=r"no env sends info\['legal'\].*SendMasks"):
            envfleet.Collector(envs, agent, 3, mask_key="legal").collect()


def test_a_loaded_policy_knows_the_key_of_its_masks(tmp_path):
    small = {"num_envs": 2, "rollout_steps": 16, "batch_size": 16, "total_steps": 32}
    done = envfleet.train(Keyed, run_dir=tmp_path, mask_key="legal", backend="serial", **small)
    policy = envfleet.load(done.folder, env=Keyed)
    envs = picky_keyed()
    for deterministic in (False, True):
        envfleet.evaluate(policy, envs, 12, deterministic, seed=0)  # and no env has raised
    envfleet.record_agent(policy, envs, steps=9, grid=False, overlay=False)
    with envfleet.Collector(envs, policy, 9) as collector:
        check_rows(collector.collect(), [5])
    with envfleet.make("Taxi-v4", 2, backend="serial") as taxis:
        other = TrainedPolicy(policy_of(taxis), *single_spaces(taxis), mask_key="legal")
        with pytest.raises(ValueError, match=r"no env sends info\['legal'\]"):
            envfleet.evaluate(other, taxis, 1)
        assert envfleet.Collector(taxis, other, 3, mask_key=None).collect().action_masks is None
        named = envfleet.Collector(taxis, other, 3, mask_key="action_mask").collect()
        assert named.action_masks is not None


def single_spaces(envs: Any) -> tuple[Any, Any]:
    return envs.single_observation_space, envs.single_action_space


class Broken(Picky):
    """Sends what cannot be used, in its second step."""

    def __init__(self, told: Any, index: int) -> None:
        super().__init__(index)
        self.told = told

    def _told(self, over: bool = False) -> tuple[Any, dict[str, Any]]:
        observation, info = super()._told(over)
        if self.t == 2 and self.index == 1:
            info = {} if self.told is None else {"action_mask": self.told}
        return observation, info


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (np.zeros(5, dtype=bool), "env 1 sent with its step .* forbids every action"),
        (None, r"env 1 sent no info\['action_mask'\] with its step"),
        (np.ones(4, dtype=np.int8), r"env 1 .*array\(\[1, 1, 1, 1\].*Discrete\(5\).*5 times"),
        (np.array([0, 1, 2, 0, 0]), "env 1 .* 0 or 1"),
        (np.array([0.0, -np.inf, 0.0, 0.0, 0.0]), "env 1 .* 0 or 1"),
        ("none", "env 1 .*'none'.* 5 times 0 or 1"),
    ],
    ids=["all-forbidden", "missing", "short", "numbers", "logits", "text"],
)
@pytest.mark.parametrize("way", [{}, {"overlap": True}], ids=str)
def test_masks_that_cannot_be_used_are_refused_by_the_envs_number(told, text, way):
    envs = envfleet.SerialVectorEnv(
        [partial(Broken, told, index) for index in range(3)], autoreset_mode="SameStep"
    )
    with (
        envfleet.Collector(envs, agent_of(envs), 9, **way) as collector,
        pytest.raises(ValueError, match=text),
    ):
        collector.collect()


def acting_policy(action_space: Any) -> TrainedPolicy:
    seen = spaces.Box(-1, 1, (2,))
    torch.manual_seed(0)
    return TrainedPolicy(Policy(seen, action_space), seen, action_space)


SEEN = np.zeros((5, 2), np.float32)


def test_a_loaded_policy_takes_masks_in_every_form():
    policy = acting_policy(spaces.Discrete(5))
    only = np.eye(5, dtype=np.int8)
    for form in (np.asarray, torch.as_tensor, np.ndarray.tolist, list, tuple):
        assert policy.act(SEEN[:5], action_masks=form(only)).tolist() == [0, 1, 2, 3, 4]
        assert policy.act(SEEN[0], action_masks=form(only[3])) == 3
    policy = acting_policy(spaces.MultiDiscrete([3, 2]))
    flat = [np.array([0, 1, 0, 0, 1]), np.array([1, 0, 0, 1, 0]), np.array([0, 0, 1, 1, 0])]
    parts = [(mask[:3], mask[3:]) for mask in flat]
    wanted = [[1, 1], [0, 0], [2, 0]]
    for form in (np.stack(flat), flat, parts, tuple(parts)):
        assert policy.act(SEEN[:3], action_masks=form).tolist() == wanted
    for mask, part, action in zip(flat, parts, wanted, strict=True):
        for form in (mask, part, tuple(map(torch.as_tensor, part))):
            assert policy.act(SEEN[0], action_masks=form).tolist() == action
    with envfleet.SerialVectorEnv([partial(Picky, k, True, "tuple") for k in range(3)]) as envs:
        policy = acting_policy(envs.single_action_space)
        seen, infos = envs.reset()
        for _ in range(2):  # which raises at what is forbidden
            actions = policy.act(seen, action_masks=infos["action_mask"])
            seen, *_, infos = envs.step(actions)


DISCRETE, TWO_PAIRS = spaces.Discrete(5), spaces.MultiDiscrete([2, 2])


@pytest.mark.parametrize(
    ("space", "count", "masks", "text"),
    [
        (DISCRETE, None, np.zeros(5), "action_masks is .*forbids every action:"),
        (DISCRETE, None, np.ones(1), r"action_masks is array\(\[1\.\]\): for Discrete.* 5 times"),
        (DISCRETE, None, 1, "5 times 0 or 1"),
        (DISCRETE, None, np.full(5, 2), "5 times 0 or 1"),
        (DISCRETE, None, np.ones((5, 1)), r"of shape \(5, 1\).* 5 times"),
        (DISCRETE, 2, np.array([[1] * 5, [0] * 5]), r"action_masks\[1\] .*forbids every action:"),
        (DISCRETE, 2, np.ones((2, 1)), r"action_masks\[0\] .* 5 times"),
        (DISCRETE, 2, np.ones((1, 5)), "1 rows for 2 observations"),
        (DISCRETE, 2, np.ones(5), "5 rows for 2 observations"),
        (DISCRETE, 2, 1, "0 rows for 2 observations"),
        (TWO_PAIRS, None, ([1, 1], [0, 0]), "forbids every action of component 1"),
        (TWO_PAIRS, None, ([1, 1],), "4 times 0 or 1"),
        (TWO_PAIRS, None, ([1, 1, 1], [1]), "4 times 0 or 1"),
        # A mask per component, each for all observations: rows are those of observations.
        (TWO_PAIRS, 2, (np.ones((2, 2)), np.ones((2, 2))), r"of shape \(2, 2\).* 4 times"),
    ],
)
def test_a_loaded_policy_refuses_masks_that_cannot_be_used(space, count, masks, text):
    seen = SEEN[0] if count is None else SEEN[:count]
    with pytest.raises(ValueError, match=text):
        acting_policy(space).act(seen, action_masks=masks)
    with pytest.raises(TypeError, match="Discrete and MultiDiscrete"):
        acting_policy(spaces.Box(-1, 1, (2,))).act(seen, action_masks=masks)


@pytest.mark.pure
def test_a_component_that_may_not_choose_is_named():
    masks = ActionMasks(spaces.MultiDiscrete([2, 3]), "action_mask")
    rows = np.ones((1, 5), dtype=bool)
    told = np.array([[1, 1, 0, 0, 0]])
    with pytest.raises(ValueError, match=r"env 7 .* every action of component 1"):
        masks.read(rows, {"action_mask": told}, when="reset", ids=[7])
    assert rows.all()


@pytest.mark.parametrize("way", WAYS[:3], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_masks_that_come_late_are_refused(mode, way):
    class Late(Picky):
        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
            observation, _ = super().reset(seed=seed)
            self.mask[:] = True
            return observation, {}

    envs = envfleet.SerialVectorEnv([Late] * 2, autoreset_mode=mode)
    with (
        envfleet.Collector(envs, policy_of(envs), 1, **way) as collector,
        pytest.raises(ValueError, match="with their steps but not with their resets"),
    ):
        collector.collect()


def test_masks_of_a_fleet_that_does_not_send_infos_are_refused():
    silent = envfleet.SerialVectorEnv([Picky], autoreset_mode="SameStep", infos="final")
    with (
        envfleet.Collector(silent, policy_of(silent), 2) as collector,
        pytest.raises(ValueError, match="without infos='final'"),
    ):
        collector.collect()


def test_policies_of_other_actions_refuse_masks():
    policy = Policy(spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (2,)))
    with pytest.raises(TypeError, match="Discrete and MultiDiscrete"):
        policy.act(torch.zeros(1, 2), action_masks=torch.ones(1, 2, dtype=torch.bool))
