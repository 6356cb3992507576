"""``envfleet report``: runs as one HTML page, and their table as Markdown and CSV."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from envfleet.report.writing import NAME, write_comparison


@dataclass
class Report:
    """Write one page of one or several runs, to be opened in any browser, also without a network.

    Runs whose settings differ in the seed only are one group. The table is beside the page, as
    Markdown and CSV.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """The runs' folders."""
    out: Path | None = None
    """The page; by default report.html in the run's folder, or here if there are several."""

    def run(self) -> int:
        """Write; the exit code."""
        out = self.out or (self.runs[0] / NAME if len(self.runs) == 1 else Path(NAME))
        if out.suffix not in (".html", ".htm"):
            return _refuse(f"the page is HTML: {out} must end with .html")
        try:
            for path in write_comparison(self.runs, out):
                print(path, flush=True)  # noqa: T201 - it is what was asked for
        except (ValueError, OSError) as error:
            return _refuse(error)
        return 0


def _refuse(why: Exception | str) -> int:
    print(why, file=sys.stderr)  # noqa: T201
    return 2
