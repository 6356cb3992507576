"""Board: a shard's infos left in the arena, where all of them are numbers, instead of on the wire.

The first infos with certain keys travel by wire, and both sides learn the keys from them; from then
on a worker writes the numbers alone. Measured with 64 HalfCheetahs on 2 cores: 1.13 times the steps
per second with caller_steps, 1.19 times without.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from envfleet.engine.infos.packing import Block, NumberBlock
from envfleet.engine.rules.spaces import Array

ROOM = 16
"""Numbers per env; Ant-v5 has 9."""


class Board:
    """What one worker and the caller know of one shard's infos; both sides hold one of these."""

    def __init__(self, rows: Array, env_ids: range) -> None:
        """Use the shard's rows of the arena's infos."""
        self._rows = rows
        self._env_ids = env_ids
        self._known: NumberBlock | None = None

    def learn(self, blocks: Sequence[Block]) -> None:
        """Remember the keys of infos that travelled by wire and told nothing else."""
        block = self._whole(blocks)
        # What the other side might fail to unpickle, it could not learn.
        if block is not None and all(type(key) is str for key in block.keys):
            matrix = self._rows[:, : len(block.keys)]
            self._known = NumberBlock(self._env_ids, block.keys, block.kinds, matrix)

    def forget(self) -> None:
        """Expect, or send, the next infos by wire, whatever was learnt."""
        self._known = None

    def write(self, blocks: Sequence[Block]) -> bool:
        """Write infos whose keys both sides know; False if they must go by wire."""
        block, known = self._whole(blocks), self._known
        if block is None or known is None:
            return False
        if block.keys != known.keys or block.kinds != known.kinds:
            return False
        known.matrix[...] = block.matrix
        return True

    def _whole(self, blocks: Sequence[Block]) -> NumberBlock | None:
        """The block that has the infos of all envs, if there is one and it has room here."""
        if len(blocks) == 1:
            (block,) = blocks
            fits = isinstance(block, NumberBlock) and len(block.keys) <= ROOM
            if fits and block.env_ids == self._env_ids:
                return cast("NumberBlock", block)
        return None

    def read(self) -> list[Block]:
        """What was written last: the arena's own rows, overwritten by the next step."""
        return [] if self._known is None else [self._known]
