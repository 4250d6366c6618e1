"""One loader for all model chunks of a virtual pipeline.

Enters: a loader. Leaves: an iterator for each chunk. Guarantee: each yields every batch, and each batch is drawn once.
"""

import collections
from collections.abc import Collection, Iterator
from typing import Any, Protocol

from bridge_data.errors import ConfigError

MAX_APART = 1_024
"""Batches that one chunk may be ahead of another."""


class Savable(Protocol):
    """What the chunks share; `EnergonDataloader` is one."""

    def __next__(self) -> Any: ...
    def save_state(self) -> dict[str, Any]: ...
    def restore_state(self, state: dict[str, Any] | None) -> None: ...


class ChunkIterator(Iterator[Any]):
    """The batches for one model chunk. Saving and restoring are those of the loader, and are for the bounds of a step,
    where all chunks that draw have drawn equally many."""

    def __init__(self, shared: "_Shared", chunk: int) -> None:
        self._shared, self._chunk = shared, chunk

    def __next__(self) -> Any:
        return self._shared.next_of(self._chunk)

    def save_state(self) -> dict[str, Any]:
        """The position after the last batch that was drawn, as the loader saves it."""
        return self._shared.loader.save_state()

    def restore_state(self, state: dict[str, Any] | None) -> None:
        """Go to a saved position, for all chunks at once."""
        self._shared.restore(state)


class _Shared:
    def __init__(self, loader: Savable, drawing: Collection[int]) -> None:
        self.loader = loader
        self._places = dict.fromkeys(drawing, 0)
        self._drawn: collections.deque[Any] = collections.deque()
        self._num_dropped = 0

    def next_of(self, chunk: int) -> Any:
        if chunk not in self._places:
            raise ConfigError(f"model chunk {chunk} draws a batch, but only {sorted(self._places)} were said to draw")
        place = self._places[chunk] - self._num_dropped
        if place == len(self._drawn):
            if place == MAX_APART:
                idle = min(self._places, key=lambda other: self._places[other])
                raise ConfigError(
                    f"model chunk {chunk} is {MAX_APART} batches ahead of chunk {idle}; leave chunks that draw none "
                    "out of `drawing`"
                )
            self._drawn.append(next(self.loader))
        batch = self._drawn[place]
        self._places[chunk] += 1
        while self._num_dropped < min(self._places.values()):
            self._drawn.popleft()
            self._num_dropped += 1
        return batch

    def restore(self, state: dict[str, Any] | None) -> None:
        self.loader.restore_state(state)
        self._drawn.clear()
        self._places = dict.fromkeys(self._places, 0)
        self._num_dropped = 0


def virtual_iterators(
    loader: Savable, num_chunks: int, *, drawing: Collection[int] | None = None
) -> list[ChunkIterator]:
    """The list of iterators that Megatron's interleaved schedule takes, one for each of `num_chunks` model chunks.

    `drawing` are the chunks whose forward step draws batches, all if None; each of them must draw every one.

    Raises:
        ConfigError: from `next`, for a chunk that is none of them, and where one of them does not draw.
    """
    shared = _Shared(loader, range(num_chunks) if drawing is None else drawing)
    return [ChunkIterator(shared, chunk) for chunk in range(num_chunks)]
