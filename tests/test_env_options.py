"""Arguments and wrappers of a run's env: typed, saved with the run, trusted like its module."""

from __future__ import annotations

import contextlib
import copy
import json
import re
from functools import partial
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import pytest
import torch

import envfleet
from envfleet.cli.eval import Eval
from envfleet.cli.resume import Resume
from envfleet.cli.train import Train
from envfleet.training import command
from envfleet.training.config import RunOptions, TrainConfig
from envfleet.training.env_options import as_names, as_words, parse_kwargs, with_kwargs
from envfleet.training.trainer import Run
from envfleet.training.trust import UntrustedError

torch.set_num_threads(1)  # else every later fork is warned of


def build(
    size: int = 3,
    speed: float = 1.0,
    name: str = "a",
    fast: bool = False,
    cells: tuple[int, ...] = (),
    plan: dict[str, Any] | None = None,
    mode: Literal["easy", "hard"] = "easy",
    guess=7,
    anything: Any = None,
    rules: str | list[str] = "none",
) -> None:
    pass


@pytest.mark.pure
@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("size=5", 5),
        ("speed=2", 2.0),
        ("speed=1e-3", 0.001),
        ("name=4", "4"),
        ("name=true", "true"),
        ('name="4x4"', "4x4"),
        ("name=a=b", "a=b"),
        ("name=", ""),
        ("fast=true", True),
        ("fast=False", False),
        ("cells=[1, 2]", (1, 2)),
        ('plan={"a": [1, {"b": null}]}', {"a": [1, {"b": None}]}),
        ("plan=null", None),
        ("plan=None", None),
        ("mode=hard", "hard"),
        ("guess=8", 8),
        ("guess=8.5", 8.5),
        ("anything=[1.5]", [1.5]),
        ("anything=word", "word"),
        ('rules=["x"]', ["x"]),
        ("rules=strict", "strict"),
    ],
)
def test_values_have_the_types_of_the_signature(word, value):
    (found,) = parse_kwargs(build, [word]).values()
    assert found == value
    assert type(found) is type(value)


@pytest.mark.pure
@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("sizes=5", "build has no argument 'sizes': did you mean size?"),
        ("colour=red", "build has no argument 'colour': it has: size, speed,"),
        ("size=large", "size=large: an integer is expected"),
        ("size=1.5", "size=1.5: an integer"),
        ("fast=1", "fast=1: true or false"),
        ("plan=[1]", "plan=.*: dict or null"),
        ("size", "key=value, got 'size'"),
        ("=3", "key=value, got '=3'"),
    ],
)
def test_what_does_not_fit_is_refused(word, text):
    with pytest.raises(ValueError, match=text):
        parse_kwargs(build, [word])


@pytest.mark.pure
def test_functions_that_take_anything_get_anything():
    def anyhow(size: int = 1, **more: Any) -> None:
        pass

    assert parse_kwargs(anyhow, ["size=2", "colour=red", "deep=[1]"]) == {
        "size": 2,
        "colour": "red",
        "deep": [1],
    }


def test_registered_envs_take_their_own_arguments_and_a_time_limit():
    spec = gym.spec("FrozenLake-v1")
    changed = with_kwargs(
        spec, ["is_slippery=false", 'desc=["SF", "FG"]', "max_episode_steps=7", "map_name=4x4"]
    )
    with gym.make(changed) as env:
        assert env.unwrapped.desc.shape == (2, 2)
        assert env.spec.max_episode_steps == 7
        assert len(env.unwrapped.P[0][1]) == 1  # it does not slip
    assert gym.spec("FrozenLake-v1").kwargs == spec.kwargs  # the registered one is as before
    with pytest.raises(ValueError, match=r"FrozenLakeEnv has no argument 'slippery'.*is_slippery"):
        with_kwargs(spec, ["slippery=false"])


@pytest.mark.pure
def test_dicts_and_classes_become_texts_that_can_be_saved():
    kwargs = {"size": 2, "name": "4", "plan": {"a": [1]}, "fast": False}
    assert parse_kwargs(build, as_words(kwargs)) == kwargs
    assert as_words(("size=2",)) == ("size=2",)
    with pytest.raises(TypeError, match=r"function=.* pass a function that builds the env"):
        as_words({"function": build})
    assert as_names([Doubled, "a:b"]) == (f"{__name__}:Doubled", "a:b")
    with pytest.raises(TypeError, match="pass a function that builds the env"):
        as_names([lambda env: env])


