"""What a run does to its env: arguments (``key=value``), wrappers (``module:callable``), masks."""

from __future__ import annotations

import difflib
import inspect
import json
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

from gymnasium.envs.registration import EnvSpec, load_env_creator

from envfleet.envs import SendMasks

Source = EnvSpec | Callable[..., Any]
"""What builds one env."""


@dataclass(frozen=True)
class EnvOptions:
    """As a run's config says it: texts, which JSON and a command line can hold."""

    env_kwargs: tuple[str, ...] = ()
    wrappers: tuple[str, ...] = ()
    mask_key: str | None = None

    @classmethod
    def of(cls, config: Any) -> EnvOptions:
        """Those of a run's config."""
        return cls(config.env_kwargs, config.wrappers, config.mask_key)

    def wrapping(self, find: Callable[[str], Callable[..., Any]]) -> tuple[Callable[..., Any], ...]:
        """The wrappers, the first one innermost; ``find`` imports what a text names."""
        found = [find(name) for name in self.wrappers]
        if self.mask_key is not None:
            found.append(SendMasks(key=self.mask_key, required=False))
        return tuple(found)


UNCHANGED = EnvOptions()
"""An env as it is registered."""


def with_kwargs(source: Source, words: Iterable[str]) -> Source:
    """The same env with arguments, each of the type that its signature has for it.

    ``max_episode_steps`` of a registered env is its time limit.

    Raises:
        ValueError: there is no such argument (says what is like it), or its value is of another
            type.
    """
    words = tuple(words)
    if not words:
        return source
    if not isinstance(source, EnvSpec):
        return partial(source, **parse_kwargs(source, words))
    creator: Any = source.entry_point
    kwargs = parse_kwargs(
        load_env_creator(creator) if isinstance(creator, str) else creator,
        words,
        {"max_episode_steps": int},
    )
    spec = deepcopy(source)
    if "max_episode_steps" in kwargs:
        spec.max_episode_steps = kwargs.pop("max_episode_steps")
    spec.kwargs.update(kwargs)
    return spec


def parse_kwargs(
    build: Callable[..., Any], words: Iterable[str], more: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Arguments from ``key=value``, for a function; ``more`` has types of further ones.

    Numbers, true, false, null and whatever is nested are JSON; all else is text.

    Raises:
        ValueError: a word without ``=``, an argument that there is not, or a value that does not
            fit its type.
    """
    known, takes_any = _parameters(build)
    known.update(more or {})
    found: dict[str, Any] = {}
    for word in words:
        key, separator, text = word.partition("=")
        if not separator or not key:
            raise ValueError(f"arguments of an env are key=value, got {word!r}.")
        if key not in known and not takes_any:
            near = difflib.get_close_matches(key, known, n=2)
            hint = f"did you mean {' or '.join(near)}?" if near else f"it has: {', '.join(known)}."
            raise ValueError(f"{_name(build)} has no argument {key!r}: {hint}")
        found[key] = _typed(key, text, known.get(key, Any))
    return found


def as_words(kwargs: Mapping[str, Any] | Iterable[str]) -> tuple[str, ...]:
    """Arguments as texts, from a dict or from texts.

    Raises:
        TypeError: a value is nothing that JSON knows.
    """
    if not isinstance(kwargs, Mapping):
        return tuple(kwargs)
    words = []
    for key, value in kwargs.items():
        try:
            words.append(f"{key}={json.dumps(value)}")
        except TypeError as error:
            raise TypeError(
                f"env_kwargs are kept in config.json, and {key}={value!r} cannot be: pass a "
                "function that builds the env with it."
            ) from error
    return tuple(words)


def as_names(wrappers: Iterable[Any]) -> tuple[str, ...]:
    """Wrappers as ``module:callable``, from such texts or from what they name.

    Raises:
        TypeError: a callable that cannot be found by its name again.
    """
    names = []
    for wrapper in wrappers:
        if isinstance(wrapper, str):
            names.append(wrapper)
            continue
        module, name = getattr(wrapper, "__module__", ""), getattr(wrapper, "__qualname__", "")
        if not name.isidentifier() or module in ("", "__main__"):
            raise TypeError(
                f"wrappers are kept in config.json by their names, and {wrapper!r} has none that "
                "can be imported: give it one in a module, or pass a function that builds the env "
                "with its wrappers."
            )
        names.append(f"{module}:{name}")
    return tuple(names)


def _parameters(build: Callable[..., Any]) -> tuple[dict[str, Any], bool]:
    """The types of a function's arguments by name, and whether it takes any others too."""
    try:
        signature = inspect.signature(build)
    except (TypeError, ValueError):  # some builtins have none
        return {}, True
    hints = _hints(build)
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    types_of: dict[str, Any] = {}
    takes_any = False
    for name, parameter in signature.parameters.items():
        takes_any |= parameter.kind == inspect.Parameter.VAR_KEYWORD
        if parameter.kind not in named:
            continue
        types_of[name] = hints.get(name, Any)
        if name not in hints and parameter.default not in (None, inspect.Parameter.empty):
            kind = type(parameter.default)
            types_of[name] = int | float if kind is int else kind  # "gravity=10" may well be 9.8
    return types_of, takes_any


def _hints(build: Callable[..., Any]) -> dict[str, Any]:
    """Annotations, resolved; none where that is not possible."""
    function: Any = build.func if isinstance(build, partial) else build
    if inspect.isclass(function):
        function = function.__init__
    try:
        return typing.get_type_hints(function)
    except Exception:  # noqa: BLE001 - whatever an annotation may be, values can still be guessed
        return {}


def _typed(key: str, text: str, hint: Any) -> Any:
    """A value of the type that is asked for.

    Raises:
        ValueError: there is none.
    """
    kinds = _kinds(hint)
    value = _json(text)
    if str in kinds and not isinstance(value, str) and not _fits(value, kinds):
        value = text
    if isinstance(value, list) and list not in kinds and tuple in kinds:
        value = tuple(value)
    if type(value) is int and float in kinds and int not in kinds:
        value = float(value)
    if not _fits(value, kinds):
        wanted = " or ".join(sorted(_WORDS.get(kind, kind.__name__) for kind in kinds))
        raise ValueError(f"{key}={text}: {wanted} is expected.")
    return value


_WORDS = {bool: "true or false", int: "an integer", float: "a number", types.NoneType: "null"}
_PLAIN = (bool, int, float, str, list, tuple, dict, types.NoneType)


def _kinds(hint: Any) -> set[type]:
    """The types a value may have; empty where anything goes, or what does is not known."""
    if hint is Any:
        return set()
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        parts = [_kinds(part) for part in typing.get_args(hint)]
        return set().union(*parts) if all(parts) else set()
    if origin is typing.Literal:
        return {type(choice) for choice in typing.get_args(hint)}
    kind = origin or hint
    return {kind} if kind in _PLAIN else set()


def _fits(value: Any, kinds: set[type]) -> bool:
    return not kinds or type(value) in kinds or (type(value) is int and float in kinds)


def _json(text: str) -> Any:
    """What a text is as JSON, in Python's spelling too; else the text."""
    python = {"True": True, "False": False, "None": None}
    if text in python:
        return python[text]
    try:
        return json.loads(text)
    except ValueError:
        return text


def _name(build: Any) -> str:
    build = build.func if isinstance(build, partial) else build
    return str(getattr(build, "__name__", build))
