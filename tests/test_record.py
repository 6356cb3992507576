"""Videos: opened again and looked at; and nothing that happens to the encoder stops training."""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import logging
import os
import random
import resource
import signal
import subprocess
import sys
import textwrap
import warnings
from functools import partial
from pathlib import Path

import av
import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import MaxAndSkipObservation, OrderEnforcing
from gymnasium.wrappers.vector import NormalizeObservation, RecordEpisodeStatistics
from PIL import Image

import envfleet
from envfleet import Collector, Recorder, record_agent
from envfleet.record.frames import as_frame
from envfleet.record.grid import GREY, tile
from envfleet.record.overlay import prepare, return_texts
from envfleet.record.rendering import check_video, fps_of
from envfleet.record.timing import GifClock, gif_stride, natural_fps
from envfleet.record.writers import GifWriter, open_writer
from envfleet.training.envs import build_fleet
from rollout_envs import ENGINES
from waiting import wait_until


class Screen(gym.Env):
    """Shows its step in red and its episode in green; counts how often it was looked at."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012
    observation_space = spaces.Box(0, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length=3, size=(40, 60), render_mode="rgb_array"):
        self.length, self.size, self.render_mode = length, size, render_mode
        self.t = self.renders = 0
        self.episode = -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.episode += 1
        return np.array([self.episode, 0], dtype=np.float32), {}

    def step(self, action):
        self.t += 1
        observation = np.array([self.episode, self.t], dtype=np.float32)
        return observation, 1.25, self.t >= self.length, False, {}

    def render(self):
        self.renders += 1
        frame = np.zeros((*self.size, 3), dtype=np.uint8)
        frame[..., 0] = min(255, 20 * self.t)
        frame[..., 1] = min(255, 40 * self.episode)
        return frame


class Coin:
    """Samples its actions."""

    def act(self, observations, deterministic=False):
        count = len(observations)
        actions = torch.zeros(count) if deterministic else torch.randint(0, 2, (count,))
        return actions.long(), torch.zeros(count), torch.zeros(count)


def fleet(engine="serial", count=2, mode="NextStep", **kwargs):
    return ENGINES[engine]([partial(Screen, **kwargs)] * count, autoreset_mode=mode)


def frames_of(path):
    """Every frame of a video, as RGB, and how long each is shown, in milliseconds."""
    if path.suffix == ".mp4":
        with av.open(str(path)) as video:
            decoded = list(video.decode(video=0))
            count = len(decoded) - max(1, round(video.streams.video[0].base_rate)) + 1
            end = video.duration / 1e6
        frames = [frame.to_ndarray(format="rgb24") for frame in decoded]
        for again in frames[count:]:  # held, by being shown again
            assert np.abs(again.astype(int) - frames[count - 1]).mean() < 3
        times = [float(frame.time) for frame in decoded[:count]]
        return frames[:count], (1000 * np.diff([*times, end])).tolist()
    with Image.open(path) as video:
        assert video.info["loop"] == 0
        frames, shown = [], []
        for i in range(video.n_frames):
            video.seek(i)
            frames.append(np.asarray(video.convert("RGB")))
            shown.append(video.info["duration"])
    return frames, shown


def steps_shown(path):
    """Of each frame the step that it shows, and the video's episode."""
    frames, _ = frames_of(path)
    middle = [frame[frame.shape[0] * 3 // 4, frame.shape[1] // 2] for frame in frames]
    return [round(int(m[0]) / 20) for m in middle], round(int(middle[0][1]) / 40)


def videos_in(folder):
    return sorted(folder.glob("render_*"), key=lambda path: int(path.stem.split("_")[1]))


# What is in a video


@pytest.mark.parametrize("suffix", ["gif", "mp4"])
@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("engine", ["serial", "process", "caller"])
def test_a_video_is_a_whole_episode_with_its_last_frame(tmp_path, engine, mode, suffix):
    recorder = Recorder(tmp_path, every_episodes=2, format=suffix, overlay=False)
    with Collector(fleet(engine, mode=mode), Coin(), 4, recorder=recorder) as collector:
        for _ in range(3):
            collector.collect()
    videos = videos_in(tmp_path)
    assert [steps_shown(path) for path in videos[:2]] == [([0, 1, 2, 3], 0), ([0, 1, 2, 3], 2)]
    assert {path.suffix for path in videos} == {f".{suffix}"}
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("mode", "shown"),
    [("NextStep", [0, 1, 2, 3]), ("SameStep", [0, 1, 2]), ("Disabled", [0, 1, 2, 3])],
)
def test_other_engines_are_recorded_as_far_as_they_show(tmp_path, mode, shown):
    envs = SyncVectorEnv([Screen] * 2, autoreset_mode=mode)
    recorder = Recorder(tmp_path, env_ids=[1], overlay=False)
    with Collector(envs, Coin(), 8, recorder=recorder) as collector:
        collector.collect()
    assert steps_shown(videos_in(tmp_path)[0]) == (shown, 0)


@pytest.mark.parametrize("infos", ["all", "final", "none"])
def test_the_last_frame_does_not_depend_on_which_infos_travel(tmp_path, infos):
    envs = envfleet.ProcessVectorEnv(
        [Screen] * 2, workers=2, context="fork", autoreset_mode="SameStep", infos=infos
    )
    with Collector(envs, Coin(), 5, recorder=Recorder(tmp_path, overlay=False)) as collector:
        collector.collect()
    assert steps_shown(videos_in(tmp_path)[0]) == ([0, 1, 2, 3], 0)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_only_recorded_envs_render_and_only_while_they_are_recorded(tmp_path, mode):
    recorder = Recorder(tmp_path, env_ids=[2])
    with Collector(fleet(count=3, mode=mode), Coin(), 40, recorder=recorder) as collector:
        collector.collect()
        assert collector.envs.get_attr("renders") == (0, 0, 4)


class Canvas(Screen):
    """Draws into one and the same array, also at a reset."""

    def reset(self, *, seed=None, options=None):
        answer = super().reset(seed=seed)
        self.draw()
        return answer

    def step(self, action):
        answer = super().step(action)
        self.draw()
        return answer

    def draw(self):
        if not hasattr(self, "canvas"):
            self.canvas = np.zeros((*self.size, 3), dtype=np.uint8)
        self.canvas[...] = super().render()

    def render(self):
        return self.canvas


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("engine", ["serial", "process"])
def test_an_env_that_draws_over_its_last_frame_is_recorded_right(tmp_path, engine, mode):
    envs = ENGINES[engine]([partial(Canvas, length=6)] * 2, autoreset_mode=mode)
    with Collector(envs, Coin(), 9, recorder=Recorder(tmp_path, overlay=False)) as collector:
        collector.collect()
    assert steps_shown(videos_in(tmp_path)[0])[0] == list(range(7))


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_wrappers_around_a_fleet_do_not_matter(tmp_path, mode):
    envs = RecordEpisodeStatistics(fleet(count=3, mode=mode))
    with Collector(envs, Coin(), 9, recorder=Recorder(tmp_path, overlay=False)) as collector:
        collector.collect()
        assert collector.envs.env.get_attr("renders") == (4, 0, 0)
    assert steps_shown(videos_in(tmp_path)[0])[0] == [0, 1, 2, 3]


def test_the_mode_of_an_engine_that_does_not_say_it_is_the_collectors(tmp_path):
    envs = SyncVectorEnv([Screen], autoreset_mode="SameStep")
    del envs.metadata["autoreset_mode"]
    recorder = Recorder(tmp_path, overlay=False)
    with Collector(envs, Coin(), 9, autoreset_mode="SameStep", recorder=recorder) as collector:
        collector.collect()
    assert steps_shown(videos_in(tmp_path)[0])[0] == [0, 1, 2]


@pytest.mark.parametrize(
    ("image", "pixel"),
    [
        (np.full((8, 8), 200, dtype=np.uint8), (200, 200, 200)),
        (np.full((8, 8, 1), 200.0), (200, 200, 200)),
        (np.full((8, 8, 3), 0.5, dtype=np.float32), (127, 127, 127)),
        (np.full((8, 8, 4), 300), (255, 255, 255)),
        (np.ones((8, 8, 3), dtype=bool), (255, 255, 255)),
        ([[[10, 20, 30]] * 8] * 8, (10, 20, 30)),
    ],
)
def test_images_of_all_kinds_become_frames(image, pixel):
    frame = as_frame(image)
    assert frame.shape == (8, 8, 3)
    assert frame.dtype == np.uint8
    assert tuple(frame[3, 3]) == pixel


@pytest.mark.parametrize("image", [None, np.zeros(5), np.zeros((4, 4, 7)), "text"])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_what_is_no_image_ends_recording_and_not_training(tmp_path, image, mode):
    class Odd(Screen):
        def render(self):
            return image if self.t else super().render()

    envs = envfleet.SerialVectorEnv([Odd], autoreset_mode=mode)
    with Collector(envs, Coin(), 9, recorder=Recorder(tmp_path)) as collector:
        with pytest.warns(UserWarning, match="recording has stopped, and training goes on: env 0"):
            collector.collect()
        assert collector.collect().valid.any()
    assert len(videos_in(tmp_path)) == 1  # what there was of it


def test_frames_of_another_size_are_fitted(tmp_path):
    for suffix in ("gif", "mp4"):
        writer = open_writer(tmp_path / f"video.{suffix}", 20)
        for i, size in enumerate((8, 12, 6)):
            writer.add(i, np.full((size, size, 3), 90, dtype=np.uint8))
        writer.close()
        frames, _ = frames_of(tmp_path / f"video.{suffix}")
        assert [frame.shape for frame in frames] == [(8, 8, 3)] * 3


def test_the_return_is_drawn_on_the_frames(tmp_path):
    for overlay in (False, True):
        folder = tmp_path / str(overlay)
        envs = fleet(size=(200, 300))
        recorder = Recorder(folder, overlay=overlay)
        with Collector(envs, Coin(), 4, recorder=recorder) as collector:
            collector.collect()
        frames, _ = frames_of(videos_in(folder)[0])
        texts = [(f[:30, :150, 1] > 150).sum() for f in frames]
        assert all(count > 50 for count in texts) if overlay else not any(texts)
    expected = prepare(np.zeros((200, 300, 3), dtype=np.uint8), ["Return: 1.25"], 1.0)
    shown = frames[1][:30, :150, 1].astype(int)
    assert np.abs(shown - expected[:30, :150, 1]).mean() < 2


def test_videos_can_be_smaller_and_shorter(tmp_path):
    recorder = Recorder(tmp_path, scale=0.5, frame_skip=2, max_frames=4, overlay=False)
    with Collector(fleet(length=12), Coin(), 20, recorder=recorder) as collector:
        collector.collect()
    frames, shown = frames_of(videos_in(tmp_path)[0])
    assert frames[0].shape == (20, 30, 3)
    assert steps_shown(videos_in(tmp_path)[0])[0] == [0, 2, 4, 6]
    assert shown[:3] == [40, 40, 40]  # as fast as life: 50 steps per second


def test_odd_sizes_become_even_in_an_mp4(tmp_path):
    recorder = Recorder(tmp_path, format="mp4")
    with Collector(fleet(size=(41, 59)), Coin(), 4, recorder=recorder) as collector:
        collector.collect()
    assert frames_of(videos_in(tmp_path)[0])[0][0].shape == (42, 60, 3)


# When


def test_every_steps_counts_the_steps_of_the_fleet(tmp_path):
    recorder = Recorder(tmp_path, every_steps=20, overlay=False)
    with Collector(fleet(mode="SameStep"), Coin(), 40, recorder=recorder) as collector:
        collector.collect()  # 80 steps, episodes of 3
    # The steps 20, 40, ... are in the 10th, 20th, ... step of each env.
    episodes = [steps_shown(path)[1] for path in videos_in(tmp_path)]
    assert episodes[:2] == [0, 4]
    assert len(episodes) == 4  # the one for step 80 would begin after it


def test_recording_can_be_off(tmp_path):
    recorder = Recorder(tmp_path / "videos", every_steps=0)
    with Collector(fleet(), Coin(), 20, recorder=recorder) as collector:
        collector.collect()
        assert collector.envs.get_attr("renders") == (0, 0)
    assert not (tmp_path / "videos").exists()


def test_episodes_are_recorded_also_where_steps_do_not_count(tmp_path):
    recorder = Recorder(tmp_path, every_steps=0, every_episodes=2, overlay=False)
    with Collector(fleet(mode="SameStep"), Coin(), 12, recorder=recorder) as collector:
        collector.collect()  # four episodes of 3 steps, and the first frame of a fifth
    assert [steps_shown(path)[1] for path in videos_in(tmp_path)][:2] == [0, 2]


def test_videos_are_numbered_on_and_none_is_overwritten(tmp_path):
    for _ in range(2):
        recorder = Recorder(tmp_path, env_ids=[0, 1])
        with Collector(fleet(), Coin(), 4, recorder=recorder) as collector:
            collector.collect()
    assert [path.name for path in videos_in(tmp_path)] == [f"render_{i}.gif" for i in range(4)]


def test_two_recorders_in_one_folder_do_not_meet(tmp_path):
    collectors = [
        Collector(fleet(length=5), Coin(), 3, recorder=Recorder(tmp_path, overlay=False))
        for _ in range(2)
    ]
    for _ in range(3):
        for collector in collectors:
            collector.collect()
    for collector in collectors:
        collector.close()
    assert [steps_shown(path)[0] for path in videos_in(tmp_path)] == [list(range(6))] * 2


def test_a_recorder_is_for_one_fleet(tmp_path):
    recorder = Recorder(tmp_path)
    Collector(fleet(), Coin(), 3, recorder=recorder).close()
    with fleet() as envs, pytest.raises(ValueError, match="records one fleet, once"):
        Collector(envs, Coin(), 3, recorder=recorder)


def test_a_tracker_that_fails_is_one_warning(tmp_path):
    class Failing(Names):
        def video(self, path, step):
            raise OSError("no more")

    envs = fleet("process")
    recorder = Recorder(tmp_path, every_episodes=1, tracker=Failing())
    collector = Collector(envs, Coin(), 12, recorder=recorder)
    collector.collect()
    with pytest.warns(UserWarning, match="did not take the video") as caught:
        collector.close()
    assert len(caught) == 1
    assert envs.closed


class Names:
    project, run = "games", "first"

    def __init__(self):
        self.videos = []

    def video(self, path, step):
        self.videos.append((path, step, path.exists()))


def test_a_tracker_names_the_folder_and_is_told_of_videos(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tracker = Names()
    recorder = Recorder(every_steps=10, tracker=tracker)
    with Collector(fleet(), Coin(), 12, recorder=recorder) as collector:
        collector.collect()
    paths = [path for path, _, exists in tracker.videos if exists]
    assert paths == videos_in(tmp_path / "renders/games/first")
    assert [step for _, step, _ in tracker.videos][:2] == [0, 12]
    assert Recorder().folder == tmp_path / "renders/misc"
    tracker.project, tracker.run = "../up", "/abs"
    assert Recorder(tracker=tracker).folder == tmp_path / "renders/_up/_abs"


@pytest.mark.parametrize("suffix", ["gif", "mp4"])
def test_the_default_speed_is_the_envs_own(tmp_path, suffix):
    with Collector(fleet(), Coin(), 4, recorder=Recorder(tmp_path, format=suffix)) as collector:
        collector.collect()
    _, shown = frames_of(videos_in(tmp_path)[0])
    assert shown[:3] == pytest.approx([20, 20, 20])


@pytest.mark.parametrize("fps", [20, 24, 30, 50, 60, 125])
def test_a_gif_is_as_fast_as_it_should_be_on_average(tmp_path, fps):
    writer = GifWriter(tmp_path / "video.gif", fps)
    count = 151
    for i in range(count):
        writer.add(i, np.full((8, 8, 3), i, dtype=np.uint8))
    writer.close()
    frames, shown = frames_of(tmp_path / "video.gif")
    assert min(shown) >= 20
    assert frames[-1][0, 0, 0] == pytest.approx(count - 1, abs=4)  # the last one is never skipped
    stride = gif_stride(fps)
    assert len(frames) == (count - 1) // stride + 1 + ((count - 1) % stride > 0)
    assert sum(shown[:-1]) == pytest.approx(1000 * (count - 1) / fps, abs=25)


def test_delays_catch_up_with_the_clock():
    clock = GifClock(30)
    assert [clock.delay(i) for i in range(1, 7)] == [3, 4, 3, 3, 4, 3]
    with pytest.raises(ValueError, match="fps must be above 0"):
        GifClock(0)


# Bad input


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"every_steps": -1}, "every_steps must be 0 or more"),
        ({"every_episodes": 0}, "every_episodes must be at least 1"),
        ({"max_frames": 0}, "max_frames must be at least 1"),
        ({"fps": 0}, "fps must be above 0"),
        ({"scale": 0}, "scale must be above 0"),
        ({"frame_skip": 0}, "frame_skip must be at least 1"),
        ({"format": "avi"}, "format must be 'gif' or 'mp4'"),
        ({"env_ids": ()}, "env_ids must be at least one env"),
        ({"env_ids": [0, 0]}, "env_ids must be at least one env, and none twice"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        Recorder(**options)


def test_what_does_not_render_is_refused_before_anything_runs(tmp_path):
    with fleet(render_mode=None) as envs:
        with pytest.raises(ValueError, match="render_mode='rgb_array'"):
            Collector(envs, Coin(), 4, recorder=Recorder(tmp_path))
        with pytest.raises(ValueError, match="render_mode='rgb_array'"):
            record_agent(Coin(), envs, steps=3)
        assert envs.get_attr("episode") == (-1, -1)
    with fleet() as envs, pytest.raises(ValueError, match=r"env_ids \[2\] are not among"):
        Collector(envs, Coin(), 4, recorder=Recorder(tmp_path, env_ids=[2]))


# The encoder in trouble


def test_training_does_not_wait_for_a_stopped_encoder(tmp_path, caplog):
    envs = fleet(count=1, length=1500, size=(500, 500))
    recorder = Recorder(tmp_path, overlay=False, scale=0.1)
    with Collector(envs, Coin(), 10, recorder=recorder) as collector:
        collector.collect()
        os.kill(recorder._feed.process.pid, signal.SIGSTOP)
        try:
            for _ in range(100):
                collector.collect()
            assert collector.total_steps == 1010
        finally:
            os.kill(recorder._feed.process.pid, signal.SIGCONT)
        with caplog.at_level(logging.WARNING, "envfleet"):
            collector.close()
    assert "which were dropped" in caplog.text
    frames, _ = frames_of(videos_in(tmp_path)[0])
    # What waited: 256 MiB are 357 frames of this size. A few had gone to the encoder before.
    assert 300 < len(frames) < 400
    # What is there is shown at its time.
    assert steps_shown(videos_in(tmp_path)[0])[0][:12] == list(range(12))


def test_a_full_disk_is_one_warning_and_training_goes_on(tmp_path):
    recorder = Recorder(tmp_path, every_episodes=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Collector(fleet(size=(300, 300)), Coin(), 4, recorder=recorder) as collector:
            collector.reset()
            # From now on the encoder cannot write a byte more.
            limit = (0, resource.RLIM_INFINITY)
            resource.prlimit(recorder._feed.process.pid, resource.RLIMIT_FSIZE, limit)
            collector.collect()
            wait_until(lambda: recorder._feed.problem)
            for _ in range(5):
                assert collector.collect().valid.any()
    told = [str(w.message) for w in caught if "recording has stopped" in str(w.message)]
    assert len(told) == 1
    assert "File too large" in told[0]
    assert not videos_in(tmp_path)
    assert not list(tmp_path.glob(".render*"))


def test_an_encoder_that_dies_is_one_warning_and_training_goes_on(tmp_path):
    recorder = Recorder(tmp_path, every_episodes=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Collector(fleet(), Coin(), 4, recorder=recorder) as collector:
            collector.collect()
            recorder._feed.process.kill()
            recorder._feed.process.wait()
            wait_until(lambda: collector.collect() and not recorder.is_on)
    assert sum("recording has stopped" in str(w.message) for w in caught) == 1


PROGRAM = """
import sys, time
sys.path.insert(0, {tests!r})
from test_record import Coin, Screen
import envfleet
envs = envfleet.ProcessVectorEnv([Screen] * 2, workers=2, context="fork")
envs.close()
envs = envfleet.ProcessVectorEnv([lambda: Screen(length=10**9)] * 2, workers=2, context="fork")
recorder = envfleet.Recorder({folder!r}, [0, 1], max_frames=None, format={suffix!r})
collector = envfleet.Collector(envs, Coin(), 10, recorder=recorder)
while collector.total_steps < 200:
    collector.collect()
while recorder._feed._bytes:
    time.sleep(0.01)
print("running", flush=True)
while True:
    collector.collect()
    time.sleep(0.1)
"""


@pytest.mark.parametrize("suffix", ["gif", "mp4"])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_a_program_that_is_ended_leaves_a_video_that_plays(tmp_path, name, suffix):
    folder = tmp_path / "videos"
    program = PROGRAM.format(tests=str(Path(__file__).parent), folder=str(folder), suffix=suffix)
    errors = (tmp_path / "errors.txt").open("w+")
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        start_new_session=True,
    )
    assert process.stdout.readline() == "running\n"
    # As a terminal does with Ctrl-C: to everybody in the foreground.
    os.killpg(process.pid, getattr(signal, name))
    process.wait(20)
    process.stdout.close()
    wait_until(lambda: len(videos_in(folder)) == 2)
    for path in videos_in(folder):
        assert len(frames_of(path)[0]) > 50
    wait_until(lambda: not list(folder.glob(".*")))
    errors.seek(0)
    assert name == "SIGINT" or "Traceback" not in errors.read()
    errors.close()


def test_a_replaced_worker_ends_the_video_of_its_env(tmp_path):
    envs = envfleet.ProcessVectorEnv(
        [partial(Screen, length=9)] * 2,
        workers=2,
        context="fork",
        on_failure="restart",
        autoreset_mode="SameStep",
    )
    recorder = Recorder(tmp_path, every_episodes=1, overlay=False)
    with Collector(envs, Coin(), 4, recorder=recorder) as collector:
        collector.collect()
        os.kill(envs.processes[0].pid, signal.SIGKILL)
        for _ in range(6):
            collector.collect()
    videos = [steps_shown(path)[0] for path in videos_in(tmp_path)]
    assert videos[0] == list(range(5))
    assert videos[1] == list(range(10))  # the new worker keeps last frames too


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("kill_after", range(2, 7))
def test_a_restart_at_any_moment_is_survived_with_a_recorder_too(tmp_path, kill_after, mode):
    class KillOnce(Coin):
        asked = 0

        def act(self, observations, deterministic=False):
            self.asked += 1
            if self.asked == kill_after:
                os.kill(envs.processes[0].pid, signal.SIGKILL)
            return super().act(observations)

    envs = envfleet.ProcessVectorEnv(
        [lambda: OrderEnforcing(Screen())] * 2,
        workers=2,
        context="fork",
        on_failure="restart",
        autoreset_mode=mode,
    )
    recorder = Recorder(tmp_path, every_episodes=1, overlay=False)
    with Collector(envs, KillOnce(), 16, recorder=recorder) as collector:
        collector.collect()
        assert recorder.is_on
    videos = [steps_shown(path)[0] for path in videos_in(tmp_path)]
    assert videos[-2] == [0, 1, 2, 3]
    assert all(video == list(range(len(video))) for video in videos)


def test_a_worker_that_dies_while_rendering_ends_recording_and_not_training(tmp_path):
    class Deadly(Screen):
        def render(self):
            if self.t == 2 and self.episode == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().render()

    envs = envfleet.ProcessVectorEnv([Deadly] * 2, workers=2, context="fork", on_failure="restart")
    with Collector(envs, Coin(), 8, recorder=Recorder(tmp_path)) as collector:
        with pytest.warns(UserWarning, match="recording has stopped.*WorkerDied"):
            collector.collect()
        assert collector.collect().valid.any()


# Frames that cannot be had


class Broken(Screen):
    """Its ``render`` raises as soon as it is told so, or at a step."""

    def __init__(self, at=None, error=None, **kwargs):
        super().__init__(**kwargs)
        self.at, self.broken = at, False
        self.error = error or OSError("no display")

    def render(self):
        if self.broken or self.t == self.at:
            raise self.error
        return super().render()


def broken_fleet(engine="serial", mode="SameStep", count=2, **kwargs):
    return ENGINES[engine]([partial(Broken, **kwargs)] * count, autoreset_mode=mode)


@pytest.mark.parametrize("infos", ["all", "final", "none"])
@pytest.mark.parametrize("engine", ["serial", "process", "caller"])
def test_a_last_frame_that_fails_costs_no_step(engine, infos):
    fns = [partial(Broken, at=3)] * 3
    with ENGINES[engine](fns, autoreset_mode="SameStep", infos=infos) as envs:
        envs.reset()
        envs.keep_final_frames([0, 2])
        for _ in range(3):
            observations, rewards, terminated, _, told = envs.step(np.zeros(3, dtype=int))
        assert terminated.all()
        assert observations.tolist() == [[1, 0]] * 3
        assert rewards.tolist() == [1.25] * 3
        assert [final.tolist() for final in told["final_obs"]] == [[0, 3]] * 3
        assert "final_frame" not in told
        assert told["final_frame_error"].tolist() == [
            "OSError: no display",
            None,
            "OSError: no display",
        ]


def test_a_last_frame_that_fails_is_told_once_and_recording_goes_on(tmp_path):
    recorder = Recorder(tmp_path, every_episodes=1, overlay=False)
    with Collector(broken_fleet(at=3), Coin(), 9, recorder=recorder) as collector:
        with pytest.warns(UserWarning, match="lacks its last frame.*OSError: no display") as caught:
            collector.collect()
        assert len(caught) == 1
        collector.collect()
        assert recorder.is_on
    assert [steps_shown(path)[0] for path in videos_in(tmp_path)][:3] == [[0, 1, 2]] * 3


def way_render(collector, recorder):
    collector.envs.set_attr("broken", True)
    with pytest.warns(UserWarning, match="recording has stopped, and training goes on"):
        collector.collect()


def way_encoder(collector, recorder):
    recorder._feed.process.kill()
    recorder._feed.process.wait()
    with pytest.warns(UserWarning, match="recording has stopped, and training goes on"):
        wait_until(lambda: collector.collect() and not recorder.is_on)


def way_disk(collector, recorder):
    limit = (0, resource.RLIM_INFINITY)
    resource.prlimit(recorder._feed.process.pid, resource.RLIMIT_FSIZE, limit)
    collector.collect()
    wait_until(lambda: recorder._feed.problem)
    with pytest.warns(UserWarning, match="File too large"):
        collector.collect()


def way_close(collector, recorder):
    recorder.close()


def way_error(collector, recorder):
    collector.agent.fails = True
    with pytest.raises(ArithmeticError):
        collector.collect()
    collector.agent.fails = False


def way_folder(collector, recorder):
    collector.collect()
    recorder.folder = recorder.folder / "file"
    recorder.folder.touch()
    with pytest.warns(UserWarning, match=r"recording has stopped, .*FileExistsError"):
        wait_until(lambda: collector.collect() and not recorder.is_on)


class Moody(Coin):
    fails = False

    def act(self, observations, deterministic=False):
        if self.fails:
            raise ArithmeticError("the caller's own")
        return super().act(observations)


WAYS = [way_render, way_encoder, way_disk, way_close, way_error, way_folder]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_out_of_recording_lets_the_fleet_render_no_more(tmp_path, way):
    recorder = Recorder(tmp_path, env_ids=[0, 1], every_episodes=4)
    envs = broken_fleet(count=3, length=20, size=(200, 200))
    with Collector(envs, Moody(), 10, recorder=recorder) as collector:
        collector.reset()
        assert envs.final_frame_env_ids == (0, 1)
        way(collector, recorder)
        assert envs.final_frame_env_ids == ()
        if way is way_error:
            return
        renders = envs.get_attr("renders")
        for _ in range(5):
            assert collector.collect().valid.all()
        assert envs.get_attr("renders") == renders


def test_recordings_of_one_fleet_do_not_switch_each_others_last_frames_off(tmp_path):
    envs = fleet(count=2, mode="SameStep")

    class Watch(Coin):
        def act(self, observations, deterministic=False):
            seen.append(envs.final_frame_env_ids)
            if len(seen) == 3:
                recorder.close()
            return super().act(observations)

    seen = []
    recorder = Recorder(tmp_path)
    with Collector(envs, Coin(), 3, recorder=recorder) as collector:
        collector.reset()
        record_agent(Coin(), envs, steps=2, path=tmp_path / "agent.gif")
        assert envs.final_frame_env_ids == (0,)
        record_agent(Watch(), envs, steps=5, path=tmp_path / "agent.gif")
        assert seen == [(0, 1)] * 5
        assert envs.final_frame_env_ids == ()
        with pytest.raises(ArithmeticError):
            record_agent(Failing(), envs, steps=5, path=tmp_path / "agent.gif")
        assert envs.final_frame_env_ids == ()


class Failing(Coin):
    def act(self, observations, deterministic=False):
        raise ArithmeticError("the caller's own")


def test_a_last_frame_that_fails_is_shown_as_the_one_before(tmp_path):
    with broken_fleet(at=3) as envs, pytest.warns(UserWarning, match="lacks its last frame"):
        frames, _ = record_agent(Coin(), envs, episodes=1, grid=False, overlay=False)
    assert [(round(f[0, 0, 0] / 20), f[0, 0, 1]) for f in frames] == [
        (0, 0),
        (1, 0),
        (2, 0),
        (2, 0),
    ]


PYGAME = gym.error.DependencyNotInstalled("pygame is not installed, run `pip install x`")
OPENGL = RuntimeError("an OpenGL platform library has not been loaded into this process")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (PYGAME, r"need pygame: pip install 'envfleet\[train\]'$"),
        (ModuleNotFoundError("No module named 'pygame'"), r"pip install 'envfleet\[train\]'$"),
        (OPENGL, "MUJOCO_GL=egl"),
        (KeyError("two\nlines"), "KeyError: .*Mend it"),
    ],
)
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_no_first_frame_is_refused_in_one_line_with_what_to_do(
    tmp_path, monkeypatch, mode, error, text
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    with broken_fleet(mode=mode, at=0, error=error) as envs:
        with pytest.raises(ValueError, match=text) as refused:
            Collector(envs, Coin(), 4, recorder=Recorder()).collect()
        assert "\n" not in str(refused.value)
        with pytest.raises(ValueError, match=text):
            record_agent(Coin(), envs, steps=3)
        if mode == AutoresetMode.SAME_STEP:
            assert envs.final_frame_env_ids == ()
    assert not list(tmp_path.iterdir())


class Aborting(Screen):
    def render(self):
        faulthandler.disable()  # pytest's, which would tell of it at length
        os.abort()


def test_a_worker_that_aborts_in_its_first_frame_is_refused(tmp_path):
    with envfleet.ProcessVectorEnv([Aborting] * 2, workers=2, context="fork") as envs:
        collector = Collector(envs, Coin(), 4, recorder=Recorder(tmp_path))
        with pytest.raises(ValueError, match=r"env 0 was killed by SIGABRT in render.*MUJOCO_GL"):
            collector.collect()
    assert not list(tmp_path.iterdir())


def test_a_worker_that_dies_while_rendering_is_not_said_to_go_on(tmp_path):
    class Deadly(Screen):
        def render(self):
            if self.t == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().render()

    envs = envfleet.ProcessVectorEnv([Deadly] * 2, workers=2, context="fork")
    collector = Collector(envs, Coin(), 8, recorder=Recorder(tmp_path))
    with collector, pytest.raises(envfleet.WorkerDied, match="during call of 'render'"):
        collector.collect()


def test_envs_that_are_recorded_together_stop_together(tmp_path):
    recorder = Recorder(tmp_path, env_ids=[0, 1, 2])
    envs = broken_fleet(mode="NextStep", at=2, count=3)
    with Collector(envs, Coin(), 9, recorder=recorder) as collector:
        with pytest.warns(UserWarning, match="recording has stopped") as caught:
            collector.collect()
        assert len(caught) == 1
        assert collector.collect().valid.any()
    assert len(videos_in(tmp_path)) == 3


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (partial(Broken, at=0, error=PYGAME), "need pygame"),
        (partial(Screen, render_mode=None), "render_mode='rgb_array'"),
        (Aborting, "killed by SIGABRT in render"),
    ],
)
def test_a_trial_frame_says_what_is_missing(build, text):
    make_one = partial(envfleet.ProcessVectorEnv, [build], context="fork")
    with pytest.raises(ValueError, match=text):
        check_video(make_one)


