"""Training from Python: train, load, callbacks, evaluation meanwhile, notebooks."""

from __future__ import annotations

import _thread
import json
import signal
import sys
import threading
from functools import partial
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import envfleet
from envfleet.rollout import progress as bars
from envfleet.testing import Fault, FaultEnv
from envfleet.training import checkpoint as checkpoints
from envfleet.training.config import RunOptions, TrainConfig
from envfleet.training.envs import UnknownEnvError
from envfleet.training.folder import RunRecord
from envfleet.training.loading import TrainedPolicy
from envfleet.training.policy import Policy
from envfleet.training.progress import LineProgress, Progress
from envfleet.training.trainer import Run
from envfleet.training.trust import UntrustedError
from train_envs import OnUpdate

SMALL = {"total_steps": 640, "num_envs": 2, "rollout_steps": 32, "epochs": 1, "backend": "serial"}
CONFIG = TrainConfig(num_envs=2, rollout_steps=32, epochs=1, total_steps=640)


def rows(folder, without=("time",)):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if not k.startswith(without)} for line in lines
    ]


# train and load


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("api")
    return envfleet.train("CartPole-v1", run_dir=folder, name="a", seed=3, **SMALL)


def test_training_leaves_what_the_command_leaves(result):
    assert result.is_finished
    record = RunRecord.read(result.folder)
    assert (record.config.seed, record.config.gamma) == (3, 0.98)  # the zoo's
    assert result.folder.parts[-2:] == ("CartPole-v1", "a")
    assert result.statistics.count > 0
    assert checkpoints.list_checkpoints(result.folder / "checkpoints")[-1].name.endswith("640")
    assert (result.folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert "CartPole-v1" in (result.folder / "report.html").read_text("utf-8")


@pytest.mark.parametrize("name", ["", "..", "a/b"])
def test_a_run_cannot_be_named_like_another_folder(tmp_path, name):
    with pytest.raises(ValueError, match="without slashes"):
        envfleet.train("CartPole-v1", run_dir=tmp_path / "runs", name=name, **SMALL)
    assert not list(tmp_path.iterdir())


def test_a_loaded_policy_is_the_trained_one(result):
    loaded = envfleet.load(result.folder)
    for one, other in zip(
        loaded.module.parameters(), result.policy.module.parameters(), strict=True
    ):
        assert torch.equal(one, other)
    best = envfleet.load(result.folder, "best")
    name = checkpoints.list_checkpoints(result.folder / "checkpoints")[-1].name
    named = envfleet.load(str(result.folder), name)
    seen = np.ones((5, 4), np.float32)
    assert (named.act(seen, deterministic=True) == loaded.act(seen, deterministic=True)).all()
    assert best.act(seen).shape == (5,)
    with pytest.raises(checkpoints.CheckpointError, match="no checkpoint 'x'"):
        envfleet.load(result.folder, "x")
    with pytest.raises(FileNotFoundError, match="is not a run folder"):
        envfleet.load(result.folder.parent)


def test_evaluate_record_and_collect_take_a_policy(result, tmp_path):
    with envfleet.make("CartPole-v1", 2, backend="serial", render_mode="rgb_array") as envs:
        played = envfleet.evaluate(result.policy, envs, 3, seed=1)
        assert (
            played.returns.tolist()
            == envfleet.evaluate(result.policy.module, envs, 3, seed=1).returns.tolist()
        )
        path = envfleet.record_agent(result.policy, envs, steps=3, path=tmp_path / "a.gif")
        assert path.stat().st_size > 1000
        rollout = envfleet.Collector(envs, result.policy, 4).collect()
    assert rollout.log_probs.isfinite().all()


ACTIONS = {
    "discrete": spaces.Discrete(3, start=5),
    "box": spaces.Box(-0.1, 0.1, (2,), np.float32),
    "bits": spaces.MultiBinary(3),
}
OBSERVATIONS = {
    "vector": spaces.Box(-1, 1, (4,), np.float64),
    "image": spaces.Box(0, 255, (40, 40, 3), np.uint8),
    "number": spaces.Discrete(4),
    "nested": spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Tuple([spaces.Discrete(3)])),
}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("seen", OBSERVATIONS)
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_policy_acts_on_one_observation_and_on_batches(seen, action, deterministic):
    space, actions = OBSERVATIONS[seen], ACTIONS[action]
    space.seed(0)
    policy = TrainedPolicy(Policy(space, actions), space, actions)
    one = space.sample()
    chosen = policy.act(one, deterministic=deterministic)
    assert actions.contains(chosen)
    fleet = gym.vector.utils.batch_space(space, 3)
    fleet.seed(0)
    batch = policy.act(fleet.sample(), deterministic=deterministic)
    assert isinstance(batch, np.ndarray)
    assert gym.vector.utils.batch_space(actions, 3).contains(batch)
    if seen in ("vector", "image"):
        torched = policy.act(torch.as_tensor(one)[None], deterministic=deterministic)
        assert isinstance(torched, torch.Tensor)
        assert tuple(torched.shape) == (1, *actions.shape)
        if deterministic:
            assert np.array_equal(torched[0].numpy(), chosen)
        with pytest.raises(ValueError, match="neither one nor a batch"):
            policy.act(np.zeros((2, 2, 2), np.float32))


