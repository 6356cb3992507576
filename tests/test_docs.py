"""What the documentation says is what the code and the recorded runs say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from envfleet.bench import report

ROOT = Path(__file__).parent.parent
PHASES = ("construct", "reset", "step", "call", "render", "close", "idle")


@pytest.fixture
def matrix(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "faults"))
    import matrix  # noqa: PLC0415

    return matrix


def matrix_table(cells):
    """The fault matrix as the page shows it: the start methods under which each cell runs."""
    letters = {"fork": "f", "forkserver": "s", "spawn": "p", "serial": "·", "caller": "c"}
    lines = ["| fault | " + " | ".join(PHASES) + " |", "|---" * (len(PHASES) + 1) + "|"]
    for kind in dict.fromkeys(cell.kind for cell in cells):
        row = []
        for phase in PHASES:
            contexts = {cell.context for cell in cells if (cell.kind, cell.phase) == (kind, phase)}
            row.append("".join(letters[context] for context in letters if context in contexts))
        lines.append(f"| {kind} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def peers_table(data):
    """What was observed, as the page shows it: an engine per column."""
    words = {"named": "named error", "opaque": "opaque error", "wrong": "wrong data"}
    engines = [name for name, engine in data.items() if "cells" in engine]
    outcomes = {
        name: {(c["fault"], c["phase"]): c for c in data[name]["cells"]} for name in engines
    }
    lines = ["| fault | phase | " + " | ".join(engines) + " |", "|---" * (len(engines) + 2) + "|"]
    for fault, phase in outcomes[engines[0]]:
        cells = []
        for name in engines:
            cell = outcomes[name].get((fault, phase), {})
            outcome = cell.get("outcome", "not run")
            text = words.get(outcome, outcome)
            if cell.get("outcome") != "hang" and cell.get("close") == "hang":
                text += ", close hangs"
            if cell.get("left"):
                text += ", leaves processes"
            cells.append(text)
        if len(set(cells)) > 1:
            lines.append(f"| {fault} | {phase} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def test_the_fault_matrix_of_the_page_is_the_one_that_runs(matrix):
    page = (ROOT / "docs" / "faults.md").read_text()
    assert matrix_table(matrix.CELLS) in page
    assert f"runs {len(matrix.CELLS)} cells" in page


def test_the_peers_of_the_page_are_the_recorded_ones():
    page = (ROOT / "docs" / "faults.md").read_text()
    data = json.loads((ROOT / "docs" / "data" / "fault-peers.json").read_text())
    assert peers_table(data) in page
    for name, engine in data.items():
        assert f"{name}: {engine['summary']}" in page


def test_the_example_of_the_page_runs(capsys):
    page = (ROOT / "docs" / "faults.md").read_text()
    example = page.split("## Test your own")[1].split("```python\n")[1].split("```")[0]
    exec(example.replace("envs.close()", "envs.close()\n    del envs"), {"__name__": "example"})
    assert capsys.readouterr().out.count("worker_restarted") >= 1


def test_the_readme_example_runs():
    example = (ROOT / "README.md").read_text().split("```python\n")[1].split("```")[0]
    exec(example, {"__name__": "example"})
    assert "envfleet" in sys.modules


def between(page, mark):
    return page.split(f"<!-- {mark} -->\n")[1].split("<!-- end -->")[0].strip()


def test_the_performance_tables_are_the_recorded_figures():
    page = (ROOT / "docs" / "performance.md").read_text()
    data = json.loads((ROOT / "docs" / "data" / "bench.json").read_text())
    curve = json.loads((ROOT / "docs" / "data" / "bench-curve.json").read_text())
    assert between(page, "table") == report.table(data["cells"])
    assert between(page, "curve") == report.growth(curve["cells"])
    assert between(page, "machine") == report.setting(data)


def test_the_readmes_table_is_the_summary_of_the_recorded_figures():
    page = (ROOT / "README.md").read_text()
    data = json.loads((ROOT / "docs" / "data" / "bench.json").read_text())
    assert between(page, "summary") == report.summary(data["cells"])


def test_the_example_makes_films(tmp_path):
    program = ROOT / "examples" / "film.py"
    output = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=True, cwd=tmp_path
    ).stdout
    assert f"films are in {tmp_path}/renders/misc" in output
    names = sorted(path.name for path in (tmp_path / "renders/misc").iterdir())
    assert names == ["fleet.gif", "render_0.gif"]
