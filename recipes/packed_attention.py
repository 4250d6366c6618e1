"""Core attention for packed sequences in plain torch: causal inside each sequence of a pack, blind across them.

A core attention for megatron-core's local layer spec that runs on any device and under tensor and context parallelism.
Its attention mask is not a mask but the number of each position's sequence, (batch, whole length): that is all a
block-diagonal causal mask needs, and it stays small. Under context parallelism ranks hold zigzag slices of the
sequence (`zigzag_positions`); keys and values are gathered.
"""

from typing import Any

import torch
import torch.distributed as dist
from megatron.core.transformer.module import MegatronModule
from torch import Tensor

from bridge_data.datamodule.parallel import zigzag_positions


def sequence_numbers(cu_seqlens: Tensor, length: int) -> Tensor:
    """For each of `length` positions of each row the number of the sequence it belongs to; int64 (rows, length).

    `cu_seqlens` (rows, bounds) holds where a row's sequences start, and the end of the last, repeated to fill the
    row; positions after it are padding, which counts as one more sequence.
    """
    positions = torch.arange(length, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
    ends = cu_seqlens[:, 1:].contiguous()
    return torch.searchsorted(ends, positions.expand(len(ends), -1).contiguous(), right=True)


class _GatherSequence(torch.autograd.Function):
    """Concatenate the ranks' slices along the first dimension; gradients are summed and sliced again.
    (`torch.distributed.nn.functional.all_gather` has a wrong backward on gloo subgroups.)"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group, ctx.length = group, x.shape[0]
        parts = [torch.empty_like(x) for _ in range(group.size())]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        gradient = gradients[0].contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        start = ctx.group.rank() * ctx.length
        return gradient[start : start + ctx.length], None


class PackedAttention(MegatronModule):
    """Scaled dot-product attention over (positions, batch, heads, channels) as the local layer spec calls it."""

    def __init__(self, config: Any, *args: Any, pg_collection: Any = None, **kwargs: Any) -> None:
        super().__init__(config)
        self.cp = pg_collection.cp

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **kwargs: Any) -> Tensor:
        """`attention_mask` are sequence numbers (batch, whole length). Returns (positions, batch, heads * channels)."""
        length, batch, heads, _ = query.shape
        size, rank = self.cp.size(), self.cp.rank()
        if size > 1:
            key, value = _GatherSequence.apply(key, self.cp), _GatherSequence.apply(value, self.cp)
        whole = length * size
        queries_at = zigzag_positions(whole, rank, size).to(query.device)
        keys_at = torch.cat([zigzag_positions(whole, r, size) for r in range(size)]).to(query.device)
        causal = keys_at[None, :] <= queries_at[:, None]
        same = attention_mask[:, queries_at, None] == attention_mask[:, None, keys_at]
        groups = heads // key.shape[2]
        if groups > 1:
            key, value = key.repeat_interleave(groups, 2), value.repeat_interleave(groups, 2)
        mixed = torch.nn.functional.scaled_dot_product_attention(
            query.permute(1, 2, 0, 3),
            key.permute(1, 2, 0, 3),
            value.permute(1, 2, 0, 3),
            attn_mask=(causal & same)[:, None],
        )
        return mixed.permute(2, 0, 1, 3).reshape(length, batch, -1)
