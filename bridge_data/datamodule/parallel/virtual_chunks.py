"""Batches under a virtual pipeline: an iterator for each model chunk.

Reads one loader. Returns the iterators: each yields every batch, and each batch is drawn once.
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
    """The loader, and for each drawing chunk the batches that others have drawn and it has not."""

    def __init__(self, loader: Savable, drawing: Collection[int]) -> None:
        self.loader = loader
        self._waiting: dict[int, collections.deque[Any]] = {chunk: collections.deque() for chunk in drawing}

    def next_of(self, chunk: int) -> Any:
        own = self._waiting.get(chunk)
        if own is None:
            raise ConfigError(f"model chunk {chunk} draws a batch, but only {sorted(self._waiting)} are in `drawing`")
        if not own:
            last, batches = max(self._waiting.items(), key=lambda one: len(one[1]))
            if len(batches) == MAX_APART:
                raise ConfigError(
                    f"model chunk {chunk} is {MAX_APART} batches ahead of chunk {last}; remove chunks that draw none "
                    "from `drawing`"
                )
            batch = next(self.loader)
            for waiting in self._waiting.values():
                waiting.append(batch)
        return own.popleft()

    def restore(self, state: dict[str, Any] | None) -> None:
        self.loader.restore_state(state)
        for waiting in self._waiting.values():
            waiting.clear()


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
