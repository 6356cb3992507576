"""RayCollector: whole rollouts from Ray actors, each with a fleet and a copy of the agent.

A round: the agent's weights go to all actors that are idle, once, through Ray's object store; each
collects one rollout; what has come in time is one rollout. An actor is

    STARTING ──► IDLE ◄──► BUSY          a rollout that comes after its round is dropped
        ▲                    │
        └── it died, and is replaced, within the budget
"""

from __future__ import annotations

import contextlib
import copy
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, Self

import torch
from gymnasium import Space

from envfleet.engine.pickling import dumps
from envfleet.engine.ray.session import RaySession
from envfleet.engine.ray.starting import Places, check_resources
from envfleet.engine.restart.budget import RestartBudget
from envfleet.engine.rules.seeding import derived_seed
from envfleet.errors import NoRoom, WaitTimeout, WorkerDied, name_envs
from envfleet.rollout.agent import AnyAgent, device_of
from envfleet.rollout.buffer import Rollout
from envfleet.rollout.ray.actor import Beginning, Built, Delivery, Randomness, RolloutActor, Task
from envfleet.rollout.ray.parts import Part, joined
from envfleet.rollout.statistics import EpisodeStatistics
from envfleet.vector.make import EnvLike, make

CLOSE_PATIENCE = 5.0
"""Seconds for fleets to be closed before their actors are ended."""
_log = logging.getLogger("envfleet")


class Health(NamedTuple):
    """The state of the actors."""

    alive: int
    """Actors whose fleet is built."""
    restarted: int
    """Number of replacements so far."""
    late: int
    """Actors that are still working on a round that continued without them."""
    in_flight: int
    """Actors that are working, including late ones."""
    dropped: int
    """Rollouts that have been missing from their round so far."""


@dataclass
class _Seat:
    """One actor's place, whoever has it."""

    index: int
    envs: range
    actor: Any = None
    pending: Any = None
    """The reference of what it is doing; None is idle."""
    round: int = 0
    """That it works for; 0 is its start."""
    since: float = 0.0
    """When it was started."""
    generation: int = 0
    is_built: bool = False
    is_new: bool = True
    """Whether its envs have yet to be reset."""
    node: str = "not known yet"
    pid: int | None = None


