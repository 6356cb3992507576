"""Every code block of the README and the docs runs, as for a reader who copies all of it.

A page's Python blocks are one program; all shell lines run in one folder, equal ones once. A fence
says what it holds: python, sh, or text for what is not code. A block that cannot run here has a
comment with the reason in front of it, which readers do not see: <!-- not run: needs a GPU -->
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$",
    flags=re.MULTILINE | re.DOTALL,
)
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

NOT_RUN: dict[str, list[str]] = {
    "docs/clients.md": [
        *["make test-clients does, with small settings"] * 2,
        *["make test-clients does"] * 3,
    ],
    "docs/scaling.md": ["needs a Ray cluster; tests/cluster runs the same"] * 3,
}
"""The reasons of all blocks that are not run, by page."""

SMALLER = {
    "README.md": {"num_envs=64": "num_envs=8", "range(1000)": "range(50)"},
    "docs/clients.md": {".learn(1024)": ".learn(512)"},
    "docs/port-sb3.md": {".learn(1024)": ".learn(512)"},
    "docs/quickstart.md": {"num_envs=64": "num_envs=8", "range(1000)": "range(50)"},
    "docs/rollouts.md": {"64)\ncoll": "8)\ncoll", "500_000": "2_000", "=100": "=8"},
}
"""Numbers of Python blocks that are smaller here, by page."""

QUICKLY = {
    "train": "--total-steps 512 --num-envs 2 --rollout-steps 128 --batch-size 64 --epochs 1",
    "resume": "",
    "eval": "--episodes 2 --num-envs 2",
    "report": "",
    "record": "--num-envs 2 --scale 0.2",
    "bench": "--num-envs 2 --rounds 1 --seconds 0.01 --engines limit 'SB3 Dummy'",
    "bench --why": "--num-envs 2 --rounds 1 --seconds 0.01",
}
"""What is added to the commands here, so that they take little time; the last value counts."""


@dataclass(frozen=True)
class Block:
    language: str
    code: str
    line: int
    reason: str | None


def name_of(page):
    return str(page.relative_to(ROOT))


def blocks(page):
    text = page.read_text()
    return [
        Block(
            match["language"],
            match["code"],
            text.count("\n", 0, match.start("code")) + 1,
            match["reason"],
        )
        for match in FENCE.finditer(text)
    ]


def run_blocks(page, language):
    return [b for b in blocks(page) if b.language == language and b.reason is None]


def shell_lines(block):
    """Whole commands, without comments, as words."""
    lines = block.code.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


with_python = [page for page in PAGES if run_blocks(page, "python")]
with_shell = [page for page in PAGES if run_blocks(page, "sh")]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_fence_is_found_and_says_what_it_holds(page):
    fences = re.findall(r"^\s*(?:```|~~~)", page.read_text(), flags=re.MULTILINE)
    assert len(fences) == 2 * len(blocks(page)), "a fence that this file does not understand"
    assert {block.language for block in blocks(page)} <= {"python", "sh", "text"}


def test_blocks_that_are_not_run_are_known():
    found = {name_of(page): [b.reason for b in blocks(page) if b.reason] for page in PAGES}
    assert {name: reasons for name, reasons in found.items() if reasons} == NOT_RUN
    comments = sum(page.read_text().count("<!-- not run") for page in PAGES)
    assert comments == sum(map(len, NOT_RUN.values())), "a comment that belongs to no block"


def run_program(program, text, *options):
    """Run the blocks of a page, which are programs of their own to a reader, as one.

    One OpenMP thread: torch's would wait from one block to the next, and a fleet that is built then
    warns of forking where `make` chooses processes, as it may on a busy machine.
    """
    program.write_text(text)
    return subprocess.run(
        [sys.executable, *options, str(program)],
        capture_output=True,
        text=True,
        check=False,
        cwd=program.parent,
        env={**os.environ, "WANDB_SILENT": "true", "OMP_NUM_THREADS": "1"},
        timeout=300,
    )


@pytest.mark.parametrize("page", with_python, ids=name_of)
def test_the_python_blocks_of_a_page_are_a_program(page, tmp_path):
    lines = []
    for block in run_blocks(page, "python"):  # at the lines that they have in the page
        lines += [""] * (block.line - 1 - len(lines)) + block.code.splitlines()
    text = "\n".join(lines) + "\n"
    for number, smaller in SMALLER.get(name_of(page), {}).items():
        assert number in text
        text = text.replace(number, smaller)
    done = run_program(tmp_path / f"{page.stem}.py", text, "-W", "error")
    assert done.returncode == 0, done.stderr


COMMANDS = """
import sys
from envfleet.cli.main import main

if __name__ == "__main__":
    for sys.argv in {commands}:
        try:
            main()
        except SystemExit as end:
            assert end.code in (0, None), sys.argv
"""


def test_the_shell_lines_of_all_pages_run_in_their_order(tmp_path):
    lines = [tuple(words) for page in with_shell for words in page_lines(page)]
    commands = [quick(words) for words in dict.fromkeys(lines) if not is_other(words)]
    assert len(commands) >= 6
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    done = run_program(tmp_path / "commands.py", COMMANDS.format(commands=commands))
    assert done.returncode == 0, done.stdout + done.stderr


def page_lines(page):
    return [words for block in run_blocks(page, "sh") for words in shell_lines(block)]


def quick(words):
    command = f"{words[1]} --why" if "--why" in words else words[1]
    return [*words, *([] if "--help" in words else shlex.split(QUICKLY[command]))]


def is_other(words):
    """Whether it is no envfleet command; then what it names must exist."""
    makefile = (ROOT / "Makefile").read_text()
    match words:
        case ["envfleet", *_]:
            return False
        case ["make", target]:
            assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)
        case [".", ".venv/bin/activate"]:
            assert re.search(r"^\.venv/", makefile, flags=re.MULTILINE)
        case ["pip", "install", *_, what]:
            assert extras_in(what) <= EXTRAS.keys()
        case ["python" | ".venv/bin/python", "-m", "pytest", path, *_]:
            assert (ROOT / path).exists()
        case ["python" | ".venv/bin/python", path, *_]:
            assert (ROOT / path).exists()
        case _:
            pytest.fail(f"no test knows how to run {shlex.join(words)}")
    return True


@pytest.mark.parametrize("page", with_shell, ids=name_of)
def test_the_envfleet_command_is_on_the_path_before_it_is_used(page):
    for block in run_blocks(page, "sh"):
        found = False
        for words in shell_lines(block):
            found |= words[:2] in ([".", ".venv/bin/activate"], ["pip", "install"])
            assert found or words[0] != "envfleet", words


# Extras


def extras_in(text):
    found = re.findall(r"(?:envfleet|\.)\[([\w, ]+)\]", text)
    return {name.strip() for names in found for name in names.split(",")}


def test_every_extra_that_is_named_exists():
    sources = [*PAGES, ROOT / "pyproject.toml", *(ROOT / "src").rglob("*.py")]
    named = {source: extras_in(source.read_text()) for source in sources}
    assert sum(map(len, named.values())) >= 10
    for source, names in named.items():
        assert names <= EXTRAS.keys(), source


def test_the_readme_lists_all_extras_but_the_developers():
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert rows == [name for name in EXTRAS if name != "dev"]


def test_development_needs_no_package_twice():
    own = {name for name in EXTRAS["dev"] if not name.startswith("envfleet[")}
    for extra in extras_in(" ".join(EXTRAS["dev"])):
        assert own.isdisjoint(EXTRAS[extra])
