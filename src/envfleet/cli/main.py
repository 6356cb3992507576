"""The ``envfleet`` command: finds the subcommand, and says what is missing to run it."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Run ``envfleet ...``; the exit code is 2 for what cannot be done, 130 after Ctrl-C."""
    try:
        _main()
    except BrokenPipeError:  # nobody listens any more: say nothing at the end either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it has been heard
        print("interrupted", file=sys.stderr)  # noqa: T201
        sys.exit(130)


def _main() -> None:
    try:
        import tyro  # noqa: PLC0415 - an extra
    except ImportError:
        print("the envfleet command needs: pip install 'envfleet[train]'", file=sys.stderr)  # noqa: T201
        sys.exit(2)

    from envfleet.cli.bench import Bench  # noqa: PLC0415 - after the check

    commands: dict[str, Any] = {"bench": Bench}
    try:
        from envfleet.cli.train import Eval, Record, Resume, Train  # noqa: PLC0415 - same
    except ModuleNotFoundError as error:
        # Measuring engines needs no torch.
        hint = f"without {error.name} only bench is here: pip install 'envfleet[train]'"
        print(hint, file=sys.stderr)  # noqa: T201
    else:
        commands |= {"train": Train, "resume": Resume, "eval": Eval, "record": Record}
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name may have letters that it cannot show
            stream.reconfigure(errors="backslashreplace")
    command = tyro.extras.subcommand_cli_from_dict(commands, prog="envfleet")
    if getattr(command, "trust", True):
        with contextlib.suppress(OSError):  # it may be gone
            sys.path.insert(0, str(Path.cwd()))  # module:callable may be in it
    sys.exit(command.run())
