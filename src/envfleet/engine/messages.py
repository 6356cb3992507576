"""What a shard is asked and what it answers: commands and outcomes, and their bytes.

A message between processes is an 8-byte sequence number and a pickled body. The common ones, a
step without loose actions and an outcome with nothing to tell, have no body at all: their data lies
in the arena.

Commands name their envs. For ``Step`` None means all envs of the shard, the fast case.

Beside commands, which a shard answers as a whole, envs may be asked one by one (``Ask``); each
reports itself when it is done (``Report``), whatever the others do. The highest bit of a message's
number tells these two from commands and outcomes.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, cast

from envfleet.engine.arena.arena import Terms
from envfleet.engine.arena.layout import Layout
from envfleet.engine.failures import Failure
from envfleet.engine.infos.packing import Block, Entry, pack_infos, unpack_infos
from envfleet.engine.pickling import dumps
from envfleet.engine.rules.seeding import ResetPlan
from envfleet.engine.rules.spaces import Array

Layer = Literal["owner", "outermost", "unwrapped"]
"""Which of an env's wrappers."""
_NUMBER = struct.Struct("<Q")
_BY_ENV = 1 << 63
"""Marks messages of single envs."""


@dataclass(frozen=True, slots=True)
class Attach:
    """Take the arena's descriptor (it follows on the wire) and learn the fleet's terms."""

    terms: Terms
    layout: Layout
    title: ClassVar[str] = "start"


@dataclass(frozen=True, slots=True)
class Reset:
    """Reset the envs of a plan."""

    plan: ResetPlan
    title: ClassVar[str] = "reset"


@dataclass(frozen=True, slots=True)
class Step:
    """Step some envs; ``loose`` has, per loose leaf of the action, a list of their values."""

    loose: list[list[Any]] = field(default_factory=list)
    env_ids: list[int] | None = None
    title: ClassVar[str] = "step"


@dataclass(frozen=True, slots=True)
class Call:
    """Call a method, or read an attribute, of some envs; or call a function with each of them."""

    env_ids: list[int]
    what: str | Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def title(self) -> str:
        """How messages name the command."""
        if isinstance(self.what, str):
            return f"call of {self.what!r}"
        name = getattr(self.what, "__qualname__", None) or repr(self.what)
        return f"call of {name!r}"


@dataclass(frozen=True, slots=True)
class SetAttr:
    """Set an attribute of some envs, each to its own value.

    "owner" is the wrapper that has it already, and else the outermost, as Gymnasium does it.
    """

    env_ids: list[int]
    name: str
    values: list[Any]
    on: Layer = "owner"

    @property
    def title(self) -> str:
        """How messages name the command."""
        return f"set_attr of {self.name!r}"


@dataclass(frozen=True, slots=True)
class KeepFinalFrames:
    """Render what the episodes of these envs, and of no others of the shard, end with."""

    env_ids: list[int]
    title: ClassVar[str] = "keep_final_frames"


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
    Attach
    | Reset
    | Step
    | Call
    | SetAttr
    | KeepFinalFrames
    | Rebuild
    | Renew
    | SeedGlobals
    | Settle
    | Close
)


@dataclass(slots=True)
class Outcome:
    """What a shard's envs answered, as far as it is not in the arena."""

    infos: list[Entry] = field(default_factory=list)
    """Non-empty infos with their env, in the envs' order, as long as they are not ``packed``."""
    packed: list[Block] = field(default_factory=list)
    ended: bool = False
    """Whether an episode ended in this step."""
    failures: list[Failure] = field(default_factory=list)
    results: Sequence[Any] = ()
    """What ``call`` returned, per env asked."""
    loose: Sequence[list[Any]] = ()
    """Per env of the shard the values of its loose observation leaves; empty if there are none."""
    final_objects: Sequence[tuple[int, list[Any]]] = ()
    """Of each env that ended the parts of its final observation that are no arrays."""
    observations: Sequence[Array] = ()
    """The shard's observation columns, where they are not in the caller's memory."""
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

    def shared(self) -> Outcome:
        """``SILENT`` or ``ENDED`` where they tell the same, else this outcome."""
        # In one expression, for it is asked in every step.
        if (
            self.infos
            or self.packed
            or self.failures
            or self.results
            or self.waits
            or self.loose
            or self.final_objects
            or self.observations
            or self.final_observations
        ):
            return self
        return ENDED if self.ended else SILENT

    def is_in_arena(self) -> bool:
        """Whether everything but infos, and that an episode ended, is in the arena."""
        told = self.failures or self.results or self.waits
        carried = self.loose or self.final_objects or self.observations or self.final_observations
        return not (told or carried)


