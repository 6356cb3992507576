"""Trackers: files that survive a crash, TensorBoard read again, Weights & Biases offline."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import envfleet
from envfleet import track
from envfleet.cli.train import Train
from envfleet.track import FileTracker, TensorBoardTracker, Trackers


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def rows(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_metrics_are_rows_and_lines(tmp_path):
    with FileTracker(tmp_path / "run") as tracker:
        tracker.log({"loss": 0.5, "return_mean": math.nan}, step=10)
        tracker.log({"loss": 0.25, "return_mean": 3.0}, step=20)
        # While it is open.
        found = lines(tmp_path / "run/metrics.jsonl"), rows(tmp_path / "run/metrics.csv")
    assert found[0] == [
        {"step": 10, "loss": 0.5, "return_mean": None},
        {"step": 20, "loss": 0.25, "return_mean": 3.0},
    ]
    assert found[1] == [
        {"step": "10", "loss": "0.5", "return_mean": "nan"},
        {"step": "20", "loss": "0.25", "return_mean": "3.0"},
    ]


def test_metrics_that_come_later_are_columns_too(tmp_path):
    for key in ("a", "b", "c"):  # each time a program that goes on where the last one ended
        with FileTracker(tmp_path) as tracker:
            tracker.log({"loss": 1.0, key: 2.0}, step=1)
    found = rows(tmp_path / "metrics.csv")
    assert list(found[0]) == ["step", "loss", "a", "b", "c"]
    assert [(row["a"], row["b"], row["c"]) for row in found] == [
        ("2.0", "", ""),
        ("", "2.0", ""),
        ("", "", "2.0"),
    ]
    assert len(lines(tmp_path / "metrics.jsonl")) == 3


def test_numbers_of_all_kinds_are_numbers(tmp_path):
    with FileTracker(tmp_path) as tracker:
        metrics = {"a": np.float32(0.5), "b": np.int64(2), "c": np.bool_(True), "d": np.array(3.0)}
        tracker.log({**metrics, "e": torch.tensor(4.0), "f": np.float32("nan")}, step=np.int64(4))
    (line,) = lines(tmp_path / "metrics.jsonl")
    assert line == {"step": 4, "a": 0.5, "b": 2, "c": True, "d": 3.0, "e": 4.0, "f": None}


def test_odd_keys_do_not_break_the_table(tmp_path):
    odd = ["new\nline", "\u2028", "\x0c", 'quo"te', "com,ma", "\u00fc"]
    with FileTracker(tmp_path) as tracker:
        for i, key in enumerate(odd):
            tracker.log({key: float(i), "step": 99.0}, step=i)
        tracker.forget_after(3)
        tracker.log({"late": 1.0}, step=9)
    with (tmp_path / "metrics.csv").open(newline="", encoding="utf-8") as file:
        head, *found = csv.reader(file)
    assert head == ["step", *odd, "late"]
    assert [row[0] for row in found] == ["0", "1", "2", "3", "9"]
    assert [line["step"] for line in lines(tmp_path / "metrics.jsonl")] == [0, 1, 2, 3, 9]


def test_a_folder_has_one_tracker_at_a_time(tmp_path):
    with FileTracker(tmp_path) as tracker:
        tracker.log({"x": 1.0}, step=1)
        with pytest.raises(RuntimeError, match="another tracker is writing"):
            FileTracker(tmp_path)
    FileTracker(tmp_path).close()


def test_a_row_that_does_not_fit_on_the_disk_leaves_no_trace(tmp_path):
    program = f"""
import resource
from envfleet.track import FileTracker
tracker = FileTracker({str(tmp_path)!r})
tracker.log({{"x": 1.0}}, 1)
size = {str(tmp_path)!r} + "/metrics.jsonl"
limit = len(open(size).read()) + 5
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
try: tracker.log({{"x": 2.0}}, 2)
except OSError as error: print(error.strerror)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
tracker.log({{"x": 3.0}}, 3)
"""
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert output == "File too large\n"
    assert [line["step"] for line in lines(tmp_path / "metrics.jsonl")] == [1, 3]


def test_a_row_that_a_crash_has_torn_is_removed(tmp_path):
    with FileTracker(tmp_path) as tracker:
        tracker.log({"loss": 1.0}, step=1)
    for name in ("metrics.csv", "metrics.jsonl"):
        with (tmp_path / name).open("a") as file:
            file.write('{"step": 2, "lo')
    with FileTracker(tmp_path) as tracker:
        tracker.log({"loss": 3.0}, step=3)
    assert [line["step"] for line in lines(tmp_path / "metrics.jsonl")] == [1, 3]
    assert [row["step"] for row in rows(tmp_path / "metrics.csv")] == ["1", "3"]


def test_no_row_is_lost_when_the_program_is_killed(tmp_path):
    program = f"""
