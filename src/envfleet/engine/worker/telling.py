"""Telling: what envs answered as bytes, also where some of it cannot be pickled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envfleet.engine.failures import Failure
from envfleet.engine.messages import Outcome, Report, encode_outcome, encode_report
from envfleet.engine.pickling import dumps


def encode_any_outcome(
    number: int, outcome: Outcome, shard: Sequence[int], asked: Sequence[int] = ()
) -> bytes:
    """An outcome as bytes; what cannot be pickled is a failure of its env instead.

    Args:
        number: of the command.
        outcome: is changed on the way.
        shard: the shard's envs.
        asked: those that a call has asked, in its order.
    """
    if outcome.failures:
        outcome.failures = [failure.packed() for failure in outcome.failures]
    try:
        return encode_outcome(number, outcome)
    except Exception:  # noqa: BLE001 - an env's objects may raise anything
        _drop_unpicklable(outcome, shard, asked)
        return encode_outcome(number, outcome)


def encode_any_report(report: Report, serial: int) -> bytes:
    """A report as bytes, likewise."""
    outcome = report.outcome
    outcome.failures = [failure.packed() for failure in outcome.failures]
    try:
        return encode_report(report, serial)
    except Exception:  # noqa: BLE001 - an env's objects may raise anything
        _drop_unpicklable(outcome, report.env_ids, ())
        return encode_report(report, serial)


def _drop_unpicklable(outcome: Outcome, shard: Sequence[int], asked: Sequence[int]) -> None:
    """Replace what cannot be pickled by a failure that says whose and which value it was."""

    def unpicklable(env: int, name: str, value: Any) -> bool:
        try:
            dumps(value, by_reference=True)
        except Exception as error:  # noqa: BLE001 - __reduce__ may raise anything
            problem = TypeError(f"{name} cannot be pickled: {type(error).__name__}: {error}")
            outcome.failures.append(Failure.capture(env, "answer", problem).packed())
            return True
        return False

    outcome.unpack()
    outcome.infos = [
        (env, {k: v for k, v in info.items() if not unpicklable(env, f"info[{k!r}]", (k, v))})
        for env, info in outcome.infos
    ]
    outcome.results = [
        None if unpicklable(env, "the result", result) else result
        for env, result in zip(asked or shard, outcome.results, strict=False)
    ]
    outcome.loose = [
        [None if unpicklable(env, "the observation", value) else value for value in values]
        for env, values in zip(shard, outcome.loose, strict=False)
    ]
    outcome.final_objects = [
        (
            env,
            [
                None if unpicklable(env, "the final observation", value) else value
                for value in values
            ],
        )
        for env, values in outcome.final_objects
    ]