@dataclass(frozen=True, slots=True)
class Ask:
    """Step or reset some envs, each by itself; numbers are those of the arena's ``asked``."""

    env_ids: list[int]
    numbers: list[int]
    payload: Any
    """A ``ResetPlan``, or the loose actions: a list of values per env. In bytes on the way to
    another process, so that whose it is can be told where it does not unpickle."""

    @property
    def title(self) -> str:
        """How messages name it."""
        return "reset" if isinstance(self.payload, ResetPlan) else "step"

    def opened(self) -> list[Any]:
        """The payload by env: a plan, or loose actions; raises what unpickling raises."""
        payload = pickle.loads(self.payload) if isinstance(self.payload, bytes) else self.payload
        if isinstance(payload, ResetPlan):
            return payload.singly()
        return list(payload)


@dataclass(frozen=True, slots=True)
class Report:
    """What some envs answered to what each was asked, as far as it is not in the arena.

    The rows of ``outcome`` (``loose``, ``observations``, ``final_observations``) are those of
    ``env_ids``, in that order.
    """

    env_ids: list[int]
    numbers: list[int]
    stamp: float
    outcome: Outcome


class Told(NamedTuple):
    """What one env told beside its rows, in answer to what it was asked with this number."""

    number: int
    info: dict[str, Any]
    loose: list[Any] | None = None
    final_objects: list[Any] | None = None


def told_by(report: Report) -> dict[int, Told]:
    """A report by env; failures and rows are left out."""
    outcome = report.outcome
    outcome.unpack()
    infos, finals = dict(outcome.infos), dict(outcome.final_objects)
    nothing: list[list[Any] | None] = [None] * len(report.env_ids)
    loose: Sequence[list[Any] | None] = outcome.loose or nothing
    return {
        env: Told(number, infos.get(env, {}), values, finals.get(env))
        for env, number, values in zip(report.env_ids, report.numbers, loose, strict=True)
    }


PLAIN_STEP = Step()
"""A step of all envs that carries nothing: its actions are in the arena."""
ANNOUNCED_STEP = bytes(_NUMBER.size)
"""The bytes of one that a signal announces: its number is there and not here."""
SILENT = Outcome()
"""An answer that tells nothing; shared, and not to be changed."""
ENDED = Outcome(ended=True)
"""An answer that tells of an end and nothing else; shared, and not to be changed."""


def encode_command(command: Command, *, by_reference: bool) -> bytes:
    """The body of a command; raises what pickling its arguments raises, before anything is sent."""
    if isinstance(command, Step) and not command.loose and command.env_ids is None:
        return b""
    # A function of ``__main__`` may be newer than a forked worker, which then knows no such name.
    is_function = isinstance(command, Call) and not isinstance(command.what, str)
    return dumps(command, by_reference=by_reference and not is_function)


def encode_number(number: int) -> bytes:
    """A number in front of a body, or a plain step or a silent outcome, which have none."""
    return _NUMBER.pack(number)


def encode_outcome(number: int, outcome: Outcome) -> bytes:
    """An outcome as bytes."""
    if outcome.shared() is SILENT:
        return _NUMBER.pack(number)
    outcome.info_blocks()
    return _NUMBER.pack(number) + dumps(outcome, by_reference=True)


def encode_ask(ask: Ask, serial: int, *, by_reference: bool) -> bytes:
    """An ask as a message; raises what pickling its payload raises."""
    ask = replace(ask, payload=dumps(ask.payload, by_reference=by_reference))
    return _NUMBER.pack(_BY_ENV | serial) + pickle.dumps(ask)


def encode_report(report: Report, serial: int) -> bytes:
    """A report as a message; raises what pickling what envs told raises."""
    report.outcome.info_blocks()
    return _NUMBER.pack(_BY_ENV | serial) + dumps(report, by_reference=True)


LOOK = _NUMBER.pack(_BY_ENV)
"""A message that only wakes the other side: there is something to be seen in the arena."""


def is_by_env(data: bytes | bytearray) -> bool:
    """Whether a message is an ask, a report or ``LOOK``."""
    return number_of(data) >= _BY_ENV


def serial_of(data: bytes | bytearray) -> int:
    """The serial number of an ask or report, among those on its wire."""
    return number_of(data) & ~_BY_ENV


def decode_by_env(data: bytes | bytearray) -> Any:
    """The ask or report in these bytes, None for ``LOOK``; raises what unpickling raises."""
    if len(data) == _NUMBER.size:
        return None
    return pickle.loads(memoryview(data)[_NUMBER.size :])


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
