"""A run's folder under bad luck: races, moved folders, damage, full disks, strangers, signals."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import psutil
import pytest
import torch

import envfleet
from envfleet.cli.eval import Eval
from envfleet.cli.record import Record
from envfleet.cli.resume import Resume
from envfleet.cli.train import Train
from envfleet.track.files import FileTracker
from envfleet.track.lock import FolderInUseError, FolderLock
from envfleet.training import checkpoint as checkpoints
from envfleet.training import command
from envfleet.training.config import RunOptions, TrainConfig
from envfleet.training.folder import RunFolder, RunRecord
from envfleet.training.presets import preset
from envfleet.training.trainer import Run
from envfleet.training.trust import UntrustedError
from train_envs import OnUpdate
from waiting import wait_until

torch.set_num_threads(1)  # else every later fork is warned of

TINY = TrainConfig(num_envs=2, rollout_steps=16, batch_size=32, epochs=1, total_steps=320)
TWICE = 2 * TINY.total_steps
SERIAL = RunOptions(backend="serial", checkpoint_every=3)
WORDS = [f"--{k}={v}" for k, v in {"num-envs": 2, "rollout-steps": 16, "epochs": 1}.items()]


def spawn(*words, cwd, safe=False, **options):
    """An ``envfleet`` command; ``safe``: as installed, without the current folder on the path."""
    words = [sys.executable, *(["-P"] if safe else []), "-m", "envfleet", *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(words, cwd=cwd, **pipes, **options)


def finish(process):
    out, said = process.communicate(timeout=120)
    return process.returncode, out, said


def contents(folder):
    """Everything in a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def refused(told, capsys):
    """The one line that a refusal says."""
    capsys.readouterr()
    assert told.run() == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    return said


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that has something to go on with."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    with Run.start(folder, TINY, SERIAL) as run:
        assert run.train()
    edit_config(total_steps=TWICE)(folder)
    return folder