class RayCollector:
    """Collects rollouts of ``steps`` steps from ``actors * envs_per_actor`` envs on a Ray cluster.

    Rollouts, statistics and masks are those of ``Collector``; env ``i`` of actor ``a`` is column
    ``a * envs_per_actor + i``. With one actor the numbers are the same as with a ``Collector`` on
    the same envs, provided that the agent draws its random numbers from torch's generator, or from
    a NumPy one in its attribute ``generator``; with more they are reproducible from run to run. The
    agent must be picklable. If it has ``state_dict`` and ``load_state_dict``, as torch modules do,
    only its state is sent in each round.

    Args:
        env: what ``envfleet.make`` takes.
        agent: see ``Collector``; its weights are sent in every ``collect``.
        actors: number of actors.
        envs_per_actor: number of envs per actor.
        steps: the length T of a rollout.
        fleet: additional arguments of ``make`` for each actor's fleet; by default ``{"backend":
            "serial"}``, which suits an actor with one CPU.
        options: additional arguments of each actor's ``Collector``.
        device: device of the rollouts; by default ``agent.device``. Actors use the CPU.
        seed: seed of the first reset: env ``n`` gets ``seed + n``.
        window: number of finished episodes in ``statistics``.
        on_late: "wait" for every actor, or "drop" what has not arrived ``deadline`` seconds after
            the round began: these envs are missing from ``rollout.env_ids``. A round always waits
            for the first rollout.
        deadline: see ``on_late``.
        on_loss: whether the rollout of an actor that died is collected "again" by its replacement,
            or dropped ("drop"), like a late one, until the replacement is there.
        timeout: the most seconds that a round may take; by default an env that hangs in a living
            actor holds its round for as long as it hangs.
        restarts: the number of actors that may be replaced, and within how many seconds.
        address: see ``RayVectorEnv``.
        resources: see ``RayVectorEnv``.
        runtime_env: see ``RayVectorEnv``.
        start_timeout: seconds to wait until the cluster has room; if there is still none for the
            replacement of a dead actor, rounds continue without it until there is.

    Raises:
        ImportError: Ray is not installed.
        NoRoom: the cluster has no room for the actors.
        WorkerDied: an actor died while it started, and the budget of ``restarts`` is spent.
        TypeError, ValueError: an option is not supported.
        Exception: what building an env, or a collector, raised in an actor.
    """

    def __init__(
        self,
        env: EnvLike,
        agent: AnyAgent,
        *,
        actors: int,
        envs_per_actor: int,
        steps: int,
        fleet: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        device: torch.device | str | None = None,
        seed: int | None = None,
        window: int = 100,
        on_late: Literal["wait", "drop"] = "wait",
        deadline: float | None = None,
        on_loss: Literal["again", "drop"] = "again",
        timeout: float | None = None,
        restarts: tuple[int, float] = (5, 60.0),
        address: str | None = None,
        resources: Mapping[str, float] | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        start_timeout: float = 10.0,
    ) -> None:
        for name, number in (("actors", actors), ("envs_per_actor", envs_per_actor)):
            if not isinstance(number, int) or number < 1:
                raise ValueError(f"`{name}` must be a positive integer, got {number!r}")
        _check_late(on_late, deadline, on_loss, timeout)
        self.agent = agent
        self.steps = steps
        self.num_envs = actors * envs_per_actor
        self.device = device_of(agent, device)
        self.seed = seed
        self.total_steps = 0
        """Transitions so far, over all envs; resets do not count."""
        self.statistics = EpisodeStatistics(window)
        self._on_late, self._deadline, self._on_loss = on_late, deadline, on_loss
        self._timeout = timeout
        self._budget = RestartBudget(*restarts)
        self._round = self._dropped = self._fleet_restarts = 0
        self._is_collecting = False
        self._for_globals: int | None = None
        self._closed = False
        wanted = {"device": "cpu", **(options or {})}
        build = self._builder(env, envs_per_actor, fleet or {"backend": "serial"})
        task = Task(build, _on_cpu(agent), steps, wanted)
        self._pickled = dumps(task, by_reference=False)
        asked = check_resources(resources)
        self._seats = [
            _Seat(a, range(a * envs_per_actor, (a + 1) * envs_per_actor)) for a in range(actors)
        ]
        self._session = RaySession(type(self).__name__, address)
        try:
            import ray  # noqa: PLC0415 - the session has found it

            self._ray = ray
            self._places = Places(self._session, actors, asked, start_timeout, runtime_env)
            begun = time.monotonic()
            for seat in self._seats:
                self._start(seat)
            while missing := [seat for seat in self._seats if not seat.is_built]:
                for seat in self._wait(missing, None):
                    self._hear_of_start(seat)
            # An actor that takes so much longer than the first ones has no room.
            self._patience = start_timeout + 2 * (time.monotonic() - begun)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _builder(env: Any, num_envs: int, fleet: Mapping[str, Any]) -> Callable[[], Any]:
        """What builds an actor's fleet."""
        return partial(make, env, num_envs, **fleet)

    # A round

    def collect(self) -> Rollout:
        """Collect one rollout from all actors, or from those in time (``on_late``, ``on_loss``).

        Raises:
            WorkerDied: an actor died, and the budget of ``restarts`` is spent.
            WaitTimeout: ``timeout`` has passed. What was collected is dropped; actors that are
                still working take part again when they have finished.
            RuntimeError: the collector is closed.
            NoRoom: all actors died, and the cluster has no room for others.
            Exception: what an env or the agent raised in an actor.
        """
        if self._closed:
            raise RuntimeError("this collector is closed: build a new one.")
        self._round += 1
        self._is_collecting = True
        try:
            return self._collect()
        finally:
            self._is_collecting = False

    def _collect(self) -> Rollout:
        weights = self._ray.put(_weights(self.agent))
        begun = time.monotonic()
        lost: set[int] = set()
        arrived: dict[int, Delivery] = {}
        for seat in self._seats:
            if seat.pending is None:
                self._ask(seat, weights)
        while missing := [s for s in self._seats if s.index not in arrived and s.index not in lost]:
            ready = self._wait(missing, self._left(begun, missing, arrived))
            if not ready:
                if self._left(begun, missing, arrived):
                    continue  # Ray may wake up a moment early
                self._check_time(begun, missing)
                break
            for seat in ready:
                self._hear(seat, weights, arrived, lost)
        late = [seat for seat in self._seats if seat.index not in arrived]
        if late:
            self._dropped += len(late)
            envs = name_envs([env for seat in late for env in seat.envs])
            _log.warning("round %d goes on without envs %s.", self._round, envs)
        if not arrived:
            raise NoRoom(
                "the Ray cluster has had no room for any actor in place of those that died for "
                f"{self._patience:.0f} s; nothing was collected. Try again, or close() this."
            )
        self._take_random_state(arrived)
        parts = [(s.envs, _part(arrived[s.index])) for s in self._seats if s.index in arrived]
        rollout, episodes = joined(parts)
        self.statistics.begin_rollout()
        self.statistics.add(episodes)
        self.total_steps += rollout.steps
        return rollout.to(self.device)

    def _left(self, begun: float, missing: list[_Seat], arrived: Mapping[int, Any]) -> float | None:
        """Seconds until the round goes on without those that are missing; None is never."""
        ends = [] if self._timeout is None else [begun + self._timeout]
        if arrived and self._deadline is not None:
            ends.append(begun + self._deadline)
        if all(not seat.is_built for seat in missing):
            # A place of its own is reserved for each, but the machine may be gone.
            is_wanted = self._on_loss == "again" or not arrived
            ends.append(min(s.since for s in missing) + self._patience if is_wanted else begun)
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def _check_time(self, begun: float, missing: list[_Seat]) -> None:
        """Refuse a round that has taken too long."""
        if self._timeout is None or time.monotonic() < begun + self._timeout:
            return
        who = (f"actor {s.index} on node {s.node}, envs {name_envs(s.envs)}" for s in missing)
        raise WaitTimeout(
            f"round {self._round} has taken more than timeout={self._timeout:g} s. No answer from: "
            f"{'; '.join(who)}. Call collect() again, or close() the collector."
        )

    def _wait(self, seats: list[_Seat], timeout: float | None) -> list[_Seat]:
        pending = [seat.pending for seat in seats]
        ready, _ = self._ray.wait(pending, num_returns=1, timeout=timeout)
        return [seat for seat in seats if seat.pending in ready]

    def _ask(self, seat: _Seat, weights: Any) -> None:
        """Have an idle actor collect for this round."""
        randomness = Randomness.of(self.agent)
        if seat.index:
            drawn = randomness.digest()
            randomness = Randomness.seeded(self.agent, derived_seed(drawn, seat.index))
        beginning = self._beginning(seat) if seat.is_new else None
        seat.pending = seat.actor.collect.remote(weights, randomness, beginning)
        seat.round, seat.is_new = self._round, False

    def begin_episodes(self, seed: int | None, for_globals: int | None = None) -> None:
        """Have all envs begin new episodes in the next ``collect``.

        Args:
            seed: env ``n`` gets ``seed + n``.
            for_globals: seed of ``random`` and ``np.random``, and of torch's generator in the
                workers of fleets that have some; each actor gets its own.
        """
        self.seed, self._for_globals = seed, for_globals
        for seat in self._seats:
            # Replacements since then count for the seeds, so that a resumed run has the same ones.
            seat.is_new, seat.generation = True, 0

    def _beginning(self, seat: _Seat) -> Beginning:
        seed, for_globals = self.seed, self._for_globals
        if seed is not None:
            seed = derived_seed(seed + seat.envs.start, seat.generation)
        if for_globals is not None:
            for_globals = derived_seed(for_globals, seat.index)
        return Beginning(seed, for_globals)

    def _hear(
        self, seat: _Seat, weights: Any, arrived: dict[int, Delivery], lost: set[int]
    ) -> None:
        """Take what an actor has done, or that it is gone."""
        if not seat.is_built:
            self._hear_of_start(seat)
            if seat.is_built:
                self._ask(seat, weights)
            return
        is_current = seat.round == self._round
        try:
            told = self._answer(seat)
        except self._ray.exceptions.RayTaskError as error:
            if is_current:
                raise error.as_instanceof_cause() from None
        else:
            if told is None:
                if self._on_loss == "drop":
                    lost.add(seat.index)
                return
            self._fleet_restarts += Delivery(*told).restarts
            if is_current:
                arrived[seat.index] = told
                return
        self._ask(seat, weights)  # that was for a round that is over

    def _hear_of_start(self, seat: _Seat) -> None:
        """Take that an actor is there, or have another one started."""
        try:
            told = self._answer(seat)
        except self._ray.exceptions.RayTaskError as error:
            raise error.as_instanceof_cause() from None
        if told is not None:
            self._note_built(seat, told)

    def _answer(self, seat: _Seat) -> Any:
        """What an actor has answered; None if it, or its answer, is lost, and another one starts.

        Raises:
            RayTaskError: what was raised there.
            WorkerDied: it is gone, and the budget is spent.
        """
        pending, seat.pending = seat.pending, None
        try:
            return self._ray.get(pending)
        except self._ray.exceptions.RayTaskError:
            raise
        except self._ray.exceptions.RayError as error:
            # It died, its node did, or the answer went with the memory of that node.
            self._replace(seat, error)
            return None

    def _take_random_state(self, arrived: Mapping[int, Delivery]) -> None:
        """Go on with torch's generator where the first actor has left it, as if it were here."""
        if 0 in arrived:
            Randomness(*Delivery(*arrived[0]).randomness).use(self.agent)
        else:  # or the next round would repeat this one's numbers
            drawn = int(torch.randint(2**31, (1,)))
            Randomness.seeded(self.agent, drawn).use(self.agent)

    # Actors

    def _start(self, seat: _Seat) -> None:
        seat.actor = self._places.start(seat.index, RolloutActor)
        seat.is_built, seat.is_new = False, True
        seat.since = time.monotonic()
        seat.pending, seat.round = seat.actor.build.remote(self._pickled), 0

    def _note_built(self, seat: _Seat, told: Any) -> None:
        built = Built(*told)
        self.single_observation_space: Space[Any] = built.observation_space
        self.single_action_space: Space[Any] = built.action_space
        seat.node, seat.pid, seat.is_built = built.node, built.pid, True

    def _replace(self, seat: _Seat, error: Exception) -> None:
        during = "a rollout" if seat.is_built else "start"
        death = WorkerDied(seat.index, seat.pid, tuple(seat.envs), None, during, seat.node)
        death.__cause__ = error
        self._places.kill(seat.actor)
        if not self._budget.spend(time.monotonic()):
            death.add_note(
                f"restarts=({self._budget.limit}, {self._budget.window}) allows no further restart"
            )
            raise death
        seat.generation += 1
        _log.warning("%s Restart %d.", death.what, self._budget.spent)
        self._start(seat)

    def health(self) -> Health:
        """The state of the actors; may be asked from any thread."""
        busy = [seat for seat in self._seats if seat.is_built and seat.pending is not None]
        round_now = self._round if self._is_collecting else None
        return Health(
            alive=sum(seat.is_built for seat in self._seats),
            restarted=self._budget.spent,
            late=sum(seat.round != round_now for seat in busy),
            in_flight=len(busy),
            dropped=self._dropped,
        )

    @property
    def nodes(self) -> list[str]:
        """The node of each actor."""
        return [seat.node for seat in self._seats]

    @property
    def restart_count(self) -> int:
        """Number of actors replaced so far, and of workers within their fleets."""
        return self._budget.spent + self._fleet_restarts

    def metrics(self) -> dict[str, float]:
        """Number of late actors and of dropped rollouts so far, if the options allow any."""
        if self._on_late == "wait" and self._on_loss != "drop":
            return {}
        return {"actors/late": float(self.health().late), "actors/dropped": float(self._dropped)}

    def state_dict(self) -> dict[str, Any]:
        """The counts so far, for a checkpoint; without envs and running episodes."""
        return {
            "total_steps": self.total_steps,
            "statistics": self.statistics.state_dict(),
            "dropped": self._dropped,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of ``state_dict``.

        Raises:
            ValueError: rollouts had been dropped, so the run cannot be repeated exactly.
        """
        if state.get("dropped"):
            raise ValueError(
                f"{state['dropped']} rollouts came too late or were lost, and were dropped: what "
                "goes on from here is not exactly the run that it was."
            )
        self.total_steps = int(state["total_steps"])
        self.statistics.load_state_dict(state["statistics"])

    # The end

    def close(self) -> None:
        """Close the fleets of idle actors, and end all actors. Further calls do nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._session.is_connected and hasattr(self, "_places"):
                self._hear_the_rest()
                idle = [s for s in self._seats if s.is_built and s.pending is None]
                closing = [seat.actor.close.remote() for seat in idle]
                if closing:
                    self._ray.wait(closing, num_returns=len(closing), timeout=CLOSE_PATIENCE)
                for seat in self._seats:
                    if seat.actor is not None:
                        self._places.kill(seat.actor)
                self._places.close()
        finally:
            self._session.close()

    def _hear_the_rest(self) -> None:
        """Take what has been answered, or Ray prints the errors that nobody has asked for."""
        pending = [seat.pending for seat in self._seats if seat.pending is not None]
        answers = self._ray.wait(pending, num_returns=len(pending), timeout=0)[0] if pending else ()
        for answer in answers:
            with contextlib.suppress(Exception):
                self._ray.get(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_late(on_late: str, deadline: float | None, on_loss: str, timeout: float | None) -> None:
    if on_late not in ("wait", "drop"):
        raise ValueError(f"`on_late` must be 'wait' or 'drop', got {on_late!r}")
    if on_loss not in ("again", "drop"):
        raise ValueError(f"`on_loss` must be 'again' or 'drop', got {on_loss!r}")
    if (on_late == "drop") != (deadline is not None) or (deadline is not None and deadline <= 0):
        raise ValueError(
            "`deadline` says after how many seconds (above 0) on_late='drop' drops what is late: "
            f"pass both or none, got on_late={on_late!r}, deadline={deadline!r}"
        )
    if timeout is not None and timeout <= (deadline or 0):
        least = "0" if deadline is None else f"deadline={deadline:g}"
        raise ValueError(f"`timeout` must be above {least}, got {timeout!r}")


def _part(delivery: Any) -> Part:
    return Part(*Delivery(*delivery).part)


def _on_cpu(agent: Any) -> Any:
    """The agent, or a copy of it on the CPU."""
    if isinstance(agent, torch.nn.Module) and any(
        tensor.device.type != "cpu" for tensor in agent.state_dict().values()
    ):
        return copy.deepcopy(agent).to("cpu")
    return agent


def _weights(agent: Any) -> Any:
    """What travels of an agent in each round."""
    if not hasattr(agent, "load_state_dict"):
        return agent
    state = agent.state_dict()
    return {k: v.cpu() if isinstance(v, torch.Tensor) else v for k, v in state.items()}