def test_a_trial_frame_of_what_renders_is_nothing_to_speak_of():
    check_video(partial(envfleet.ProcessVectorEnv, [Screen], context="fork"))


# How it looks, and how fast it is


def backgrounds(size):
    noise = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    return {
        "white": np.full((*size, 3), 255, dtype=np.uint8),
        "black": np.zeros((*size, 3), dtype=np.uint8),
        "noise": noise,
    }


@pytest.mark.parametrize("background", ["white", "black", "noise"])
@pytest.mark.parametrize(
    ("size", "scale"),
    [
        ((64, 64), 1),
        ((84, 84), 1),
        ((64, 64), 0.5),
        ((64, 64), 4),
        ((210, 160), 0.5),
        ((400, 600), 0.3),
        ((400, 600), 1),
        ((500, 60), 1),
    ],
)
@pytest.mark.parametrize("value", [0.0, -1.25, 123.5, -98765.43])
def test_the_return_can_be_read_on_any_background_at_any_size(background, size, scale, value):
    frame = backgrounds(size)[background]
    bare, shown = prepare(frame, [], scale), prepare(frame, return_texts(value), scale)
    blank = prepare(frame, [" "], scale)
    on_white = prepare(backgrounds(size)["white"], [" "], scale)
    bar = (on_white < 255).all(axis=(1, 2))
    assert 11 <= bar.sum() <= max(17, 0.1 * len(bar))
    assert bar[: bar.sum()].all()  # at the top
    assert np.array_equal(shown[~bar], bare[~bar])
    assert blank[bar].max() < 100  # dark,
    assert background == "black" or blank[bar].max() > 50  # and half-transparent
    letters = shown[bar].min(axis=2) > 180
    assert letters.sum() >= 10
    ink = (shown != blank).any(axis=2)
    inked = np.flatnonzero(ink.any(axis=0))
    assert inked.min() >= 1  # nothing is cut through
    assert inked.max() <= shown.shape[1] - 2
    assert not ink[[0, bar.sum() - 1]].any()


