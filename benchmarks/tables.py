"""Writes the tables of README.md and docs/performance.md, and their charts, from docs/data.

python benchmarks/tables.py
"""

from __future__ import annotations

import json
from pathlib import Path

from envfleet.bench import chart, report

ROOT = Path(__file__).parent.parent
CHARTED = {
    ("CartPole-v1", 64),
    ("LunarLander-v3", 64),
    ("HalfCheetah-v5", 64),
    ("Breakout-84x84x4", 32),
}
"""Works and numbers of envs in the chart."""
ARTIFICIAL = frozenset({"Frame-210x160x3", "Sleep-5ms"})
"""Works that nobody has; the README is about envs."""


def read(name: str) -> report.Cells:
    """The cells of a file in docs/data."""
    cells: report.Cells = json.loads((ROOT / "docs/data" / name).read_text())["cells"]
    return cells


def in_the_readme() -> report.Cells:
    """Cells of real envs."""
    return [cell for cell in read("bench.json") if cell["work"] not in ARTIFICIAL]


def in_the_chart() -> report.Cells:
    """Four cells, with our engines and Gymnasium's of Python envs."""
    chosen = []
    for cell in read("bench.json"):
        if (cell["work"], cell["num_envs"]) in CHARTED:
            names = ["limit", "Gymnasium sync", "Gymnasium async"]
            names += [name for name in cell["engines"] if name.startswith("envfleet ")]
            chosen.append({**cell, "engines": {name: cell["engines"][name] for name in names}})
    return chosen


def write(page: Path, mark: str, text: str) -> None:
    """Put a text between a page's mark and the next end."""
    before, rest = page.read_text().split(f"<!-- {mark} -->\n")
    after = rest.split("<!-- end -->", 1)[1]
    page.write_text(f"{before}<!-- {mark} -->\n{text}\n<!-- end -->{after}")


def main() -> None:
    """Write all tables and both charts."""
    data = json.loads((ROOT / "docs/data/bench.json").read_text())
    page = ROOT / "docs/performance.md"
    write(page, "machine", report.setting(data))
    write(page, "table", report.table(data["cells"]))
    write(page, "curve", report.growth(read("bench-curve.json")))
    write(ROOT / "README.md", "summary", report.summary(in_the_readme()))
    chart.draw(ROOT / "docs/data/bench.png", in_the_chart())
    chart.draw(ROOT / "docs/data/bench-envs.png", read("bench-curve.json"))


if __name__ == "__main__":
    main()