def test_the_order_of_an_observations_keys_does_not_matter():
    inner = spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Box(-1, 1, (3,)))
    space = spaces.Dict(near=inner, width=spaces.Discrete(4))
    policy = TrainedPolicy(Policy(space, spaces.Discrete(9)), space, spaces.Discrete(9))
    torch.nn.init.normal_(policy.module.actor[-1].weight)
    fleet = gym.vector.utils.batch_space(space, 20)
    for sampled in (space, fleet):
        sampled.seed(0)
        seen = sampled.sample()
        near = {"b": seen["near"]["b"], "a": seen["near"]["a"]}
        other = {"width": seen["width"], "near": near}
        chosen = policy.act(other, deterministic=True)
        assert np.array_equal(chosen, policy.act(seen, deterministic=True))
        for wrong in ({"near": near}, {**other, "more": np.zeros(2)}, {**other, "near": {}}):
            with pytest.raises(ValueError, match="neither one nor a batch"):
                policy.act(wrong)


class Cart(gym.Wrapper):
    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))


@pytest.mark.parametrize("kind", ["callable", "lambda", "spec", "fleet", "their fleet"])
def test_envs_may_be_given_in_any_form(tmp_path, kind):
    fleets = []
    if kind == "fleet":
        fleets = [envfleet.make("CartPole-v1", 2, backend="serial")]
    elif kind == "their fleet":
        fleets = [gym.vector.SyncVectorEnv([Cart] * 2)]
    env = {
        "callable": Cart,
        "lambda": lambda: gym.make("CartPole-v1"),
        "spec": gym.spec("CartPole-v1"),
    }.get(kind, *fleets)
    done = envfleet.train(env, run_dir=tmp_path, **SMALL)
    assert rows(done.folder)[-1]["step"] >= 600  # next-step autoreset has rows that are no steps
    for fleet in fleets:
        fleet.reset()  # it is still open
        assert envfleet.load(done.folder, env=fleet).act(np.zeros(4, np.float32)) in (0, 1)
        fleet.close()
    if kind == "callable":
        assert RunRecord.read(done.folder).config.env_id == "test_train_api:Cart"
        with pytest.raises(UntrustedError, match="trust=True"):
            envfleet.load(done.folder)
        assert envfleet.load(done.folder, trust=True).act(np.zeros(4, np.float32)) in (0, 1)
    if kind == "lambda":
        with pytest.raises(UnknownEnvError, match="pass env="):
            envfleet.load(done.folder)
        assert envfleet.load(done.folder, env=env).act(np.zeros(4, np.float32)) in (0, 1)
        with Run.resume(done.folder, env=env, total_steps=800) as run:
            assert run.train()


