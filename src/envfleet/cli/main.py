"""The ``envfleet`` command: finds the subcommand, and says what is missing to run it."""

from __future__ import annotations

import sys


def main() -> None:
    """Run ``envfleet ...``; exit code 2 if the extra that it needs is not installed."""
    try:
        import tyro  # noqa: PLC0415 - an extra
    except ImportError:
        print("the envfleet command needs: pip install 'envfleet[train]'", file=sys.stderr)  # noqa: T201
        sys.exit(2)

    from envfleet.cli.bench import Bench  # noqa: PLC0415 - after the check

    command = tyro.extras.subcommand_cli_from_dict({"bench": Bench}, prog="envfleet")
    sys.exit(command.run())
