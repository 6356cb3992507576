"""What Gymnasium's, Stable-Baselines3's and our process engine do when an env misbehaves.

    python benchmarks/fault_peers.py --engines gymnasium-async,envfleet-process
    PYTHONPATH=src /tmp/sb3venv/bin/python benchmarks/fault_peers.py --engines sb3-subproc

Every fault of ``envfleet.testing`` in every phase, and some special cases, each in a process of
its own with 4 envs of which env 1 misbehaves. An engine runs with the start method that it has by
default; ``sb3-subproc:fork`` names another. Results are merged into the JSON file, so engines that
live in different virtual environments can be measured one after the other.

What a cell says:
    named      the caller got the env's own exception type, an error whose text names env or worker,
               or the time-out that it asked for
    opaque     any other error, from the call or from the close() after it
    hang       the call or the close() after it did not return within 5 s; a hanging call is broken
               off as by Ctrl-C, and then closed
    wrong      stale or invented data came back as if all was well
    fine       nothing to complain about
    n/a        the engine does not offer what the cell is about; not counted
    +n         n workers were still running after close() and after the fleet had been collected

Faults that hang are called with the engine's own time-outs of 2 s, where it offers any.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import importlib
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError

from envfleet.testing import FAULTS, PHASES, Fault, FaultEnv
from envfleet.testing.faults import TwoArguments, Unreducible

ENGINES = {  # module, class, its argument for the start method, and the default of that on Linux
    "gymnasium-async": ("gymnasium.vector", "AsyncVectorEnv", "context", "fork"),
    "sb3-subproc": (
        "stable_baselines3.common.vec_env",
        "SubprocVecEnv",
        "start_method",
        "forkserver",
    ),
    "envfleet-process": ("envfleet", "ProcessVectorEnv", "context", "fork"),
}
NUM_ENVS, VICTIM = 4, 1
CALL_LIMIT, CLOSE_LIMIT, CELL_LIMIT, SLOW_CELL_LIMIT = 5.0, 5.0, 14.0, 50.0
PATIENCE = 2.0
HANGS = ("sigstop", "hang", "hang-stubbornly")
OWN_TYPES: dict[str, type[BaseException]] = {
    "raise": ValueError,
    "raise-key-error": KeyError,
    "raise-empty": RuntimeError,
    "raise-two-arguments": TwoArguments,
    "raise-unreducible": Unreducible,
    "raise-huge": RuntimeError,
    "raise-system-exit": SystemExit,
    "raise-stop-iteration": StopIteration,
    "raise-keyboard-interrupt": KeyboardInterrupt,
    **dict.fromkeys(HANGS, multiprocessing.TimeoutError),
}
NAMES_ENV = re.compile(r"\b(env|environment|worker)s?[ -]?\d", re.IGNORECASE)
BAD = ("hang", "opaque", "wrong")


class Stuck(BaseException):
    """A call did not return within its limit."""


class NotOffered(Exception):  # noqa: N818
    """The engine does not have what this cell is about."""


class OddEnv(FaultEnv):
    """Misbehaves in ``step`` without failing: odd observations, odd infos, or slowly."""

    observation_space = spaces.Box(0, 2**62, (2, 3), np.int64)

    def __init__(self, habit: str = "", index: int = 0, seconds: float = 0.0) -> None:
        self.habit, self.index, self.seconds = habit, index, seconds
        super().__init__()

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step, and then spoil the answer."""
        observation: Any
        observation, reward, terminated, truncated, info = super().step(action)
        time.sleep(self.seconds)
        if self.habit == "transposed":
            observation = observation.T
        elif self.habit == "scalar":
            observation = np.int64(7)
        elif self.habit == "lock":
            info = {"lock": threading.Lock()}
        elif self.habit == "huge info":
            info = {"blob": np.full(100_000_000, self.index, np.uint8)}
        return observation, reward, terminated, truncated, info

    def _observe(self) -> Any:
        observation = super()._observe()
        return np.stack([observation, observation + 100])


