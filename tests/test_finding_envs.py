"""Envs that cannot be found, built or installed: what is said about them, and what to do."""

from __future__ import annotations

import json
import subprocess
import sys

import gymnasium as gym
import pytest

import envfleet
from envfleet.errors import EnvError
from envfleet.training.envs import UnknownEnvError, find_env
from envfleet.training.failures import env_failure
from envfleet.vector.packages import install_hint

MODULE = """
import gymnasium as gym
from gymnasium import spaces

NUMBER = 3


class Maze(gym.Env):
    observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)

    def __init__(self):
        load()


def load():
    raise RuntimeError("no maze")


gym.register("OwnMaze-v0", Maze)
"""


@pytest.fixture
def own_maze(tmp_path, monkeypatch):
    (tmp_path / "own_maze.py").write_text(MODULE)
    (tmp_path / "own_broken.py").write_text("def f():\n    return 1 / 0\n\nf()\n")
    (tmp_path / "own_needy.py").write_text("import own_missing\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    gym.registry.pop("OwnMaze-v0", None)
    sys.modules.pop("own_maze", None)


@pytest.mark.usefixtures("own_maze")
@pytest.mark.parametrize(
    ("env_id", "text"),
    [
        ("own_maze:nothing", "module own_maze has no 'nothing'."),
        ("own_maze:Maz", "module own_maze has no 'Maz'. Did you mean own_maze:Maze?"),
        ("own_maze:NUMBER", "NUMBER of module own_maze is of type int: it must build envs."),
        ("own_maze:OwnMase-v0", "`OwnMase` doesn't exist. Did you mean own_maze:OwnMaze-v0"),
        ("own_nowhere:Maze", "own_nowhere:Maze: No module named 'own_nowhere'. It is neither in"),
        ("own_maze.deep:Maze", "No module named 'own_maze.deep'"),
        ("own_needy:Maze", "importing own_needy failed with ModuleNotFoundError: No module named"),
        ("own_broken:Maze", "importing own_broken failed with ZeroDivisionError"),
        (
            "MiniGrid-Empty-5x5-v0",
            "doesn't exist. It needs: pip install 'minigrid', then minigrid:",
        ),
        ("minigrid:MiniGrid-Empty-5x5-v0", "No module named 'minigrid'. It needs: pip install"),
        ("highway-fast-v0", "pip install 'highway-env', then highway_env:highway-fast-v0"),
    ],
)
def test_what_cannot_be_found_is_named(env_id, text):
    with pytest.raises(UnknownEnvError) as caught:
        find_env(env_id)
    assert text in str(caught.value)


@pytest.mark.usefixtures("own_maze")
def test_a_module_that_fails_shows_its_own_lines():
    with pytest.raises(UnknownEnvError) as caught:
        find_env("own_broken:Maze")
    shown = str(caught.value)
    assert 'own_broken.py", line 4, in <module>\n    f()\n' in shown
    assert shown.count("File ") == 2


def test_an_id_of_a_package_that_is_installed_is_suggested_with_its_module(tmp_path, monkeypatch):
    (tmp_path / "minigrid.py").write_text("raise AssertionError('nobody asked for it')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnknownEnvError, match="Did you mean minigrid:MiniGrid-Empty-5x5-v0"):
        find_env("MiniGrid-Empty-5x5-v0")
    with pytest.raises(gym.error.NameNotFound) as caught:
        envfleet.make("MiniGrid-Empty-5x5-v0", 3)
    assert caught.value.__notes__ == ["Did you mean minigrid:MiniGrid-Empty-5x5-v0?"]


@pytest.mark.usefixtures("own_maze")
@pytest.mark.parametrize("backend", ["serial", "process"])
@pytest.mark.parametrize("form", ["callable", "id"])
def test_an_env_that_fails_is_told_with_its_own_lines_alone(backend, form):
    env = find_env("own_maze:Maze" if form == "callable" else "own_maze:OwnMaze-v0")
    with pytest.raises(RuntimeError, match="no maze") as caught:
        envfleet.make(env, 4, workers=4 if backend == "process" else None, backend=backend)
    caught.value.add_note("what to do")
    lines = env_failure(caught.value).splitlines()
    assert [line.split(", line")[1] for line in lines if "File" in line] == [
        " 12, in __init__",
        " 16, in load",
    ]
    assert lines[3] == '    raise RuntimeError("no maze")'
    assert lines[4] == "RuntimeError: no maze"
    assert lines[5].startswith("raised by env 0 in construct")
    others = ["3 other envs have raised as well"] if backend == "process" else []
    assert lines[6:] == [*others, "what to do"]


def test_what_no_env_has_raised_is_not_told_as_if_one_had():
    assert env_failure(RuntimeError("ours")) is None
    told = EnvError(2, "step", "Odd", "text", "Traceback (most recent call last):\nOdd: text\n")
    told.add_note("raised by env 2 in step")
    assert env_failure(told) == "Odd: text\nraised by env 2 in step"


# Packages that are missing

PROGRAM = """
import contextlib, io, json, sys
for name in ("Box2D", "mujoco", "ale_py", "pygame", "cv2"):
    sys.modules[name] = None  # as if it were not installed
import envfleet
from envfleet.cli.main import main
told = {}
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            main(words)
        except SystemExit as end:
            told[words[1]] = (end.code, said.getvalue())
try:
    envfleet.make("BipedalWalker-v3", 2, backend="serial")
except Exception as error:
    told["make"] = (type(error).__name__, error.__notes__)
json.dump(told, sys.stdout)
"""


def test_a_missing_package_is_told_in_one_line_with_our_extra(tmp_path):
    commands = [
        ["train", "LunarLander-v3", "--backend", "serial"],
        ["train", "BipedalWalker-v3", "--backend", "process"],
        ["train", "HalfCheetah-v5"],
        ["train", "ALE/Pong-v5"],
        ["train", "needs_pygame:Game"],
    ]
    (tmp_path / "needs_pygame.py").write_text("import pygame\n")
    output = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    told = json.loads(output.stdout)
    box2d = "Box2D is not installed: pip install 'envfleet[box2d]'"
    atari = (
        "Have you installed the proper package for ALE? It needs: pip install 'envfleet[atari]', "
        "then ale_py:ALE/Pong-v5"
    )
    kind, notes = told.pop("make")
    assert kind == "DependencyNotInstalled"
    assert box2d in notes
    assert told == {
        "LunarLander-v3": [2, f"{box2d}\n"],
        "BipedalWalker-v3": [2, f"{box2d}\n"],
        "HalfCheetah-v5": [2, "MuJoCo is not installed: pip install 'envfleet[mujoco]'\n"],
        "ALE/Pong-v5": [2, f"Namespace ALE not found. {atari}\n"],
        "needs_pygame:Game": [2, "pygame is not installed: pip install 'envfleet[train]'\n"],
    }
    assert not (tmp_path / "runs").exists()


def test_what_our_extras_do_not_bring_is_left_to_others():
    assert install_hint(ModuleNotFoundError("No module named 'jax'", name="jax")) is None
    missing = gym.error.DependencyNotInstalled("opencv-python package not installed, run `pip`")
    assert install_hint(missing) == "opencv-python is not installed: pip install 'envfleet[atari]'"
