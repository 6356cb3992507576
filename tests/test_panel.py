"""The panel: what it shows at any width, in a real terminal too, and what there is without one."""

from __future__ import annotations

import fcntl
import io
import logging
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import warnings

import pytest
from rich.cells import cell_len
from rich.console import Console

from envfleet.training.panel import Curve, PanelProgress, RunState, draw, duration, sparkline

METRICS = {
    "return_p5": -34.4,
    "return_p50": 77.0,
    "return_p95": 135.0,
    "return_mean": 71.5,
    "length_mean": 412.0,
    "n": 100.0,
    "restarts": 2.0,
    "loss/policy": -0.0123,
    "loss/value": 13.2,
    "time/steps_per_second": 8000.0,
    "time/env": 3.0,
    "time/update": 1.0,
}


def shown(state, width):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(draw(state, width))
    return console.file.getvalue()


def state_of(updates=3, metrics=METRICS):
    now = iter(range(1000))
    state = RunState("CartPole-v1 first", 10_000, 0, clock=lambda: float(next(now)))
    for update in range(1, updates + 1):
        state.note(1000 * update, metrics)
    return state


@pytest.mark.pure
@pytest.mark.parametrize("width", [60, 80, 119, 120, 200])
def test_all_figures_are_there_and_no_line_is_too_long(width):
    state = state_of()
    state.last_message = "worker 1 was killed by SIGKILL. Restart 2."
    text = shown(state, width)
    assert {cell_len(line) for line in text.splitlines()} == {width}
    for figure in ("CartPole-v1 first", "3,000 of 10,000 steps", "steps/s", "left", "135", "77"):
        assert figure in text
    for figure in ("-34.4", "mean 71.5", "length 412", "env 75%", "update 25%", "2 restarts"):
        assert figure in text
    assert "policy -0.0123" in text
    assert "worker 1 was killed" in text


@pytest.mark.pure
def test_partial_batches_say_how_often_late_envs_are_left_out():
    flow = {"flow/mean_batch": 5.25, "flow/partial": 0.4}
    assert "2 restarts · 5.2 envs at a time, 40% without late envs" in shown(
        state_of(metrics=METRICS | flow), 80
    )


@pytest.mark.pure
def test_actors_that_are_late_are_counted():
    late = {"actors/late": 1.0, "actors/dropped": 6.0}
    assert "2 restarts · 1 actor late, 6 rollouts dropped" in shown(
        state_of(metrics=METRICS | late), 80
    )


@pytest.mark.pure
def test_a_wide_terminal_has_fewer_lines():
    assert len(shown(state_of(), 200).splitlines()) < len(shown(state_of(), 80).splitlines())


@pytest.mark.pure
def test_before_the_first_update_and_the_first_episode_there_is_a_panel_too():
    assert "collecting the first rollout" in shown(state_of(updates=0), 80)
    unknown = dict.fromkeys(("return_p5", "return_p50", "return_p95", "return_mean"), float("nan"))
    assert "no episode has ended yet" in shown(state_of(metrics=METRICS | unknown), 80)


@pytest.mark.pure
def test_texts_of_a_run_are_no_markup():
    state = RunState("[red]my_envs:make[/red]", 10, 0)
    state.last_message = "[bold]x[/bold]"
    text = shown(state, 80)
    assert "[red]my_envs:make[/red]" in text
    assert "[bold]x[/bold]" in text


@pytest.mark.pure
def test_a_sparkline_goes_from_the_lowest_to_the_highest_and_has_gaps():
    assert sparkline([0.0, 1.0, float("nan"), 2.0], 0.0, 2.0, 10) == "▁▅ █"
    assert sparkline(list(range(100)), 0, 99, 4) == "▂▄▅▇"
    assert sparkline([3.0, 3.0], 3.0, 3.0, 10) == "▅▅"
    assert sparkline([], 0.0, 1.0, 10) == ""


