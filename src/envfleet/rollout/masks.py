"""Action masks: which actions envs allow next, from their infos as rows of booleans."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

MASK_KEY = "action_mask"
"""The info that masks are looked for in, unless another one is named."""

AUTO_KEY = "auto"
"""Stands for the agent's own ``mask_key``, or ``MASK_KEY`` if it has none."""

Rows = NDArray[np.bool_]
"""(envs, width): True is allowed. The components of a MultiDiscrete stand side by side."""


def mask_key_of(agent: object, key: str | None) -> str | None:
    """The info to look for masks in; ``agent`` is what was passed, not what it stands for."""
    if key != AUTO_KEY:
        return key
    own = getattr(agent, "mask_key", None)
    return own if isinstance(own, str) else MASK_KEY


class ActionMasks:
    """Reads, and checks, the masks of a fleet's envs.

    A mask has one entry per action, 0 or 1 or booleans; for a MultiDiscrete one per action of each
    component, side by side, or a tuple of one mask per component, as ``space.sample`` takes it.
    """

    def __init__(self, space: Space[Any], key: str) -> None:
        self.key = key
        self._space = space
        self._counts = counts = _counts(space)
        self.width = sum(counts)
        self._starts = np.cumsum([0, *counts[:-1]])

    @classmethod
    def found(
        cls, envs: Any, agent: object, infos: Any, key: str | None, *, takes_masks: bool
    ) -> ActionMasks | None:
        """What reads the masks of this fleet, if its first infos have some.

        A ``key`` other than the usual one is an order: the masks must be there, and be used.

        Raises:
            TypeError: the agent, or its actions, have no use for the masks that were asked for.
            ValueError: they are not there, or not in every step.
        """
        if key is None:
            return None
        space = envs.single_action_space
        is_order = key != MASK_KEY
        if not isinstance(infos, dict) or key not in infos:
            if not is_order:
                return None
            raise ValueError(
                f"no env sends info[{key!r}] with its reset: that is where mask_key={key!r} looks "
                "for action masks. Of an env with a method that returns them, build the fleet with "
                f"wrappers=[envfleet.envs.SendMasks(method, {key!r})]."
            )
        if not _counts(space):
            if not is_order:
                return None
            raise TypeError(
                f"action masks are for Discrete and MultiDiscrete actions, not for {space}."
            )
        if not takes_masks:
            if not is_order:
                return None
            raise TypeError(
                f"{type(agent).__name__} takes no action masks: give its methods the keyword "
                "action_masks=None (see docs/policies.md)."
            )
        if (sent := getattr(envs, "infos", "all")) != "all":
            raise ValueError(
                f"action masks travel with the infos of every step: build the fleet without "
                f"infos={sent!r}, or pass mask_key=None to do without masks."
            )
        return cls(space, key)

    def read(
        self,
        rows: Rows,
        infos: dict[str, Any],
        which: NDArray[np.bool_] | None = None,
        *,
        when: str,
        ids: Any = None,
    ) -> None:
        """Write the masks of some envs (all, by default) to their rows.

        Args:
            rows: one per env that the infos are of.
            infos: columns, as engines return them.
            which: for each row whether to write it.
            when: "reset" or "step", for errors.
            ids: the number of each row's env; by default they are counted.

        Raises:
            ValueError: a mask is missing, has another size, or forbids everything.
        """
        place: Any = slice(None) if which is None else np.flatnonzero(which)
        column: Any = infos.get(self.key)
        sent = infos.get(f"_{self.key}")
        if _is_plain(column, rows.size) and (sent is None or sent[place].all()):
            told = column.reshape(rows.shape)[place]
            masks = told == 1
            if (masks == told).all() and np.logical_or.reduceat(masks, self._starts, axis=1).all():
                rows[place] = masks
                return
        for k in np.arange(len(rows))[place]:
            told = None if column is None or (sent is not None and not sent[k]) else column[k]
            rows[k] = self._checked(told, int(k if ids is None else ids[k]), when)

    def after_step(
        self,
        rows: Rows,
        infos: dict[str, Any],
        ended: NDArray[np.bool_],
        mode: AutoresetMode,
        ids: Any = None,
    ) -> None:
        """Write what a step's infos allow next.

        Envs that have ended and were not reset in that step have no next action, and whatever their
        masks forbid is not looked at: the rows of next-step autoreset allow everything, since what
        is chosen there is ignored, as do those of envs that wait for a reset until it has come.
        """
        if mode == AutoresetMode.SAME_STEP or not ended.any():
            self.read(rows, infos, when="step", ids=ids)
        else:
            self.read(rows, infos, ~ended, when="step", ids=ids)
            rows[ended] = True

    def rows(self, told: Any, count: int | None) -> Rows:
        """The masks that a caller passes for ``count`` observations; None: the one of a single one.

        Raises:
            TypeError: such actions have no masks.
            ValueError: there is not one mask for each, one has another size, or forbids everything.
        """
        if not self.width:
            raise TypeError(
                f"action masks are for Discrete and MultiDiscrete actions, not for {self._space}."
            )
        if count is None:
            return self._flat(told, "action_masks is")[None]
        found = len(told) if hasattr(told, "__len__") else 0
        if found != count:
            raise ValueError(
                f"action_masks has {found} rows for {count} observations: pass one each."
            )
        masks = [self._flat(mask, f"action_masks[{k}] is") for k, mask in enumerate(told)]
        return np.stack(masks)

    def _flat(self, told: Any, name: str) -> Rows:
        """One mask that is no grid: that may be the masks of one component for all observations."""
        if getattr(told, "ndim", 1) != 1:
            raise ValueError(f"{name} of shape {tuple(told.shape)}: {self._wanted}")
        return self._row(told, name)

    def _checked(self, told: Any, env: int, when: str) -> Rows:
        """One env's mask.

        Raises:
            ValueError: naming the env.
        """
        name = f"info[{self.key!r}]"
        if told is None:
            raise ValueError(
                f"env {env} sent no {name} with its {when}: an env that has action masks must send "
                "one with every reset and step."
            )
        return self._row(told, f"env {env} sent with its {when} the {name}")

    @property
    def _wanted(self) -> str:
        return f"for {self._space} it must be {self.width} times 0 or 1, 1 for what is allowed."

    def _row(self, told: Any, name: str) -> Rows:
        """One mask as a row; ``name`` is how errors begin."""
        try:
            parts = told if isinstance(told, (tuple, list)) else [told]
            flat = [np.ravel(part) for part in parts]
            mask = np.concatenate(flat)
            fits = mask.shape == (self.width,) and bool(((mask == 0) | (mask == 1)).all())
            if len(flat) == len(self._counts):  # one per component
                fits &= [part.size for part in flat] == self._counts
        except (TypeError, ValueError):
            fits = False
        if not fits:
            raise ValueError(f"{name} {_shown(told)}: {self._wanted}")
        empty = np.flatnonzero(~np.logical_or.reduceat(mask == 1, self._starts))
        if len(empty):
            which = "" if len(self._starts) == 1 else f" of component {empty[0]}"
            raise ValueError(
                f"{name} {_shown(told)}, which forbids every action{which}: where nothing can be "
                "done, the env must end the episode, or allow an action that does nothing."
            )
        return cast("Rows", mask == 1)


def _is_plain(column: Any, size: int) -> bool:
    """Whether all envs' masks are one array."""
    if not isinstance(column, np.ndarray):
        return False
    return column.dtype.kind in "biuf" and column.size == size


def _counts(space: Space[Any]) -> list[int]:
    """How many actions each component has; empty where masks mean nothing."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return [int(count) for count in space.nvec.ravel()]
    return []


def _shown(told: Any) -> str:
    text = " ".join(repr(told).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