def test_slow_envs_hold_nobody_up_and_the_progress_says_how_they_flow(tmp_path, capsys):
    options = SMALL | {"backend": "process", "num_envs": 4, "min_envs": 2}
    run = envfleet.train("CartPole-v1", run_dir=tmp_path, **options)
    assert run.is_finished
    batches = [row["flow/mean_batch"] for row in rows(run.folder)]
    assert all(2 <= size <= 4 for size in batches)
    LineProgress(640, 0).update(640, rows(run.folder)[-1])
    assert f", {batches[-1]:.1f} envs at a time" in capsys.readouterr().out
    assert "Flow: mean batch" in (run.folder / "report.html").read_text()


def test_what_is_no_hyper_parameter_is_refused(tmp_path):
    with pytest.raises(TypeError, match=r"no hyper-parameters: lr; there are: .*learning_rate"):
        envfleet.train("CartPole-v1", run_dir=tmp_path, lr=3)
    with pytest.raises(TypeError, match="is not a callback"):
        envfleet.train("CartPole-v1", run_dir=tmp_path, callbacks=[object()])
    assert not list(tmp_path.glob("*/*"))


# Callbacks


def test_callbacks_are_told_in_order_and_end_a_run_after_saving(tmp_path):
    told = []

    class Listener:
        def on_rollout(self, run, rollout):
            told.append(("rollout", rollout.steps, run.updates))

        def on_update(self, run, metrics):
            told.append(("update", run.steps, metrics["updates"]))

        def on_checkpoint(self, run, path):
            told.append(("checkpoint", path.name))
            assert checkpoints.load(path).step == run.steps

    options = {"checkpoint_every": 2, "callbacks": [Listener()]}
    stop = OnUpdate(lambda run, metrics: run.updates < 3)
    options["callbacks"].append(stop)
    done = envfleet.train("CartPole-v1", run_dir=tmp_path, **SMALL, **options)
    assert not done.is_finished
    assert told == [
        ("rollout", 64, 0),
        ("update", 64, 1),
        ("rollout", 64, 1),
        ("update", 128, 2),
        ("checkpoint", "step_000000000128"),
        ("rollout", 64, 2),
        ("update", 192, 3),
        ("checkpoint", "step_000000000192"),
    ]
    with Run.resume(done.folder) as run:
        assert run.steps == 192
        assert run.train()


@pytest.mark.parametrize("answer", [False, np.False_], ids=["Python's", "NumPy's"])
@pytest.mark.parametrize(("name", "step"), [("on_rollout", 64), ("on_checkpoint", 128)])
def test_every_callback_can_end_a_run(tmp_path, name, step, answer):
    stop = SimpleNamespace(**{name: lambda *_: answer})
    options = {"checkpoint_every": 2, "callbacks": [stop]}
    done = envfleet.train("CartPole-v1", run_dir=tmp_path, **SMALL, **options)
    assert not done.is_finished
    (saved,) = checkpoints.list_checkpoints(done.folder / "checkpoints")
    assert checkpoints.load(saved).step == step


# resume


def test_a_run_that_a_callback_ended_is_resumed_exactly(tmp_path):
    options = SMALL | {"run_dir": tmp_path, "checkpoint_every": 2}
    whole = envfleet.train("CartPole-v1", name="whole", **options)
    stop = SimpleNamespace(on_checkpoint=lambda run, path: run.steps < 256)
    cut = envfleet.train("CartPole-v1", name="cut", callbacks=[stop], **options)
    assert not cut.is_finished
    (cut.folder / "report.html").unlink()
    told = []
    listener = OnUpdate(lambda run, metrics: told.append(run.steps))
    done = envfleet.resume(str(cut.folder), callbacks=[listener])
    assert done.is_finished
    assert told == list(range(320, 641, 64))
    assert rows(done.folder) == rows(whole.folder)
    assert done.statistics.window == whole.statistics.window
    assert (done.folder / "report.html").exists()
    for one, other in zip(
        done.policy.module.parameters(), whole.policy.module.parameters(), strict=True
    ):
        assert torch.equal(one, other)


