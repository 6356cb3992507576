"""All workers of a fleet: started together, asked together, stopped together."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence

from gymnasium.error import ClosedEnvironmentError

from envfleet.engine.failures import Failure, raise_first
from envfleet.engine.messages import Attach, Close, Command, Outcome
from envfleet.engine.pool.doorbell import Deadline, Doorbell
from envfleet.engine.pool.handle import WorkerHandle, WorkerState
from envfleet.engine.pool.starting import Starter, raise_if_missing_guard
from envfleet.errors import FleetBroken, WorkerDied

CLOSE_PATIENCE = 30.0
"""Seconds that workers get for ``env.close()`` when the caller sets no time-out."""
STUCK_PATIENCE = 2.0
"""The same, for workers that have not answered an earlier command, or when one has died."""
TERM_PATIENCE = 1.0
"""Seconds between SIGTERM and SIGKILL."""


class Pool:
    """Owns the worker processes of one fleet. Not thread-safe; useless in a forked child."""

    def __init__(self, starter: Starter) -> None:
        """Start the workers; they build their envs at the same time.

        Raises whatever starting a process raises, after the workers already started were stopped.
        """
        self._owner = os.getpid()
        self._death: WorkerDied | None = None
        self._torn: KeyboardInterrupt | None = None
        self._unheard: list[WorkerDied] = []
        self._stopped = False
        self._hearing = threading.Lock()
        self._descriptor: int | None = None
        self._starter = starter
        self.handles: list[WorkerHandle] = []
        try:
            for index in range(len(starter.shards)):
                self.handles.append(starter.start(index))
        except BaseException:
            self.stop(terminate=True)
            raise
        self._bell = Doorbell(self.handles)

    def attach(self, descriptor: int, command: Attach) -> None:
        """Give every worker the arena; returns when all have it."""
        self.post({handle.index: command for handle in self.handles}, descriptor)
        self.gather(Deadline(None))
        self.raise_failures()

    def post(self, commands: Mapping[int, Command], descriptor: int | None = None) -> None:
        """Send one command each to some workers, by index; the answers of the last call are gone.

        All commands are encoded before anything else happens, so that an argument that cannot be
        pickled costs nothing. A descriptor follows the commands where one is given. That a worker
        turns out to be dead is said by ``gather``.

        Raises:
            FleetBroken: a worker died earlier.
        """
        self.check()
        messages = {w: self.handles[w].encode(command) for w, command in commands.items()}
        for handle in self.handles:
            handle.abandon()
        for worker, command in commands.items():
            handle = self.handles[worker]
            if handle.is_over:
                continue  # gather will say so
            try:
                self._send(handle, messages[worker], command, descriptor)
            except WorkerDied as death:
                self._keep(death)
            except KeyboardInterrupt as interrupt:
                self._torn = interrupt
                raise

    def _send(
        self, handle: WorkerHandle, data: bytes, command: Command, descriptor: int | None
    ) -> None:
        handle.post(data, command)
        if descriptor is not None:
            handle.pass_on(descriptor)
        if handle.is_sending:
            self._bell.follow(handle)

    def _hear(self, handle: WorkerHandle, bell: Doorbell) -> None:
        """Let a worker's messages go on, one way or the other."""
        with self._hearing:
            if bell is not self._bell:
                raise ClosedEnvironmentError("another thread closed the fleet during this call.")
            was_sending = handle.is_sending
            try:
                handle.progress()
            except KeyboardInterrupt as interrupt:
                self._torn = interrupt
                raise
            if was_sending or handle.is_sending:
                bell.follow(handle)

    def gather(self, deadline: Deadline) -> bool:
        """Wait until every worker has answered; False when the deadline came first.

        May be called again after False. The answers are the handles' ``outcome``.

        Raises:
            FleetBroken: a worker died earlier.
            WorkerDied: one died now.
        """
        self.check()
        try:
            if self._unheard:
                raise self._unheard.pop(0)
            while any(handle.owes_reply for handle in self.handles):
                bell = self._bell
                ready = bell.wait(deadline)
                if not ready:
                    return False
                for handle in ready:
                    self._hear(handle, bell)
        except WorkerDied as death:
            self._death = death
            raise_if_missing_guard(death)
            raise
        return True

    def _keep(self, death: WorkerDied) -> None:
        """Keep a death that ``gather`` has to tell."""
        self._bell.forget(self.handles[death.worker])
        self._unheard.append(death)

    def revive(self, worker: int, generation: int) -> None:
        """Start a new worker in place of a dead one; it has yet to answer, and to be attached.

        The fleet stays broken until ``restored`` is called.
        """
        handle = self._starter.start(worker, generation)
        old, self.handles[worker] = self.handles[worker], handle
        self._bell.forget(old)
        self._bell.add(handle)
        old.bury()
        old.discard()

    def restored(self) -> None:
        """The dead worker has been replaced and all that it owed has been answered."""
        self._death = None

    def converse(
        self,
        worker: int,
        command: Command | None,
        descriptor: int | None = None,
        timeout: float | None = None,
    ) -> Outcome:
        """One worker's answer to one command (None: to its start), whatever the others are doing.

        Raises:
            WorkerDied: it died, or took longer than ``timeout`` seconds and was killed.
        """
        handle = self.handles[worker]
        kept = handle.outcome  # its answer to the fleet's current call, if it has given one
        deadline = Deadline(timeout)
        try:
            if command is not None:
                self._send(handle, handle.encode(command), command, descriptor)
            while handle.owes_reply:
                self._hear_any(handle, deadline)
                if handle.owes_reply and deadline.has_passed():
                    raise handle.kill(f"no answer within {timeout} s")
        except WorkerDied as death:
            self._death = death
            raise
        outcome, handle.outcome = handle.outcome, kept
        return outcome or Outcome()

    def _hear_any(self, awaited: WorkerHandle, deadline: Deadline) -> None:
        """Receive what has come; another worker's death is kept for ``gather``."""
        try:
            bell = self._bell
            for ready in bell.wait(deadline):
                self._hear(ready, bell)
        except WorkerDied as death:
            if death.worker == awaited.index:
                raise
            self._keep(death)

    def give_up(self, death: WorkerDied) -> None:
        """The fleet is broken for good by this death."""
        self._death = death

    def kill_late(self, reason: str) -> WorkerDied:
        """Kill the first worker that owes a reply; returns the death that it was given."""
        late = [handle for handle in self.handles if handle.owes_reply]
        # One with a command in waiting has not even answered the one before.
        handle = next((handle for handle in late if handle.queued is not None), late[0])
        self._death = handle.kill(reason)
        self._bell.forget(handle)
        return self._death

    def keep_descriptor(self, descriptor: int) -> int:
        """Own a duplicate of the arena's descriptor, for workers to come, until ``stop``."""
        self._descriptor = os.dup(descriptor)
        return self._descriptor

    def outcomes(self) -> list[tuple[WorkerHandle, Outcome]]:
        """The answers that have come to the current call, in the envs' order."""
        return [(h, h.outcome) for h in self.handles if h.outcome is not None]

    def raise_failures(self) -> None:
        """Raise the failure of the lowest env in the current answers, if there is one."""
        raise_first(
            [
                (failure, handle.place)
                for handle, outcome in self.outcomes()
                for failure in outcome.failures
            ]
        )

    def late_envs(self) -> list[int]:
        """The envs of workers that have not answered."""
        return [env for handle in self.handles if handle.owes_reply for env in handle.env_ids]

    @property
    def is_broken(self) -> bool:
        """Whether a worker has died."""
        return self._death is not None

    def check(self) -> None:
        """Raise ``FleetBroken`` if the workers cannot be used."""
        if self._death is not None:
            raise FleetBroken(f"this fleet lost a worker earlier: {self._death}") from self._death
        if self._torn is not None:
            raise FleetBroken(
                "Ctrl-C cut a command or an answer in two, and no call can follow it: close()."
            ) from self._torn
        if os.getpid() != self._owner:
            raise FleetBroken(
                f"this fleet belongs to process {self._owner}; process {os.getpid()} is a fork of "
                "it and must build a fleet of its own."
            )

    def stop(self, timeout: float | None = None, *, terminate: bool = False) -> list[Failure]:
        """Stop every worker: ask, then SIGTERM, then SIGKILL; returns what ``env.close`` raised.

        Does nothing the second time, and in a forked child of the process that started the workers.

        Args:
            timeout: seconds until SIGKILL; None gives those that answer 30 s and the others 2 s.
            terminate: do not ask.
        """
        if self._stopped or os.getpid() != self._owner:
            return []
        with self._hearing:
            self._stopped = True
            # One of its own: another thread may be waiting with the old one.
            self._bell = Doorbell([handle for handle in self.handles if not handle.is_over])
        if self._descriptor is not None:
            os.close(self._descriptor)
        patience = CLOSE_PATIENCE if timeout is None else timeout
        asking, grace = (Deadline(0.0), TERM_PATIENCE) if terminate else _split(patience)
        try:
            if terminate:
                return []
            self._ask_to_close()
            if timeout is None:
                self._end_stuck()
            self._await_close(asking, lambda handle: handle.owes_reply)
            return [failure for _, outcome in self.outcomes() for failure in outcome.failures]
        finally:
            for handle in self.handles:
                if handle.state is WorkerState.GONE:
                    handle.watch.wait(asking.left())
            self._end(self.handles, grace)
            for handle in self.handles:
                handle.discard()

    def _ask_to_close(self) -> None:
        for handle in self.handles:
            if handle.is_garbled:
                handle.bury()  # nothing it is told would be understood
            if not handle.is_over:
                handle.abandon()
                with contextlib.suppress(WorkerDied):
                    self._send(handle, handle.encode(Close()), Close(), None)

    def _end_stuck(self) -> None:
        """Give workers that owe an answer to an earlier command a short time, and end them."""
        asking, grace = _split(STUCK_PATIENCE)
        self._await_close(asking, lambda handle: handle.queued is not None)
        self._end([handle for handle in self.handles if handle.queued is not None], grace)

    def _await_close(self, deadline: Deadline, is_awaited: Callable[[WorkerHandle], bool]) -> None:
        """Receive what comes until nobody is awaited any more, deaths included."""
        while any(is_awaited(handle) for handle in self.handles):
            for handle in self.handles:
                if handle.is_over:
                    self._bell.forget(handle)
            with contextlib.suppress(WorkerDied):
                bell = self._bell
                ready = bell.wait(deadline)
                if not ready:
                    return
                for handle in ready:
                    self._hear(handle, bell)

    @staticmethod
    def _end(handles: Sequence[WorkerHandle], grace: float) -> None:
        """End processes, and what they have started: SIGTERM, then SIGKILL."""
        left = [handle for handle in handles if not handle.is_buried]
        for handle in left:
            handle.process.terminate()
        patience = Deadline(grace)
        for handle in left:
            handle.watch.wait(patience.left())
            handle.bury()


def _split(patience: float) -> tuple[Deadline, float]:
    """Until when to ask, and how many of the seconds are left between SIGTERM and SIGKILL."""
    grace = min(TERM_PATIENCE, patience / 4)
    return Deadline(patience - grace), grace
