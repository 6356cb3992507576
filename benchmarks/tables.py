"""Writes the tables of README.md and docs/performance.md, and their charts, from docs/data.

python benchmarks/tables.py
"""

from __future__ import annotations

import json
from pathlib import Path

from envfleet.bench import chart, report

ROOT = Path(__file__).parent.parent
CHOSEN = {
    ("CartPole-v1", 64),
    ("LunarLander-v3", 64),
    ("HalfCheetah-v5", 64),
    ("Breakout-84x84x4", 32),
}
"""Works and numbers of envs in the README's table and chart."""
PEERS = {
    "envfleet-process": "envfleet",
    "gymnasium-async": "Gymnasium `AsyncVectorEnv`",
    "sb3-subproc": "SB3 `SubprocVecEnv`",
}
FAULTS = {
    "the constructor raises": ("raise", "construct"),
    "`step` raises": ("raise", "step"),
    "the process is killed in `step`": ("sigkill", "step"),
    "observations are transposed": ("transposed observation, all envs", "special"),
    "a wait times out, then `step`": ("time-out, later a step", "special"),
    "your program is killed while a step hangs": ("caller killed, a step hangs", "special"),
}
"""Six cells of docs/data/fault-peers.json, as the README names them."""
OUTCOMES = {
    "named": "error with the cause",
    "opaque": "opaque error",
    "wrong": "wrong data",
    "fine": "nothing is left",
    "leftovers": "processes are left",
    "n/a": "no time-outs",
}


def read(name: str) -> report.Cells:
    """The cells of a file in docs/data."""
    cells: report.Cells = json.loads((ROOT / "docs/data" / name).read_text())["cells"]
    return cells


def in_the_readme() -> report.Cells:
    """Four cells of real envs."""
    return [c for c in read("bench.json") if (c["work"], c["num_envs"]) in CHOSEN]


def peers() -> str:
    """The README's table of what engines were seen to do."""
    data = json.loads((ROOT / "docs/data/fault-peers.json").read_text())
    seen = {
        name: {(c["fault"], c["phase"]): c["outcome"] for c in data[name]["cells"]}
        for name in PEERS
    }
    lines = ["| what happens | " + " | ".join(PEERS.values()) + " |", "|---|---|---|---|"]
    for what, cell in FAULTS.items():
        outcomes = (seen[name][cell] for name in PEERS)
        cells = " | ".join(OUTCOMES.get(outcome, outcome) for outcome in outcomes)
        lines.append(f"| {what} | {cells} |")
    return "\n".join(lines)


def in_the_chart() -> report.Cells:
    """The same, with our engines and Gymnasium's of Python envs."""
    chosen = []
    for cell in in_the_readme():
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
    write(ROOT / "README.md", "peers", peers())
    chart.draw(ROOT / "docs/data/bench.png", in_the_chart())
    chart.draw(ROOT / "docs/data/bench-envs.png", read("bench-curve.json"))


if __name__ == "__main__":
    main()
