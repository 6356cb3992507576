"""All workers of a fleet: started together, asked together, stopped together."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence

from gymnasium.error import ClosedEnvironmentError

from envfleet.engine.arena.board import Board
from envfleet.engine.arena.memory import map_shared
from envfleet.engine.arena.signals import Signals, Sleep
from envfleet.engine.arena.views import shared_array
from envfleet.engine.descriptors import above_standard
from envfleet.engine.failures import Failure, raise_first
from envfleet.engine.interrupts import held_signals, is_interrupt
from envfleet.engine.messages import PLAIN_STEP, SILENT, Attach, Close, Command, Outcome
from envfleet.engine.pool.doorbell import Deadline, Doorbell, Ring
from envfleet.engine.pool.handle import WorkerHandle, WorkerState
from envfleet.engine.pool.own import OwnShard
from envfleet.engine.pool.starting import Starter, raise_if_missing_guard
from envfleet.engine.rules.spaces import Array
from envfleet.engine.spin import LONGEST, Patience
from envfleet.engine.worker import guard
from envfleet.errors import FleetBroken, WorkerDied

CLOSE_PATIENCE = 30.0
"""Seconds that workers get for ``env.close()`` when the caller sets no time-out."""
STUCK_PATIENCE = 2.0
"""The same, for workers that have not answered, or not even taken, a command."""
BROKEN_PATIENCE = 5.0
"""The same, for the others when one has died."""
TERM_PATIENCE = 1.0
"""Seconds between SIGTERM and SIGKILL."""


FEW = 64
"""Workers that may be asked to wake the caller together, and not one by one."""


class Pool:
    """Owns the worker processes of one fleet. Not thread-safe; useless in a forked child."""

    def __init__(self, starter: Starter, *, caller_steps: bool) -> None:
        """Start the workers; they build their envs at the same time.

        With ``caller_steps`` the last shard stays in this process.

        Raises whatever starting a process raises, after the workers already started were stopped.
        """
        self._owner = os.getpid()
        self._forks = guard.forks()
        self._death: WorkerDied | None = None
        self._unheard: list[WorkerDied] = []
        self._stopped = False
        self._cleared = False
        self.in_doubt = False
        """Set while a call changes what is known of the workers, by whoever changes it. Found set
        afterwards, it says that an interrupt came in between: ``settle``, then go on."""
        self._is_garbled = False
        self._stopper = 0
        self._talking = threading.RLock()  # a signal handler may close the fleet
        self._descriptor: int | None = None
        self._starter = starter
        self._words: Array | None = None
        self._infos: Array | None = None
        self.handles: list[WorkerHandle] = []
        self._bell = Doorbell([])
        processes = len(starter.shards) - caller_steps
        self._own = starter.own_shard(processes) if caller_steps else None
        try:
            with starter.limits():
                for index in range(processes):
                    starter.start(index, self._adopt)
        except BaseException:
            self.stop(terminate=True)
            raise

    def _adopt(self, handle: WorkerHandle) -> None:
        """Take over a worker that has just been started."""
        self.handles.append(handle)
        self._bell.add(handle)

    @property
    def members(self) -> list[WorkerHandle | OwnShard]:
        """All shards, in the envs' order."""
        return [*self.handles, self._own] if self._own is not None else [*self.handles]

    def attach(self, descriptor: int, command: Attach) -> None:
        """Give every shard the arena; returns when all have it."""
        memory = map_shared(descriptor, command.layout.size)
        if command.signals and self.handles:
            self._words = shared_array(command.layout.signals, memory)
            self._infos = shared_array(command.layout.infos, memory)
            patience = Patience(0.0 if command.crowded else LONGEST)
            self._bell.use(Signals(self._words, 0), patience)
        for handle in self.handles:
            self._signal(handle)
        self.post({handle.index: command for handle in self.handles}, descriptor)
        if self._own is not None:
            self._own.attach(command, memory)
        self.gather(Deadline(None))
        self.raise_failures()

    def attach_again(self, worker: int, command: Attach, descriptor: int) -> Outcome:
        """Give the arena to a worker that took a dead one's place.

        Raises:
            WorkerDied: it died.
        """
        self._signal(self.handles[worker])
        return self.converse(worker, command, descriptor)

    def _signal(self, handle: WorkerHandle) -> None:
        """Exchange signals with a worker that is about to get the arena."""
        if self._words is not None and self._infos is not None:
            self._words[handle.index + 1] = 0  # a dead one may have left its numbers there
            envs = handle.env_ids
            board = Board(self._infos[envs.start : envs.stop], envs)
            handle.use(Signals(self._words, handle.index), board)

    def post(self, commands: Mapping[int, Command], descriptor: int | None = None) -> None:
        """Send one command each to some workers, by index; the answers of the last call are gone.

        All commands are encoded before anything else happens, so that an argument that cannot be
        pickled costs nothing. A descriptor follows the commands where one is given. That a worker
        turns out to be dead is said by ``gather``.

        Leaves the pool in doubt, until the caller of this has noted what is pending.

        Raises:
            FleetBroken: a worker died earlier.
        """
        self.check()
        own = self._own
        messages = {
            w: self.handles[w].encode(command)
            for w, command in commands.items()
            if own is None or w != own.index
        }
        self.in_doubt = True
        for member in self.members:
            member.abandon()
        for worker, command in commands.items():
            if own is not None and worker == own.index:
                own.post(command)
                continue
            handle = self.handles[worker]
            if handle.is_over:
                continue  # gather will say so
            try:
                self._send(handle, messages[worker], command, descriptor)
            except WorkerDied as death:
                self._keep(death)
            except Exception:
                self._check_thread()
                raise

    def post_step(self) -> bool:
        """Have every env stepped, the short way; False if that is not possible now.

        Leaves the pool in doubt, as ``post`` does.

        Raises:
            FleetBroken: a worker died earlier.
        """
        for handle in self.handles:
            if not handle.is_ready:
                return False
        self.in_doubt = True
        if self._own is not None:
            self._own.abandon()
            self._own.post(PLAIN_STEP)
        with self._talking:
            self._check_thread()
            for handle in self.handles:
                try:
                    handle.post_step()
                except WorkerDied as death:
                    self._keep(death)
                except Exception:
                    self._check_thread()
                    raise
        return True

    def settle(self) -> None:
        """Find a known state after an interrupt; answers to what was asked before are dropped.

        Does not wait: whoever is still at work answers before the next command is sent to it.
        """
        if self._own is not None:
            self._own.settle()
        for handle in self.handles:
            if handle.is_over:
                continue
            if handle.is_garbled:
                self._is_garbled = True
                continue
            try:
                with self._talking:
                    self._check_thread()
                    handle.settle()
                    self._bell.follow(handle)
            except WorkerDied as death:
                self._keep(death)
        self.in_doubt = False

    def is_silent(self) -> bool:
        """Whether all members have answered, and none has told anything."""
        for handle in self.handles:
            if handle.outcome is not SILENT:
                return False
        own = self._own
        return own is None or (own.outcome is not None and own.outcome.is_silent())

    def _send(
        self, handle: WorkerHandle, data: bytes, command: Command, descriptor: int | None
    ) -> None:
        with self._talking:
            self._check_thread()
            handle.post(data, command, descriptor)
            if handle.is_sending:
                self._bell.follow(handle)

    def _hear(self, handle: WorkerHandle, ring: Ring) -> None:
        """Let a worker's messages go on, one way or the other."""
        with self._talking:
            self._check_thread()
            if ring is Ring.END:
                raise handle.died()
            was_sending = handle.is_sending
            handle.progress(rung=ring is Ring.WIRE)
            if was_sending or handle.is_sending:
                self._bell.follow(handle)

    def _check_thread(self) -> None:
        """From ``stop`` on only the thread that called it may talk to the workers, until it ends.

        Raises:
            ClosedEnvironmentError: it is another thread, or this one was closing the fleet in a
                signal handler and has come back from there.
        """
        if self._stopped and threading.get_ident() != self._stopper:
            raise ClosedEnvironmentError("another thread closed the fleet during this call.")
        if self._cleared:
            raise ClosedEnvironmentError("a signal handler closed the fleet during this call.")

    def gather(self, deadline: Deadline) -> bool:
        """Wait until every worker has answered; False when the deadline came first.

        May be called again after False. The answers are the handles' ``outcome``.

        Raises:
            FleetBroken: a worker died earlier.
            WorkerDied: one died now.
        """
        self.check()
        try:
            if self._own is not None and self._own.owes_reply:
                self.in_doubt = True
                self._own.work()
                self.in_doubt = False
            if self._unheard:
                raise self._unheard.pop(0)  # noqa: TRY301 - this is where deaths are told
            with self._talking:
                self._check_thread()
                if self._bell.glance(self.handles):
                    return True
            look = False  # it has just been tried
            # Each worker looks at all the others' signals for that.
            for_all = Sleep.FOR_ALL if len(self.handles) <= FEW else Sleep.FOR_ANY
            while any(handle.owes_reply for handle in self.handles):
                ready = self._bell.wait(deadline, look=look, sleep=for_all)
                self.in_doubt = True
                for handle, ring in ready:
                    self._hear(handle, ring)
                self.in_doubt = False
                if not ready or (deadline.has_passed() and self.late_envs()):
                    return False
                look = True
            self._check_thread()
            for handle in self._unwell():
                raise handle.died()  # noqa: TRY301 - same
        except WorkerDied as death:
            self._check_thread()
            self._death = death
            raise_if_missing_guard(death)
            raise
        except Exception:
            self._check_thread()  # closed under this call, there is no telling what fails here
            raise
        return True

    def _unwell(self) -> list[WorkerHandle]:
        return [handle for handle in self.handles if handle.is_over]

    def _keep(self, death: WorkerDied) -> None:
        """Keep a death that ``gather`` has to tell."""
        self._bell.forget(self.handles[death.worker])
        self._unheard.append(death)

    def revive(self, worker: int, generation: int) -> None:
        """Start a new worker in place of a dead one; it has yet to answer, and to be attached.

        The fleet stays broken until ``restored`` is called.
        """
        old = self.handles[worker]
        self._bell.forget(old)
        old.bury()

        def adopt(handle: WorkerHandle) -> None:
            try:
                with self._talking:
                    self._check_thread()
                    self.handles[worker] = handle
                    self._bell.add(handle)
            except BaseException:
                if self.handles[worker] is not handle:  # the fleet was closed meanwhile
                    handle.bury()
                    handle.discard()
                raise

        with self._starter.limits():
            self._starter.start(worker, adopt, generation)
        self._unheard = [death for death in self._unheard if death.worker != worker]
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
            for handle, ring in self._bell.wait(deadline):
                self._hear(handle, ring)
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
        with above_standard():
            self._descriptor = os.dup(descriptor)
        return self._descriptor

    def outcomes(self) -> list[tuple[WorkerHandle | OwnShard, Outcome]]:
        """The answers that have come to the current call, in the envs' order."""
        return [(m, m.outcome) for m in self.members if m.outcome is not None]

    def raise_failures(self) -> None:
        """Raise the failure of the lowest env in the current answers, if there is one."""
        raise_first(
            [
                (failure, member.place)
                for member, outcome in self.outcomes()
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
            raise FleetBroken(
                f"this fleet lost a worker earlier: {self._death.what} close() it."
            ) from self._death
        if self._is_garbled:
            raise FleetBroken(
                "an interrupt (Ctrl-C, or another signal handler's exception) cut a message to or "
                "from a worker in two: only close() is left."
            )
        if self._forks != guard.forks():
            raise FleetBroken(
                f"this fleet belongs to process {self._owner}; process {os.getpid()} is a fork of "
                "it and must build a fleet of its own."
            )

    def stop(self, timeout: float | None = None, *, terminate: bool = False) -> list[Failure]:
        """Stop every worker: ask, then SIGTERM, then SIGKILL; returns what ``env.close`` raised.

        Does nothing the second time, and in a forked child of the process that started the workers;
        where an interrupt came before the end, the second time goes on from there.

        Args:
            timeout: seconds until SIGKILL; None gives those that answer 30 s and the others 2 s.
            terminate: do not ask.
        """
        if self._cleared or os.getpid() != self._owner:
            return []
        if self._stopped and self._stopper != threading.get_ident():
            return []
        with self._talking:
            self._stopped, self._stopper = True, threading.get_ident()
            self._bell.drop_signals()
            # One of its own: another thread may be waiting with the old one.
            self._bell = Doorbell([handle for handle in self.handles if not handle.is_over])
            if self._words is not None:
                self._bell.use(Signals(self._words, 0), Patience(0.0))
        try:
            return self._climb(timeout, terminate=terminate)
        except Exception:
            if self._cleared:  # by a signal handler, which has closed the fleet under this call
                return []
            raise
        finally:
            self._clear_away()

    def _climb(self, timeout: float | None, *, terminate: bool) -> list[Failure]:
        """Ask, and send SIGTERM to those that are left; returns what ``env.close`` raised."""
        own = self._own.close() if self._own is not None else []
        if terminate:
            self._end(self.handles, TERM_PATIENCE)
            return own
        if timeout is None:
            timeout = CLOSE_PATIENCE if self._death is None else BROKEN_PATIENCE
            asking, grace = _split(timeout)
            self._ask_to_close()
            self._end_stuck()
        else:
            asking, grace = _split(timeout)
            self._ask_to_close()
        self._await_close(asking, lambda handle: handle.owes_reply)
        answers = [handle.outcome for handle in self.handles if handle.outcome is not None]
        for handle in self.handles:
            if handle.state is WorkerState.GONE:
                handle.watch.wait(asking.left())
        self._end(self.handles, grace)
        return [failure for answer in answers for failure in answer.failures] + own

    def _clear_away(self) -> None:
        """Kill what is left and let go of everything; interrupts have to wait for that."""
        interrupt: BaseException | None = None
        while not self._cleared:
            try:
                with held_signals():
                    for handle in self.handles:
                        handle.bury()
                    for handle in self.handles:
                        handle.discard()
                    self._bell.drop_signals()
                    self._words = self._infos = None
                    if (descriptor := self._descriptor) is not None:
                        self._descriptor = None
                        os.close(descriptor)
                    self._cleared = True
            except BaseException as again:
                if not is_interrupt(again):
                    raise
                interrupt = again
        if interrupt is not None:
            raise interrupt

    def _ask_to_close(self) -> None:
        if self.in_doubt:
            self.settle()
        for handle in self.handles:
            if handle.is_garbled:
                handle.bury()  # nothing it is told would be understood
            if not handle.is_over:
                handle.abandon()
                with contextlib.suppress(WorkerDied):
                    self._send(handle, handle.encode(Close()), Close(), None)

    def _end_stuck(self) -> None:
        """Give workers that do not listen a short time, and end them."""
        asking, grace = _split(STUCK_PATIENCE)

        def is_stuck(handle: WorkerHandle) -> bool:
            return handle.queued is not None or (handle.owes_reply and handle.is_deaf)

        self._await_close(asking, is_stuck)
        self._end([handle for handle in self.handles if is_stuck(handle)], grace)

    def _await_close(self, deadline: Deadline, is_awaited: Callable[[WorkerHandle], bool]) -> None:
        """Receive what comes until nobody is awaited any more, deaths included."""
        while any(is_awaited(handle) for handle in self.handles):
            for handle in self.handles:
                if handle.is_over:
                    self._bell.forget(handle)
            with contextlib.suppress(WorkerDied):
                for handle, ring in self._bell.wait(deadline):
                    self._hear(handle, ring)
            if deadline.has_passed():
                return

    @staticmethod
    def _end(handles: Sequence[WorkerHandle], grace: float) -> None:
        """End processes, and what they have started: SIGTERM, then SIGKILL."""
        left = [handle for handle in handles if not handle.is_buried]
        for handle in left:
            handle.watch.end_runaways()  # now: a process that has ended has no children any more
            handle.process.terminate()
        patience = Deadline(grace)
        for handle in left:
            handle.watch.wait(patience.left())
            handle.bury()


def _split(patience: float) -> tuple[Deadline, float]:
    """Until when to ask, and how many of the seconds are left between SIGTERM and SIGKILL."""
    grace = min(TERM_PATIENCE, patience / 4)
    return Deadline(patience - grace), grace
