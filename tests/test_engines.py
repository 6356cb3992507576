"""Engines by name: one line adds another, to make, to training and to the command."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing

import gymnasium as gym
import pytest
from gymnasium.vector import SyncVectorEnv

import envfleet
from envfleet.cli.train import Train
from envfleet.testing import assert_same
from envfleet.training import command
from envfleet.training.config import RunOptions, TrainConfig
from envfleet.training.folder import RunRecord
from envfleet.training.trainer import Run
from envfleet.training.trust import UntrustedError

SMALL = {"num_envs": 2, "rollout_steps": 32, "epochs": 1, "total_steps": 320}


class Counting(SyncVectorEnv):
    """An engine with an option of its own."""

    def __init__(self, env_fns, copy=True, autoreset_mode="NextStep", *, start=0):
        super().__init__(env_fns, copy=copy, autoreset_mode=autoreset_mode)
        self.steps = start

    def step(self, actions):
        self.steps += self.num_envs
        return super().step(actions)


NAME = f"{__name__}:Counting"


@pytest.fixture
def counting(monkeypatch):
    """Counting, registered by one line."""
    monkeypatch.setitem(envfleet.ENGINES, "counting", Counting)
    return "counting"


def rows(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if not k.startswith("time")} for line in lines
    ]


@pytest.mark.parametrize("backend", ["counting", NAME])
def test_make_builds_an_engine_that_was_added(counting, backend):
    assert counting in envfleet.ENGINES
    own = envfleet.make("Pendulum-v1", 3, backend=backend, start=10, g=5.0)
    ours = envfleet.make("Pendulum-v1", 3, backend="serial", g=5.0)
    with closing(own), ours:
        assert_same(own.reset(seed=1), ours.reset(seed=1))
        actions = ours.action_space.sample()
        assert_same(own.step(actions), ours.step(actions))
        assert type(own) is Counting
        assert own.steps == 13
        assert own.spec.id == "Pendulum-v1"


def test_a_run_trains_on_it_as_on_any_other(counting, tmp_path):
    result = envfleet.train("CartPole-v1", run_dir=tmp_path, name="own", backend=counting, **SMALL)
    plan = json.loads((result.folder / "plan.json").read_text())
    assert plan == {"backend": "Counting", "reason": "not an engine of envfleet's"}
    assert "<td>Counting</td>" in (result.folder / "report.html").read_text()
    serial = envfleet.train("CartPole-v1", run_dir=tmp_path, name="s", backend="serial", **SMALL)
    assert rows(result.folder) == rows(serial.folder)
    del envfleet.ENGINES[counting]
    assert envfleet.load(result.folder).act([0.0] * 4) in (0, 1)  # which needs no engine
    with pytest.raises(ValueError, match="got 'counting'"):
        Run.resume(result.folder, total_steps=640)


def test_an_engine_by_its_module_needs_trust_to_resume(tmp_path):
    folder = envfleet.train("CartPole-v1", run_dir=tmp_path, backend=NAME, **SMALL).folder
    with pytest.raises(UntrustedError, match=f"'{__name__}' for its engine .*--trust"):
        Run.resume(folder, total_steps=640)
    with Run.resume(folder, total_steps=640, trust=True) as run:
        assert run.train()
        assert type(run.collector.envs) is Counting
    envs = envfleet.make("CartPole-v1", 2, backend="serial", autoreset_mode="SameStep")
    with envs, Run.resume(folder, total_steps=960, env=envs) as run:  # imports nothing
        assert run.train()
    assert envfleet.load(folder).act([0.0] * 4) in (0, 1)


def test_the_commands_to_paste_ask_for_trust_where_the_engine_is_needed(tmp_path):
    record = RunRecord(TrainConfig(), RunOptions(backend=NAME))
    assert command.of_run("resume", tmp_path, record).endswith(" --trust")
    assert not command.of_run("eval", tmp_path, record).endswith(" --trust")


def test_an_env_with_a_batched_implementation_is_trained_on_it(tmp_path):
    options = {"run_dir": tmp_path, "backend": "native", **SMALL}
    result = envfleet.train("CartPole-v1", env_kwargs={"sutton_barto_reward": True}, **options)
    plan = json.loads((result.folder / "plan.json").read_text())
    assert plan["native"].endswith(":CartPoleVectorEnv")
    assert result.statistics.window.returns.mean == -1.0  # the argument has reached it
    with pytest.raises(ValueError, match="has no native implementation"):
        envfleet.train("Pendulum-v1", **options)
    with pytest.raises(ValueError, match="lost life"):
        envfleet.train("ALE/Pong-v5", **options)
    with pytest.raises(ValueError, match="isolate=True forbids backend='native'"):
        envfleet.train("CartPole-v1", on_failure="restart", **options)
    with pytest.raises(ValueError, match="no single envs to wrap"):
        envfleet.train("CartPole-v1", wrappers=["gymnasium.wrappers:FlattenObservation"], **options)


@pytest.mark.parametrize(
    ("backend", "error", "text"),
    [
        ("proces", ValueError, "Did you mean 'process'"),
        (
            "threads",
            ValueError,
            "'auto', 'serial', 'process', 'ray', 'native' or 'module:callable'",
        ),
        ("no_such_module:Engine", ImportError, "backend='no_such_module:Engine': No module"),
        (f"{__name__}:Nothing", ValueError, f"module {__name__} has no 'Nothing'"),
        (f"{__name__}:SMALL", TypeError, "SMALL is of type dict: it must build fleets"),
        ("not a module:Engine", ValueError, "got 'not a module:Engine'"),
        (f"{__name__}:dict_of", TypeError, "must build a gymnasium.vector.VectorEnv, not a dict"),
    ],
)
def test_what_is_no_engine_is_refused_by_name(backend, error, text, tmp_path, capsys):
    with pytest.raises(error, match=None) as caught:
        envfleet.make("CartPole-v1", 2, backend=backend)
    assert text in str(caught.value)
    options = {"run_dir": tmp_path, "num_envs": 2, "quiet": True}
    assert Train.of("CartPole-v1", backend=backend, **options).run() == 2
    assert text in capsys.readouterr().err
    assert not list(tmp_path.rglob("*"))


def dict_of(env_fns, **options):
    return {"env_fns": env_fns, **options}


def test_isolation_is_what_an_engine_has_to_promise(monkeypatch, counting):
    with pytest.raises(ValueError, match="it may run envs in this process"):
        envfleet.make("CartPole-v1", 2, backend=counting, isolate=True)
    monkeypatch.setattr(Counting, "isolates", True, raising=False)
    with closing(envfleet.make("CartPole-v1", 2, backend=counting, isolate=True)) as envs:
        assert type(envs) is Counting


def test_options_that_an_engine_does_not_have_are_refused(counting):
    with pytest.raises(TypeError, match="backend='counting' has no option workers"):
        envfleet.make("CartPole-v1", 2, backend=counting, workers=2)


def test_ray_says_where_the_envs_are_and_is_not_given_twice():
    assert RunOptions(backend="ray", ray="auto").ray == "auto"
    with pytest.raises(ValueError, match="leave out backend, or actors"):
        RunOptions(backend="ray", actors=2)
    with pytest.raises(ValueError, match="how many actors to start there"):
        RunOptions(ray="auto")


def test_the_help_lists_what_there_is():
    words = [sys.executable, "-m", "envfleet", "train", "CartPole-v1", "--help"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert f"--backend auto|{'|'.join(envfleet.ENGINES)}|native" in said


def test_engines_are_known_by_name_without_their_packages():
    code = "import sys, envfleet; assert 'ray' in envfleet.ENGINES; assert 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_run_is_configured_before_its_engine_is_looked_for(tmp_path):
    with pytest.raises(ValueError, match="got 'counting'"):
        Run.start(tmp_path / "a", TrainConfig(), RunOptions(backend="counting"))
    assert not (tmp_path / "a").exists()
    assert gym.spec("CartPole-v1").vector_entry_point  # what native relies on