def test_resume_makes_a_run_longer_and_goes_back_to_a_checkpoint(tmp_path, capsys):
    options = SMALL | {"run_dir": tmp_path, "checkpoint_every": 2, "total_steps": 256}
    folder = envfleet.train("CartPole-v1", **options).folder
    before = rows(folder)
    assert envfleet.resume(folder).is_finished  # there is nothing left to do
    assert rows(folder) == before
    assert envfleet.resume(folder, total_steps=384, progress=True).is_finished
    assert "384" in capsys.readouterr().out
    assert [row["step"] for row in rows(folder)] == list(range(64, 385, 64))
    again = envfleet.resume(
        folder,
        checkpoint="step_000000000128",
        callbacks=[OnUpdate(lambda run, metrics: False)],
    )
    assert not again.is_finished
    assert [row["step"] for row in rows(folder)] == [64, 128, 192]


def test_resume_imports_what_a_folder_names_only_with_trust(tmp_path):
    folder = envfleet.train(Cart, run_dir=tmp_path, **SMALL).folder
    with pytest.raises(UntrustedError, match="trust=True"):
        envfleet.resume(folder, total_steps=800)
    assert RunRecord.read(folder).config.total_steps == 640
    assert envfleet.resume(folder, total_steps=800, env=Cart).is_finished
    assert envfleet.resume(folder, total_steps=1000, trust=True).is_finished


def test_a_run_that_reached_stop_at_says_why_it_does_not_go_on(tmp_path, caplog):
    options = SMALL | {"run_dir": tmp_path, "stop_at": 1.0, "total_steps": 50_000}
    done = envfleet.train("CartPole-v1", **options)
    steps = rows(done.folder)[-1]["step"]
    assert steps < 50_000
    assert not caplog.records
    assert envfleet.resume(done.folder, total_steps=60_000).is_finished
    assert rows(done.folder)[-1]["step"] == steps
    (record,) = caplog.records
    assert "reached stop_at" in record.message
    config = done.folder / "config.json"
    assert f'set "stop_at" in {config} higher, or to null' in record.message
    config.write_text(config.read_text().replace('"stop_at": 1.0', '"stop_at": null'))
    assert envfleet.resume(done.folder, total_steps=steps + 64).is_finished
    assert rows(done.folder)[-1]["step"] == steps + 64


# Evaluation while training


def test_evaluation_marks_the_best_and_disturbs_nothing(tmp_path):
    options = RunOptions(backend="serial", eval_every=2, eval_episodes=3, keep=20)
    with Run.start(tmp_path / "whole", CONFIG, options) as run:
        assert run.train()
    whole = rows(tmp_path / "whole")
    scores = {row["step"]: row["eval/return_mean"] for row in whole if "eval/return_mean" in row}
    assert list(scores) == [128, 256, 384, 512, 640]
    best = checkpoints.best_of(tmp_path / "whole/checkpoints")
    assert scores[checkpoints.load(best).step] == max(scores.values())

    class StopError(BaseException):
        pass

    def stop(run, metrics):
        if run.steps > 450:
            raise StopError

    stopped = Run.start(tmp_path / "cut", CONFIG, options, callbacks=[OnUpdate(stop)])
    with stopped as run, pytest.raises(StopError):
        run.train()
    with Run.resume(tmp_path / "cut") as run:
        assert run.steps == 384
        assert run.train()
    assert rows(tmp_path / "cut") == whole
    # The same checkpoints without evaluation: the same training.
    plain = RunOptions(backend="serial", checkpoint_every=2, keep=20)
    with Run.start(tmp_path / "plain", CONFIG, plain) as run:
        assert run.train()
    assert rows(tmp_path / "plain") == rows(tmp_path / "whole", ("time", "eval"))


def test_a_fleet_cannot_be_evaluated_in_envs_of_its_own(tmp_path):
    with envfleet.make("CartPole-v1", 2, backend="serial") as envs:
        with pytest.raises(TypeError, match="eval_every needs envs of its own"):
            envfleet.train(envs, run_dir=tmp_path, eval_every=1, **SMALL)
        envs.reset()


# Signals, threads, notebooks


def test_another_thread_may_train(tmp_path):
    done = []

    def train():
        done.append(envfleet.train("CartPole-v1", run_dir=tmp_path, **SMALL))

    handler = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert done[0].is_finished
    assert signal.getsignal(signal.SIGINT) is handler