# In runs


class Doubled(gym.RewardWrapper):
    def reward(self, reward: Any) -> float:
        return 2.0 * float(reward)


class Plus(gym.RewardWrapper):
    def reward(self, reward: Any) -> float:
        return float(reward) + 1.0


CHANGED = TrainConfig(
    env_id="CartPole-v1",
    num_envs=2,
    rollout_steps=32,
    batch_size=32,
    epochs=1,
    total_steps=128,
    env_kwargs=("sutton_barto_reward=true", "max_episode_steps=12"),
    wrappers=("test_env_options:Plus", "test_env_options:Doubled"),
)


def check_rewards(collector: Any) -> None:
    """0 but for the fall, -1; and 2 and 0 after adding 1 and doubling; no more than 12 steps."""
    rollout = collector.collect()
    assert set(rollout.rewards.flatten().tolist()) <= {0.0, 2.0}
    assert 2.0 in rollout.rewards
    assert (rollout.terminated | rollout.truncated).sum() >= 4


@pytest.mark.parametrize("on_failure", ["raise", "restart"])
def test_runs_keep_them_and_need_trust_to_import_wrappers(tmp_path, capfd, on_failure):
    folder = tmp_path / "run"
    with Run.start(folder, CHANGED, RunOptions(on_failure=on_failure)) as run:
        assert run.train()
        check_rewards(run.collector)
    told = json.loads((folder / "config.json").read_text())["config"]
    assert told["wrappers"] == list(CHANGED.wrappers)
    assert told["env_kwargs"] == list(CHANGED.env_kwargs)
    with pytest.raises(UntrustedError, match=r"'test_env_options' for its wrapper .*--trust"):
        Run.resume(folder)
    with Run.resume(folder, trust=True) as run:
        check_rewards(run.collector)
    assert Eval(folder, episodes=2, num_envs=2).run() == 2
    assert "for its wrapper" in capfd.readouterr().err
    assert Eval(folder, episodes=2, num_envs=2, json=True, trust=True).run() == 0
    assert max(json.loads(capfd.readouterr().out)["lengths"]) <= 12
    assert Resume(folder, trust=True).run() == 0


QUICK = ("--num-envs=2", "--rollout-steps=16", "--batch-size=16", "--total-steps=32", "--epochs=1")


def test_the_command_takes_them(tmp_path, capfd):
    words = ["FrozenLake-v1", *QUICK, "--run-dir", str(tmp_path), "--name"]
    wrapped = [
        "--wrapper",
        "gymnasium.wrappers:FlattenObservation",
        "--wrapper",
        f"{__name__}:Plus",
    ]
    chosen = ["--env-kwargs", "is_slippery=false", "map_name=8x8", "--mask-key", "None"]
    assert Train.parse([*words, "one", *chosen, *wrapped]).run() == 0
    told = json.loads((tmp_path / "FrozenLake-v1" / "one" / "config.json").read_text())["config"]
    assert told["env_kwargs"] == ["is_slippery=false", "map_name=8x8"]
    assert told["wrappers"] == wrapped[1::2]
    assert told["mask_key"] is None
    capfd.readouterr()
    for change, text in (
        (["--env-kwargs", "slippery=false"], "did you mean is_slippery?"),
        (["--wrapper", "FlattenObservation"], "a wrapper is module:callable"),
        (["--wrapper", "gymnasium.wrappers:FlattenObs"], "wrappers:FlattenObservation?"),
        (["--wrapper", "no_such:Wrapper"], "No module named 'no_such'"),
    ):
        assert Train.parse([*words, "two", *change]).run() == 2
        assert text in capfd.readouterr().err
    assert not (tmp_path / "FrozenLake-v1" / "two").exists()


