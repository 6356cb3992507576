"""The command line: train, resume, eval and record, what they refuse, and signals."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import termios
import time
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from envfleet.cli.main import main
from envfleet.cli.train import Eval, Record, Resume, Train
from envfleet.track.files import FileTracker
from envfleet.train import checkpoint as checkpoints
from envfleet.train.run import Run, RunOptions
from train_envs import QUICK
from waiting import wait_until


def envfleet_command(*words, cwd):
    command = [sys.executable, "-m", "envfleet", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    done = envfleet_command(
        *("train", "CartPole-v1", "--total-steps", 3000, "--name", "a", "--backend", "serial"),
        *("--record-every", 2000, "--checkpoint-every", 4),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"3,\d+ of 3,000 steps, [\d,]+/s, return \d+/\d+/\d+ .*, 0 s left", done.stdout
    )
    assert "finished, 3," in done.stdout
    split = r"s of training: env \d+%, policy .*, films .*, collector .*, update .*, other"
    assert re.search(split, done.stdout)
    return folder / "runs/CartPole-v1/a"


def test_training_leaves_a_folder_to_look_at(trained):
    names = {path.name for path in trained.iterdir()}
    wanted = {"config.json", "metrics.csv", "metrics.jsonl", "checkpoints", "renders", "curve.png"}
    assert names >= wanted
    assert list((trained / "renders").glob("render_*.gif"))


def test_a_run_is_evaluated_and_filmed(trained, capsys, monkeypatch):
    monkeypatch.chdir(trained)
    assert Eval(trained, episodes=5, json=True).run() == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["returns"]) == 5
    assert result["mean"] == pytest.approx(np.mean(result["returns"]))
    assert Record(trained, path=Path("film.mp4")).run() == 0
    assert capsys.readouterr().out == "film.mp4\n"
    assert (trained / "film.mp4").stat().st_size > 1000


REFUSED = {
    ("train", "CartPol-v1"): "Did you mean CartPole-v1",
    ("train", "CartPole-v1", "--gamma", "3"): "gamma must be between 0 and 1",
    ("train", "Acrobot-v1", "--preset", "fast"): "no preset 'fast' for Acrobot-v1",
    ("train", "no_module:thing"): "No module named 'no_module'",
    ("resume", "nowhere"): "nowhere is no run",
    ("eval", "nowhere"): "nowhere is no run",
    ("eval", "nowhere", "--episodes", "0"): "must be 1 or more",
}


def test_what_cannot_be_done_is_said_with_exit_code_2(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    first, *others = REFUSED
    done = envfleet_command(*first, cwd=tmp_path)  # a process has an exit code
    ends = [(first, done.returncode, done.stderr)]
    for words in others:
        monkeypatch.setattr(sys, "argv", ["envfleet", *words])
        with pytest.raises(SystemExit) as end:
            main()
        ends.append((words, end.value.code, capsys.readouterr().err))
    for words, code, said in ends:
        assert REFUSED[words] in said
        assert "Traceback" not in said
        assert code == 2
    assert not list(tmp_path.iterdir())


def refused(command, capsys):
    assert command.run() == 2
    return capsys.readouterr().err


def test_what_cannot_be_done_leaves_nothing_behind(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    assert "without slashes" in refused(Train("CartPole-v1", name="../x"), capsys)
    assert "Not a directory" in refused(Train("CartPole-v1", run_dir=Path("file")), capsys)
    assert "seed must be below" in refused(Train("CartPole-v1", seed=2**64), capsys)
    assert "a finite number" in refused(Train("CartPole-v1", learning_rate=math.inf), capsys)
    assert "device 'nothing' cannot be used" in refused(
        Train("CartPole-v1", device="nothing"), capsys
    )
    assert "without slashes" in refused(Train("CartPole-v1", name=".."), capsys)
    assert "give no pictures" in refused(Train("train_envs:unseen", record_every=9), capsys)
    assert "no reward threshold" in refused(Train("Pendulum-v1", until_solved=True), capsys)
    assert "takes Discrete" in refused(Train("train_envs:integers"), capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ("Crashing", r"was killed by SIGABRT in render\(\).*MUJOCO_GL=egl"),
        ("Unseeable", r"pip install 'envfleet\[train\]'"),
        ("Failing", "constructor takes render_mode='rgb_array'"),
    ],
)
def test_a_run_that_could_not_be_filmed_does_not_begin(tmp_path, capsys, monkeypatch, env, text):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    # In this process, which a crash must not end.
    command = Train(f"train_envs:{env}", record_every=9, backend="serial")
    (said,) = refused(command, capsys).splitlines()
    assert re.search(text, said)
    assert not list(tmp_path.iterdir())


def test_a_run_that_cannot_be_filmed_any_more_is_left_as_it_is(trained, tmp_path, capsys):
    gymnasium.register("Crashing-v0", "train_envs:Crashing")
    shutil.copytree(trained, tmp_path / "run")
    path = tmp_path / "run/config.json"
    path.write_text(path.read_text().replace("CartPole-v1", "Crashing-v0"))
    before = sorted(tmp_path.rglob("*"))
    try:
        for command in (Record(tmp_path / "run"), Resume(tmp_path / "run")):
            assert "killed by SIGABRT in render()" in refused(command, capsys)
    finally:
        del gymnasium.registry["Crashing-v0"]
    assert sorted(tmp_path.rglob("*")) == before


def test_what_cannot_be_read_is_refused(trained, tmp_path, capsys):
    shutil.copytree(trained, tmp_path / "run")
    assert "no checkpoint 'x'" in refused(Eval(tmp_path / "run", checkpoint="x"), capsys)
    assert "seed must be 0 or more" in refused(Eval(tmp_path / "run", seed=-1), capsys)
    assert "scale must be above 0" in refused(Record(tmp_path / "run", scale=0.0), capsys)
    with FileTracker(tmp_path / "run"):
        assert "another tracker is writing" in refused(Resume(tmp_path / "run"), capsys)
    (tmp_path / "run/config.json").write_text('{"config": ')
    assert "config.json says nothing that can be used" in refused(Eval(tmp_path / "run"), capsys)


def test_a_run_with_restarts_is_evaluated_too(tmp_path, capsys):
    config = replace(QUICK["cartpole"], total_steps=500)
    with Run.start(tmp_path, config, RunOptions(on_failure="restart")) as run:
        assert run.train()
    assert Eval(tmp_path, episodes=3, checkpoint="best").run() == 0
    assert "over 3 episodes" in capsys.readouterr().out


def test_envs_of_the_current_folder_are_trained_and_tracked(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import gymnasium\n\ndef cart(**kwargs): return gymnasium.make('CartPole-v1', **kwargs)\n"
    )
    done = envfleet_command(
        *("train", "mine:cart", "--total-steps", 64, "--steps", 16, "--num-envs", 2),
        *("--track", "tensorboard", "--name", "a"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "runs/mine_cart/a/tensorboard").iterdir())


def test_training_goes_on_when_nobody_listens(tmp_path):
    command = [sys.executable, "-m", "envfleet", "train", "CartPole-v1", "--name", "a"]
    command += ["--total-steps", "2000", "--backend", "serial"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 0
    assert checkpoints.everyone(tmp_path / "runs/CartPole-v1/a/checkpoints")


def test_a_terminal_has_a_bar(tmp_path):
    command = [sys.executable, "-m", "envfleet", "train", "CartPole-v1", "--name", "a"]
    command += ["--total-steps", "2000", "--backend", "serial"]
    inside, outside = pty.openpty()
    termios.tcsetwinsize(outside, (24, 120))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=outside, cwd=tmp_path)
    os.close(outside)
    seen = b""
    with contextlib.suppress(OSError):  # how the end of a terminal is told
        while part := os.read(inside, 4096):
            seen += part
    os.close(inside)
    assert process.wait() == 0
    assert re.search(rb"Training: 100%.* 2000/2000 .*step/s, return \d+/\d+/\d+", seen)


def test_nobody_listens_to_an_evaluation(trained):
    command = [sys.executable, "-m", "envfleet", "eval", str(trained), "--episodes", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_the_run_can_be_resumed(tmp_path, number, code):
    process, folder = started(tmp_path)
    process.send_signal(number)
    assert "stopped; go on with: envfleet resume" in process.communicate(timeout=60)[0]
    assert process.returncode == code
    (saved,) = checkpoints.everyone(folder / "checkpoints")
    assert checkpoints.load(saved).step < 20_000
    with Run.resume(folder) as run:
        assert run.train()
    assert checkpoints.everyone(folder / "checkpoints")[-1].name == "step_000000020224"


def started(tmp_path, name="metrics.jsonl", *words):
    """A run that has written something to this file."""
    command = [sys.executable, "-m", "envfleet", "train", "CartPole-v1", "--name", "a"]
    command += ["--total-steps", "20000", "--backend", "serial", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, **pipes, text=True, cwd=tmp_path)
    folder = tmp_path / "runs/CartPole-v1/a"
    with killed_if_it_fails(process):
        wait_until(lambda: (folder / name).exists() and (folder / name).stat().st_size)
    return process, folder


@contextlib.contextmanager
def killed_if_it_fails(process):
    try:
        yield
    except AssertionError:
        process.kill()
        process.communicate()
        raise


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_second_signal_ends_at_once(tmp_path, number, code):
    process, folder = started(tmp_path, "config.json", "--epochs", "1000000")

    def ends():  # the first one waits for the end of an update
        process.send_signal(number)
        time.sleep(0.1)
        return process.poll() is not None

    with killed_if_it_fails(process):
        wait_until(ends)
    assert process.returncode in (code, -number)  # it may come before there is somebody to hear it
    assert process.communicate()[1] == ("interrupted\n" if code == 130 else "")
    assert not (folder / "checkpoints").exists()