def test_what_has_no_room_for_a_text_stays_as_it_is():
    frame = backgrounds((10, 200))["noise"]
    assert np.array_equal(prepare(frame, return_texts(1.0), 1.0), frame)
    assert prepare(frame, ["x" * 100, "x"], 2.0).shape == (20, 400, 3)


@pytest.mark.parametrize("suffix", ["gif", "mp4"])
@pytest.mark.parametrize("fps", [0.5, 5, 15, 29.97, 60])
def test_the_last_frame_is_held_for_a_second(tmp_path, suffix, fps):
    path = tmp_path / f"video.{suffix}"
    writer = open_writer(path, fps)
    for i in range(5):
        writer.add(i, np.full((16, 16, 3), 50 * i, dtype=np.uint8))
    writer.close()
    if fps < 1:
        return  # a frame takes longer anyway
    _, shown = frames_of(path)
    assert 950 <= shown[-1] <= 1050
    with av.open(str(path)) as video:
        assert sum(shown) / 1000 == pytest.approx(video.duration / 1e6, abs=0.06)


@pytest.mark.parametrize(
    ("build", "fps"),
    [
        (lambda: build_fleet("ALE/Pong-v5", 1, backend="serial"), 15),
        (lambda: build_fleet("ALE/Pong-v5", 1, backend="process"), 15),
        (lambda: envfleet.make("ALE/Pong-v5", 1), 15),
        (lambda: envfleet.make("ALE/Pong-v5", 1, frameskip=1), 60),
        (lambda: gym.make_vec("ALE/Pong-v5", 1, frameskip=2), 30),
        (lambda: gym.make_vec("ALE/Pong-v5", 1, "async", {"shared_memory": False}), 15),
    ],
)
def test_a_second_of_an_atari_video_is_a_second_of_the_game(build, fps):
    pytest.importorskip("ale_py")
    with contextlib.closing(build()) as envs:
        assert fps_of(envs) == fps
        envs.reset(seed=0)
        at = [envs.step(envs.action_space.sample())[4]["episode_frame_number"] for _ in range(9)]
        per_step = (at[-1] - at[0])[0] / 8
        assert fps * per_step == 60


