"""ShardedEnv: the life of a fleet: its shards are started, share an arena, and are closed."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.util import Finalize
from typing import Any, ClassVar, Generic, NoReturn, Self, SupportsIndex

from gymnasium import Env, logger
from gymnasium.core import ActType, ObsType
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.async_vector_env import AsyncState
from numpy.typing import NDArray

from envfleet.engine.arena.arena import Arena, Terms
from envfleet.engine.failures import Failure
from envfleet.engine.interrupts import is_interrupt
from envfleet.engine.local import LocalShard
from envfleet.engine.messages import Command
from envfleet.engine.pool.deadline import Deadline
from envfleet.engine.pool.pool import Pool
from envfleet.engine.pool.stopping import STUCK_PATIENCE
from envfleet.engine.rules.choice import Measurement, Plan
from envfleet.engine.rules.spaces import Structure
from envfleet.engine.shard import Starter
from envfleet.vector.options import FleetOptions, check_info_format
from envfleet.vector.pending import PendingCall
from envfleet.vector.results import Results
from envfleet.vector.spaces import Refusals, agree


class ShardedEnv(VectorEnv[ObsType, ActType, NDArray[Any]], Generic[ObsType, ActType]):
    """A ``VectorEnv`` whose envs are in shards; what it asks of them is in the subclasses."""

    isolates = False
    """Whether envs can be kept out of the calling process."""
    caller_steps = False
    """Whether the calling process steps one of several shards itself."""

    _refusals: ClassVar[Refusals]
    _backend: ClassVar[str]

    def __init__(
        self, env_fns: Iterable[Callable[[], Env[Any, Any]]], options: FleetOptions
    ) -> None:
        super().__init__()
        self.env_fns = env_fns if isinstance(env_fns, Sequence) else tuple(env_fns)
        if not self.env_fns:
            raise ValueError("a fleet needs at least one env: env_fns is empty")
        for i, env_fn in enumerate(self.env_fns):
            if not callable(env_fn):
                raise TypeError(
                    f"env_fns[{i}] must be a function that builds an env, as "
                    f'lambda: gymnasium.make("CartPole-v1"), got {type(env_fn).__name__}'
                )
        self.num_envs = len(self.env_fns)
        self._options = options
        self.copy = options.copy
        self.infos = options.infos
        self._info_format = options.info_format
        self.observation_mode = options.observation_mode
        self.worker = options.worker
        self._autoreset_mode = options.autoreset_mode
        self._has_been_reset = False
        self._has_let_go = False
        self._finalizer: Finalize | None = None
        self.reason = "built directly"
        """Why this fleet is as it is; ``plan`` tells."""
        self.native = ""
        """The envs' own batched implementation, if they have one; ``plan`` tells."""
        self.measured: Measurement | None = None
        """What one env took before the fleet was built, if that was measured; ``plan`` tells."""

    def _start(self, starter: Starter, step_timeout: float | None = None) -> None:
        """Start the shards, learn the spaces from them, and give them the arena."""
        self._pool = Pool(starter)
        self._call = PendingCall(self._pool, step_timeout)
        if not starter.survives_fork:
            # Runs when the fleet is collected or the program ends, before multiprocessing joins
            # its children; not in forked children.
            self._finalizer = Finalize(
                self, self._pool.stop, kwargs={"terminate": True}, exitpriority=10
            )
        try:
            self._pool.start()
            self._pool.gather(Deadline(None))
            self._pool.raise_failures()
            descriptions = [outcome.results[0] for _, outcome in self._pool.outcomes()]
            spaces = agree(descriptions, self.observation_mode, self.num_envs, self._refusals)
            self.single_observation_space = spaces.single_observation
            self.observation_space = spaces.observation
            self.single_action_space = spaces.single_action
            self.action_space = spaces.action
            # A copy: metadata usually is a class attribute of the env.
            self.metadata = {
                **descriptions[0].metadata,
                "autoreset_mode": self._autoreset_mode,
            }
            self.render_mode = descriptions[0].render_mode
            self._observation_structure = Structure(spaces.single_observation)
            self._action_structure = Structure(spaces.single_action)
            self._attach()
        except BaseException:
            self.closed = True
            self._let_go(STUCK_PATIENCE)
            raise

    def _attach(self) -> None:
        """Make the arena and give it to every shard."""
        terms = Terms(
            self._observation_structure,
            self._action_structure,
            self._autoreset_mode,
            self.infos,
        )
        arena = self._pool.own(lambda: self._make_arena(terms))
        self._results = self._call.results = Results(
            arena.views,
            self._observation_structure,
            copy=self.copy,
            info_format=self._info_format,
            same_step=terms.keeps_final,
        )
        self._pool.attach()
        self._call.flow.follow(self._pool.arrivals)
        if self._call.mender is not None:
            self._call.mender.history.follow(arena.views, self._results.loose)

    @abstractmethod
    def _make_arena(self, terms: Terms) -> Arena:
        """Memory that all shards of this engine can use."""

    # What the fleet is

    @property
    def plan(self) -> Plan:
        """How this fleet runs, read from the fleet itself, and why."""
        return Plan(
            self._backend,
            len(self._pool.shards),
            self.caller_steps,
            self.reason,
            self._leaves_by_pipe(),
            self.native,
            self.measured,
            self._pool.notice,
        )

    def _leaves_by_pipe(self) -> tuple[str, ...]:
        return ()

    @property
    def autoreset_mode(self) -> AutoresetMode:
        """What happens when an episode ends; it may be changed until the first ``reset``.

        Raises:
            RuntimeError: on assignment, after the first reset.
        """
        return self._autoreset_mode

    @autoreset_mode.setter
    def autoreset_mode(self, mode: str | AutoresetMode) -> None:
        wanted = AutoresetMode(mode)
        self._assert_is_running()
        if wanted is self._autoreset_mode:
            return
        if self._has_been_reset:
            raise RuntimeError(
                "the autoreset mode can be changed only before the first reset: this fleet has "
                f"been reset in mode {self._autoreset_mode.value}. Build it with "
                f"autoreset_mode={wanted.value!r}."
            )
        self._call.refuse_another("autoreset_mode")
        self._autoreset_mode = wanted
        self.metadata = {**self.metadata, "autoreset_mode": wanted}
        self._attach()

    @property
    def info_format(self) -> str:
        """How infos are laid out, "columns" or "list"; it may be changed between calls.

        Raises:
            ValueError: on assignment of another word.
        """
        return self._info_format

    @info_format.setter
    def info_format(self, info_format: str) -> None:
        check_info_format(info_format)
        self._assert_is_running()
        self._call.refuse_another("info_format")
        self._info_format = info_format
        self._results.lists_infos = info_format == "list"

    @property
    def local_env_ids(self) -> list[int]:
        """The envs that live in the calling process, whose infos hold the envs' own objects."""
        locals_ = [shard for shard in self._pool.shards if isinstance(shard, LocalShard)]
        return [env for shard in locals_ for env in shard.env_ids]

    # The end

    def close(self, **kwargs: Any) -> None:
        """Close the fleet; where an interrupt came in between, the next call ends what is left."""
        if not self.closed:
            super().close(**kwargs)
        elif not self._has_let_go and hasattr(self, "_results"):
            self._close_shards(terminate=True)

    def _close_shards(self, timeout: float | None = None, *, terminate: bool = False) -> None:
        pending, self._call.kind = self._call.kind, AsyncState.DEFAULT
        if pending is not AsyncState.DEFAULT and not self._pool.is_broken:
            logger.warn(
                f"Calling `close` while waiting for a pending call to `{pending.value}` to "
                "complete."
            )
        self.closed = True
        failures = self._let_go(timeout, terminate=terminate)
        self._results.detach()
        self._call.flow.detach()
        if self._call.mender is not None:
            self._call.mender.history.detach()
        self._has_let_go = True
        _warn_of_close(failures)

    def _let_go(self, timeout: float | None, *, terminate: bool = False) -> list[Failure]:
        """Stop the shards; nothing is left to be done when the fleet is collected."""
        failures = self._pool.stop(timeout, terminate=terminate)
        if self._finalizer is not None:
            self._finalizer.cancel()
        return failures

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled or deep-copied: it owns running envs. "
            "Pickle the factory, a function that builds the fleet, and call it where it is needed."
        )

    # What every call needs

    def _post(self, commands: Mapping[int, Command]) -> None:
        try:
            self._pool.post(commands)
        except Exception as error:  # noqa: BLE001 - raised again
            self._call.refuse(error)

    def _finish(self) -> None:
        """The caller has its answer: nothing is in doubt any more."""
        if self._call.mender is not None:
            self._call.mender.history.remember()
        self._pool.in_doubt = False

    def _split(self, env_ids: list[int]) -> list[tuple[int, list[int]]]:
        """Shards with those of some envs that are theirs, in the given order."""
        parts = [(s.index, [e for e in env_ids if e in s.env_ids]) for s in self._pool.shards]
        return [(index, part) for index, part in parts if part]

    def _check_env_ids(self, env_ids: Iterable[SupportsIndex]) -> list[int]:
        ids = [operator.index(env) for env in env_ids]
        wrong = [env for env in ids if not 0 <= env < self.num_envs]
        if wrong:
            raise IndexError(f"env_ids {wrong} are not among the envs 0 to {self.num_envs - 1}")
        if len(set(ids)) != len(ids):
            raise ValueError(f"env_ids name an env twice: {ids}")
        return ids

    def _assert_is_open(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError(
                f"Trying to operate on `{type(self).__name__}`, after a call to `close()`."
            )

    def _assert_is_running(self) -> None:
        if self.closed:
            self._assert_is_open()
        self._call.check()

    def _raise_unless_closed(self, error: Exception) -> NoReturn:
        """Raise it, or say that a signal handler has closed the fleet during this call."""
        if not isinstance(error, ClosedEnvironmentError) and not is_interrupt(error):
            self._assert_is_open()
        raise error


def _warn_of_close(failures: Sequence[Failure]) -> None:
    """Say which envs raised in ``close``; they are closed as far as they can be."""
    if failures:
        texts = "; ".join(f"env {f.env}: {f.type_name}: {f.text}" for f in failures)
        logger.warn("`close` raised in some envs: %s", texts)
