"""Batches under context parallelism: the part of a rank; and, where each sample has its own group of ranks, a rank's
samples.

Takes a whole batch, the same on all context-parallel ranks of a replica. Returns this rank's positions of its token
tensors; images and all other fields stay whole. The parts of all ranks together are the batch. A causal
token near the end of a sequence attends to more tokens than one near its beginning, so a sequence is cut into 2 * size
parts, of which rank r has the r-th and the r-th from the end.

Source: Megatron-core's zigzag order, `megatron.core.utils.get_batch_on_this_cp_rank`, which cuts every field of a dict;
for packed sequences that of Transformer Engine's `thd` format, where each sequence is cut by itself.
"""

import dataclasses
import itertools
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from bridge_data.errors import ConfigError
from bridge_data.extensions import Feature
from bridge_data.lanes.lane_dataset import LaneDataset

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


_CONTEXT_GROUPS = Feature[Callable[[LaneDataset, Any, int, int], LaneDataset]]("context_groups")
"""`with_context_groups`, for all of its arguments."""


def with_context_groups(
    dataset: LaneDataset, dp_cp_group: Any, max_seqlen_per_dp_cp_rank: int, *, multiple: int = 1
) -> LaneDataset:
    """`dataset`, whose loader then yields of each step what Megatron-core's `HybridCPDataLoaderWrapper` does: (this
    rank's samples by number, groups), where groups are, by group and rank, numbers of samples.

    Its packs are planned, `batch_size` is the packs of a global batch, and its `WorkerConfig` has rank 0 of 1 on all
    ranks of `dp_cp_group`. A sample is a dict of `tokens`, `labels`, `loss_mask` and `position_ids` (length,), where
    the length is a multiple of 2 * c * `multiple` if c > 1 ranks share it, else of `multiple`.

    Raises:
        ConfigError: for other data, or if the number of ranks is not a power of two.
    """
    make = _CONTEXT_GROUPS.get(needed_by="with_context_groups")
    return make(dataset, dp_cp_group, max_seqlen_per_dp_cp_rank, multiple)


def _items(batch: Any) -> list[tuple[str, Any]]:
    return [(field.name, getattr(batch, field.name)) for field in dataclasses.fields(batch)]
