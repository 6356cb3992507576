"""Pool: posts commands to shards of any kind and waits for their answers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping

from gymnasium.error import ClosedEnvironmentError

from envfleet.engine.arena.arena import Arena
from envfleet.engine.arena.signals import Signals, Sleep
from envfleet.engine.arena.views import shared_array
from envfleet.engine.arrivals import Arrivals
from envfleet.engine.failures import Failure, raise_first
from envfleet.engine.interrupts import held_signals, is_interrupt
from envfleet.engine.messages import ENDED, PLAIN_STEP, SILENT, Command, Outcome
from envfleet.engine.pool.contention import Contention
from envfleet.engine.pool.deadline import Deadline
from envfleet.engine.pool.doorbell import Doorbell, Ready, Ring
from envfleet.engine.pool.stopping import shut_down
from envfleet.engine.shard import Shard, Starter
from envfleet.engine.spin import LONGEST, Patience
from envfleet.engine.worker import guard
from envfleet.errors import FleetBroken, WorkerDied

FEW = 64
"""Shards that may be asked to wake the caller together, and not one by one."""


class Pool:
    """The shards of one fleet. Not thread-safe; what is not local is useless in a forked child.

    It has none until ``start``, so that whoever makes a pool can see to its end first.
    """

    def __init__(self, starter: Starter) -> None:
        self._owner = os.getpid()
        self._forks = None if starter.survives_fork else guard.forks()
        self._death: WorkerDied | None = None
        self._unheard: list[WorkerDied] = []
        self._stopped = False
        self._cleared = False
        self.in_doubt = False
        """Set while a call changes what is known of the shards, by whoever changes it. Found set
        afterwards, it says that an interrupt came in between: ``settle``, then go on."""
        self._is_garbled = False
        self._is_talking = False
        """Set while envs are asked, or reports heard. Found set afterwards, an interrupt came."""
        self._stopper = 0
        self._talking = threading.RLock()  # a signal handler may close the fleet
        self._starter = starter
        self._arena: Arena | None = None
        self._arrivals: Arrivals | None = None
        self.shards: list[Shard] = []
        self._elsewhere: list[Shard] = []
        """Those of them that have to be waited for."""
        self._bell = Doorbell([])
        self._contention = Contention(self.shards)

    def start(self) -> None:
        """Start the shards; they build their envs at the same time.

        Raises whatever starting one raises, after those already started were stopped.
        """
        try:
            with self._starter.limits():
                for index in range(self._starter.count):
                    self._starter.start(index, self._adopt)
        except BaseException:
            self.stop(terminate=True)
            raise

    def _adopt(self, shard: Shard) -> None:
        """Take over a shard that has just been started."""
        self.shards.append(shard)
        self._note_elsewhere()
        self._bell.add(shard)

    def _note_elsewhere(self) -> None:
        self._elsewhere = [shard for shard in self.shards if shard.descriptor is not None]

    def own(self, make_arena: Callable[[], Arena]) -> Arena:
        """Make an arena and own it in place of the one before, which is closed.

        Interrupts wait meanwhile: an arena that nobody owns would keep its memory for good.
        """
        self.check()
        with held_signals():
            arena = make_arena()
            self.in_doubt = True
            before, self._arena = self._arena, arena
            if before is not None:
                before.close()
        return arena

    def attach(self) -> None:
        """Give the arena to every shard; returns when all have it.

        Raises:
            WorkerDied: a shard died of it.
        """
        self.check()
        self.in_doubt = True
        if self._arena is None:
            raise AssertionError("there is no arena yet")
        arena = self._arena
        self._arrivals = Arrivals(arena.views)
        if arena.terms.signals:
            words = shared_array(arena.layout.signals, arena.memory)
            signals = Signals(words, 0)

            def held_up() -> bool:
                verdict = self._contention.check()
                signals.tell_held_up(verdict)
                return verdict

            self._bell.use(signals, Patience(LONGEST, held_up), yields=arena.terms.crowded)
        for shard in self.shards:
            try:
                self._attach(shard, arena, self._arrivals)
            except WorkerDied as death:
                self._keep(death)
        self.gather(Deadline(None))
        self.raise_failures()
        self.in_doubt = False

    def _attach(self, shard: Shard, arena: Arena, arrivals: Arrivals) -> None:
        with self._talking:
            self.check_open()
            shard.attach(arena, arrivals)
            self._bell.follow(shard)

    @property
    def arrivals(self) -> Arrivals:
        """What envs that were asked one by one have reported."""
        if self._arrivals is None:
            raise AssertionError("there is no arena yet")
        return self._arrivals

    # Asking

    def post(self, commands: Mapping[int, Command]) -> None:
        """Send one command each to some shards, by index; the answers of the last call are gone.

        All commands are prepared before anything else happens, so that an argument that cannot be
        pickled costs nothing. That a worker turns out to be dead is said by ``gather``.

        Leaves the pool in doubt, until the caller of this has noted what is pending.

        Raises:
            FleetBroken: a worker died earlier.
        """
        self.check()
        prepared = {index: self.shards[index].prepare(c) for index, c in commands.items()}
        self.in_doubt = True
        for shard in self.shards:
            shard.abandon()
        for index, command in commands.items():
            shard = self.shards[index]
            try:
                self._post(shard, command, prepared[index])
            except WorkerDied as death:
                self._keep(death)
            except Exception:
                self.check_open()
                raise

    def post_step(self) -> bool:
        """Have every env stepped with the arena's actions; False if ``post`` must be used now.

        Leaves the pool in doubt, as ``post`` does.
        """
        for shard in self.shards:
            if not shard.is_ready:
                return False
        self.in_doubt = True
        with self._talking:
            if self._stopped:
                self.check_open()
            for shard in self.shards:
                try:
                    shard.post(PLAIN_STEP)
                except WorkerDied as death:
                    self._keep(death)
                except Exception:
                    self.check_open()
                    raise
        return True

    def tell(self, shard: Shard, command: Command) -> None:
        """Post a command to one shard.

        Raises:
            WorkerDied: it is gone.
        """
        self._post(shard, command, shard.prepare(command))

    def _post(self, shard: Shard, command: Command, prepared: object) -> None:
        with self._talking:
            self.check_open()
            shard.post(command, prepared)
            if shard.is_sending:
                self._bell.follow(shard)

    def settle(self) -> None:
        """Find a known state after an interrupt; answers to what was asked before are dropped.

        Does not wait: whoever is still at work answers before the next command is sent to it.
        """
        for shard in self.shards:
            if shard.is_over:
                continue
            if shard.is_garbled:
                self._is_garbled = True
                continue
            try:
                with self._talking:
                    self.check_open()
                    shard.settle()
                    self._bell.follow(shard)
            except WorkerDied as death:
                self._keep(death)
        self.in_doubt = False

    # Waiting

    def gather(self, deadline: Deadline) -> bool:  # noqa: PLR0912 - one way from asking to answers
        """Wait until every shard has answered; False when the deadline came first.

        May be called again after False. The answers are the shards' ``outcome``.

        Raises:
            FleetBroken: a worker died earlier.
            WorkerDied: one died now.
        """
        self.check()
        try:
            for shard in self.shards:
                if shard.has_work:
                    self.in_doubt = True
                    shard.work()
                    self.in_doubt = False
            if self._unheard:
                raise self._unheard.pop(0)  # noqa: TRY301 - this is where deaths are told
            if not self._elsewhere and not self._stopped:
                return True
            with self._talking:
                if self._stopped:
                    self.check_open()
                if self._bell.glance(self._elsewhere):
                    return True
            look = False  # it has just been tried
            # Each worker looks at all the others' signals for that.
            for_all = Sleep.FOR_ALL if len(self.shards) <= FEW else Sleep.FOR_ANY
            while any(shard.owes_answer for shard in self.shards):
                ready = self._bell.wait(deadline, look=look, sleep=for_all)
                self.in_doubt = True
                for shard, ring in ready:
                    self.hear(shard, ring)
                self.in_doubt = False
                if not ready or (deadline.has_passed() and self.late_envs()):
                    return False
                look = True
            self.check_open()
            for shard in self.shards:
                if shard.is_over:
                    raise shard.died()  # noqa: TRY301 - same
        except WorkerDied as death:
            self.check_open()
            self._death = death
            raise
        except Exception:
            self.check_open()  # closed under this call, there is no telling what fails here
            raise
        return True

    def hear(self, shard: Shard, ring: Ring) -> None:
        """Let a shard's messages go on, one way or the other.

        Raises:
            WorkerDied: it is gone.
        """
        with self._talking:
            self.check_open()
            if ring is Ring.END:
                raise shard.died()
            was_sending = shard.is_sending
            shard.progress(rung=ring is Ring.WIRE)
            if was_sending or shard.is_sending:
                self._bell.follow(shard)

    # Envs that are asked one by one

    def ask(self, index: int, prepared: object) -> None:
        """Ask envs of one shard (see ``Shard.ask``); that it is dead, a wait for reports tells."""
        shard = self.shards[index]
        self._is_talking = True
        try:
            with self._talking:
                self.check_open()
                shard.ask(prepared)
                if shard.is_sending:
                    self._bell.follow(shard)
        except WorkerDied as death:
            self._keep(death)
        self._is_talking = False

    def hear_reports(self) -> int:
        """Take the reports that memory shows to be on a wire; returns a mark for ``wait_reports``.

        Raises:
            FleetBroken: an interrupt has cut a message in two.
            WorkerDied: a worker has died.
        """
        if self._is_talking:
            self._is_garbled = any(shard.is_garbled for shard in self.shards if not shard.is_over)
            self._is_talking = False
            self.check()
        if self._stopped:
            self.check_open()
        if not self._elsewhere:
            return 0
        reported = self._bell.reported()
        ringing = [(shard, Ring.WIRE) for shard in self._elsewhere if shard.has_reports()]
        if ringing or self._unheard:
            self._hear_all(ringing)
        return reported

    def wait_reports(self, deadline: Deadline, mark: int, count: int) -> None:
        """Wait until so many more envs have reported than at ``mark``, or until a wire rings.

        Raises as ``hear_reports``.
        """
        try:
            ready = self._bell.wait_for_reports(deadline, mark + count)
        except Exception:
            self.check_open()  # closed under this call, there is no telling what fails here
            raise
        self._hear_all(ready)

    def _hear_all(self, ready: list[Ready]) -> None:
        try:
            if self._unheard:
                raise self._unheard.pop(0)  # noqa: TRY301 - this is where deaths are told
            self._is_talking = True
            for shard, ring in ready:
                self.hear(shard, ring)
            self._is_talking = False
        except WorkerDied as death:
            self.check_open()
            self._death = death
            raise
        except Exception:
            self.check_open()
            raise

    def shared_outcome(self) -> Outcome | None:
        """``SILENT`` or ``ENDED`` if that is all that any shard has answered, else None."""
        found = SILENT
        for shard in self.shards:
            outcome = shard.outcome
            if outcome is not SILENT:
                if outcome is not ENDED:
                    return None
                found = ENDED
        return found

    def outcomes(self) -> list[tuple[Shard, Outcome]]:
        """The answers that have come to the current call, in the envs' order."""
        return [(shard, shard.outcome) for shard in self.shards if shard.outcome is not None]

    def raise_failures(self) -> None:
        """Raise the failure of the lowest env in the current answers, if there is one."""
        raise_first(
            [
                (failure, shard.place)
                for shard, outcome in self.outcomes()
                for failure in outcome.failures
            ]
        )

    def late_envs(self) -> list[int]:
        """The envs of shards that have not answered."""
        return [env for shard in self.shards if shard.owes_answer for env in shard.env_ids]

    # One shard by itself

    def converse(
        self, index: int, command: Command | None, timeout: float | None = None
    ) -> Outcome:
        """One shard's answer to one command (None: to its start), whatever the others are doing.

        Raises:
            WorkerDied: it died, or took longer than ``timeout`` seconds and was killed.
        """
        shard = self.shards[index]
        kept = shard.outcome  # its answer to the fleet's current call, if it has given one
        try:
            if command is not None:
                self.tell(shard, command)
            self._await(shard, timeout)
        except WorkerDied as death:
            self._death = death
            raise
        outcome, shard.outcome = shard.outcome, kept
        return outcome or Outcome()

    def attach_again(self, index: int) -> Outcome:
        """Give the arena to a shard that took a dead one's place.

        Raises:
            WorkerDied: it died.
        """
        shard = self.shards[index]
        if self._arena is None:
            raise AssertionError("there is no arena yet")
        try:
            self._attach(shard, self._arena, self.arrivals)
            self._await(shard, None)
        except WorkerDied as death:
            self._death = death
            raise
        outcome, shard.outcome = shard.outcome, None
        return outcome or Outcome()

    def _await(self, awaited: Shard, timeout: float | None) -> None:
        """Receive what comes until one shard has answered; another's death is kept for ``gather``.

        Raises:
            WorkerDied: that shard died, or was late and was killed.
        """
        deadline = Deadline(timeout)
        if awaited.is_over:
            raise awaited.died()
        while awaited.owes_answer:
            try:
                for shard, ring in self._bell.wait(deadline):
                    self.hear(shard, ring)
            except WorkerDied as death:
                if death.worker == awaited.index:
                    raise
                self._keep(death)
            if awaited.owes_answer and deadline.has_passed():
                raise awaited.kill(f"no answer within {timeout} s")

    # Deaths

    def _keep(self, death: WorkerDied) -> None:
        """Keep a death that ``gather`` has to tell."""
        self._bell.forget(self.shards[death.worker])
        self._unheard.append(death)

    def kill_late(self, reason: str) -> WorkerDied:
        """Kill the first shard that owes an answer; returns the death that it was given."""
        late = [shard for shard in self.shards if shard.owes_answer]
        # One with a command in waiting has not even answered the one before.
        return self.kill(
            next((shard for shard in late if shard.queued is not None), late[0]), reason
        )

    def kill(self, shard: Shard, reason: str) -> WorkerDied:
        """Kill a shard that does not answer; returns the death that it was given."""
        self._death = shard.kill(reason)
        self._bell.forget(shard)
        return self._death

    def revive(self, index: int, generation: int) -> None:
        """Start a new shard in place of a dead one; it has yet to answer, and to be attached.

        The fleet stays broken until ``restored`` is called.
        """
        old = self.shards[index]
        self._bell.forget(old)
        old.reap()

        def adopt(shard: Shard) -> None:
            try:
                with self._talking:
                    self.check_open()
                    self.shards[index] = shard
                    self._note_elsewhere()
                    self._bell.add(shard)
                    old.release()  # here, where no interrupt can come in between
            except BaseException:
                if self.shards[index] is not shard:  # the fleet was closed meanwhile
                    shard.reap()
                    shard.release()
                raise

        with self._starter.limits():
            self._starter.start(index, adopt, generation)
        self._unheard = [death for death in self._unheard if death.worker != index]

    def restored(self) -> None:
        """The dead shard has been replaced and all that it owed has been answered."""
        self._death = None

    def give_up(self, death: WorkerDied) -> None:
        """The fleet is broken for good by this death."""
        self._death = death

    @property
    def notice(self) -> str:
        """What the fleet has found out about the machine and said, if anything."""
        return self._contention.notice

    @property
    def is_broken(self) -> bool:
        """Whether a shard has died."""
        return self._death is not None

    def check(self) -> None:
        """Raise ``FleetBroken`` if the shards cannot be used."""
        if self._death is not None:
            raise FleetBroken(
                f"this fleet lost a worker earlier: {self._death.what} close() it."
            ) from self._death
        if self._is_garbled:
            raise FleetBroken(
                "an interrupt (Ctrl-C, or another signal handler's exception) cut a message to or "
                "from a worker in two: only close() is left."
            )
        if self._forks is not None and self._forks != guard.forks():
            raise FleetBroken(
                f"this fleet belongs to process {self._owner}; process {os.getpid()} is a fork of "
                "it and must build a fleet of its own."
            )

    # The end

    def stop(self, timeout: float | None = None, *, terminate: bool = False) -> list[Failure]:
        """Stop every shard: ask, then SIGTERM, then SIGKILL; returns what ``env.close`` raised.

        Does nothing the second time, and in a forked child of the process that started workers;
        where an interrupt came before the end, the second time goes on from there.

        Args:
            timeout: seconds until SIGKILL; None gives those that answer 30 s and the others 2 s.
            terminate: do not ask other processes.
        """
        if self._cleared or (self._forks is not None and os.getpid() != self._owner):
            return []
        if self._stopped and self._stopper != threading.get_ident():
            return []
        with self._talking:
            self._stopped, self._stopper = True, threading.get_ident()
            self._bell.drop_signals()
            # One of its own: another thread may be waiting with the old one.
            self._bell = Doorbell([shard for shard in self.shards if not shard.is_over])
            if self._arena is not None and self._arena.terms.signals:
                words = shared_array(self._arena.layout.signals, self._arena.memory)
                self._bell.use(Signals(words, 0), Patience(0.0), yields=False)
        try:
            return shut_down(self, self._bell, timeout, terminate=terminate)
        except Exception:
            if self._cleared:  # by a signal handler, which has closed the fleet under this call
                return []
            raise
        finally:
            self._clear_away()

    def _clear_away(self) -> None:
        """Kill what is left and let go of everything; interrupts have to wait for that."""
        interrupt: BaseException | None = None
        while not self._cleared:
            try:
                with held_signals():
                    for shard in self.shards:
                        shard.reap()
                    for shard in self.shards:
                        shard.release()
                    self._bell.drop_signals()
                    arena, self._arena, self._arrivals = self._arena, None, None
                    if arena is not None:
                        arena.close()
                    self._cleared = True
            except BaseException as again:
                if not is_interrupt(again):
                    raise
                interrupt = again
        if interrupt is not None:
            raise interrupt

    def check_open(self) -> None:
        """From ``stop`` on only the thread that called it may talk to the shards, until it ends.

        Raises:
            ClosedEnvironmentError: it is another thread, or this one was closing the fleet in a
                signal handler and has come back from there.
        """
        if self._stopped and threading.get_ident() != self._stopper:
            raise ClosedEnvironmentError("another thread closed the fleet during this call.")
        if self._cleared:
            raise ClosedEnvironmentError("a signal handler closed the fleet during this call.")
