"""The ``envfleet`` command: finds the subcommand, and says what is missing to run it."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from envfleet.training.failures import describe


def main(words: Sequence[str] | None = None) -> None:
    """Run ``envfleet ...``, by default with the words of the command line.

    Always exits: with 2 for what cannot be done, 1 where an env has failed, 130 after Ctrl-C.
    """
    try:
        _keep_pygame_quiet()
        _main(words)
    except BrokenPipeError:  # nobody listens any more: say nothing at the end either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it has been heard
        print("interrupted", file=sys.stderr)  # noqa: T201
        sys.exit(130)
    except Exception as error:
        described = describe(error)
        if described is None:
            raise
        text, code = described
        print(text, file=sys.stderr)  # noqa: T201
        sys.exit(code)


def _keep_pygame_quiet() -> None:
    """No greeting, and no complaints where there is no display; what the user has set stays.

    Workers inherit it.
    """
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if sys.platform == "linux" and not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("SDL_AUDIODRIVER", "dummy")


def _main(words: Sequence[str] | None) -> None:
    try:
        import tyro  # noqa: PLC0415 - an extra
    except ImportError:
        print("the envfleet command needs: pip install 'envfleet[train]'", file=sys.stderr)  # noqa: T201
        sys.exit(2)

    words = list(sys.argv[1:] if words is None else words)
    if words[:1] == ["--version"]:
        print(f"envfleet {version('envfleet')}")  # noqa: T201 - it is what was asked for
        sys.exit(0)
    from envfleet.cli.bench import Bench  # noqa: PLC0415 - after the check
    from envfleet.cli.report import Report  # noqa: PLC0415 - same

    commands: dict[str, Any] = {"bench": Bench, "report": Report}
    try:
        from envfleet.cli.eval import Eval  # noqa: PLC0415 - same
        from envfleet.cli.record import Record  # noqa: PLC0415 - same
        from envfleet.cli.resume import Resume  # noqa: PLC0415 - same
        from envfleet.cli.train import Train  # noqa: PLC0415 - same
    except ModuleNotFoundError as error:
        # Neither measuring engines nor reading a run's files needs torch.
        hint = f"without {error.name} only bench and report are here: pip install 'envfleet[train]'"
        print(hint, file=sys.stderr)  # noqa: T201
    else:
        commands |= {"train": Train, "resume": Resume, "eval": Eval, "record": Record}
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name may have letters that it cannot show
            stream.reconfigure(errors="backslashreplace")
    if words[:1] == ["train"] and "train" in commands:
        command = commands["train"].parse(words[1:])
    else:
        command = tyro.extras.subcommand_cli_from_dict(commands, prog="envfleet", args=words)
    if getattr(command, "trust", True):
        with contextlib.suppress(OSError):  # it may be gone
            sys.path.insert(0, str(Path.cwd()))  # module:callable may be in it
    sys.exit(command.run())
