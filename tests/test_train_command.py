"""The command line: train, resume, eval and record, what they refuse, and signals."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import termios
import time
from dataclasses import asdict, fields, replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from PIL import Image

import envfleet
from envfleet.cli.eval import Eval
from envfleet.cli.main import main
from envfleet.cli.record import Record
from envfleet.cli.resume import Resume
from envfleet.cli.train import Train
from envfleet.rollout.numbers import three_digits
from envfleet.track.files import FileTracker
from envfleet.training import checkpoint as checkpoints
from envfleet.training.config import RunOptions, TrainConfig
from envfleet.training.folder import RunRecord
from envfleet.training.presets import preset
from envfleet.training.trainer import Run, finished
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
    returns = r"return [\d.]+/[\d.]+/[\d.]+"
    assert re.search(
        rf"^3,072 of 3,072 steps, [\d,]+/s, {returns} \(5/50/95 %\), 0 s left",
        done.stdout,
        re.MULTILINE,
    )
    assert ": finished, 3,072 steps in " in done.stdout
    split = r"s of training: env \d+%, policy .*, videos .*, collector .*, update .*, other"
    assert re.search(split, done.stdout)
    return folder / "runs/CartPole-v1/a"


def test_training_leaves_a_folder_to_look_at(trained):
    names = {path.name for path in trained.iterdir()}
    wanted = {"config.json", "metrics.csv", "metrics.jsonl", "checkpoints", "renders", "curve.png"}
    wanted |= {"plan.json", "report.html"}
    assert names >= wanted
    assert list((trained / "renders").glob("render_*.gif"))


def test_a_run_is_evaluated_and_recorded(trained, capsys, monkeypatch):
    monkeypatch.chdir(trained)
    assert Eval(trained, episodes=5, json=True).run() == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["returns"]) == 5
    assert result["mean"] == pytest.approx(np.mean(result["returns"]))
    assert Record(trained, path=Path("video.mp4")).run() == 0
    assert capsys.readouterr().out == "video.mp4\n"
    assert (trained / "video.mp4").stat().st_size > 1000


REFUSED = {
    ("train", "CartPol-v1"): "Did you mean CartPole-v1",
    ("train", "CartPole-v1", "--gamma", "3"): "gamma must be between 0 and 1",
    ("train", "Acrobot-v1", "--preset", "fast"): "no preset 'fast' for Acrobot-v1",
    ("train", "no_module:thing"): "No module named 'no_module'",
    ("resume", "nowhere"): "nowhere is not a run folder",
    ("eval", "nowhere"): "nowhere is not a run folder",
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
    assert "without slashes" in refused(Train.of("CartPole-v1", name="../x"), capsys)
    assert "Not a directory" in refused(Train.of("CartPole-v1", run_dir=Path("file")), capsys)
    assert "seed must be below" in refused(Train.of("CartPole-v1", seed=2**64), capsys)
    assert "a finite number" in refused(Train.of("CartPole-v1", learning_rate=math.inf), capsys)
    assert "device 'nothing' cannot be used" in refused(
        Train.of("CartPole-v1", device="nothing"), capsys
    )
    assert "without slashes" in refused(Train.of("CartPole-v1", name=".."), capsys)
    assert "give no images" in refused(Train.of("train_envs:unseen", record_every=9), capsys)
    assert "no reward threshold" in refused(Train.of("Pendulum-v1", until_solved=True), capsys)
    assert "takes Discrete" in refused(Train.of("train_envs:integers"), capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ("Crashing", r"was killed by SIGABRT in render\(\).*MUJOCO_GL=egl"),
        ("Unseeable", r"pip install 'envfleet\[train\]'"),
        ("Failing", "constructor takes render_mode='rgb_array'"),
    ],
)
def test_a_run_that_could_not_be_recorded_does_not_begin(tmp_path, capsys, monkeypatch, env, text):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    # In this process, which a crash must not end.
    command = Train.of(f"train_envs:{env}", record_every=9, backend="serial")
    (said,) = refused(command, capsys).splitlines()
    assert re.search(text, said)
    assert not list(tmp_path.iterdir())


def test_a_run_that_cannot_be_recorded_any_more_is_left_as_it_is(trained, tmp_path, capsys):
    gymnasium.register("Crashing-v0", "train_envs:Crashing")
    shutil.copytree(trained, tmp_path / "run")
    path = tmp_path / "run/config.json"
    text = path.read_text().replace("CartPole-v1", "Crashing-v0")
    path.write_text(re.sub('"total_steps": .*,', '"total_steps": 1000000,', text))
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
    first = checkpoints.list_checkpoints(tmp_path / "run/checkpoints")[
        0
    ].name  # the last one is the end
    with FileTracker(tmp_path / "run"):
        command = Resume(tmp_path / "run", checkpoint=first)
        assert "another tracker is writing" in refused(command, capsys)
    (tmp_path / "run/config.json").write_text('{"config": ')
    assert "config.json cannot be used" in refused(Eval(tmp_path / "run"), capsys)


def run_command(*words):
    """The exit code of a command in this process."""
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    return end.value.code


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to give commands in; what they change for their process is undone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    for name in ("PYGAME_HIDE_SUPPORT_PROMPT", "SDL_VIDEODRIVER", "SDL_AUDIODRIVER"):
        monkeypatch.setenv(name, os.environ.get(name, "dummy"))
    return tmp_path


def contents(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_a_finished_run_is_left_alone(trained, tmp_path, here, capsys):
    run = shutil.copytree(trained, tmp_path / "run")
    before = contents(run)
    assert run_command("resume", run, "--track", "tensorboard") == 0
    assert capsys.readouterr().out == f"{run}: already finished, 3,072 steps\n"
    assert contents(run) == before
    first, *_, last = (path.name for path in checkpoints.list_checkpoints(run / "checkpoints"))
    assert finished(run, first) is None  # there is something left to train
    assert finished(run, last) == finished(run) == (3072, None)


def test_a_run_that_reached_its_threshold_says_so(here, capsys):
    gymnasium.register("EasyCart-v0", CartPoleEnv, max_episode_steps=100, reward_threshold=5.5)
    try:
        words = ("--name", "a", "--backend", "serial", "--until-solved", "--num-envs", 8)
        assert run_command("train", "EasyCart-v0", *words) == 0
        told = capsys.readouterr().out
        assert re.search(r": finished, solved \(≥ 5\.50\), [\d,]+ steps in ", told)
        assert run_command("resume", "runs/EasyCart-v0/a", "--total-steps", 10**6) == 0
        how, why = capsys.readouterr().out.splitlines()
        assert re.search(r": already finished, solved \(≥ 5\.50\), [\d,]+ steps$", how)
        assert "has reached stop_at" in why
        assert 'set "stop_at" in runs/EasyCart-v0/a/config.json' in why
    finally:
        gymnasium.registry.pop("EasyCart-v0")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12.34, "12.3"),
        (0.001234, "0.00123"),
        (1234.5, "1,230"),
        (99.96, "100"),
        (-161.4, "-161"),
        (0.5, "0.500"),
        (475, "475"),
        (21.04, "21.0"),
        (-0.0, "0"),
        (1.5e-7, "1.50e-07"),
        (math.nan, "nan"),
    ],
)
def test_numbers_have_three_significant_digits(value, text):
    assert three_digits(value) == text


def test_an_env_that_raises_is_told_with_its_own_lines(here, capsys):
    Path("fails.py").write_text(
        "from train_envs import Failing\n\n\n"
        "class Lost(Failing):\n    def __init__(self):\n        raise OSError('no map')\n"
    )
    for backend in ("serial", "process"):
        words = ("--backend", backend, "--num-envs", 2, "--rollout-steps", 64, "--name", backend)
        assert run_command("train", "fails:Lost", *words) == 1
        told = capsys.readouterr().err
        assert f'File "{here}/fails.py", line 6, in __init__\n' in told
        assert "OSError: no map\nraised by env 0 in construct" in told
        assert "envfleet/" not in told.replace(str(here), "")
        assert not Path("runs").exists()
    assert run_command("train", "train_envs:Failing", *words) == 1
    *_, hint, line = capsys.readouterr().err.splitlines()
    assert hint == "what was learnt is saved; continue with:"
    *words, folder, trust = shlex.split(line)
    assert [*words, trust] == ["envfleet", "resume", "--trust"]
    assert Path(folder).samefile("runs/train_envs_Failing/process")
    assert (Path(folder) / "report.html").exists()


def test_games_say_nothing(tmp_path):
    (tmp_path / "game.py").write_text(
        "import pygame\nfrom train_envs import Failing\n\n"
        "class Game(Failing):\n    def __init__(self):\n        pygame.init()\n"
        "        pygame.display.init()\n        pygame.display.set_mode((9, 9))\n"
    )
    dropped = ("DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR", "SDL_VIDEODRIVER")
    dropped += ("SDL_AUDIODRIVER", "PYGAME_HIDE_SUPPORT_PROMPT")
    env = {name: value for name, value in os.environ.items() if name not in dropped}
    tests = str(Path(__file__).parent)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [tests, env.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "envfleet", "train", "game:Game", "--total-steps", "64"]
    command += ["--rollout-steps", "16", "--num-envs", "4", "--name", "a", "--backend", "process"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=env, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "pygame" not in done.stdout


def test_what_the_user_chose_for_pygame_is_kept(here, monkeypatch, capsys):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setenv("SDL_VIDEODRIVER", "offscreen")
    assert run_command("eval", "nowhere") == 2
    assert os.environ["SDL_VIDEODRIVER"] == "offscreen"


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
        *("train", "mine:cart", "--total-steps", 64, "--rollout-steps", 16, "--num-envs", 2),
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
    assert checkpoints.list_checkpoints(tmp_path / "runs/CartPole-v1/a/checkpoints")


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
    assert re.search(rb"Training: 100%.* 2048/2048 .*step/s, return [\d.]+/[\d.]+/[\d.]+", seen)


def test_nobody_listens_to_an_evaluation(trained):
    command = [sys.executable, "-m", "envfleet", "eval", str(trained), "--episodes", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_the_run_can_be_resumed(tmp_path, number, code):
    process, folder = started(tmp_path, "metrics.jsonl", "--run-dir", "my runs")
    process.send_signal(number)
    *_, hint, line = process.communicate(timeout=60)[0].splitlines()
    assert hint == "continue with:"
    words = shlex.split(line)  # as a shell would
    assert words[:2] == ["envfleet", "resume"]
    assert (tmp_path / words[2]).samefile(folder)
    assert process.returncode == code
    (saved,) = checkpoints.list_checkpoints(folder / "checkpoints")
    step = checkpoints.load(saved).step
    assert step < 10_000_000
    with Run.resume(folder, total_steps=step + 1000) as run:
        assert run.steps == step
        assert run.train()
        assert run.steps == run.config.last_step


def started(tmp_path, name="metrics.jsonl", *words):
    """A run that has written something to this file."""
    command = [sys.executable, "-m", "envfleet", "train", "CartPole-v1", "--name", "a"]
    command += ["--total-steps", "10000000", "--backend", "serial", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, **pipes, text=True, cwd=tmp_path)
    folder = tmp_path / ("my runs" if "my runs" in words else "runs") / "CartPole-v1/a"
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


# Options


def test_help_shows_the_values_that_will_be_used(here, capsys):
    assert run_command("train", "CartPole-v1", "--help") == 0
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--rollout-steps INT Steps of each env per rollout. (default: 32)" in told
    assert "(default: 0.98)" in told  # gamma, of the zoo
    for field in (*fields(TrainConfig), *fields(RunOptions)):
        flag = {"env_id": "positional", "wrappers": "--wrapper"}.get(field.name, field.name)
        assert flag == "positional" or f"--{flag.lstrip('-').replace('_', '-')}" in told


def test_show_config_trains_nothing(here, capsys):
    words = ("--preset", "fast", "--log-std", -1, "--no-orthogonal", "--hidden", 8, 8)
    assert run_command("train", "CartPole-v1", *words, "--show-config") == 0
    told = json.loads(capsys.readouterr().out)["config"]
    expected = replace(preset("CartPole-v1", "fast"), log_std=-1.0, orthogonal=False, hidden=(8, 8))
    assert told == json.loads(json.dumps(asdict(expected)))
    assert not list(here.iterdir())


@pytest.mark.parametrize("words", [("--ray", "--actors", 2), ("--actors", 2, "--ray")])
def test_a_ray_without_an_address_is_the_one_that_is_there(here, capsys, words):
    assert run_command("train", "CartPole-v1", *words, "--show-config") == 0
    told = json.loads(capsys.readouterr().out)["options"]
    assert (told["ray"], told["actors"]) == ("auto", 2)


def test_the_version_is_told(capsys):
    assert run_command("--version") == 0
    assert capsys.readouterr().out == f"envfleet {envfleet.__version__}\n"


@pytest.mark.parametrize(
    ("flag", "meant"),
    [("--lr", "--learning-rate"), ("--ent-coef", "--entropy-coef"), ("--epoch", "--epochs")],
)
def test_a_flag_that_is_not_there_is_told_with_the_one_that_was_meant(here, capsys, flag, meant):
    assert run_command("train", "CartPole-v1", flag, "3") == 2
    assert f"has no option {flag}: did you mean {meant}" in capsys.readouterr().err
    assert not list(here.iterdir())


def test_a_run_is_made_longer(trained, tmp_path, here, capsys):
    run = shutil.copytree(trained, tmp_path / "run")
    assert run_command("resume", run, "--total-steps", 2000) == 2
    assert "at least the 3,072 already taken" in capsys.readouterr().err
    assert run_command("resume", run, "--total-steps", 4000) == 0
    assert ": finished, 4,096 steps" in capsys.readouterr().out
    record = RunRecord.read(run)
    assert record.config.total_steps == 4000
    note = {"at_step": 3072, "total_steps_before": 3000, "total_steps": 4000}
    assert record.extended == (note,)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(256, 4097, 256))
    assert run_command("resume", run) == 0
    assert "already finished, 4,096 steps" in capsys.readouterr().out


def test_videos_are_as_short_and_small_as_asked_for(tmp_path):
    done = envfleet_command(
        *("train", "CartPole-v1", "--total-steps", 512, "--name", "a", "--backend", "serial"),
        *("--record-every", 100_000, "--video-length", 12),
        *("--video-scale", 0.25, "--video-skip", 3),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    video = tmp_path / "runs/CartPole-v1/a/renders/render_0.gif"
    assert f"videos: {video}" in done.stdout
    with Image.open(video) as image:
        assert image.size == (150, 100)
        assert image.n_frames <= 5
    for option, value in (("length", 0), ("scale", 0), ("skip", 0)):
        words = [f"--video-{option}", value, "--record-every", 100]
        refused = envfleet_command("train", "CartPole-v1", *words, cwd=tmp_path)
        assert refused.returncode == 2
        assert f"video_{option} must be" in refused.stderr
