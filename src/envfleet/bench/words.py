"""A diagnosis in words, for whoever asked why a fleet is slow."""

from __future__ import annotations

from envfleet.bench.advice import BUSY, verdict
from envfleet.bench.diagnosis import Diagnosis


def why(title: str, found: Diagnosis) -> str:
    """A few lines of Markdown: where the time goes, what else was measured, what would help."""
    figures, setup = found.figures, found.figures.setup
    split = figures.split
    late = ", waiting for a core" if (figures.busy or 0.0) >= BUSY else ""
    parts = {
        "the envs' own steps and resets": split.env,
        "waiting for the slowest shard": split.waiting,
        "infos": split.infos,
        f"transport: actions, signals, observations{late}": split.transport,
    }
    lines = [
        f"### Why is it slow? {title}",
        "",
        f"{found.rate:,.0f} env steps per second. {found.plan}.",
        "",
        f"| one step of all {setup.num_envs} envs | {duration(split.whole)} | 100 % |",
        "|---|---:|---:|",
    ]
    lines += [
        f"| {name} | {duration(part)} | {100 * part / split.whole:.0f} % |"
        for name, part in parts.items()
    ]
    lines += ["", *(f"- {line}" for line in _facts(found)), "", "What would help most:", ""]
    if found.advice:
        lines += [f"{number}. {one}." for number, one in enumerate(found.advice, 1)]
    else:
        lines.append(verdict(figures))
    if found.in_vain:
        tried = ", ".join(f"{one.change} ({one.gain:.2f}x)" for one in found.in_vain)
        lines += ["", f"Tried too: {tried}."]
    return "\n".join(lines)


def _facts(found: Diagnosis) -> list[str]:
    figures = found.figures
    step = (
        f"one env's step takes {duration(found.median)} (median; 95 % take less than "
        f"{duration(found.slow)})"
    )
    resets = "no episode ended"
    if found.reset:
        share = f"{figures.resets:.0%} of the envs' time"
        resets = f"a reset takes {duration(found.reset)}, all together {share}"
    infos = "unknown" if found.info_bytes is None else f"{found.info_bytes:,}"
    size = (
        f"bytes per env and step: {found.observation_bytes:,} of observation, "
        f"{found.action_bytes:,} of action, {infos} of infos"
    )
    facts = [f"{step}; {resets}", size]
    if figures.fillers:
        facts.append(
            f"{figures.fillers:.1%} of all rows only say that an env was reset; they are not "
            "counted as steps"
        )
    if found.memory is None:
        facts.append("memory per env: this system does not tell")
    else:
        facts.append(
            f"memory per env: {found.memory / 1e6:.2f} MB (what all processes take more than "
            "before, shared pages divided among their users, by the number of envs)"
        )
    return [*facts, _machine(found)]


def _machine(found: Diagnosis) -> str:
    figures = found.figures
    load = ""
    if found.load is not None:
        load = f"; load {found.load:.1f} on {figures.setup.cores} cores before"
    if figures.busy is None:
        return f"whether the machine is busy this system does not tell{load}"
    state = "busy" if figures.busy >= BUSY else "not busy"
    return (
        f"the machine is {state}: one process that computes was without a core for "
        f"{figures.busy:.0%} of the time{load}"
    )


def duration(seconds: float) -> str:
    """Two or three digits, and a unit that suits."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        number = seconds * factor
        if number >= 1.0 or unit == "us":
            break
    places = 0 if number >= 100 else 1 if number >= 10 else 2
    return f"{number:.{places}f} {unit}"
