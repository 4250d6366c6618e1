"""Blocks: what small samples are cut out of, so that neighbours in a shard come with one read.

Enters: how the bytes of a shard are read. Leaves: any range that lies within one block. Guarantee: at most `MAX_BLOCKS`
blocks are held for all shards of a process together; the oldest goes first, and is read again if it is wanted again.
"""

import collections
from collections.abc import Callable
from typing import TypeAlias

BLOCK_BITS = 14
BLOCK_BYTES = 1 << BLOCK_BITS

MAX_BLOCKS = 2048
"""32 MiB. Each of 8 lanes reads some 48 chunks at once, 50 neighbours of each: 4 blocks, if a block is 12 samples."""

Held: TypeAlias = "collections.deque[tuple[dict[int, bytes], int]]"
"""Blocks, from the oldest on: those of which shard, and the number."""

OF_PROCESS: Held = collections.deque()
"""The blocks of all readers of this process."""


class Blocks:
    """The blocks of one shard of `num_bytes` bytes, which `content(start, num_bytes)` reads. Any thread may use it."""

    __slots__ = ("_content", "_held", "_known", "_num_bytes")

    def __init__(self, content: Callable[[int, int], bytes], num_bytes: int, held: Held) -> None:
        self._content, self._num_bytes, self._held = content, num_bytes, held
        self._known: dict[int, bytes] = {}

    def read(self, start: int, num_bytes: int) -> bytes:
        """The bytes of this range."""
        number = start >> BLOCK_BITS
        at = start & (BLOCK_BYTES - 1)
        if at + num_bytes > BLOCK_BYTES:
            return self._content(start, num_bytes)
        block = self._known.get(number) or self._load(number)
        return block[at : at + num_bytes]

    def _load(self, number: int) -> bytes:
        begin = number << BLOCK_BITS
        block = self._content(begin, min(BLOCK_BYTES, self._num_bytes - begin))
        self._known[number] = block
        self._held.append((self._known, number))
        if len(self._held) > MAX_BLOCKS:
            blocks, oldest = self._held.popleft()
            blocks.pop(oldest, None)
        return block
