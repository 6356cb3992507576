"""Arena: the memory of one fleet, and the terms on which shards share it."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from typing import Self

from gymnasium.vector import AutoresetMode

from envfleet.engine.arena.layout import Layout, plan_layout
from envfleet.engine.arena.memory import allocate, map_shared
from envfleet.engine.arena.views import Views, private_views, shared_views
from envfleet.engine.rules.spaces import Structure


@dataclass(frozen=True, slots=True)
class Terms:
    """What every shard is told about its fleet."""

    observations: Structure
    actions: Structure
    autoreset_mode: AutoresetMode
    infos: str
    """Which infos of a step are told (``infos.keeping``)."""
    shared_memory: bool = False
    """Whether observations lie in the arena; otherwise they travel by wire."""
    signals: bool = False
    """Whether plain steps are announced by signals; otherwise all goes over the wire."""
    crowded: bool = False
    """Whether there are more processes than cores."""

    @property
    def keeps_final(self) -> bool:
        """Whether final observations need a place beside those of the next episode."""
        return self.autoreset_mode == AutoresetMode.SAME_STEP


class Arena:
    """Views for the caller, and the descriptor and layout by which other processes get theirs."""

    def __init__(
        self,
        terms: Terms,
        views: Views,
        layout: Layout | None = None,
        memory: mmap.mmap | None = None,
        descriptor: int | None = None,
    ) -> None:
        self.terms = terms
        self.views = views
        self._layout = layout
        self._memory = memory
        self._descriptor = descriptor

    @classmethod
    def private(cls, terms: Terms, num_envs: int) -> Self:
        """In this process's own memory: for shards that live here."""
        actions = terms.actions.fixed
        return cls(
            terms,
            private_views(num_envs, terms.observations.fixed, actions, final=terms.keeps_final),
        )

    @classmethod
    def shared(cls, terms: Terms, num_envs: int, shards: int) -> Self:
        """In memory that other processes can map.

        Raises:
            MemoryError: there is not enough.
        """
        fixed = terms.observations.fixed
        layout = plan_layout(
            num_envs,
            fixed if terms.shared_memory else (),
            terms.actions.fixed,
            final=terms.keeps_final,
            workers=shards,
        )
        descriptor = allocate(layout.size)
        try:
            memory = map_shared(descriptor, layout.size)
        except BaseException:
            os.close(descriptor)
            raise
        views = shared_views(layout, memory)
        if not terms.shared_memory:
            views = views.with_own_observations(fixed, final=terms.keeps_final)
        return cls(terms, views, layout, memory, descriptor)

    @property
    def layout(self) -> Layout:
        """Where things lie in shared memory."""
        if self._layout is None:
            raise AssertionError("this arena is not shared")
        return self._layout

    @property
    def memory(self) -> mmap.mmap:
        """The shared memory, mapped."""
        if self._memory is None:
            raise AssertionError("this arena is not shared")
        return self._memory

    @property
    def descriptor(self) -> int:
        """Its descriptor, until ``close``."""
        if self._descriptor is None:
            raise AssertionError("this arena is not shared, or closed")
        return self._descriptor

    def close(self) -> None:
        """Let go of the descriptor; views live as long as somebody holds them."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
