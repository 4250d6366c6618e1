"""The layers of megatron-core without Transformer Engine, for models of Megatron-Bridge on a CPU."""

from typing import Any

import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel.layers import RowParallelLinear
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from torch import Tensor


class CpuAttention(MegatronModule):
    """A core attention in plain torch: of rows, or within the samples of a pack; causal, or as its bias says."""

    def __init__(self, config: Any, layer_number: int, attn_mask_type: AttnMaskType, *_: Any, **options: Any) -> None:
        super().__init__(config)
        self.is_causal = attn_mask_type != AttnMaskType.no_mask
        self.scale = options.get("softmax_scale") or config.softmax_scale

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *_: Any, attention_bias: Any = None, **options: Any
    ) -> Tensor:
        """Of (positions, heads, channels) of a pack, or (positions, rows, heads, channels): (..., heads * channels)."""
        packs = options.get("packed_seq_params")
        numbers = torch.arange(len(query), dtype=torch.int32)
        mask: Tensor | None = numbers[:, None] >= numbers if self.is_causal else None
        if packs is not None:
            bounds = packs.cu_seqlens_q if packs.cu_seqlens_q_padded is None else packs.cu_seqlens_q_padded
            sample = torch.searchsorted(bounds, numbers, right=True)
            inside = sample[:, None] == sample
            mask = inside if mask is None else mask & inside
        if attention_bias is not None:
            assert mask is None
            mask = attention_bias
        rows = [part[:, None] if part.ndim == 3 else part for part in (query, key, value)]
        q, k, v = (part.permute(1, 2, 0, 3) for part in rows)
        attend = torch.nn.functional.scaled_dot_product_attention
        mixed = attend(q, k, v, attn_mask=mask, enable_gqa=True, scale=self.scale).permute(2, 0, 1, 3).flatten(2)
        return mixed[:, 0] if query.ndim == 3 else mixed


def decoder_layer(**settings: Any) -> Any:
    """A layer of a decoder with RMSNorm."""
    layer = get_gpt_layer_local_spec(normalization="RMSNorm", **settings)
    layer.submodules.self_attention.submodules.core_attention = CpuAttention
    return layer


class RowParallelLinearNorm(RowParallelLinear):
    """A layer with a norm after it, as those of Gemma 3 that write to the residual."""

    def __init__(self, input_size: int, output_size: int, *, config: Any, **options: Any) -> None:
        super().__init__(input_size, output_size, config=config, **options)
        self.post_layernorm = WrappedTorchNorm(config, output_size)

    def forward(self, input_: Tensor) -> tuple[Tensor, Any]:
        output, bias = super().forward(input_)
        return self.post_layernorm(output), bias