def test_wrappers_that_skip_frames_are_counted():
    skipping = [partial(MaxAndSkipObservation, skip=5)]
    with envfleet.make("CartPole-v1", 2, backend="serial", wrappers=skipping) as envs:
        assert fps_of(envs) == 10
    with envfleet.make("CartPole-v1", 2, backend="serial") as envs:
        assert fps_of(RecordEpisodeStatistics(envs)) == 50
    with fleet() as envs:
        assert fps_of(envs) == 50  # no spec
    assert natural_fps({}, None) == 30
    spec = EnvSpec("Game-v0", "ale_py.env:AtariEnv", kwargs={"frameskip": (2, 5)})
    assert natural_fps({"render_fps": 30}, spec) == 20


# record_agent


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("suffix", ["gif", "mp4"])
def test_an_agent_is_recorded_in_the_whole_fleet(tmp_path, suffix, mode):
    fns = [partial(Screen, length) for length in (2, 5, 3)]
    with envfleet.SerialVectorEnv(fns, autoreset_mode=mode) as envs:
        path = record_agent(
            Coin(), envs, episodes=1, path=tmp_path / f"video.{suffix}", overlay=False
        )
    frames, _ = frames_of(path)
    assert frames[0].shape == (82, 122, 3)  # two by two
    last = frames[-1]
    shown = [int(last[y, x, 0]) / 20 for y, x in ((20, 30), (20, 92), (62, 30))]
    assert [round(s) for s in shown] == [2, 5, 3]  # each stands at its end
    assert len(frames) == 6


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_envs_stand_at_their_end_also_between_frames(mode):
    fns = [partial(Screen, length) for length in (3, 9)]
    with envfleet.SerialVectorEnv(fns, autoreset_mode=mode) as envs:
        frames, _ = record_agent(
            Coin(), envs, episodes=1, render_every=2, grid=False, overlay=False
        )
    shown = [(round(f[0, 0, 0] / 20), round(f[0, 0, 1] / 40)) for f in frames]
    assert shown == [(0, 0), (2, 0), (3, 0), (3, 0), (3, 0), (3, 0)]