def test_python_takes_dicts_and_classes(tmp_path):
    result = envfleet.train(
        "CartPole-v1",
        total_steps=64,
        num_envs=2,
        rollout_steps=32,
        batch_size=32,
        run_dir=tmp_path,
        env_kwargs={"sutton_barto_reward": True},
        wrappers=[Plus, Doubled],
    )
    told = json.loads((result.folder / "config.json").read_text())["config"]
    assert told["env_kwargs"] == ["sutton_barto_reward=true"]
    assert told["wrappers"] == [f"{__name__}:Plus", f"{__name__}:Doubled"]
    with pytest.raises(UntrustedError, match="for its wrapper"):
        envfleet.load(result.folder)
    policy = envfleet.load(result.folder, trust=True)
    assert policy.act(policy.observation_space.sample()) in policy.action_space
    with (
        envfleet.make("CartPole-v1", 2, backend="serial") as envs,
        pytest.raises(TypeError, match="this fleet is ready"),
    ):
        envfleet.train(envs, run_dir=tmp_path, wrappers=[Plus])


@pytest.mark.pure
def test_lines_to_paste_have_them():
    line = command.anew(TrainConfig("Taxi-v4", wrappers=("a:b", "c:d"), mask_key=None))
    assert line.endswith("--mask-key None --wrapper a:b --wrapper c:d")
    kwargs = command.anew(TrainConfig("Taxi-v4", env_kwargs=("is_rainy=true", 'x=["y"]')))
    assert kwargs.endswith("""--env-kwargs is_rainy=true 'x=["y"]'""")


class Lever(gym.Env):
    """Pulled, or set, as LunarLander is steered by its argument ``continuous``."""

    observation_space = gym.spaces.Box(-1, 1, (2,))

    def __init__(self, continuous: bool = False) -> None:
        box = gym.spaces.Box(-1, 1, (1,))
        self.action_space = box if continuous else gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 1.0, bool(self.np_random.random() < 0.1), False, {}


class InSteps(gym.wrappers.TransformAction):
    """Makes continuous actions discrete."""

    def __init__(self, env: Any) -> None:
        super().__init__(env, lambda action: [action - 1.0], gym.spaces.Discrete(3))


LEVER, IN_STEPS = f"{__name__}:Lever", f"{__name__}:InSteps"
CONTINUOUS = ("--env-kwargs", "continuous=true")


@pytest.mark.parametrize(
    ("words", "is_continuous"),
    [((), False), (CONTINUOUS, True), ((*CONTINUOUS, "--wrapper", IN_STEPS), False)],
    ids=["plain", "argument", "wrapper"],
)
def test_the_preset_is_that_of_the_spaces_that_the_arguments_make(words, is_continuous):
    parsed = Train.parse([LEVER, *words, "--preset", "cleanrl"])
    assert parsed.normalize_rewards == is_continuous  # which only CleanRL's continuous one does
    assert (parsed.num_envs, parsed.rollout_steps) == ((1, 2048) if is_continuous else (4, 128))
    assert parsed.env_kwargs == (("continuous=true",) if words else ())
    assert parsed.wrappers == ((IN_STEPS,) if IN_STEPS in words else ())


@pytest.mark.parametrize("env", [LEVER, partial(Lever)], ids=["id", "call"])
def test_so_is_that_of_a_run_from_python(env, tmp_path):
    options = {"total_steps": 32, "rollout_steps": 32, "batch_size": 32, "backend": "serial"}
    options |= {"preset": "cleanrl", "run_dir": tmp_path, "env_kwargs": {"continuous": True}}
    folder = envfleet.train(env, **options).folder
    assert json.loads((folder / "config.json").read_text())["config"]["normalize_rewards"]


# Envs that are passed as objects

TINY = {"total_steps": 64, "num_envs": 2, "rollout_steps": 32, "epochs": 1, "backend": "serial"}


def kept(folder):
    told = json.loads((folder / "config.json").read_text())["config"]
    return told["env_id"], told["env_kwargs"]


def changed_spec(**kwargs):
    spec = copy.deepcopy(gym.spec("CartPole-v1"))
    spec.kwargs.update(kwargs)
    return spec