def test_ctrl_c_saves_and_is_raised(tmp_path):
    def interrupt(run, metrics):
        if run.updates == 3:
            _thread.interrupt_main(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        envfleet.train(
            "CartPole-v1", run_dir=tmp_path, name="a", callbacks=[OnUpdate(interrupt)], **SMALL
        )
    assert envfleet.load(tmp_path / "CartPole-v1/a").act(np.zeros(4, np.float32)) in (0, 1)
    with Run.resume(tmp_path / "CartPole-v1/a") as run:
        assert run.updates >= 3
        assert run.train()


def test_ctrl_c_before_the_training_leaves_no_checkpoint(tmp_path):
    class Interrupted(Progress):
        def __enter__(self):  # no handler is there yet
            signal.raise_signal(signal.SIGINT)

    place = tmp_path / "a"
    with Run.start(place, CONFIG) as run, pytest.raises(KeyboardInterrupt):
        run.train(Interrupted())
    assert not (place / "checkpoints").exists()
    with Run.resume(place) as run:
        assert run.steps == 0


def test_a_run_that_ends_in_an_exception_has_a_report_too(tmp_path):
    class Bug(envfleet.Callback):
        def on_update(self, run, metrics):
            if run.updates == 3:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        envfleet.train("CartPole-v1", run_dir=tmp_path, name="a", callbacks=[Bug()], **SMALL)
    assert (tmp_path / "CartPole-v1/a/report.html").exists()


@pytest.fixture
def hanging(tmp_path):
    """Builds envs of which one hangs, once, in its fiftieth step."""
    fault = Fault("hang", at=50, once=str(tmp_path / "has hung"))
    return partial(FaultEnv, {"step": fault}, length=10)


SOON = SMALL | {"backend": "process", "step_timeout": 3.0}


def test_an_env_that_hangs_is_replaced(tmp_path, hanging):
    result = envfleet.train(hanging, run_dir=tmp_path, on_failure="restart", **SOON)
    assert result.is_finished
    restarts = [row["restarts"] for row in rows(result.folder)]
    assert (restarts[0], restarts[-1]) == (0.0, 1.0)


def test_an_env_that_hangs_ends_the_run_with_what_was_learnt(tmp_path, hanging):
    with pytest.raises(envfleet.WorkerDied, match=r"no answer within 3\.0 s"):
        envfleet.train(hanging, run_dir=tmp_path, name="a", **SOON)
    (folder,) = tmp_path.glob("*/a")
    (saved,) = checkpoints.list_checkpoints(folder / "checkpoints")
    assert saved.name == "step_000000000064"


def test_with_a_time_out_no_env_runs_in_the_callers_process(tmp_path):
    words = SMALL | {"backend": "auto", "eval_every": 5, "eval_episodes": 2}
    result = envfleet.train("CartPole-v1", run_dir=tmp_path, step_timeout=60.0, **words)
    assert result.is_finished
    plan = json.loads((result.folder / "plan.json").read_text())
    assert (plan["backend"], plan["caller_steps"]) == ("process", False)
    with pytest.raises(ValueError, match="backend='serial': it runs envs in this process"):
        envfleet.train("CartPole-v1", run_dir=tmp_path, step_timeout=60.0, **SMALL)


@pytest.fixture
def _notebook(monkeypatch):
    """What IPython shows of itself inside a kernel."""
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))


@pytest.mark.usefixtures("_notebook")
def test_in_a_notebook_no_handler_is_taken_and_an_interrupt_saves(tmp_path):
    before = signal.getsignal(signal.SIGINT)

    class Interrupt(envfleet.Callback):
        def on_rollout(self, run, rollout):
            assert signal.getsignal(signal.SIGINT) is before
            if run.updates == 3:
                raise KeyboardInterrupt  # as the kernel's handler does, at any moment

    assert bars.in_notebook()
    with pytest.raises(KeyboardInterrupt):
        envfleet.train(
            "CartPole-v1",
            run_dir=tmp_path,
            name="a",
            callbacks=[Interrupt()],
            progress=False,
            **SMALL,
        )
    with Run.resume(tmp_path / "CartPole-v1/a") as run:
        assert run.updates == 3
        assert run.train()
