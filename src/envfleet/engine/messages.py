"""What crosses the process line: numbered commands to a worker, numbered outcomes back.

A message is an 8-byte sequence number and a pickled body. The common ones, a step without loose
actions and an outcome with nothing to tell, have no body at all: their data lies in the arena.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

import cloudpickle

from envfleet.engine.interrupts import raise_interrupt
from envfleet.engine.rules.packing import Block, pack_infos, unpack_infos

if TYPE_CHECKING:
    from envfleet.engine.arena.layout import Layout
    from envfleet.engine.failures import Failure
    from envfleet.engine.rules.seeding import ResetPlan
    from envfleet.engine.rules.spaces import Array, Structure

_NUMBER = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Attach:
    """Take the arena's descriptor (it follows on the pipe) and learn the fleet's spaces."""

    observations: Structure
    actions: Structure
    layout: Layout
    shared_memory: bool
    signals: bool
    """Whether plain steps are announced by signals; otherwise all goes over the wire."""
    crowded: bool
    """Whether there are more processes than cores."""
    infos: str
    """Which infos of a step travel: see ``EnvHost.attach``."""
    title: ClassVar[str] = "start"


@dataclass(frozen=True, slots=True)
class Reset:
    """Reset the envs of a plan."""

    plan: ResetPlan
    title: ClassVar[str] = "reset"


@dataclass(frozen=True, slots=True)
class Step:
    """Step every env of the shard; ``loose`` has a list of the shard's values per loose leaf."""

    loose: list[list[Any]] = field(default_factory=list)
    title: ClassVar[str] = "step"


@dataclass(frozen=True, slots=True)
class Call:
    """Call a method, or read an attribute, of some envs."""

    env_ids: list[int]
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def title(self) -> str:
        """How messages name the command."""
        return f"call of {self.name!r}"


@dataclass(frozen=True, slots=True)
class SetAttr:
    """Set an attribute of some envs, each to its own value."""

    env_ids: list[int]
    name: str
    values: list[Any]

    @property
    def title(self) -> str:
        """How messages name the command."""
        return f"set_attr of {self.name!r}"


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Close some envs and build them anew."""

    env_ids: list[int]
    title: ClassVar[str] = "restart"


@dataclass(frozen=True, slots=True)
class Renew:
    """The episodes of some envs were lost; their next step reports it, or this command, ``now``.

    ``observations`` and ``loose`` are what the caller was given of them last, as far as the worker
    has to send it again: rows per column not in shared memory, and loose values per env.
    """

    env_ids: list[int]
    seeds: list[int | None]
    observations: list[Array]
    loose: list[list[Any]]
    now: bool
    title: ClassVar[str] = "restart"


@dataclass(frozen=True, slots=True)
class SeedGlobals:
    """Seed the generators that envs may use without asking: ``random``, ``np.random``, torch's."""

    seed: int
    title: ClassVar[str] = "seed_globals"


@dataclass(frozen=True, slots=True)
class Settle:
    """Answer, and forget which keys of infos the caller knows: it may have lost an answer."""

    title: ClassVar[str] = "an interrupted call"


@dataclass(frozen=True, slots=True)
class Close:
    """Close the envs and leave."""

    title: ClassVar[str] = "close"


Command: TypeAlias = (
    Attach | Reset | Step | Call | SetAttr | Rebuild | Renew | SeedGlobals | Settle | Close
)


@dataclass(slots=True)
class Outcome:
    """What a shard's envs answered, as far as it is not in the arena."""

    infos: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """Non-empty infos with their env, in the envs' order, as long as they are not ``packed``."""
    packed: list[Block] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    results: Sequence[Any] = ()
    """What ``call`` returned, per env asked."""
    loose: Sequence[list[Any]] = ()
    """Per env of the shard the values of its loose observation leaves; empty if there are none."""
    final_loose: Sequence[tuple[int, list[Any]]] = ()
    """The same for the final observations of the envs that ended, each with its env."""
    observations: Sequence[Array] = ()
    """The shard's observation columns, where they are not in shared memory."""
    final_observations: Sequence[Array] = ()
    waits: bool = False
    """Whether the shard's envs were found to wait rather than compute."""

    def __reduce__(self) -> tuple[Any, ...]:
        # By position: a third of the time that names take.
        return Outcome, tuple(getattr(self, name) for name in self.__slots__)

    def info_blocks(self) -> list[Block]:
        """All infos, packed from now on."""
        if self.infos:
            self.infos, self.packed = [], pack_infos(self.infos)
        return self.packed

    def unpack(self) -> None:
        """Bring all infos back into ``infos``."""
        if self.packed:
            self.infos, self.packed = unpack_infos(self.packed), []

    def is_silent(self) -> bool:
        """Whether everything the caller needs is in the arena."""
        return not (self.infos or self.packed) and self.tells_infos_at_most()

    def tells_infos_at_most(self) -> bool:
        """Whether everything else the caller needs is in the arena."""
        told = self.failures or self.results or self.waits
        carried = self.loose or self.final_loose or self.observations or self.final_observations
        return not (told or carried)


PLAIN_STEP = Step()
"""A step that carries nothing: its actions are in the arena."""
ANNOUNCED_STEP = bytes(_NUMBER.size)
"""The bytes of one that a signal announces: its number is there and not here."""
SILENT = Outcome()
"""An answer that tells nothing; shared, and not to be changed."""


def encode_command(number: int, command: Command, *, by_reference: bool) -> bytes:
    """A command as bytes; raises what pickling its arguments raises, before anything is sent."""
    if isinstance(command, Step) and not command.loose:
        return _NUMBER.pack(number)
    return _NUMBER.pack(number) + dumps(command, by_reference=by_reference)


def encode_number(number: int) -> bytes:
    """A plain step, or a silent outcome, as bytes."""
    return _NUMBER.pack(number)


def encode_outcome(number: int, outcome: Outcome) -> bytes:
    """An outcome as bytes."""
    if outcome.is_silent():
        return _NUMBER.pack(number)
    outcome.info_blocks()
    return _NUMBER.pack(number) + dumps(outcome, by_reference=True)


def number_of(data: bytes | bytearray) -> int:
    """The number of an encoded command or outcome, whatever the state of its body."""
    return int(_NUMBER.unpack_from(data)[0])


def decode_command(data: bytes | bytearray) -> Command:
    """The command in these bytes; raises what unpickling its arguments raises."""
    if len(data) == _NUMBER.size:
        return PLAIN_STEP
    return cast("Command", pickle.loads(memoryview(data)[_NUMBER.size :]))


def decode_outcome(data: bytes | bytearray) -> Outcome:
    """The outcome in these bytes; raises what unpickling its values raises."""
    if len(data) == _NUMBER.size:
        return SILENT
    return cast("Outcome", pickle.loads(memoryview(data)[_NUMBER.size :]))


def dumps(value: Any, *, by_reference: bool) -> bytes:
    """Pickle a value that another process of this fleet will read.

    ``by_reference`` names a class by its module where that works. It does from any worker to the
    caller, and to a forked worker. To a spawned one it would name the class of a re-imported
    ``__main__``, which is not the one that the envs were built from: there classes of ``__main__``
    go by value, and cloudpickle keeps one identity per class on both sides.
    """
    if by_reference:
        try:
            return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # noqa: BLE001 - __reduce__ may raise anything
            raise_interrupt(error)  # anything else is told better by cloudpickle
    return cloudpickle.dumps(value)  # type: ignore[no-any-return]
