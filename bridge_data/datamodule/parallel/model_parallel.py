"""Batches under model parallelism: the part of a context-parallel rank, and iterators for virtual pipeline chunks.

*Context parallelism.* Enters: a whole batch, the same on all context-parallel ranks of a replica. Leaves: this rank's
positions of its token tensors; images and all other fields stay whole. Guarantee: the parts of all ranks together are
the batch. A causal token near the end of a sequence attends to more tokens than one near its beginning, so a sequence
is cut into 2 * size parts, of which rank r has the r-th and the r-th from the end.

*Virtual pipeline.* Enters: one loader. Leaves: an iterator for each model chunk. Guarantee: each yields every batch,
and each batch is drawn once.

Source: Megatron-core's zigzag order, `megatron.core.utils.get_batch_on_this_cp_rank`; for packed sequences that of
Transformer Engine's `thd` format, where each sequence is cut by itself.
"""

import collections
import dataclasses
import itertools
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor

from bridge_data.errors import ConfigError

if TYPE_CHECKING:
    from megatron.core.packed_seq_params import PackedSeqParams

B = TypeVar("B")

TOKEN_FIELDS = ("tokens", "input_ids", "labels", "loss_mask", "position_ids")
"""Fields of (batch, sequence) that are cut."""


def zigzag_positions(length: int, rank: int, size: int, cu_seqlens: Tensor | None = None) -> Tensor:
    """The positions of a rank's part, int64, in the order of the sequence.

    `cu_seqlens` (sequences + 1,) are the bounds of packed sequences, each of which is cut by itself; positions after
    the last form one more.

    Raises:
        ConfigError: if a sequence is not a multiple of 2 * size.
    """
    if size == 1:
        return torch.arange(length)
    bounds = [0, length] if cu_seqlens is None else sorted({*cu_seqlens.tolist(), 0, length})
    parts = []
    for start, end in itertools.pairwise(bounds):
        if (end - start) % (2 * size):
            raise ConfigError(
                f"a sequence of {end - start} tokens (positions {start} to {end}) cannot be cut into {2 * size} equal "
                f"parts for {size} context-parallel ranks; pad sequences to a multiple of {2 * size}"
            )
        part = (end - start) // (2 * size)
        first, mirrored = start + rank * part, end - (rank + 1) * part
        parts += [torch.arange(first, first + part), torch.arange(mirrored, mirrored + part)]
    return torch.cat(parts) if parts else torch.arange(0)


def slice_for_context_parallel(
    batch: B, rank: int, size: int, *, fields: Collection[str] = TOKEN_FIELDS, cu_seqlens: Tensor | None = None
) -> B:
    """`batch`, a dataclass or a dict, with those of its `fields` that it has, (rows, length, ...), cut along the second
    dimension; packed in one row with `cu_seqlens`.

    Raises:
        ConfigError: if a length cannot be cut, if fields differ in length, or if packed rows are more than one.
    """
    if size == 1:
        return batch
    values: dict[str, Any] = batch if isinstance(batch, dict) else dict(_items(batch))
    whole = {name: values[name] for name in fields if isinstance(values.get(name), Tensor)}
    lengths = {name: tensor.shape[1] for name, tensor in whole.items()}
    if len(set(lengths.values())) > 1:
        raise ConfigError(f"fields of different lengths cannot be cut alike: {lengths}; name those to cut in `fields`")
    if cu_seqlens is not None and any(tensor.shape[0] != 1 for tensor in whole.values()):
        raise ConfigError("packed sequences are cut row by row: pass a batch of one row with its own cu_seqlens")
    if not whole:
        return batch
    positions = zigzag_positions(next(iter(lengths.values())), rank, size, cu_seqlens)
    cut = {name: tensor.index_select(1, positions.to(tensor.device)) for name, tensor in whole.items()}
    if isinstance(batch, dict):
        return {**batch, **cut}  # type: ignore[return-value]
    return dataclasses.replace(batch, **cut)  # type: ignore[type-var]


def packed_seq_params(cu_seqlens: Tensor, *, cu_seqlens_padded: Tensor | None = None) -> "PackedSeqParams":
    """Megatron's `PackedSeqParams` of one packed row.

    `cu_seqlens` (sequences + 1,), any integer type, are the bounds of its sequences without their padding, and
    `cu_seqlens_padded` those with it, if there is any. Repeated bounds at the end, which pad `cu_seqlens` itself,
    are ignored.
    """
    from megatron.core.packed_seq_params import PackedSeqParams

    bounds = torch.unique_consecutive(cu_seqlens).int()
    padded = None if cu_seqlens_padded is None else torch.unique_consecutive(cu_seqlens_padded).int()
    layout = bounds if padded is None else padded
    if padded is not None and padded.shape != bounds.shape:
        raise ConfigError(
            f"cu_seqlens has {len(bounds) - 1} sequences and cu_seqlens_padded {len(padded) - 1}; expected equally many"
        )
    longest = int((layout[1:] - layout[:-1]).max()) if len(layout) > 1 else 0
    return PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=bounds,
        cu_seqlens_kv=bounds,
        cu_seqlens_q_padded=padded,
        cu_seqlens_kv_padded=padded,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
    )


def _items(batch: Any) -> list[tuple[str, Any]]:
    return [(field.name, getattr(batch, field.name)) for field in dataclasses.fields(batch)]


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
