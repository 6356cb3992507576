"""Prints the fault matrix from the run itself: fault x phase x start method."""

from __future__ import annotations

from collections import defaultdict

import pytest

from faults.matrix import CELLS

_outcomes: dict[str, str] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if "test_matrix.py::test_cell[" in report.nodeid:
        cell = report.nodeid.split("[", 1)[1].rstrip("]")
        if report.failed or report.when == "call" or report.skipped:
            worst = _outcomes.get(cell) == "failed"
            _outcomes[cell] = "failed" if worst else report.outcome


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _outcomes:
        return
    table: dict[tuple[str, str], list[str]] = defaultdict(list)
    by_id = {cell.id: cell for cell in CELLS}
    for name, outcome in _outcomes.items():
        cell = by_id[name]
        mark = "." if outcome == "passed" else "X"
        table[cell.kind, cell.context].append(f"{cell.phase}{mark}")
    write = terminalreporter.write_line
    write("")
    write("fault matrix: phases run under each start method (. passed, X failed)")
    for (kind, context), cells in sorted(table.items()):
        phases = [f"{name}x{cells.count(name)}" for name in dict.fromkeys(cells)]
        write(f"  {kind:<26}{context:<12}{' '.join(phases)}")
    passed = sum(outcome == "passed" for outcome in _outcomes.values())
    write(f"cells declared {len(CELLS)}, run {len(_outcomes)}, passed {passed}")
