"""The layers of megatron-core without Transformer Engine, for models of Megatron-Bridge on a CPU."""

from typing import Any

import torch
from megatron.core.models.backends import LocalSpecProvider
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.ssm.gated_delta_net import common
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
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


class NormColumnParallelLinear(ColumnParallelLinear):
    """A layer with a norm before it."""

    def __init__(self, input_size: int, output_size: int, *, config: Any, **options: Any) -> None:
        super().__init__(input_size, output_size, config=config, **options)
        self.layer_norm = WrappedTorchNorm(config, input_size)

    def forward(self, input_: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Any]:
        normed: tuple[Tensor, Any] = super().forward(self.layer_norm(input_), *args, **options)
        return normed


class CpuLayers(LocalSpecProvider):
    """The layers that megatron-core has without Transformer Engine, for models that want its own."""

    def column_parallel_layer_norm_linear(self) -> type:
        return NormColumnParallelLinear

    def core_attention(self) -> type:
        return CpuAttention


def causal_convolution(
    x: Tensor, weight: Tensor, bias: Any, cu_seqlens: Tensor | None, **_: Any
) -> tuple[Tensor, None]:
    """The convolution of FLA along the positions of x (rows, positions, channels), within each sample of a pack."""
    padding = weight.shape[-1] - 1

    def one(part: Tensor) -> Tensor:
        made = torch.nn.functional.conv1d(part.mT, weight[:, None], bias, padding=padding, groups=len(weight))
        return torch.nn.functional.silu(made[..., : part.shape[1]]).mT

    return torch.cat([one(part) for part in _samples(x, cu_seqlens)], dim=1), None


def gated_delta_rule(*inputs: Tensor, cu_seqlens: Tensor | None = None, **options: Any) -> tuple[Tensor, None]:
    """The linear attention of FLA within each sample of a pack: that of megatron-core in plain torch, one by one."""
    named = {name: value for name, value in options.items() if isinstance(value, Tensor)}
    split = [_samples(value, cu_seqlens) for value in (*inputs, *named.values())]
    made = []
    for parts in zip(*split, strict=True):
        positional, rest = parts[: len(inputs)], parts[len(inputs) :]
        more = options | dict(zip(named, rest, strict=True))
        made.append(common.torch_chunk_gated_delta_rule(*positional, **more)[0])
    return torch.cat(made, dim=1), None


def _samples(value: Tensor, bounds: Tensor | None) -> tuple[Tensor, ...]:
    """The samples of a pack, along the second dimension."""
    return (value,) if bounds is None else torch.split(value, bounds.diff().tolist(), dim=1)


class RowParallelLinearNorm(RowParallelLinear):
    """A layer with a norm after it, as those of Gemma 3 that write to the residual."""

    def __init__(self, input_size: int, output_size: int, *, config: Any, **options: Any) -> None:
        super().__init__(input_size, output_size, config=config, **options)
        self.post_layernorm = WrappedTorchNorm(config, output_size)

    def forward(self, input_: Tensor) -> tuple[Tensor, Any]:
        output, bias = super().forward(input_)
        return self.post_layernorm(output), bias
