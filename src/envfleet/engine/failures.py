"""An env's exception as data: captured where it happened, carried, and raised for the caller."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace

from envfleet.engine.interrupts import raise_interrupt
from envfleet.engine.pickling import dumps
from envfleet.errors import EnvError

LONGEST_TEXT = 10_000
"""Characters of an exception's text that are kept when it is told as text."""
LARGEST_EXCEPTION = 1 << 20
"""Bytes of a pickled exception that still travel; a larger one is told as text."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One env's exception; ``error`` inside its process, ``pickled`` on its way to another."""

    env: int
    phase: str
    type_name: str
    text: str
    traceback: str
    error: BaseException | None = None
    pickled: bytes | None = None

    @classmethod
    def capture(cls, env: int, phase: str, error: BaseException) -> Failure:
        """Describe an exception that is being handled."""
        try:
            text = str(error)
        except Exception as nested:  # noqa: BLE001 - an env's __str__ may do anything
            raise_interrupt(nested)
            text = f"(its text could not be made: {type(nested).__name__})"
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__, 50))
        return cls(env, phase, type(error).__name__, _cut(text), _cut(trace), error)

    def packed(self) -> Failure:
        """The same failure, ready for another process."""
        return replace(self, error=None, pickled=_pickle_exception(self.error))

    def exception(self, place: str) -> BaseException:
        """What the caller should see; ``place`` names the worker, or is empty in this process.

        The env's own exception with a note, and with the worker's traceback as ``__cause__``; or an
        ``EnvError`` where that exception could not travel or would be mistaken for control flow.
        """
        told = EnvError(self.env, self.phase, self.type_name, self.text, self.traceback)
        error = self.error if _may_be_raised(self.error) else None
        if self.pickled is not None:
            try:
                error = pickle.loads(self.pickled)
            except Exception as nested:  # noqa: BLE001 - it came from a worker; told as text
                raise_interrupt(nested)
                error = None
            if isinstance(error, BaseException):
                error.__cause__ = told
        if not isinstance(error, BaseException):
            error = told
        note = f"raised by env {self.env} in {self.phase}{place}"
        try:
            error.add_note(note)
        except Exception as nested:  # noqa: BLE001 - a frozen exception cannot be annotated
            raise_interrupt(nested)
            error = told
            error.add_note(note)
        return error


def raise_first(failures: Sequence[tuple[Failure, str]]) -> None:
    """Raise the lowest env's exception, the others as notes on it; do nothing if there is none."""
    if not failures:
        return
    first, *others = sorted(failures, key=lambda item: item[0].env)
    error = first[0].exception(first[1])
    for failure, place in others:
        text = failure.text.splitlines()[0][:200] if failure.text else ""
        error.add_note(
            f"env {failure.env} also raised {failure.type_name} in {failure.phase}{place}: {text}"
        )
    raise error


def _cut(text: str) -> str:
    half = LONGEST_TEXT // 2
    if len(text) <= LONGEST_TEXT:
        return text
    return (
        f"{text[:half]}\n... ({len(text) - LONGEST_TEXT:,} characters left out) ...\n{text[-half:]}"
    )


def _may_be_raised(error: BaseException | None) -> bool:
    """Whether raising this again in the caller means what it meant in the env.

    StopIteration would end the caller's loop, SystemExit its program: they are told as EnvError.
    """
    return isinstance(error, Exception) and not isinstance(
        error, (StopIteration, StopAsyncIteration)
    )


def _pickle_exception(error: BaseException | None) -> bytes | None:
    """The exception's bytes if it survives the round trip as itself, else None."""
    if error is None or not _may_be_raised(error):
        return None
    try:
        data = dumps(error, by_reference=True)
        if len(data) > LARGEST_EXCEPTION:
            return None
        # A constructor that does more than pass its arguments on gives another text each time.
        twin = pickle.loads(data)
        if type(twin) is not type(error) or str(twin) != str(error):
            return None
    except Exception:  # noqa: BLE001 - __reduce__ and constructors may do anything
        return None
    return data
