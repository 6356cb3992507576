"""The wheel: what is in it, and that it works in an empty virtual environment, without extras."""

from __future__ import annotations

import email
import json
import os
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent

PROGRAM = """
import json, sys
from functools import partial
from importlib import metadata

import gymnasium
import envfleet

envs = [partial(gymnasium.make, "CartPole-v1")] * 3
rewards = {}
for engine in (envfleet.SerialVectorEnv, envfleet.ProcessVectorEnv):
    with engine(envs) as fleet:
        fleet.reset(seed=1)
        rewards[engine.__name__] = fleet.step([0, 1, 0])[1].tolist()
try:
    envfleet.Collector
except ImportError as error:
    refused = str(error)
print(json.dumps({
    "file": envfleet.__file__,
    "version": envfleet.__version__,
    "installed": sorted(each.name.lower() for each in metadata.distributions()),
    "rewards": rewards,
    "refused": refused,
}))
"""


# One test: pytest's workers would each build and install a wheel for a part of it.
def test_the_wheel_is_whole_and_works_without_extras(tmp_path):
    wheel = build(tmp_path)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    check_contents(wheel, project)
    python = install(wheel, tmp_path / "venv")

    told = json.loads(run(python, "-I", "-c", PROGRAM, cwd=tmp_path))
    assert Path(told["file"]).is_relative_to(tmp_path / "venv")
    assert told["version"] == project["version"]
    assert told["installed"] == [
        "cloudpickle",
        "envfleet",
        "farama-notifications",
        "gymnasium",
        "numpy",
        "threadpoolctl",
        "typing_extensions",
    ]
    assert told["rewards"] == {"SerialVectorEnv": [1.0] * 3, "ProcessVectorEnv": [1.0] * 3}
    assert told["refused"] == "envfleet.Collector needs torch: pip install 'envfleet[train]'."

    command = subprocess.run(
        [python.with_name("envfleet")], capture_output=True, text=True, check=False, env=clean()
    )
    assert (command.returncode, command.stdout) == (2, "")
    assert command.stderr == "the envfleet command needs: pip install 'envfleet[train]'\n"


def build(folder):
    pip("wheel", "--no-deps", "--wheel-dir", folder / "dist", ROOT)
    (wheel,) = (folder / "dist").iterdir()
    return wheel


def check_contents(wheel, project):
    about = f"envfleet-{project['version']}.dist-info"
    sources = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src/envfleet").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert "envfleet/py.typed" in sources
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = email.message_from_bytes(archive.read(f"{about}/METADATA"))
    # The sources and nothing else: no tests, no benchmarks, no examples.
    assert {name for name in names if not name.startswith(f"{about}/")} == sources
    assert f"{about}/licenses/LICENSE" in names
    assert metadata["Name"] == "envfleet"
    assert metadata["Version"] == project["version"]
    assert metadata["Requires-Python"] == project["requires-python"]
    assert set(metadata.get_all("Provides-Extra")) == set(project["optional-dependencies"])
    needed = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert len(needed) == len(project["dependencies"])


def install(wheel, folder):
    """The interpreter of a new virtual environment that has the wheel and what it asks for."""
    venv.create(folder)  # without pip, which takes seconds: ours can install there too
    python = folder / "bin/python"
    # Uncompiled: the program imports little of it.
    where = ["--python", python, "install", "--no-compile"]
    pip(*where, "--constraint", ROOT / "constraints.txt", wheel)
    return python


def pip(*words):
    run(sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *words)


def run(*words, **kwargs):
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=clean(), **kwargs)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def clean():
    """The environment without what makes other packages visible: pip looks at it as well."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