class Cell:
    """One fleet with one misbehaving env, and what the caller has seen of it."""

    def __init__(self, engine: str, record: Path) -> None:
        name, _, method = engine.partition(":")
        module, class_name, argument, default = ENGINES[name]
        self.engine_class = getattr(importlib.import_module(module), class_name)
        self.method = {argument: method or default}
        self.timeouts = name != "sb3-subproc"
        self.record_file = record
        self.fleet: Any = None
        if (method or default) == "forkserver":  # warm it up, so that no limit runs meanwhile
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload([module, "envfleet.testing"])
            process = context.Process(target=int)
            process.start()
            process.join()
        self.helpers = set(psutil.Process().children(recursive=True))
        self.workers: set[psutil.Process] = set()
        self.facts: dict[str, Any] = {}

    def build(self, env_fns: list[Callable[[], Any]]) -> None:
        """Start the fleet."""
        self.fleet = self.engine_class(env_fns, **self.method)
        self.note_workers()

    def reset(self, timeout: float | None = None) -> Any:
        """Observations of all envs."""
        if not self.timeouts:
            return self.fleet.reset()
        self.fleet.reset_async()
        return self.fleet.reset_wait(timeout)[0]

    def step(self, action: int = 0, timeout: float | None = None, count: int = NUM_ENVS) -> Any:
        """Observations, rewards and infos of all envs."""
        actions = np.full(count, action)
        if not self.timeouts:
            observations, rewards, _, infos = self.fleet.step(actions)
        else:
            self.fleet.step_async(actions)
            observations, rewards, _, _, infos = self.fleet.step_wait(timeout)
        return observations, rewards, infos

    def call(self, timeout: float | None = None, name: str = "ping") -> Any:
        """What a method returns, of every env."""
        if not self.timeouts:
            return self.fleet.env_method(name)
        self.fleet.call_async(name)
        return self.fleet.call_wait(timeout)

    def render(self, timeout: float | None = None) -> Any:
        """Frames of all envs."""
        return self.call(timeout, "render") if self.timeouts else self.fleet.get_images()

    def close(self, **options: Any) -> None:
        """Close the fleet."""
        if options and not self.timeouts:
            raise NotOffered
        self.fleet.close(**options)

    def attempt(
        self, call: Callable[[], Any], *own: type[BaseException], limit: float = CALL_LIMIT
    ) -> tuple[str, Any]:
        """The outcome of a call ("returned", "named", "opaque", "hang"), and its value or text."""
        start = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, limit)
        try:
            return "returned", call()
        except Stuck:
            self.note_workers()
            signal.setitimer(signal.ITIMER_REAL, 1)  # for a __del__ that waits in its turn
            return "hang", f"no return within {limit:g} s"
        except NotOffered:
            raise
        except BaseException as error:  # noqa: BLE001 - KeyboardInterrupt and SystemExit are cases
            told = "\n".join([str(error), str(error.__cause__), *getattr(error, "__notes__", ())])
            named = isinstance(error, own) or bool(NAMES_ENV.search(told[:10_000]))
            text = f"{type(error).__name__}: {str(error)[:300]}".splitlines()[0][:160]
            return "named" if named else "opaque", text
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.facts["seconds"] = round(time.monotonic() - start, 1)

    def note_workers(self) -> None:
        """Remember the processes of the fleet, here and in the record."""
        self.workers |= set(psutil.Process().children(recursive=True)) - self.helpers
        pids = [(worker.pid, worker.create_time()) for worker in self.workers if is_alive(worker)]
        self.record_file.write_text(json.dumps({"workers": pids}))

    def finish(self, outcome: str, text: Any, close: Callable[[], None] | None) -> dict[str, Any]:
        """Close the fleet if there is one, see what is left of it, and put it all together."""
        self.note_workers()
        result = {"outcome": outcome, "where": "call", "text": str(text), **self.facts}
        if self.fleet is not None and close is not None:
            ending, told = self.attempt(close, limit=CLOSE_LIMIT)
            result |= {"close": ending, "close_text": told, "close_seconds": self.facts["seconds"]}
            if ending in {"hang", "opaque"} and outcome in {"fine", "named", "opaque"}:
                worse = ending == "hang" or outcome != "opaque"
                result |= {"outcome": ending, "where": "close"} if worse else {}
        self.attempt(self.drop, limit=1)
        self.note_workers()
        return result | {"left": len(wait_gone(self.workers, 0.7))}

    def drop(self) -> None:
        """Let the garbage collector have the fleet."""
        self.fleet = None
        gc.collect()