def test_frames_can_be_had_as_they_are():
    with fleet(count=3) as envs:
        frames = record_agent(Coin(), envs, steps=5, render_every=2, grid=False, overlay=False)
    assert [len(each) for each in frames] == [4, 4, 4]  # steps 0, 2, 4, and the last one
    assert [round(frame[0, 0, 0] / 20) for frame in frames[0]] == [0, 2, 0, 1]


def test_recording_leaves_no_trace_in_training(tmp_path):
    class Inner:
        def __init__(self):
            self.nets = [torch.nn.BatchNorm1d(2)]
            self.random = {"torch": torch.Generator().manual_seed(3)}

    class Module(torch.nn.Module, Coin):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def act(self, observations, deterministic=False):
            self.inner.nets[0](observations)
            torch.rand(1, generator=self.inner.random["torch"])
            random.random()
            np.random.rand()
            return super().act(observations, deterministic)

    agent = Module()
    state = torch.get_rng_state()
    others = random.getstate(), np.random.get_state()[1].tolist()
    with fleet() as envs:
        record_agent(agent, envs, steps=5, path=tmp_path / "video.gif")
        record_agent(agent, envs, steps=5, path=tmp_path / "video.gif", deterministic=True)
        normalized = NormalizeObservation(envs)
        record_agent(agent, normalized, steps=3, path=tmp_path / "video.gif")
    assert normalized.obs_rms.count < 1
    assert normalized.update_running_mean
    assert torch.equal(state, torch.get_rng_state())
    assert others == (random.getstate(), np.random.get_state()[1].tolist())
    assert agent.inner.nets[0].num_batches_tracked == 0
    fresh = torch.Generator().manual_seed(3)
    assert torch.equal(agent.inner.random["torch"].get_state(), fresh.get_state())
    assert agent.training


