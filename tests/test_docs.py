"""What the documentation says is what the code and the recorded runs say."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from PIL import Image

import envfleet
from envfleet.bench import chart, report

ROOT = Path(__file__).parent.parent
PHASES = ("construct", "reset", "step", "call", "render", "close", "idle")


@pytest.fixture
def matrix(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests"))
    from faults import matrix  # noqa: PLC0415

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
    exec(example, {"__name__": "example"})
    assert capsys.readouterr().out.count("worker_restarted") >= 1


def between(page, mark):
    return page.split(f"<!-- {mark} -->\n")[1].split("<!-- end -->")[0].strip()


def test_the_performance_tables_are_the_recorded_figures():
    page = (ROOT / "docs" / "performance.md").read_text()
    data = json.loads((ROOT / "docs" / "data" / "bench.json").read_text())
    curve = json.loads((ROOT / "docs" / "data" / "bench-curve.json").read_text())
    assert between(page, "table") == report.table(data["cells"])
    assert between(page, "curve") == report.growth(curve["cells"])
    assert between(page, "machine") == report.setting(data)


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import tables  # noqa: PLC0415

    return tables


def test_the_readmes_tables_are_the_recorded_figures_and_observations(tables):
    page = (ROOT / "README.md").read_text()
    assert between(page, "summary") == report.summary(tables.in_the_readme())
    assert between(page, "peers") == tables.peers()
    assert len(between(page, "summary").splitlines()) == 2 + 4
    assert len(between(page, "peers").splitlines()) == 2 + 6


def test_the_readme_says_how_much_faster_other_implementations_were(tables):
    page = " ".join((ROOT / "README.md").read_text().split())
    cells = {c["work"]: c["engines"] for c in tables.read("bench.json") if c["num_envs"] == 64}

    def times(work, peer):
        ours = cells[work]["envfleet auto"]["steps_per_second"]
        return f"{cells[work][peer]['steps_per_second'] / ours:.1f}"

    for work in ("CartPole-v1", "LunarLander-v3", "HalfCheetah-v5", "Ant-v5"):
        name = work.split("-")[0]
        assert re.search(rf"{times(work, 'EnvPool (C++)')}( times as fast)? on {name}", page)
    assert f"NumPy CartPole {times('CartPole-v1', 'Gymnasium native')} times" in page


def test_the_charts_show_the_recorded_figures(tables):
    shown = {"bench.png": tables.in_the_chart(), "bench-envs.png": tables.read("bench-curve.json")}
    for name, cells in shown.items():
        with Image.open(ROOT / "docs" / "data" / name) as image:
            assert image.text["Description"] == report.table(cells)
            assert image.width == 1600
    assert "docs/data/bench.png" in (ROOT / "README.md").read_text()
    assert "data/bench-envs.png" in (ROOT / "docs" / "performance.md").read_text()
    works = [(cell["work"], cell["num_envs"]) for cell in tables.in_the_chart()]
    assert len(works) == len(set(works)) == 4


def cell(num_envs, work="CartPole-v1", **rates):
    engines = {name.replace("_", " "): {"steps_per_second": rate} for name, rate in rates.items()}
    return {"work": work, "num_envs": num_envs, "engines": engines}


def test_lines_go_from_few_envs_to_many_and_leave_out_who_did_not_run():
    cells = [
        cell(64, limit=9.0, envfleet_auto=7.0, PufferLib=None),
        cell(8, limit=8.0, envfleet_auto=None, PufferLib=None),
        cell(16, limit=8.5, envfleet_auto=5.0, PufferLib=None),
    ]
    assert chart.curves(cells) == {
        "limit": ([8, 16, 64], [8.0, 8.5, 9.0]),
        "envfleet auto": ([16, 64], [5.0, 7.0]),
    }


def test_bars_are_shares_of_the_limit_where_every_cell_has_one():
    ran = [cell(8, envfleet_auto=6.0, limit=8.0, peer=None), cell(8, "Ant-v5", limit=4.0, peer=3.0)]
    assert chart.bars(ran) == {"peer": [None, 0.75], "envfleet auto": [0.75, None]}
    without = [cell(8, envfleet_auto=6.0), cell(64, limit=4.0)]
    assert chart.bars(without) == {"limit": [None, 4.0], "envfleet auto": [6.0, None]}
    assert chart.bars([cell(8, limit=4.0)]) == {"limit": [4.0]}


def test_a_chart_is_drawn_of_whatever_was_measured(tmp_path):
    failed = {"steps_per_second": None, "problem": "not today"}
    ran = {"steps_per_second": 5.0, "agrees": None}
    cells = [
        [{"work": "A", "num_envs": 8, "engines": {"peer": failed}}],
        [
            {"work": "A", "num_envs": n, "engines": {"limit": ran, "peer": failed}}
            for n in (4, 2, 1)
        ],
    ]
    # In a process of its own: matplotlib keeps its fonts open.
    program = (
        "from pathlib import Path; from envfleet.bench import chart\n"
        f"for i, cells in enumerate({cells}): chart.draw(Path(f'{{i}}.png'), cells)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, cwd=tmp_path)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["0.png", "1.png"]


def test_every_engine_has_a_colour_of_its_own():
    data = json.loads((ROOT / "docs" / "data" / "bench.json").read_text())
    names = sorted({name for cell in data["cells"] for name in cell["engines"]})
    assert len(names) > 10
    assert len(set(chart.colours(names).values())) == len(names)


def link_targets(page):
    """What the links and images of a page point to, as far as it is in this repository."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("http:", "https:")):
            yield target


def anchors(page):
    """The headings of a page as GitHub and MyST name them."""
    for heading in re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")], ids=str)
def test_links_lead_somewhere(page):
    for target in link_targets(page):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_a_page_opens_with_what_it_is_for(page):
    title, _, opening, *_ = page.read_text().splitlines()
    assert title.startswith("# ")
    assert re.match(r"`?\w", opening), "not with code or an image"


def test_the_reference_has_every_public_name():
    text = (ROOT / "docs" / "api.rst").read_text()
    documented = set(re.findall(r"^\.\. (?:auto)?\w+:: (\S+)$", text, flags=re.MULTILINE))
    for part in ("", ".adapters", ".envs", ".report", ".testing", ".track"):
        module = f"envfleet{part}"
        for name in importlib.import_module(module).__all__:
            assert f"{module}.{name}" in documented


def test_package_and_citation_have_one_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == envfleet.__version__
    assert f"\nversion: {envfleet.__version__}\n" in (ROOT / "CITATION.cff").read_text()