@pytest.mark.pure
def test_a_long_curve_keeps_its_shape_in_bounded_memory():
    curve = Curve(most=16)
    for value in range(10_000):
        curve.add(float(value))
    assert len(curve.values) < 16
    assert curve.values == sorted(curve.values)
    assert curve.values[0] < 1000
    assert curve.values[-1] > 8000


@pytest.mark.pure
@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0:00"), (42, "0:42"), (725, "12:05"), (10_800, "3:00:00")]
)
def test_durations_are_those_of_a_clock(seconds, text):
    assert duration(seconds) == text


def test_warnings_and_the_log_are_said_in_the_panel_and_only_while_it_is_there(capsys):
    panel = PanelProgress("run", 100, 0)
    before = warnings.showwarning
    with panel:
        logging.getLogger("envfleet").warning("worker 1 died")
        assert panel.state.last_message == "worker 1 died"
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("no episode", stacklevel=1)
        assert panel.state.last_message == "UserWarning: no episode"
    assert warnings.showwarning is before
    assert panel._log not in logging.getLogger("envfleet").handlers
    assert "worker 1 died" in capsys.readouterr().out


@pytest.mark.pure
def test_slow_terminals_are_drawn_to_seldom():
    seconds = [0.0]

    def clock():
        seconds[0] += 0.05  # a draw takes as long, by two looks at the clock
        return seconds[0]

    panel = PanelProgress("run", 100, 0, clock=clock)
    panel._live.update = lambda *_, refresh: draws.append(seconds[0])
    draws = []
    panel._draw()
    while seconds[0] < 200:
        panel.update(1, METRICS)
    assert 200 / len(draws) > 0.05 / 0.005  # less than half a percent


# In a terminal


def in_terminal(width, *words, cwd):
    """All that a command writes to a terminal of so many columns, and its exit code."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "envfleet", *words],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=cwd,
        env=environment | {"TERM": "xterm-256color"},
    )
    os.close(slave)
    said = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        said += part
    os.close(master)
    return said.decode(), process.wait(60)


def last_panel(said):
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said).replace("\r", "")
    return plain[plain.rindex("╭") : plain.rindex("╯") + 1].splitlines()


TRAIN = ["train", "CartPole-v1", "--name", "first", "--total-steps", "4096", "--backend", "serial"]


@pytest.mark.parametrize("width", [80, 200])
def test_the_command_shows_a_panel_that_fits_and_ends_with_what_comes_next(tmp_path, width):
    said, code = in_terminal(width, *TRAIN, cwd=tmp_path)
    assert code == 0, said
    panel = last_panel(said)
    assert {cell_len(line) for line in panel} == {width}
    text = "\n".join(panel)
    assert "CartPole-v1" in text
    assert "4,096 of 4,096 steps" in text
    assert "steps/s" in text
    assert "95 %" in text
    assert "\x1b[?25h" in said[said.rindex("╯") :]  # the cursor is back
    folder = tmp_path / "runs/CartPole-v1/first"
    after = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said[said.rindex("╯") :]).replace("\r", "")
    lines = after.splitlines()
    assert str(folder / "report.html") in after
    assert str(folder / "curve.png") in after
    for command in ("eval", "record"):
        (line,) = [line for line in lines if line.startswith(f"envfleet {command} ")]
        assert str(folder) in line


def without_terminal(*words, cwd):
    return subprocess.run(
        [sys.executable, "-m", "envfleet", *words],
        capture_output=True,
        text=True,
        check=True,
        cwd=cwd,
    ).stdout


def test_without_a_terminal_there_are_lines_and_no_escapes(tmp_path):
    said = without_terminal(*TRAIN, cwd=tmp_path)
    assert "\x1b" not in said
    assert "4,096 of 4,096 steps" in said


def test_quiet_says_nothing(tmp_path):
    assert without_terminal(*TRAIN, "--quiet", cwd=tmp_path) == ""
    assert (tmp_path / "runs/CartPole-v1/first/report.html").exists()
