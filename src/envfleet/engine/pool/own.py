"""OwnShard: the caller's share of the envs, stepped here while the workers step theirs."""

from __future__ import annotations

import mmap

from envfleet.engine.failures import Failure
from envfleet.engine.messages import PLAIN_STEP, Attach, Close, Command, Outcome
from envfleet.engine.worker.servant import Job, Servant


class OwnShard:
    """Takes the same commands as a worker, and obeys when the answers are gathered.

    Its envs have the serial engine's guarantees: a crash or a hang is the caller's own.
    """

    queued = None
    """Nothing ever waits here: a command is obeyed before the next one can come."""
    place = ""
    """Notes on exceptions name no worker."""

    def __init__(self, index: int, env_ids: range, job: Job) -> None:
        self.index = index
        self.env_ids = env_ids
        self.outcome: Outcome | None = None
        self._servant = Servant(env_ids)
        self._is_attached = False
        self._todo: Command | Job | None = job

    @property
    def owes_reply(self) -> bool:
        """Whether a command, or the start, is still to be obeyed."""
        return self._todo is not None

    def attach(self, command: Attach, memory: mmap.mmap) -> None:
        """Use this arena from now on."""
        self._servant.attach(command, memory)
        self._is_attached = True

    def abandon(self) -> None:
        """Forget the last answer."""
        self.outcome = None

    def settle(self) -> None:
        """Forget what was asked, and what came of it."""
        self._todo = self.outcome = None

    def post(self, command: Command) -> None:
        """Have a command obeyed by the next ``work``."""
        self._todo = command

    def work(self) -> None:
        """Obey what was posted; the answer is ``outcome``."""
        todo, self._todo = self._todo, None
        if todo is PLAIN_STEP:
            self.outcome = self._servant.step()
            self.outcome.info_blocks()  # now, while the workers do the same
        elif isinstance(todo, Job):
            self.outcome = self._servant.introduce(todo)
        elif todo is not None:
            self.outcome = self._servant.obey(todo)

    def close(self) -> list[Failure]:
        """Close the envs that there are and let go of the arena; returns what closing raised."""
        if not hasattr(self._servant, "host"):
            return []
        failures = self._servant.obey(Close()).failures
        if self._is_attached:
            self._servant.detach()
        return failures
