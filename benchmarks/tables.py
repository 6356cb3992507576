"""Writes the tables of README.md and docs/performance.md from the figures in docs/data.

python benchmarks/tables.py
"""

from __future__ import annotations

import json
from pathlib import Path

from envfleet.bench import report

ROOT = Path(__file__).parent.parent


def write(page: Path, mark: str, text: str) -> None:
    """Put a text between a page's mark and the next end."""
    before, rest = page.read_text().split(f"<!-- {mark} -->\n")
    after = rest.split("<!-- end -->", 1)[1]
    page.write_text(f"{before}<!-- {mark} -->\n{text}\n<!-- end -->{after}")


def main() -> None:
    """Write all tables and the picture."""
    data = json.loads((ROOT / "docs/data/bench.json").read_text())
    curve = json.loads((ROOT / "docs/data/bench-curve.json").read_text())
    page = ROOT / "docs/performance.md"
    write(page, "machine", report.setting(data))
    write(page, "table", report.table(data["cells"]))
    write(page, "curve", report.growth(curve["cells"]))
    write(ROOT / "README.md", "summary", report.summary(data["cells"]))
    report.plot(ROOT / "docs/data/bench.png", [*data["cells"], *curve["cells"]])


if __name__ == "__main__":
    main()