def is_alive(process: psutil.Process) -> bool:
    """Whether a process runs, sleeps or is stopped; a zombie does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def wait_gone(processes: set[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait until all processes have ended; those that have not."""
    end = time.monotonic() + seconds
    while (left := [p for p in processes if is_alive(p)]) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def planned(kind: str, phase: str, at: int = 1) -> list[Callable[[], Any]]:
    """Envs of which one fails as planned."""
    plans = [{phase: Fault(kind, at)} if i == VICTIM else None for i in range(NUM_ENVS)]
    return [partial(FaultEnv, plan) for plan in plans]


def odd(habit: str, *, everywhere: bool = False, seconds: float = 0) -> list[Callable[[], Any]]:
    """Envs of which one, or all, have a bad habit."""
    return [
        partial(OddEnv, habit, i, seconds) if everywhere or i == VICTIM else OddEnv
        for i in range(NUM_ENVS)
    ]


def fault_cell(cell: Cell, kind: str, phase: str) -> dict[str, Any]:
    """One kind of fault in one phase: the call that meets it, then ``close()``."""
    own = (OWN_TYPES[kind],) if kind in OWN_TYPES else ()
    timeout = PATIENCE if kind in HANGS else None
    close = partial(cell.close, **({"timeout": timeout} if timeout and cell.timeouts else {}))
    build = partial(cell.build, planned(kind, phase, at=2 if phase == "step" else 1))
    if phase == "construct":
        outcome, text = cell.attempt(build, *own)
        return cell.finish("wrong" if outcome == "returned" else outcome, text, close)
    build()
    if phase != "reset":
        cell.reset()
        cell.step()
    if phase == "close":
        outcome, text = cell.attempt(close, *own)
        return cell.finish("fine" if outcome == "returned" else outcome, text, None)
    outcome, text = cell.attempt(partial(getattr(cell, phase), timeout=timeout), *own)
    # The env has failed, so whatever came back for it is invented.
    return cell.finish("wrong" if outcome == "returned" else outcome, text, close)


def no_fault(cell: Cell) -> dict[str, Any]:
    """The control: nothing goes wrong, and nothing may look as if it did."""
    cell.build([FaultEnv] * NUM_ENVS)
    outcome, value = cell.attempt(lambda: (cell.reset(), cell.step(1), cell.call(), cell.render()))
    if outcome == "returned":
        reset, step, pids, frames = value
        right = is_right(reset, 1, 0) and is_right(step, 1, 1, 1)
        right = right and len(pids) == NUM_ENVS and bool(np.all(np.asarray(frames) == 1))
        outcome, value = "fine" if right else "wrong", ""
    return cell.finish(outcome, value, cell.close)


def is_right(answer: Any, resets: int, steps: int, reward: float | None = None) -> bool:
    """Whether a reset or step returned what envs with so many resets and steps would say."""
    observations, rewards, _ = answer if isinstance(answer, tuple) else (answer, None, None)
    counts = np.reshape(observations, (NUM_ENVS, -1))[:, :2]
    return bool(np.all(counts == [resets, steps]) and (reward is None or np.all(rewards == reward)))


