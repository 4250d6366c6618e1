"""Attention within the samples of a pack, in plain torch: in place of Transformer Engine's, which needs CUDA."""

from typing import Any

import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.module import MegatronModule
from torch import Tensor


def gpt_layer(*, rms_norm: bool = False) -> Any:
    """The layer of a GPT that attends within the samples of a pack."""
    layer = get_gpt_layer_local_spec(normalization="RMSNorm" if rms_norm else None)
    layer.submodules.self_attention.submodules.core_attention = PackedAttention
    return layer


class PackedAttention(MegatronModule):
    """A core attention that is causal within each sample of a pack, and blind across them."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, packed_seq_params: Any, **__: Any) -> Tensor:
        """Of (positions, heads, channels), which tokens mix: (positions, heads * channels)."""
        numbers = torch.arange(len(query), device=query.device, dtype=torch.int32)
        bounds = packed_seq_params.cu_seqlens_q_padded  # of samples that are padded, if they are
        bounds = packed_seq_params.cu_seqlens_q if bounds is None else bounds
        sample = torch.searchsorted(bounds, numbers, right=True)
        mask = (sample[:, None] == sample) & (numbers[:, None] >= numbers)
        q, k, v = (part.transpose(0, 1)[None] for part in (query, key, value))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return mixed[0].transpose(0, 1).flatten(1)
