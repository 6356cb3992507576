"""Choosing an engine by measurement: one env, in a worker process, for a few steps."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from envfleet.engine.cores import usable_cores
from envfleet.engine.interrupts import raise_interrupt
from envfleet.engine.messages import Call
from envfleet.engine.pool.deadline import Deadline
from envfleet.engine.pool.pool import Pool
from envfleet.engine.process.shard import WorkerShard
from envfleet.engine.process.starting import WorkerStarter
from envfleet.engine.rules.choice import Measurement, Plan, choose
from envfleet.engine.rules.neighbours import neighbours
from envfleet.engine.rules.spaces import Structure, row_bytes
from envfleet.engine.scheduler import idle_time, turns_of
from envfleet.engine.worker.hooks import EnvFactory, EnvHost
from envfleet.engine.worker.server import Job
from envfleet.engine.worker.waiting import run_delay, usage
from envfleet.errors import EnvfleetError

BUDGET = 0.3
"""Seconds for building, resetting and stepping the env that is measured."""
START = {"fork": 0.2, "forkserver": 20.0, "spawn": 20.0}
"""Further seconds for starting its process, which imports the program where it is not forked."""
LOOK_AROUND = 0.1
"""Seconds to see how busy the cores are where the env itself has been measured before."""
MOST_DELAY = 8
"""How many times as long it may take where others have the cores."""

_log = logging.getLogger("envfleet")
_known: dict[str, Measurement | None] = {}


def plan_fleet(
    env_fn: EnvFactory,
    num_envs: int,
    *,
    context: str | None,
    most: int,
    serial: bool,
    caller: bool,
    name: str | None,
) -> Plan:
    """Measure one env and choose; a measurement under a ``name`` is made once per process.

    ``most`` bounds the number of workers; ``serial`` and ``caller`` say whether envs may run in the
    calling process, all or one shard.

    Never builds an env in the calling process. An env that cannot be built or stepped is no matter
    here: the fleet itself will say so.
    """
    if name is None or name not in _known:
        measured = measure(env_fn, context)
        if name is not None:
            _known[name] = measured
    else:
        measured = _known[name]
        if measured is not None:
            measured = replace(measured, neighbours=_look_around())
    plan = choose(measured, num_envs, usable_cores(), most=most, serial=serial, caller=caller)
    _log.info("%s x %d: %s", name or "envs", num_envs, plan)
    return plan


def _look_around() -> float:
    """How many processes of others run on the cores now, about."""
    before, idle = usage(), idle_time()
    time.sleep(LOOK_AROUND)
    return _others(before, idle)


def _others(
    before: tuple[float, float, int], idle: float | None, measured: Measurement | None = None
) -> float:
    """The neighbours since then, while one env ran or none."""
    wall, cpu, _ = (b - a for a, b in zip(before, usage(), strict=True))
    idle_now = idle_time()
    # What this process has used, in threads that spin after a parallel loop, is not others'.
    left = None if idle is None or idle_now is None else idle_now - idle + cpu
    cores = usable_cores()
    if measured is None:
        return neighbours(cores, wall, 0.0, None, left)
    waited = None if measured.busy is None else wall * measured.busy
    return neighbours(cores, wall, wall * measured.cpu / measured.step, waited, left)


def measure(env_fn: EnvFactory, context: str | None, budget: float = BUDGET) -> Measurement | None:
    """What an env takes; None if it did not build, reset and step within the budget, or failed."""
    job = Job([env_fn], _Stopwatch, AutoresetMode.DISABLED)
    starter = WorkerStarter(job, 1, context=context, daemon=True, name="Measuring", threads=1)
    pool = Pool(starter)
    try:
        pool.start()
        if not _answers(pool, budget + START[starter.method]):
            return None
        pool.raise_failures()
        before, idle = usage(), idle_time()
        pool.post({0: Call([0], "envfleet_measure", (budget,), {})})
        if not _answers(pool, 2 * budget):
            return None
        pool.raise_failures()
        ((_, outcome),) = pool.outcomes()
        measured = outcome.results[0]
        if not isinstance(measured, Measurement):
            return None
        return replace(measured, neighbours=_others(before, idle, measured))
    except EnvfleetError:
        return None
    except Exception as error:  # noqa: BLE001 - the env's own; the fleet will raise it again
        raise_interrupt(error)
        return None
    finally:
        pool.stop(0.0)


def _answers(pool: Pool, seconds: float) -> bool:
    """Whether an answer comes in time; time in which others had the cores does not count."""
    (shard,) = pool.shards
    pid = shard.pid if isinstance(shard, WorkerShard) else 0
    start, known = time.perf_counter(), turns_of(pid)
    left = seconds
    while not pool.gather(Deadline(max(left, 0.01))):
        passed, turns = time.perf_counter() - start, turns_of(pid)
        if known is not None and turns is not None:
            passed = max(passed / MOST_DELAY, passed - (turns.waited - known.waited))
        left = seconds - passed
        if left <= 0.0:
            return False
    return True


class _Stopwatch(EnvHost):
    """Builds its env with a method that measures it."""

    def make_env(self, i: int, env_fn: EnvFactory) -> gymnasium.Env[Any, Any]:
        start = _undisturbed()
        return _Measured(super().make_env(i, env_fn), start)


def _undisturbed() -> float:
    """A clock that stands still while others have the cores."""
    return time.perf_counter() - (run_delay() or 0.0)


class _Measured(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: gymnasium.Env[Any, Any], start: float) -> None:
        super().__init__(env)
        self._start = start

    def envfleet_measure(self, budget: float) -> Measurement | None:
        """Reset, and step with random actions for a while; at least one step.

        None if the budget is spent before the first step.
        """
        env, space = self.env, self.env.action_space
        env.reset(seed=0)
        ready = _undisturbed()
        if ready - self._start > budget:
            return None
        space.seed(0)
        actions = [space.sample() for _ in range(50)]
        env.step(actions[0])  # what is done only once is not a step's usual price
        times: list[float] = []
        resets = 0.0
        before, delayed = usage(), run_delay()
        last = time.perf_counter()
        end = last + BUDGET / 2
        while last < end and (len(times) < 2000 or last < end - BUDGET / 4):
            *_, terminated, truncated, _ = env.step(actions[len(times) % 50])
            begun, last = last, time.perf_counter()
            times.append(last - begun)
            if terminated or truncated:
                env.reset()  # autoreset is a part of what steps cost
                begun, last = last, time.perf_counter()
                resets += last - begun
        wall, cpu, switches = (b - a for a, b in zip(before, usage(), strict=True))
        late = run_delay()
        median, slow = np.percentile(times, (50, 95)).tolist()
        return Measurement(
            ready - self._start,
            wall / len(times),
            cpu / len(times),
            switches / len(times),
            row_bytes(Structure(env.observation_space)),
            median=median,
            slow=slow,
            resets=resets / wall,
            busy=None if late is None or delayed is None else (late - delayed) / wall,
        )