def call_after(
    envs: list[Callable[[], Any]],
    first: Callable[[Cell], Any],
    own: type[BaseException],
    then: Callable[[Cell], Any],
    expected: tuple[int, ...],
) -> Callable[[Cell], dict[str, Any]]:
    """A case of a call that must fail, and the next one: does that tell the truth?"""

    def run(cell: Cell) -> dict[str, Any]:
        cell.build(envs)
        cell.reset()
        outcome, text = cell.attempt(partial(first, cell), own)
        if outcome in {"named", "opaque"}:
            time.sleep(0.6)
            ending, value = cell.attempt(partial(then, cell), AlreadyPendingCallError)
            if ending != "returned":
                outcome = ending
            elif is_right(value, *expected):
                value = "right data"
            else:
                parts = value[:2] if isinstance(value, tuple) else value
                outcome, value = "wrong", [np.asarray(part).tolist() for part in parts]
            text = f"{text}; then {value}"
        return cell.finish("wrong" if outcome == "returned" else outcome, text, cell.close)

    return run


def odd_answer(cell: Cell, habit: str, *own: type[Exception], everywhere: bool) -> dict[str, Any]:
    """A step whose answer does not fit the spaces, or does not travel."""
    cell.build(odd(habit, everywhere=everywhere))
    cell.reset()
    outcome, value = cell.attempt(cell.step, *own)
    if outcome == "returned":
        shape = np.shape(value[0])
        outcome, value = "wrong", f"shape {shape}, env 1 {value[0][VICTIM].tolist()}"
    return cell.finish(outcome, value, cell.close)


def huge_infos(cell: Cell) -> dict[str, Any]:
    """100 MB of info from every env in one step."""
    cell.build(odd("huge info", everywhere=True))
    cell.reset()
    outcome, value = cell.attempt(cell.step, limit=40)
    if outcome == "returned":
        infos = value[2]
        blobs = infos["blob"] if isinstance(infos, dict) else [info["blob"] for info in infos]
        right = all(len(blob) == 10**8 and np.all(blob == i) for i, blob in enumerate(blobs))
        outcome, value = "fine" if right else "wrong", f"4 x 100 MB in {cell.facts['seconds']} s"
    return cell.finish(outcome, value, cell.close)


def step_briefly(cell: Cell) -> Any:
    """A step with a time-out that is too short for it."""
    if not cell.timeouts:
        raise NotOffered
    return cell.step(0, 0.05)


def close_stuck(
    cell: Cell, kind: str = "hang", phase: str = "step", limit: float = CLOSE_LIMIT, **options: Any
) -> dict[str, Any]:
    """``close`` while an env is stuck in a step that nobody waits for, or in its own close."""
    cell.build(planned(kind, phase))
    cell.reset()
    if phase == "step":
        cell.fleet.step_async(np.zeros(NUM_ENVS, int))
        time.sleep(0.3)
    outcome, text = cell.attempt(partial(cell.close, **options), limit=limit)
    if outcome == "returned":
        seconds = cell.facts["seconds"]
        outcome, text = "fine" if seconds <= CLOSE_LIMIT else "hang", f"returned after {seconds} s"
    return cell.finish(outcome, text, None) | {"where": "close"}


def caller_killed(cell: Cell) -> dict[str, Any]:
    """SIGKILL for the caller while an env is stuck in step; the parent looks for the workers."""
    cell.build(planned("hang", "step"))
    cell.reset()
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGKILL)).start()
    return cell.finish(*cell.attempt(cell.step), None)


def control_c(cell: Cell) -> dict[str, Any]:
    """SIGINT for the caller and all workers in the middle of steps, as from a terminal."""
    cell.build(odd("", everywhere=True, seconds=0.1))
    cell.reset()
    threading.Timer(0.75, os.killpg, (0, signal.SIGINT)).start()

    def run() -> None:
        while True:
            cell.step()

    outcome, text = cell.attempt(run, KeyboardInterrupt)
    return cell.finish("fine" if outcome == "named" else outcome, text, cell.close)


