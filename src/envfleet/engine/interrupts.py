"""Whose exception it is: one that a signal handler raised is not the interrupted code's own.

A handler runs between any two instructions of the main thread. What it raises (KeyboardInterrupt,
``sys.exit`` in a SIGTERM handler, a SIGALRM time-out) must reach the caller, and must be mistaken
neither for the failure of an env nor for an answer that does not unpickle.

State that such an exception could tear is guarded by a flag that is set before the first change
and cleared after the last one: whoever finds it set later knows that the change was interrupted.
Unlike an ``except`` clause, that leaves no instruction unguarded.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
from collections.abc import Iterator
from types import CodeType
from typing import Any


def is_interrupt(error: BaseException) -> bool:
    """Whether a signal handler of this process raised it, or something that a handler called."""
    if isinstance(error, KeyboardInterrupt):
        return True
    if threading.current_thread() is not threading.main_thread():
        return False  # handlers run in the main thread only
    handlers = {code for number in signal.valid_signals() if (code := _code(number)) is not None}
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in handlers:
            return True
        traceback = traceback.tb_next
    return False


def raise_interrupt(error: BaseException) -> None:
    """Raise an exception again that a broad ``except`` clause has caught from a signal handler."""
    if is_interrupt(error):
        raise error


_held: list[tuple[int, Any]] = []
"""The handlers that ``held_signals`` has put aside."""
_missed: dict[int, None] = {}
"""The signals that came meanwhile, in their order."""


@contextlib.contextmanager
def held_signals() -> Iterator[None]:
    """Make signal handlers wait for a moment, where something would be left half done otherwise.

    Blocking the signals would not do: another thread, and OpenBLAS has some, takes them then, and
    Python runs the handlers in the main thread all the same.
    """
    if _held or threading.current_thread() is not threading.main_thread():
        yield
        return
    try:
        for number in signal.valid_signals():
            if callable(handler := signal.getsignal(number)):
                _held.append((number, handler))
                signal.signal(number, _miss)
        yield
    finally:
        _release()


def _miss(number: int, _: object) -> None:
    _missed[number] = None


def _release() -> None:
    """Put the handlers back, then have those run whose signals came; each may raise."""
    try:
        while _held:
            signal.signal(*_held[-1])
            _held.pop()
        while _missed:
            signal.raise_signal(_missed.popitem()[0])
    finally:
        if _held or _missed:
            _release()


def _forget_held() -> None:
    """Put the handlers back in a forked child, which has missed nothing of its own."""
    _missed.clear()
    _release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_held)


def _code(number: int) -> CodeType | None:
    """The Python code that handles a signal, if there is any."""
    handler: Any = signal.getsignal(number)
    while isinstance(handler, functools.partial):
        handler = handler.func
    for function in (handler, getattr(handler, "__func__", None), type(handler).__call__):
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType):
            return code
    return None
