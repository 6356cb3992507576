"""Every example runs as a reader would run it, only shorter; the notebook too."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))
SHORTER = {
    "action_masks.py": ["--steps", "2048"],
    "async_dqn.py": ["--steps", "600"],
    "custom_env.py": ["--steps", "1024"],
    "ppo_single_file.py": ["--total-timesteps", "4096"],
}


PRINTS = {
    "action_masks.py": lambda printed: re.search(
        r"with masks: \d.*\nwithout: -?\d.*\na card that is there: [0235]$", printed.strip()
    ),
    "async_dqn.py": lambda printed: re.search(r"return of the last 50 episodes: \d", printed),
    "callbacks.py": lambda printed: re.search(
        r"\d+ episodes ended in this rollout\n(.*\n)*.*saved step_\d+\n", printed
    ),
    "crash_proof.py": lambda printed: (
        [line.split(": ")[1] for line in printed.splitlines()]
        == [f"{n} restarts, {k} interrupted episodes" for n, k in ((0, 0), (1, 4), (1, 0))]
    ),
    "custom_env.py": lambda printed: re.search(r"training: 0\.\d\d\nbest actions: 0\.\d", printed),
    "ppo_single_file.py": lambda printed: re.search(r"4096 steps .* return \d", printed),
    "record_videos.py": lambda printed: re.search(r"in .*/renders/misc: return \d", printed),
    "watch.py": lambda printed: re.search(r"return \d+\n\d.* over 8 episodes", printed),
    "uneven_envs.py": lambda printed: re.search(r"batches of .*\nuneven_envs.png .*\d", printed),
}
LEAVES = {
    "record_videos.py": ["renders/misc/fleet.gif", "renders/misc/render_0.gif"],
    "uneven_envs.py": ["uneven_envs.png"],
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_an_example_runs_and_does_what_it_promises(program, tmp_path):
    done = subprocess.run(
        [sys.executable, str(program), *SHORTER.get(program.name, [])],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert PRINTS[program.name](done.stdout), done.stdout
    left = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    left = [path for path in left if not path.startswith("runs/")]  # what training leaves
    assert left == LEAVES.get(program.name, [])


def test_there_are_at_most_ten_each_with_a_purpose_in_the_readme():
    names = {path.name for path in EXAMPLES.iterdir()} - {"README.md", "__pycache__"}
    assert len(names) <= 10
    rows = re.findall(r"^\| `(.+?)` \| \S", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(names)
    for program in PROGRAMS:
        purpose = ast.get_docstring(ast.parse(program.read_text())).splitlines()[0]
        assert purpose.endswith("."), program


SMALLER = {"range(1000)": "range(50)", "60000": "4096", "--episodes 20": "--episodes 2"}


EXECUTE = """
import nbclient, nbformat
notebook = nbformat.read("notebook.ipynb", as_version=4)
nbclient.NotebookClient(notebook, timeout=120).execute()
nbformat.write(notebook, "notebook.ipynb")
"""


def test_the_notebook_runs_from_top_to_bottom(tmp_path):
    text = (EXAMPLES / "quickstart.ipynb").read_text()
    for number, smaller in SMALLER.items():
        assert number in text
        text = text.replace(number, smaller)
    path = tmp_path / "notebook.ipynb"
    path.write_text(text)
    search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PATH": search},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    notebook = nbformat.read(path, as_version=4)
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    texts = "".join(output.get("text", "") for output in shown)
    assert re.search(r"^process, \d shard", texts, re.MULTILINE)
    assert "over 2 episodes" in texts
    assert any("image/gif" in output.get("data", {}) for output in shown)


def test_the_notebook_is_stored_without_outputs():
    notebook = nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)