NORMAL: list[Callable[[], Any]] = [FaultEnv] * NUM_ENVS
LATE = odd("", seconds=0.3), step_briefly, multiprocessing.TimeoutError
STEP_ONES: Callable[[Cell], Any] = partial(Cell.step, action=1)
THREE_ACTIONS: Callable[[Cell], Any] = partial(Cell.step, count=NUM_ENVS - 1)
SPECIAL: dict[str, Callable[[Cell], dict[str, Any]]] = {
    "no fault": no_fault,
    "too few actions, then a right step": call_after(
        NORMAL, THREE_ACTIONS, ValueError, STEP_ONES, (1, 1, 1)
    ),
    "transposed observation, one env": partial(odd_answer, habit="transposed", everywhere=False),
    "transposed observation, all envs": partial(odd_answer, habit="transposed", everywhere=True),
    "scalar observation": partial(odd_answer, habit="scalar", everywhere=False),
    "info does not pickle": lambda cell: odd_answer(cell, "lock", TypeError, everywhere=False),
    "info of 100 MB per env": huge_infos,
    "time-out, later a step": call_after(*LATE, STEP_ONES, (1, 2, 1)),
    "time-out, later a reset": call_after(*LATE, Cell.reset, (2, 0)),
    "an env raised, then reset": call_after(
        planned("raise", "step"), Cell.step, ValueError, Cell.reset, (2, 0)
    ),
    "a worker was killed, then step": call_after(
        planned("sigkill", "step"), Cell.step, NotOffered, STEP_ONES, (1, -1)
    ),
    "close(), a step hangs": partial(close_stuck, limit=40),
    "close(timeout=1), a step hangs": partial(close_stuck, timeout=1),
    "close(terminate=True), a step hangs": partial(close_stuck, terminate=True),
    "the same, deaf to SIGTERM": partial(close_stuck, kind="hang-stubbornly", terminate=True),
    "close(), env.close() hangs": partial(close_stuck, phase="close", limit=40),
    "caller killed, a step hangs": caller_killed,
    "Ctrl-C": control_c,
}


def cells() -> list[tuple[str, str]]:
    """Every (fault, phase), special cases last."""
    dull = {("raise-huge", "construct"), ("raise-huge", "close")}
    matrix = [(kind, phase) for kind in FAULTS for phase in PHASES if (kind, phase) not in dull]
    return matrix + [(name, "special") for name in SPECIAL]


def run_inside(engine: str, fault: str, phase: str, record: Path) -> None:
    """The process of a cell: meet the fault, write the record, and leave without cleaning up."""

    def ring(*_: object) -> None:
        raise Stuck

    signal.signal(signal.SIGALRM, ring)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    cell = Cell(engine, record)
    slow = fault.startswith(("close(),", "info of"))
    faulthandler.dump_traceback_later(SLOW_CELL_LIMIT if slow else CELL_LIMIT, exit=True)
    try:
        result = SPECIAL[fault](cell) if phase == "special" else fault_cell(cell, fault, phase)
    except NotOffered:
        result = {"outcome": "n/a", "text": "the engine does not offer this"}
    workers = json.loads(record.read_text()) if record.exists() else {}
    record.write_text(json.dumps({**workers, "result": result}))
    os._exit(0)


def run_cell(engine: str, fault: str, phase: str) -> dict[str, Any]:
    """Run a cell in a session of its own, and remove all that is left of it."""
    with tempfile.TemporaryDirectory() as folder:
        record, errors = Path(folder) / "record.json", Path(folder) / "stderr"
        command = [sys.executable, __file__, "--cell", engine, fault, phase, str(record)]
        with errors.open("wb") as stderr:
            process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True
            )
        code = process.wait(120)
        told = json.loads(record.read_text()) if record.exists() else {}
        workers = set()
        for pid, created in told.get("workers", ()):
            with contextlib.suppress(psutil.NoSuchProcess):
                worker = psutil.Process(pid)
                if worker.create_time() == created:
                    workers.add(worker)
        result = told.get("result")
        if fault == "caller killed, a step hangs":
            left = wait_gone(workers, 5)
            outcome = "leftovers" if left else "fine"
            result = {"outcome": outcome, "text": f"{len(left)} left after 5 s", "left": len(left)}
        noise = errors.read_bytes()[:5_000_000].decode(errors="replace")
        if result is None and (code != 1 or "Timeout (" not in noise):
            sys.exit(f"{engine}, {fault}, {phase} is broken, exit code {code}:\n{noise[-3000:]}")
        if result is None:
            left = wait_gone(workers, 0)
            result = {
                "outcome": "hang",
                "where": "cell",
                "text": "stuck for good",
                "left": len(left),
            }
        if fault == "Ctrl-C":
            result["text"] += f"; {noise.count('Traceback (')} tracebacks on stderr"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()
    return {"fault": fault, "phase": phase, **result}