def test_a_changed_spec_is_built_again_as_it_was(tmp_path, capfd):
    spec = changed_spec(sutton_barto_reward=True, render_mode="rgb_array")
    spec.max_episode_steps = 7
    folder = envfleet.train(spec, run_dir=tmp_path, **TINY).folder
    assert folder.parent.name == "CartPole-v1"
    assert kept(folder) == ("CartPole-v1", ["sutton_barto_reward=true", "max_episode_steps=7"])
    assert envfleet.load(folder).act(np.zeros(4, np.float32)) in (0, 1)
    capfd.readouterr()
    assert Eval(folder, episodes=4, num_envs=2, json=True).run() == 0
    told = json.loads(capfd.readouterr().out)
    assert set(told["returns"]) <= {0.0, -1.0}  # as Sutton and Barto have it
    assert max(told["lengths"]) <= 7


def test_what_is_passed_besides_a_spec_changes_it(tmp_path):
    spec = changed_spec(sutton_barto_reward=True)
    spec.max_episode_steps = 1
    options = TINY | {"env_kwargs": {"sutton_barto_reward": False}}
    folder = envfleet.train(spec, run_dir=tmp_path, **options).folder
    with Run.resume(folder, total_steps=128) as run:
        run.collector.envs.reset(seed=0)
        _, rewards, _, truncated, _ = run.collector.envs.step(np.array([0, 0]))
        assert rewards.tolist() == [1.0, 1.0]
        assert truncated.all()


def test_a_changed_fleet_is_built_again_as_it_was(tmp_path, capfd):
    with envfleet.make("FrozenLake-v1", 2, backend="serial", is_slippery=False) as envs:
        folder = envfleet.train(envs, run_dir=tmp_path, **TINY).folder
        assert kept(folder) == ("FrozenLake-v1", ["is_slippery=false"])
        with Run.resume(folder, env=envs, total_steps=128) as run:  # it may still be passed
            assert run.train()
    assert envfleet.load(folder).act(0) in range(4)
    assert Eval(folder, episodes=2, num_envs=2).run() == 0
    with Run.resume(folder, total_steps=256) as run:
        assert run.collector.envs.get_attr("P")[0][0][1] == [(1.0, 4, 0, False)]  # it cannot slip


@pytest.mark.parametrize("kind", ["array", "no limit", "entry point", "wrapped fleet"])
def test_what_texts_cannot_hold_is_not_claimed(tmp_path, capfd, kind):
    fleets: Any = contextlib.ExitStack()
    env: Any = changed_spec()
    if kind == "array":
        env = copy.deepcopy(gym.spec("FrozenLake-v1"))
        env.kwargs["desc"] = np.array([list("SF"), list("FG")])
    elif kind == "no limit":
        env.max_episode_steps = None
    elif kind == "entry point":
        env.entry_point = Lever
    else:
        fleet = fleets.enter_context(envfleet.make("CartPole-v1", 2, backend="serial"))
        env = gym.wrappers.vector.ClipReward(fleet, -1, 0.5)
    with fleets:
        folder = envfleet.train(env, run_dir=tmp_path, **TINY).folder
        name = folder.parent.name
        assert name in ("CartPole-v1", "FrozenLake-v1")
        assert kept(folder) == (f"{name} (changed)", [])
        why = rf"differs from the registered {name} in .* cannot hold\. .* pass env="
        with pytest.raises(ValueError, match=why):
            envfleet.load(folder)
        with pytest.raises(ValueError, match=why):
            Run.resume(folder, total_steps=128)
        capfd.readouterr()
        assert Eval(folder, episodes=2, num_envs=2).run() == 2
        assert re.search(why, capfd.readouterr().err)
        policy = envfleet.load(folder, env=env)
        assert policy.act(policy.observation_space.sample()) in policy.action_space


class Factory:
    """Builds envs."""

    def __call__(self, **options: Any) -> Any:
        return gym.make("CartPole-v1", **options)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (Factory(), "Factory"),
        (partial(Factory()), "Factory"),
        (partial(gym.make, "CartPole-v1"), "make"),
    ],
)
def test_an_object_that_builds_envs_has_to_be_passed_again(tmp_path, source, name):
    folder = envfleet.train(source, run_dir=tmp_path, **TINY).folder
    assert kept(folder) == (name, [])
    with pytest.raises(ValueError, match=r"doesn't exist.* pass env="):
        envfleet.load(folder)
    assert envfleet.load(folder, env=source).act(np.zeros(4, np.float32)) in (0, 1)
