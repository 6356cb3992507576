"""The public names, what importing them costs, and who may import whom."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import typing
from pathlib import Path

import gymnasium as gym
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

import envfleet

PACKAGE = Path(envfleet.__file__).parent

# Who may import whom, besides itself.
ALLOWED = {
    "errors": set(),
    "engine": {"errors"},
    "envs": {"errors"},
    "vector": {"engine", "envs", "errors"},
    "testing": {"vector", "errors"},
    "rollout": {"engine", "errors", "vector"},
    "record": {"errors", "rollout"},
    "track": {"rollout"},
    "adapters": {"engine", "envs", "errors", "vector", "rollout", "record"},
    "__init__": {
        "adapters",
        "engine",
        "envs",
        "errors",
        "vector",
        "rollout",
        "record",
        "track",
        "training",
    },
    "training": {"envs", "errors", "vector", "rollout", "record", "track", "report"},
    "bench": {"engine", "envs", "vector", "training"},
    "report": {"rollout", "track"},
    "cli": {"bench", "errors", "record", "report", "rollout", "track", "training", "vector"},
    "__main__": {"cli"},
}
# Inside the engine, from the bottom up: each knows those below it, and nothing above.
ENGINE_LAYERS = [
    "interrupts",
    "descriptors",
    "cores",
    "scheduler",
    "spin",
    "wire",
    "pickling",
    "rules",
    "infos",
    "arena",
    "failures",
    "messages",
    "arrivals",
    "shard",
    "worker",
    "local",
    "process",
    "ray",
    "pool",
    "restart",
]


def test_exported_names_are_exactly_all():
    public = {
        name
        for name in dir(envfleet)
        if not name.startswith("_") and not inspect.ismodule(getattr(envfleet, name))
    }
    assert public == set(envfleet.__all__)
    constants_first = sorted(envfleet.__all__, key=lambda name: (not name.isupper(), name))
    assert envfleet.__all__ == constants_first  # the order that ruff asks for


def test_every_public_name_says_what_it_is():
    for name in envfleet.__all__:
        assert inspect.getdoc(getattr(envfleet, name)), name


def test_importing_envfleet_imports_no_torch():
    program = (
        "import sys, envfleet\nenvfleet.adapters, envfleet.envs\nimport envfleet.adapters.xuance\n"
        "slow = {'torch', 'cv2', 'ale_py', 'matplotlib', 'xuance', 'ray'}\n"
        "print(sorted(slow & set(sys.modules)))"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert output == "[]\n"


MODULES = [
    pytest.param(path, id=str(path.relative_to(PACKAGE))) for path in sorted(PACKAGE.rglob("*.py"))
]


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("envfleet"):
            yield tuple(node.module.split(".")[1:])
        elif isinstance(node, ast.Import):
            for name in node.names:
                if name.name.startswith("envfleet"):
                    yield tuple(name.name.split(".")[1:])


@pytest.mark.parametrize("path", MODULES)
def test_imports_follow_the_arrows(path):
    place = path.relative_to(PACKAGE).with_suffix("").parts
    for target in imported(path):
        assert target, "nothing inside imports the package's front door"
        if target[0] != place[0]:
            assert target[0] in ALLOWED[place[0]]
        elif place[0] == "engine" and len(place) > 1 and target[1] != place[1]:
            assert ENGINE_LAYERS.index(target[1]) < ENGINE_LAYERS.index(place[1]), target


@pytest.mark.parametrize("path", MODULES)
def test_a_file_says_in_its_first_line_what_it_owns(path):
    assert path.read_text().startswith('"""')


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(envfleet.SerialVectorEnv, SyncVectorEnv), (envfleet.ProcessVectorEnv, AsyncVectorEnv)],
)
def test_constructors_and_methods_take_what_gymnasiums_take(ours, theirs):
    def positional(function):
        return [
            (p.name, p.default)
            for p in inspect.signature(function).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]

    assert positional(ours) == positional(theirs)
    for name, method in inspect.getmembers(theirs, inspect.isfunction):
        if name.startswith("_"):
            continue
        assert hasattr(ours, name), name
        assert positional(getattr(ours, name)) == positional(method), name


@pytest.mark.parametrize(
    "engine", [envfleet.SerialVectorEnv, envfleet.ProcessVectorEnv, envfleet.RayVectorEnv]
)
def test_engines_are_generic_in_observations_and_actions(engine):
    assert issubclass(engine, gym.vector.VectorEnv)
    assert typing.get_args(engine[int, str]) == (int, str)


def test_without_torch_one_is_told_what_to_install():
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import envfleet\n"
        "try: envfleet.Collector\n"
        "except ImportError as error: print(error)\n"
        "print(hasattr(envfleet, 'Nothing'))"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert "envfleet.Collector needs torch: pip install 'envfleet[train]'" in output
    assert output.endswith("False\n")
