"""Fleets beside busy neighbours: our engines and Gymnasium's while K loops keep the cores busy.

python benchmarks/busy.py                                             # every cell, some minutes
python benchmarks/busy.py --cells cartpole-8 --busy 2 --rounds 7
python benchmarks/busy.py --busy 2 --apart                            # the loops in another session

Every engine is built and stepped in a process of its own while the loops run; the engines take
turns. A row has the median steps per second and the median of the rounds' ratios to the better of
Gymnasium's two engines, and to its async engine. Linux shares the cores out between sessions
(autogroup): ``--apart`` measures neighbours in another terminal, without it they are in ours.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from typing import Any, Self

import gymnasium
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

CELLS = {
    "cartpole-8": ("CartPole-v1", 8),
    "cartpole-64": ("CartPole-v1", 64),
    "lander-16": ("LunarLander-v3", 16),
}
SYNC, ASYNC = "Gymnasium sync", "Gymnasium async"


def fleet(**options: Any) -> Callable[[str, int], Any]:
    """A function that builds one of our fleets."""

    def build(env_id: str, num_envs: int) -> Any:
        import envfleet

        return envfleet.make(env_id, num_envs, **options)

    return build


def peer(engine: Callable[..., Any]) -> Callable[[str, int], Any]:
    """A function that builds one of Gymnasium's."""
    return lambda env_id, n: engine([lambda: gymnasium.make(env_id)] * n)


ENGINES: dict[str, Callable[[str, int], Any]] = {
    SYNC: peer(SyncVectorEnv),
    ASYNC: peer(AsyncVectorEnv),
    "serial": fleet(backend="serial"),
    "process": fleet(backend="process"),
    "process+caller": fleet(backend="process", caller_steps=True),
    "auto": fleet(),
}


def stepping(engine: str, cell: str, seconds: float) -> Generator[str, None, None]:
    """What was built, then env steps per second of each turn."""
    env_id, num_envs = CELLS[cell]
    envs = ENGINES[engine](env_id, num_envs)
    with contextlib.closing(envs):
        yield str(getattr(envs, "plan", ""))
        envs.reset(seed=1)
        actions = [envs.action_space.sample() for _ in range(50)]
        while True:
            steps, start = 0, time.perf_counter()
            while time.perf_counter() - start < seconds:
                envs.step(actions[steps % 50])
                steps += 1
            yield str(steps * num_envs / (time.perf_counter() - start))


class Seat:
    """An engine in a process of its own."""

    def __init__(self, engine: str, cell: str, seconds: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", engine, cell, str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.plan = self._ask()
        self._ask()  # not counted: caches fill, patience is learnt

    def turn(self) -> float:
        """The rate of one turn."""
        return float(self._ask())

    def _ask(self) -> str:
        if self._process.stdin is None or self._process.stdout is None:
            raise AssertionError
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def measure(cell: str, busy: int, asked: argparse.Namespace) -> None:
    """Print the rows of one cell."""
    from envfleet.bench.neighbours import busy_loops  # not for Gymnasium's seats

    rates: dict[str, list[float]] = {engine: [] for engine in asked.engines}
    with busy_loops(busy, apart=asked.apart), contextlib.ExitStack() as stack:
        seats = {
            engine: stack.enter_context(Seat(engine, cell, asked.seconds))
            for engine in asked.engines
        }
        for done in range(asked.rounds):
            for engine in random.Random(done).sample(asked.engines, len(asked.engines)):
                rates[engine].append(seats[engine].turn())
        plans = {engine: seat.plan for engine, seat in seats.items()}
    peers = [rates[name] for name in (SYNC, ASYNC) if name in rates]
    better = max(peers, key=statistics.median, default=[])
    for engine, own in rates.items():
        ratios = [ratio(own, other) for other in (better, rates.get(ASYNC, []))]
        row = f"| {cell} | {busy} | {engine} | {statistics.median(own):,.0f} | {' | '.join(ratios)}"
        print(f"{row} | {plans[engine] if engine == 'auto' else ''} |", flush=True)


def ratio(own: list[float], other: list[float]) -> str:
    """The median of the rounds' ratios; nothing without the other."""
    ratios = [a / b for a, b in zip(own, other, strict=False)]
    return f"{statistics.median(ratios):.2f}" if ratios else ""


def main() -> None:
    """Print a row per cell and engine."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS))
    parser.add_argument("--busy", nargs="+", type=int, default=[0, 2, 6], metavar="K")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--apart", action="store_true", help="loops in a session of their own")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        engine, cell, seconds = asked.serve
        answers = stepping(engine, cell, float(seconds))
        for _ in sys.stdin:
            print(next(answers), flush=True)
        answers.close()
        return
    print("| cell | busy | engine | steps/s | of the better | of async | plan |")
    print("|---|---:|---|---:|---:|---:|---|")
    for busy in asked.busy:
        for cell in asked.cells:
            measure(cell, busy, asked)


if __name__ == "__main__":
    main()