from envfleet.track import FileTracker
tracker = FileTracker({str(tmp_path)!r})
step = 0
while True:
    step += 1
    tracker.log({{"value": step}}, step)
    print(step, flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    for _ in range(200):
        told = int(process.stdout.readline())
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    FileTracker(tmp_path).close()
    for found in (lines(tmp_path / "metrics.jsonl"), rows(tmp_path / "metrics.csv")):
        steps = [int(row["step"]) for row in found]
        assert steps == list(range(1, len(steps) + 1))
        assert len(steps) >= told


def test_videos_are_listed(tmp_path):
    with FileTracker(tmp_path) as tracker:
        tracker.video(Path("renders/render_0.gif"), step=7)
    assert lines(tmp_path / "videos.jsonl") == [{"step": 7, "path": "renders/render_0.gif"}]


def video(path):
    frames = [Image.fromarray(np.full((8, 8, 3), 60 * i, dtype=np.uint8)) for i in range(3)]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=50, loop=0)
    return path


def test_tensorboard_shows_numbers_and_videos(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import (  # noqa: PLC0415
        EventAccumulator,
    )

    path = video(tmp_path / "video.gif")
    with TensorBoardTracker(tmp_path / "events") as tracker:
        tracker.log({"losses/value": 0.5}, step=3)
        tracker.log({"losses/value": 0.25}, step=9)
        tracker.video(path, step=5)
        tracker.video(tmp_path / "video.mp4", step=6)
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("losses/value")] == [(3, 0.5), (9, 0.25)]
    (image,) = events.Images("video")
    assert (image.step, image.width) == (5, 8)
    assert image.encoded_image_string == path.read_bytes()
    assert events.Tensors("video/text_summary")[0].step == 6


WANDB = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_track import video
from envfleet import Recorder
from envfleet.track import FileTracker, Trackers, WandbTracker
wandb = WandbTracker("games", "first", mode="offline", dir={folder!r})
with Trackers([FileTracker({folder!r}), wandb]) as trackers:
    print(trackers.project, trackers.run, Recorder(tracker=trackers).folder)
    trackers.log({{"loss": 0.5}}, step=3)
    trackers.video(video(Path({folder!r}) / "video.gif"), step=2)
    trackers.log({{"loss": 0.25}}, step=9)
"""


def test_weights_and_biases_works_offline(tmp_path):
    program = WANDB.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
    environment = {**os.environ, "WANDB_SILENT": "true", "WANDB_MODE": "offline"}
    output = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=environment,
    ).stdout
    assert output == f"games first {tmp_path}/renders/games/first\n"
    (run,) = (tmp_path / "wandb").glob("offline-run-*")
    assert list(run.glob("*.wandb"))
    (copied,) = (run / "files/media/videos").glob("video_*.gif")
    assert copied.read_bytes() == (tmp_path / "video.gif").read_bytes()
    assert len(lines(tmp_path / "metrics.jsonl")) == 2


@pytest.mark.parametrize(
    ("name", "package", "arguments"),
    [
        ("TensorBoardTracker", "tensorboard", ("events",)),
        ("WandbTracker", "wandb", ()),
    ],
)
def test_a_missing_package_is_named_with_its_extra(monkeypatch, name, package, arguments):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    message = f"{name} needs {package}: pip install 'envfleet[track]'"
    with pytest.raises(ImportError, match=f"^{re.escape(message)}$"):
        getattr(track, name)(*arguments)


class Lines:
    """A tracker of someone else's: a file with a line for everything that it is told."""

    project = run = None

    def __init__(self, folder, step):
        self._file = (folder / "lines.txt").open("a")
        self._file.write(f"begins at {step}\n")

    def log(self, metrics, step):
        self._file.write(f"{step} {metrics['loss/entropy']}\n")

    def video(self, path, step):
        self._file.write(f"video {path.name}\n")

    def close(self):
        self._file.write("closed\n")
        self._file.close()


def test_a_third_tracker_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(track.TRACKERS, "lines", Lines)
    small = {"num_envs": 2, "rollout_steps": 32, "batch_size": 32, "total_steps": 128, "epochs": 1}
    envfleet.train("CartPole-v1", run_dir=tmp_path, name="python", track=["lines"], **small)
    words = [f"--{name.replace('_', '-')}={value}" for name, value in small.items()]
    words += ["--run-dir", str(tmp_path), "--name", "command", "--record-every", "64"]
    assert Train.parse(["CartPole-v1", "--track", "lines", *words]).run() == 0
    for name, videos in (("python", []), ("command", ["render_0.gif"])):
        folder = tmp_path / "CartPole-v1" / name
        begins, *told, closed = (folder / "lines.txt").read_text().splitlines()
        assert (begins, closed) == ("begins at 0", "closed")
        rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
        assert [line for line in told if "video" not in line] == [
            f"{row['step']} {row['loss/entropy']}" for row in rows
        ]
        assert len(rows) == 2
        assert [line for line in told if "video" in line][:1] == [f"video {v}" for v in videos]
    capsys.readouterr()
    assert Train.parse(["CartPole-v1", "--track", "line", *words]).run() == 2
    assert "there are: tensorboard, wandb, lines." in capsys.readouterr().err


def test_all_trackers_are_closed_also_when_one_fails(tmp_path):
    class Failing(FileTracker):
        def close(self):
            super().close()
            raise OSError("no more")

    second = FileTracker(tmp_path / "b")
    trackers = Trackers([Failing(tmp_path / "a"), second])
    trackers.log({"x": 1.0}, step=1)
    with pytest.raises(OSError, match="no more"):
        trackers.close()
    assert not second._open
    assert (trackers.project, trackers.run) == (None, None)