def test_a_bar_shows_how_far_it_is(tmp_path, capsys):
    with fleet() as envs:
        record_agent(Coin(), envs, steps=7, path=tmp_path / "video.gif", progress=True)
    assert "7/7" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"steps": 3, "episodes": 1},
        {"steps": 0},
        {"episodes": 0},
        {"steps": 3, "render_every": 0},
    ],
)
def test_how_long_to_record_must_be_said_once(options):
    with fleet() as envs, pytest.raises(ValueError, match="either steps or episodes"):
        record_agent(Coin(), envs, **options)


def test_a_video_has_an_ending_that_is_known(tmp_path):
    with fleet() as envs, pytest.raises(ValueError, match=r"a \.gif or \.mp4 file"):
        record_agent(Coin(), envs, steps=3, path=tmp_path / "video.avi")
    with pytest.raises(ValueError, match=r"a \.gif or \.mp4 file"):
        open_writer(tmp_path / "video.avi", 30)
    assert not list(tmp_path.iterdir())


def test_frames_of_a_grid_may_differ_in_size():
    image = tile([np.full((2 + i, 3, 3), i + 1, dtype=np.uint8) for i in range(3)])
    assert image.shape == (10, 8, 3)
    corners = [image[y, x, 0] for y, x in itertools.product((0, 6), (0, 5))]
    assert corners == [1, 2, 3, GREY]


@pytest.mark.parametrize("size", [(84, 84), (400, 600)])
@pytest.mark.parametrize("background", [0, 255])
def test_frames_of_a_grid_have_gaps_that_can_be_seen(size, background):
    tiles = [np.full((*size, 3), background, dtype=np.uint8)] * 6
    image = tile(tiles).astype(int)
    seam = np.abs(image - background).min(axis=(0, 2)) > 60  # columns that are no tile's
    gap = np.flatnonzero(seam)
    assert image.shape[1] == 3 * size[1] + len(gap)
    assert 4 <= len(gap) <= 20
    assert not seam[[0, -1]].any()
