"""What the panel of ``envfleet train`` costs: its share of a run's time, in a real terminal.

python benchmarks/panel.py [--columns 80] [--steps 300000]

Trains CartPole in a pseudo-terminal with a clock around every call of the panel, and prints the
last panel and the share.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pty
import re
import subprocess
import sys
import tempfile
import termios
import time
from functools import wraps
from pathlib import Path
from typing import Any

CALLS = ("__enter__", "update", "message", "__exit__")


def train(steps: int, result: Path) -> None:
    """Train in this process, with a panel; writes the share of the time that it took."""
    from envfleet.cli.main import main
    from envfleet.training.panel import PanelProgress

    spent = 0.0
    for name in CALLS:
        method = getattr(PanelProgress, name)

        @wraps(method)
        def timed(*args: Any, _method: Any = method) -> Any:
            nonlocal spent
            begin = time.perf_counter()
            try:
                return _method(*args)
            finally:
                spent += time.perf_counter() - begin

        setattr(PanelProgress, name, timed)
    sys.argv = ["envfleet", "train", "CartPole-v1", "--preset", "fast", "--name", "a"]
    sys.argv += ["--total-steps", str(steps)]
    begin = time.perf_counter()
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    total = time.perf_counter() - begin
    result.write_text(f"{spent:.3f} of {total:.1f} s: {spent / total:.2%}\n")


def main() -> None:
    """Train in a pseudo-terminal, and print what came out of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--columns", type=int, default=80)
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        train(given.steps, given.inside)
        return
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "share.txt")
        command = [sys.executable, __file__, "--steps", str(given.steps), "--inside", str(result)]
        outside, inside = pty.openpty()
        termios.tcsetwinsize(inside, (40, given.columns))
        process = subprocess.Popen(command, stdin=inside, stdout=inside, stderr=inside, cwd=folder)
        os.close(inside)
        said = b""
        with contextlib.suppress(OSError):  # how the end of a terminal is told
            while part := os.read(outside, 65536):
                said += part
        process.wait()
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode()).replace("\r", "")
        if "╭" not in plain:
            sys.exit(plain)
        print(plain[plain.rindex("╭") : plain.rindex("╯") + 1])
        print(result.read_text(), end="")


if __name__ == "__main__":
    main()
