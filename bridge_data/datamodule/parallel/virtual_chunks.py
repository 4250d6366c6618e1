"""Batches under a virtual pipeline: an iterator for each model chunk.

Enters: one loader. Leaves: the iterators. Guarantee: each yields every batch, and each batch is drawn once.
"""

import collections
from collections.abc import Collection, Iterator
from typing import Any, Protocol

from bridge_data.errors import ConfigError

MAX_APART = 1_024
"""Maximum number of batches that one chunk may be ahead of another."""


class Savable(Protocol):
    """What the chunks share; `EnergonDataloader` is one."""

    def __next__(self) -> Any: ...
    def save_state(self) -> dict[str, Any]: ...
    def restore_state(self, state: dict[str, Any] | None) -> None: ...


class ChunkIterator(Iterator[Any]):
    """The batches for one model chunk. Save and restore between steps, when all drawing chunks have drawn the same
    number of batches."""

    def __init__(self, shared: "_Shared", chunk: int) -> None:
        self._shared, self._chunk = shared, chunk

    def __next__(self) -> Any:
        return self._shared.next_of(self._chunk)

    def save_state(self) -> dict[str, Any]:
        """The state of the loader after the last batch drawn."""
        return self._shared.loader.save_state()

    def restore_state(self, state: dict[str, Any] | None) -> None:
        """Restore a saved position, for all chunks at once."""
        self._shared.restore(state)


class _Shared:
    def __init__(self, loader: Savable, drawing: Collection[int]) -> None:
        self.loader = loader
        self._draws = dict.fromkeys(drawing, 0)
        self._drawn: collections.deque[Any] = collections.deque()
        self._num_dropped = 0

    def next_of(self, chunk: int) -> Any:
        if chunk not in self._draws:
            raise ConfigError(f"model chunk {chunk} draws a batch, but only {sorted(self._draws)} are in `drawing`")
        ahead = self._draws[chunk] - self._num_dropped
        if ahead == len(self._drawn):
            if ahead == MAX_APART:
                idle = min(self._draws, key=lambda other: self._draws[other])
                raise ConfigError(
                    f"model chunk {chunk} is {MAX_APART} batches ahead of chunk {idle}; remove chunks that draw none "
                    "from `drawing`"
                )
            self._drawn.append(next(self.loader))
        batch = self._drawn[ahead]
        self._draws[chunk] += 1
        while self._num_dropped < min(self._draws.values()):
            self._drawn.popleft()
            self._num_dropped += 1
        return batch

    def restore(self, state: dict[str, Any] | None) -> None:
        self.loader.restore_state(state)
        self._drawn.clear()
        self._draws = dict.fromkeys(self._draws, 0)
        self._num_dropped = 0


def virtual_iterators(
    loader: Savable, num_chunks: int, *, drawing: Collection[int] | None = None
) -> list[ChunkIterator]:
    """The iterators for Megatron's interleaved schedule, one for each of `num_chunks` model chunks.

    `drawing` are the chunks whose forward step draws batches, all if None. Each of them must draw every batch.

    Raises:
        ConfigError: from `next`, for a chunk that is not in `drawing`, and if a chunk in `drawing` does not draw.
    """
    shared = _Shared(loader, range(num_chunks) if drawing is None else drawing)
    return [ChunkIterator(shared, chunk) for chunk in range(num_chunks)]