def is_bad(row: dict[str, Any]) -> bool:
    """Whether a cell ended in a hang, an opaque error, wrong data or leftovers."""
    return row["outcome"] in BAD or row.get("left", 0) > 0


def short(row: dict[str, Any] | None) -> str:
    """A cell of the table."""
    if row is None:
        return "-"
    where = " in close" if row["outcome"] in BAD and row.get("where") == "close" else ""
    return f"{row['outcome']}{where}" + (f" +{row['left']}" if row.get("left") else "")


def show(engine: str, told: dict[str, Any]) -> None:
    """Print the table of an engine."""
    print(f"\n{engine}: {', '.join(f'{k} {v}' for k, v in told['versions'].items())}")
    if "cells" not in told:  # not installed
        return
    table = {(row["fault"], row["phase"]): row for row in told["cells"]}
    print(f"{'':26}" + "".join(f"{phase:18}" for phase in PHASES))
    for kind in FAULTS:
        print(f"{kind:26}" + "".join(f"{short(table.get((kind, p))):18}" for p in PHASES))
    for name in SPECIAL:
        row = table[name, "special"]
        print(f"{name:42}{short(row):18}{row['text'][:100]}")
    print(told["summary"])


def versions(engine: str) -> dict[str, str]:
    """What was measured."""
    name, _, method = engine.partition(":")
    package = ENGINES[name][0].partition(".")[0].replace("_", "-")
    names = dict.fromkeys([package, "gymnasium", "numpy"])
    # envfleet may be on the path only, without being installed.
    found = {n: "source" if n == "envfleet" else importlib.metadata.version(n) for n in names}
    return {
        "Python": platform.python_version(),
        **found,
        "start method": method or ENGINES[name][3],
    }


def measure(engine: str, jobs: int) -> dict[str, Any]:
    """All cells of an engine."""
    package = ENGINES[engine.partition(":")[0]][0].partition(".")[0]
    if importlib.util.find_spec(package) is None:
        return {"versions": {package: "not installed"}}
    rows = []
    with ThreadPoolExecutor(jobs) as pool:
        for row in pool.map(lambda cell: run_cell(engine, *cell), cells()):
            rows.append(row)
            print(f"{engine} {row['fault']}, {row['phase']}: {short(row)}", file=sys.stderr)
    counted = [row for row in rows if row["outcome"] != "n/a" and row["fault"] != "no fault"]
    bad = sum(map(is_bad, counted))
    ends = "end in a hang, an opaque error, wrong data or leftovers"
    summary = f"{bad} of {len(counted)} cells {ends}"
    return {"versions": versions(engine), "summary": summary, "cells": rows}


def main() -> None:
    """Measure, merge into the JSON file, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--engines", default=",".join(ENGINES), help="engine[:start method],...")
    parser.add_argument("--json", type=Path, default=Path("docs/data/fault-peers.json"))
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--cell", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cell:
        engine, fault, phase, record = args.cell
        run_inside(engine, fault, phase, Path(record))
    results = json.loads(args.json.read_text()) if args.json.exists() else {}
    for engine in args.engines.split(","):
        told = measure(engine, args.jobs)
        # "Not installed" here does not erase what was measured in another virtual environment.
        if "cells" in told or engine not in results:
            results[engine] = told
        show(engine, told)
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