@pytest.fixture
def copied(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


# Whose folder it is

RACER = """
import sys
from pathlib import Path
from envfleet.cli.train import Train
print("ready", flush=True)
sys.stdin.readline()
words = {"name": "a", "total_steps": 320, "num_envs": 2, "rollout_steps": 16, "epochs": 1}
code = Train.of("CartPole-v1", **words).run()
sys.exit(code)
"""


def test_of_runs_that_race_for_a_name_one_wins_and_is_left_alone(tmp_path):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    racers = [
        subprocess.Popen([sys.executable, "-c", RACER], cwd=tmp_path, text=True, **pipes)
        for _ in range(3)
    ]
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        racer.stdin.write("\n")
        racer.stdin.flush()
    ends = [finish(racer) for racer in racers]
    assert sorted(code for code, *_ in ends) == [0, 2, 2], ends
    for code, _, said in ends:
        if code == 2:
            assert "is writing to" in said or "has a run already" in said
            assert said.count("\n") == 1
    (saved,) = checkpoints.list_checkpoints(tmp_path / "runs/CartPole-v1/a/checkpoints")
    assert checkpoints.load(saved).step == 320


class Rival(Exception):  # noqa: N818 - one that has lost
    """Ends the start of a run."""


def test_a_run_has_its_folder_from_before_its_envs_are_built(tmp_path, monkeypatch):
    lost = []

    def build(*_, **__):
        try:
            Run.start(tmp_path / "runs/a", TINY, SERIAL)
        except FolderInUseError as error:
            lost.append(str(error))
        assert (tmp_path / "runs/a").is_dir()
        raise Rival

    monkeypatch.setattr("envfleet.training.build.build_fleet", build)
    with pytest.raises(Rival):
        Run.start(tmp_path / "runs/a", TINY, SERIAL)
    assert "is writing to" in lost[0]
    assert not list(tmp_path.iterdir())


def test_a_start_that_fails_removes_what_it_has_made_and_nothing_else(tmp_path):
    broken = replace(TINY, env_id="CartPol-v1")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes").touch()
    (tmp_path / "runs").mkdir()
    before = contents(tmp_path)
    for name in ("mine", "new", "runs/deep/down"):
        with pytest.raises(ValueError, match="Did you mean CartPole-v1"):
            Run.start(tmp_path / name, broken, SERIAL)
        assert contents(tmp_path) == before
    # What another run needs meanwhile stays.
    one, two = (RunFolder.claim(tmp_path / "runs/deep" / name) for name in ("one", "two"))
    one.discard()
    assert [path.name for path in (tmp_path / "runs/deep").iterdir()] == ["two"]
    two.close()


def test_default_names_do_not_collide(tmp_path):
    found = []

    def claim():
        found.append(RunFolder.claim_new(tmp_path / "runs", "seed0_20300101-000000"))

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = sorted(place.path.name for place in found)
    assert names[:3] == [f"seed0_20300101-000000{end}" for end in ("", "_2", "_3")]
    assert len(set(names)) == 8
    for place in found:
        place.discard()
    assert not list(tmp_path.glob("runs/*"))


def _claim_and_discard(parent, how):
    for _ in range(2000):
        try:
            if how == "new":
                place = RunFolder.claim_new(parent, "a")
            else:
                place = RunFolder.claim(parent / "a")
        except FolderInUseError:
            continue
        assert place.lock.path.exists()
        place.discard()


def test_runs_that_come_and_go_do_not_trip_over_each_other(tmp_path):
    context = multiprocessing.get_context("fork")
    arguments = [(tmp_path / "runs", how) for how in ("new", "this") for _ in range(3)]
    runs = [context.Process(target=_claim_and_discard, args=each) for each in arguments]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert [run.exitcode for run in runs] == [0] * len(runs)
    for run in runs:
        run.close()


def test_a_name_that_a_file_or_a_dangling_link_has_is_refused(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link"):
        with pytest.raises((FileExistsError, NotADirectoryError), match=name):
            RunFolder.claim(tmp_path / name)
        with pytest.raises((FileExistsError, NotADirectoryError), match=name):
            RunFolder.claim_new(tmp_path / name, "a")
        place = RunFolder.claim_new(tmp_path, name)
        assert place.path.name == f"{name}_2"
        place.discard()


@pytest.mark.untraced  # a child starts coverage anew before it lets go of the lock
def test_children_do_not_keep_the_lock_of_a_run_that_is_gone(tmp_path):
    program = f"""
import os, time
from pathlib import Path
from envfleet.track.lock import FolderLock
lock = FolderLock(Path({str(tmp_path)!r}))
os.fork()
os.write(1, b"there\\n")
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert [process.stdout.readline() for _ in range(2)] == ["there\n"] * 2  # both of them
    (child,) = psutil.Process(process.pid).children()
    try:
        with pytest.raises(FolderInUseError):
            FolderLock(tmp_path)
        process.kill()
        process.wait()
        FolderLock(tmp_path).release()
    finally:
        child.kill()
        process.stdout.close()


# Where it is

WANDERER = """
import os
from gymnasium.envs.classic_control import CartPoleEnv

class Wanderer(CartPoleEnv):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        os.makedirs("/{elsewhere}", exist_ok=True)
        os.chdir("/{elsewhere}")

    def step(self, action):
        os.chdir("/{elsewhere}")
        return super().step(action)
"""


WANDERING = """
import os
from pathlib import Path
from envfleet.cli.eval import Eval
from envfleet.cli.record import Record
from envfleet.cli.resume import Resume
from envfleet.cli.train import Train
from envfleet.training import checkpoint as checkpoints
run = Path("runs/mine_Wanderer/a")
for command in (
    Train.of("mine:Wanderer", preset="cleanrl", total_steps=320, num_envs=2,
          rollout_steps=16, epochs=1, backend="serial",
          checkpoint_every=3, record_every=100, track=("tensorboard",), name="a"),
    Resume(run, checkpoint="step_000000000288", trust=True),
    Eval(run, episodes=2, trust=True),
    Record(run, path=Path("video.gif"), num_envs=1, trust=True),
):
    os.chdir({home!r})
    assert command.run() == 0, command
"""


def test_an_env_that_changes_the_current_folder_does_not_tear_a_run_apart(tmp_path):
    home, elsewhere = tmp_path / "home", tmp_path / "else"
    home.mkdir()
    (home / "mine.py").write_text(WANDERER.format(elsewhere=str(elsewhere).lstrip("/")))
    done = subprocess.run(
        [sys.executable, "-c", WANDERING.format(home=str(home))],
        capture_output=True,
        text=True,
        cwd=home,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    run = home / "runs/mine_Wanderer/a"
    assert f"{run}: finished" in done.stdout
    assert done.stdout.endswith("\nvideo.gif\n")  # as it was asked for
    wanted = {"config.json", "metrics.csv", "videos.jsonl", "curve.png", "checkpoints", "renders"}
    assert {path.name for path in run.iterdir()} >= wanted | {"tensorboard"}
    assert (home / "video.gif").stat().st_size > 1000
    assert not list(elsewhere.iterdir())


# Checkpoints that are gone


def test_a_run_whose_checkpoints_are_gone_is_not_begun_anew(copied, capsys):
    shutil.rmtree(copied / "checkpoints")
    before = contents(copied)
    said = refused(Resume(copied), capsys)
    assert "its checkpoints are gone" in said
    assert contents(copied) == before
    words = shlex.split(said.partition("hyper-parameters: ")[2])
    assert words[:3] == ["envfleet", "train", "CartPole-v1"]
    assert Train.parse(words[2:]).split()[0] == replace(TINY, total_steps=TWICE)


@pytest.mark.parametrize(
    "config",
    [
        preset("CartPole-v1", "fast"),
        preset("Any-v0", "cleanrl", continuous=True),
        preset("HalfCheetah-v5", "zoo"),
        replace(TINY, hidden=(8,), target_kl=0.01, clip_values=True, seed=5),
    ],
)
def test_the_command_that_starts_anew_has_the_same_hyper_parameters(config):
    words = shlex.split(command.anew(config))
    assert Train.parse(words[2:]).split()[0] == config


def test_a_run_that_was_stopped_before_its_first_checkpoint_begins_anew(tmp_path):
    class StopError(BaseException):
        pass

    def stop(run, metrics):
        raise StopError

    started = Run.start(tmp_path, TINY, SERIAL, callbacks=[OnUpdate(stop)])
    with started as run, pytest.raises(StopError):
        run.train()
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 1
    with Run.resume(tmp_path) as run:
        assert run.collector.total_steps == 0
        assert run.train()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    assert steps == list(range(32, 321, 32))


# Damage


def test_a_flipped_bit_is_refused_and_nothing_is_changed(copied, capsys):
    *_, other, last = checkpoints.list_checkpoints(copied / "checkpoints")
    for path in sorted(last.iterdir()):
        whole = path.read_bytes()
        for place in (0, len(whole) // 3, len(whole) // 2, len(whole) - 1):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << place % 8
            path.write_bytes(damaged)
            with pytest.raises(checkpoints.CheckpointError, match=f"take {other.name} instead"):
                checkpoints.load(last)
        before = contents(copied)
        said = refused(Resume(copied), capsys)
        assert "do not match SHA256SUMS" in said
        assert refused(Eval(copied), capsys) == said
        assert contents(copied) == before
        path.write_bytes(whole)
    assert checkpoints.load(last).step == 320
    (copied / "checkpoints/best").write_bytes(b"\xff\x00")
    assert "no checkpoint 'best'" in refused(Eval(copied, checkpoint="best"), capsys)


def test_the_checksums_are_those_of_sha256sum(trained):
    for path in checkpoints.list_checkpoints(trained / "checkpoints"):
        subprocess.run(["sha256sum", "--strict", "-c", "SHA256SUMS"], cwd=path, check=True)


def edit_json(path, edit):
    told = json.loads(path.read_text())
    edit(told)
    path.write_text(json.dumps(told))


def edit_checkpoint(run, name, data):
    """Change a file of the last checkpoint as somebody would who knows of checksums."""
    last = checkpoints.list_checkpoints(run / "checkpoints")[-1]
    (last / name).write_bytes(data(last / name))
    files = {path.name: path.read_bytes() for path in last.iterdir()}
    (last / "SHA256SUMS").write_bytes(checkpoints._sums(files))


def edit_state(edit):
    def data(path):
        state = torch.load(path, weights_only=True)
        edit(state)
        torch.save(state, path)
        return path.read_bytes()

    return lambda run: edit_checkpoint(run, "state.pt", data)


class Exploit:
    def __reduce__(self):
        return (os.mkdir, ("exploited",))


def exploit(path):
    torch.save({"mean": Exploit()}, path)
    return path.read_bytes()


def edit_config(**values):
    return lambda run: edit_json(run / "config.json", lambda told: told["config"].update(values))


def metrics(name, edit):
    return lambda run: (run / name).write_bytes(edit((run / name).read_bytes()))


DAMAGED_FOR_ALL = {
    "num_envs: true": (edit_config(num_envs=True), "num_envs must be an integer, got True"),
    "num_envs: 2.0": (edit_config(num_envs=2.0), "num_envs must be an integer, got 2.0"),
    "gamma: text": (edit_config(gamma="0.9"), "gamma must be a number, got '0.9'"),
    "hidden: text": (edit_config(hidden="64"), "hidden must be a list of integers"),
    "an unknown key": (edit_config(warp=9), "unexpected keyword argument 'warp'"),
    "a missing key": (
        lambda run: edit_json(run / "config.json", lambda told: told["config"].pop("gamma")),
        "'gamma' is missing",
    ),
    "a missing option": (
        lambda run: edit_json(run / "config.json", lambda told: told["options"].pop("keep")),
        "'keep' is missing",
    ),
    "a list": (lambda run: (run / "config.json").write_text("[]"), "cannot be used"),
    "nested": (lambda run: (run / "config.json").write_text("[" * 10**6), "cannot be used"),
    "another shape": (
        edit_config(hidden=[32]),
        "actor.0.weight is 64x4 there and 32x4 here, so config.json or the env was changed",
    ),
    "another env": (edit_config(env_id="Acrobot-v1"), "actor.0.weight is 64x4 there and 64x6"),
    "no step": (edit_state(lambda state: state.pop("step")), "no 'step'"),
    "a pickle": (
        lambda run: edit_checkpoint(run, "state.pt", exploit),
        "cannot be used (UnpicklingError",
    ),
}
DAMAGED_FOR_RESUME = {
    "no generator": (
        edit_state(lambda state: state["ppo"].pop("generator")),
        "no 'generator'",
    ),
    "moments": (
        edit_state(lambda state: state["ppo"]["learner"].update(mean=torch.zeros(1))),
        "moments are of 1 parameters",
    ),
    "blank in csv": (metrics("metrics.csv", lambda d: d + b"\n"), "metrics.csv, line 12: the line"),
    "blank in jsonl": (metrics("metrics.jsonl", lambda d: b"\n" + d), "line 1: the line is blank"),
    "BOM in csv": (metrics("metrics.csv", lambda d: b"\xef\xbb\xbf" + d), "byte order mark"),
    "BOM in jsonl": (metrics("metrics.jsonl", lambda d: b"\xef\xbb\xbf" + d), "byte order mark"),
    "CRLF in csv": (metrics("metrics.csv", lambda d: d.replace(b"\n", b"\r\n")), "CR LF"),
    "CRLF in jsonl": (metrics("metrics.jsonl", lambda d: d.replace(b"\n", b"\r\n")), "CR LF"),
    "Latin-1": (metrics("metrics.csv", lambda d: d + b"\xfc\n"), "line 12: it is not UTF-8"),
    "a short row": (metrics("metrics.csv", lambda d: d + b"1,2\n"), "2 values for"),
    "no step in csv": (
        metrics("metrics.csv", lambda d: d.replace(b"\n32,", b"\nx,")),
        "step is 'x'",
    ),
    "no step in jsonl": (
        metrics("metrics.jsonl", lambda d: d + b'{"step": true}\n'),
        "step is True",
    ),
    "no object": (metrics("metrics.jsonl", lambda d: d + b"7\n"), "it is no JSON object"),
}


@pytest.mark.parametrize("what", [*DAMAGED_FOR_ALL, *DAMAGED_FOR_RESUME])
def test_what_was_damaged_is_refused_in_one_line_and_nothing_is_changed(
    copied, capsys, monkeypatch, what
):
    monkeypatch.chdir(copied.parent)
    damage, text = (DAMAGED_FOR_ALL | DAMAGED_FOR_RESUME)[what]
    damage(copied)
    with (copied / "videos.jsonl").open("a") as file:
        file.write('{"step": 3')  # torn by a crash: would be mended
    before = contents(copied)
    assert text in refused(Resume(copied), capsys)
    if what in DAMAGED_FOR_ALL:
        assert text in refused(Eval(copied), capsys)
        assert text in refused(Record(copied), capsys)
    assert contents(copied) == before
    assert not Path("exploited").exists()


def test_a_torn_last_row_is_still_removed(copied):
    with (copied / "metrics.csv").open("a") as file:
        file.write("99,1")
    with Run.resume(copied) as run:
        assert run.train()
    assert (copied / "metrics.csv").read_text().count("\n") == 21


def test_a_tracker_on_a_table_of_others_leaves_it_and_the_folder(tmp_path):
    (tmp_path / "metrics.csv").write_bytes(b"\xef\xbb\xbfstep,x\n1,2\n")
    with pytest.raises(ValueError, match="byte order mark"):
        FileTracker(tmp_path)
    (tmp_path / "metrics.csv").unlink()
    FileTracker(tmp_path).close()


def test_all_files_of_a_run_have_the_mode_that_the_umask_says(tmp_path):
    before = os.umask(0o027)
    try:
        with Run.start(tmp_path / "run", TINY, replace(SERIAL, record_every=1000)) as run:
            assert run.train()
    finally:
        os.umask(before)
    modes = {
        str(path.relative_to(tmp_path)): stat.S_IMODE(path.stat().st_mode)
        for path in (tmp_path / "run").rglob("*")
    }
    wrong = {
        name: oct(mode)
        for name, mode in modes.items()
        if mode != (0o750 if (tmp_path / name).is_dir() else 0o640)
    }
    assert not wrong


# Full disks

FULL = """
import json, os, subprocess, sys
from pathlib import Path
from envfleet.cli.resume import Resume
from envfleet.cli.train import Train
from envfleet.training import checkpoint as checkpoints
disk = Path(sys.argv[1])
code = Train.of("CartPole-v1", run_dir=disk, name="a", total_steps=3200, num_envs=2,
             rollout_steps=16, epochs=1, checkpoint_every=3, backend="serial").run()
run = disk / "CartPole-v1/a"
files = [str(path) for path in run.rglob("*")]
steps = [checkpoints.load(path).step for path in checkpoints.list_checkpoints(run / "checkpoints")]
subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
again = Resume(run).run()
print(json.dumps({"code": code, "files": files, "steps": steps, "again": again}))
"""


def test_a_full_disk_is_one_line_and_leaves_no_draft(tmp_path):
    shell = 'mount -t tmpfs -o size=300k tmpfs "$0" && exec "$@"'
    try:
        probe = ["unshare", "-rm", "sh", "-c", shell, tmp_path, "true"]
        subprocess.run(probe, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no disk of its own can be mounted here: {error}")
    words = ["unshare", "-rm", "sh", "-c", shell, tmp_path, sys.executable, "-c", FULL, tmp_path]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["code"] == 2
    assert done.stderr.count("\n") == 1
    assert "No space left on device" in done.stderr
    assert f"envfleet resume {tmp_path}/CartPole-v1/a" in done.stderr
    assert told["steps"]  # what was saved before can be read
    left = [path for path in told["files"] if ".draft" in path or path.endswith(".new")]
    assert not left
    assert told["again"] == 0


def test_a_checkpoint_that_does_not_fit_leaves_nothing(tmp_path, capsys):
    train = Train.of(
        "CartPole-v1", name="a", run_dir=tmp_path, num_envs=2, rollout_steps=16, epochs=1
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        said = refused(replace(train, total_steps=320, backend="serial"), capsys)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "File too large" in said
    names = {path.name for path in (tmp_path / "CartPole-v1/a").iterdir()}
    files = {"config.json", "plan.json", "metrics.csv", "metrics.jsonl"}
    assert names == {*files, ".tracker.lock"}


def test_a_name_that_the_terminal_cannot_show_does_not_fail_a_run(tmp_path):
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    words = ["train", "CartPole-v1", "--name", "größe", "--total-steps", 64, *WORDS]
    code, out, said = finish(spawn(*words, cwd=tmp_path, env=ascii_only))
    assert (code, said) == (0, "")
    assert "gr\\xf6\\xdfe: finished" in out


# Strangers


@pytest.fixture
def strange(trained, tmp_path):
    """A run whose env is a module of the stranger's."""
    run = shutil.copytree(trained, tmp_path / "strange")
    edit_config(env_id="evil:cart")(run)
    (run / "evil.py").write_text(
        "import gymnasium, pathlib\n"
        "pathlib.Path('imported').touch()\n"
        "def cart(**kwargs): return gymnasium.make('CartPole-v1', **kwargs)\n"
    )
    return run


def test_a_module_that_a_folder_names_is_imported_with_trust_only(strange, capsys, monkeypatch):
    monkeypatch.syspath_prepend(strange)
    monkeypatch.chdir(strange)
    before = contents(strange)
    for told in (Eval(Path()), Resume(Path()), Record(Path())):
        said = refused(told, capsys)
        assert "would import the module 'evil' for its env 'evil:cart'" in said
        assert "--trust" in said
    assert contents(strange) == before
    assert "evil" not in sys.modules
    code, out, said = finish(
        spawn("eval", ".", "--trust", "--json", "--episodes", 2, cwd=strange, safe=True)
    )
    assert code == 0, said
    assert len(json.loads(out)["returns"]) == 2
    assert (strange / "imported").exists()


def test_python_asks_for_trust_too(strange, monkeypatch):
    monkeypatch.syspath_prepend(strange)
    monkeypatch.chdir(strange)
    before = contents(strange)
    with pytest.raises(UntrustedError, match="trust=True"):
        Run.resume(strange)
    assert contents(strange) == before
    assert "evil" not in sys.modules
    with Run.resume(strange, trust=True) as run:
        assert run.train()
    del sys.modules["evil"]


def test_passing_an_env_is_no_trust_in_the_folders_wrappers(strange, monkeypatch):
    (strange / "evil.py").write_text("def same(env): return env\n")
    edit_config(env_id="a function of mine", wrappers=["evil:same"])(strange)
    monkeypatch.syspath_prepend(strange)
    before = contents(strange)
    cart = partial(gymnasium.make, "CartPole-v1")
    for attempt in (envfleet.load, Run.resume):
        with pytest.raises(UntrustedError, match="module 'evil' for its wrapper 'evil:same'"):
            attempt(strange, env=cart)
    assert contents(strange) == before
    with envfleet.make("CartPole-v1", 2, backend="serial") as envs:
        envfleet.load(strange, env=envs)  # which is not wrapped any more
    assert "evil" not in sys.modules
    assert envfleet.load(strange, env=cart, trust=True).act(np.zeros(4, np.float32)) in (0, 1)
    with Run.resume(strange, env=cart, trust=True) as run:
        assert run.train()
    del sys.modules["evil"]


def test_the_current_folder_takes_no_librarys_place(copied):
    for name in ("pygame", "PIL", "tqdm", "matplotlib", "ale_py", "numpy", "random"):
        (copied / f"{name}.py").write_text("import pathlib; pathlib.Path('imported').touch()\n")
    code, _, said = finish(spawn("record", ".", "--num-envs", 1, cwd=copied, safe=True))
    assert code == 0, said
    assert not (copied / "imported").exists()


INTERRUPTED = """
import os, signal
from gymnasium.envs.classic_control import CartPoleEnv

class Env(CartPoleEnv):
    steps = 0
    def step(self, action):
        Env.steps += 1
        if Env.steps == 100 and not os.path.exists("sent"):
            os.mkdir("sent")
            os.kill(os.getpid(), signal.SIGTERM)
        return super().step(action)
"""


def test_the_line_that_goes_on_can_be_pasted(tmp_path):
    (tmp_path / "mine.py").write_text(INTERRUPTED)
    words = ["train", "mine:Env", "--name", "a run", "--total-steps", 320, "--backend", "serial"]
    code, out, said = finish(spawn(*words, *WORDS, cwd=tmp_path))
    assert code == 143, said
    (line,) = [line for line in out.splitlines() if "envfleet resume" in line]
    words = shlex.split(line[line.index("envfleet resume") :])
    assert words[2:] == [str(tmp_path / "runs/mine_Env/a run"), "--trust"]
    code, _, said = finish(spawn(*words[1:], cwd=tmp_path))
    assert code == 0, said


# The second signal

STUCK = """
import time
from pathlib import Path
from gymnasium.envs.classic_control import CartPoleEnv

class Env(CartPoleEnv):
    steps = 0
    def step(self, action):
        Env.steps += 1
        if Env.steps == 100:
            Path("stuck").touch()
            while True:
                time.sleep(1)
        return super().step(action)

    def close(self):
        time.sleep(1000)
"""


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_the_second_sigterm_waits_for_no_env(tmp_path, backend):
    last = "pass" if backend == "serial" else "time.sleep(1000)"  # nobody ends our own process
    (tmp_path / "mine.py").write_text(STUCK.replace("time.sleep(1000)", last))
    words = ["train", "mine:Env", "--name", "a", "--backend", backend, *WORDS]
    process = spawn(*words, cwd=tmp_path)
    wait_until((tmp_path / "stuck").exists, seconds=60)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    # The first one is heard when it is not pending any more.
    wait_until(lambda: not pending(process.pid, signal.SIGTERM))
    process.send_signal(signal.SIGTERM)
    out, said = process.communicate(timeout=25)  # closing the envs would take 30 s
    assert (process.returncode, said) == (143, ""), out
    assert not psutil.wait_procs(workers, timeout=10)[1]
    assert not (tmp_path / "runs/mine_Env/a/checkpoints").exists()
    FolderLock(tmp_path / "runs/mine_Env/a").release()


def pending(pid, number):
    status = Path(f"/proc/{pid}/status").read_text()
    masks = [int(line.split()[1], 16) for line in status.splitlines() if "Pnd:" in line]
    return any(mask >> (number - 1) & 1 for mask in masks)


def test_a_second_signal_while_a_checkpoint_is_saved_leaves_no_draft(tmp_path):
    program = f"""
import os, signal
from pathlib import Path
sent, flush = [], os.fsync
def fsync(descriptor):
    if len(list(folder.glob("checkpoints/.step_*/*"))) == 2:
        for _ in range(2):
            sent.append(signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
    flush(descriptor)
os.fsync = fsync
folder = Path({str(tmp_path / "run")!r})
from envfleet.training.config import RunOptions, TrainConfig
from envfleet.training.trainer import Run
config = TrainConfig(num_envs=2, rollout_steps=16, batch_size=32, epochs=1, total_steps=320)
with Run.start(folder, config, RunOptions(backend="process", checkpoint_every=3)) as run:
    try:
        run.train()
    finally:
        print(len(sent), flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (143, "2\n", "")
    assert not (tmp_path / "run/checkpoints").exists()
    with Run.resume(tmp_path / "run") as run:
        assert run.train()
    assert RunRecord.read(tmp_path / "run").config.total_steps == 320


def test_a_checkpoint_is_on_disk_before_it_has_its_name(tmp_path, monkeypatch):
    flushed, flush = [], os.fsync

    def fsync(descriptor):
        place = Path(f"/proc/self/fd/{descriptor}").readlink()
        flushed.append((place.name, any(tmp_path.glob("step_*"))))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    saved = checkpoints.Checkpoint(7, {"w": torch.zeros(2)}, {})
    path = checkpoints.save(tmp_path, saved, keep=1, best=False)
    early = [name for name, is_named in flushed if not is_named]
    assert set(early[:-1]) == {file.name for file in path.iterdir()}
    assert early[-1] == f".{path.name}.draft"
    assert flushed[-1] == (tmp_path.name, True)
