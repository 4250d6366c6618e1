"""Tiny models of Megatron-Bridge of several families, with random weights, which their providers build on a CPU."""

import functools
from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from megatron.bridge import AutoBridge
from megatron.bridge.models.gemma import gemma3_provider, modeling_gemma4
from megatron.bridge.models.gemma_vl import modeling_gemma3_vl
from megatron.bridge.models.qwen_vl import qwen3_vl_provider
from megatron.bridge.models.qwen_vl.modelling_qwen3_vl import model as qwen3_vl
from megatron.core.models.gpt import experimental_attention_variant_module_specs as variants
from megatron.core.models.vision.vit_layer_specs import get_vit_layer_with_local_spec
from megatron.core.ssm.gated_delta_net import common, gdn
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.torch_norm import WrappedTorchNorm

from tests.bridge import qwen_model
from tests.bridge.cpu_layers import (
    CpuAttention,
    CpuLayers,
    RowParallelLinearNorm,
    causal_convolution,
    decoder_layer,
    gated_delta_rule,
)
from tests.bridge.hf_processors import make_processor
from tests.tiny_models.parts import PATCH, TILE, tiny_image_processor, tiny_model, tiny_tokenizer

_TINY = {"qwen3_5": "qwen3_vl"}
"""The families whose tokenizer and image processor are those of another."""


def make_provider(family: str) -> Any:
    """Bridge's provider of a tiny model."""
    if family == "qwen2_5_vl":
        return qwen_model.make_provider()
    provider = AutoBridge.from_hf_config(make_config(family)).to_megatron_provider(load_weights=False)
    qwen_model.set_for_cpu(provider, {})
    _ON_CPU[family](provider)
    return provider


def make_config(family: str) -> Any:
    """The config of the model of transformers."""
    if family in _TINY:
        return _qwen3_5_config(tiny_tokenizer(_TINY[family]))
    if family in _CONFIGS:
        return _CONFIGS[family](make_processor(family).tokenizer)
    made = tiny_model(family, tiny_tokenizer(family))
    made.config.architectures = [type(made).__name__]
    return made.config


def save_parts(family: str, folder: str, checkpoint: str) -> None:
    """Write the tokenizer and the processor to `folder`, and the config to that of a `checkpoint`."""
    own = family in _CONFIGS
    known = _TINY.get(family, family)
    for part in [make_processor(family)] if own else [tiny_tokenizer(known), tiny_image_processor(known)]:
        part.save_pretrained(folder)
    make_config(family).save_pretrained(checkpoint)


_SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "head_dim": 16}
_DECODER = _SIZES | {"num_hidden_layers": 2, "num_key_value_heads": 2, "max_position_embeddings": 4096}
_TOWER = _SIZES | {"num_hidden_layers": 1, "patch_size": PATCH}


def _gemma3_config(tokenizer: Any) -> Any:
    ids = {
        name: tokenizer.convert_tokens_to_ids(getattr(tokenizer, f"{name}_token")) for name in ("image", "boi", "eoi")
    }
    return hf.Gemma3Config(
        architectures=["Gemma3ForConditionalGeneration"],
        text_config=_DECODER | {"vocab_size": len(tokenizer), "sliding_window": 24, "query_pre_attn_scalar": 16},
        vision_config=_TOWER | {"image_size": TILE},
        mm_tokens_per_image=4,
        **{f"{name}_token_index": number for name, number in ids.items()},
    )


def _ministral3_config(tokenizer: Any) -> Any:
    return hf.Mistral3Config(
        architectures=["Mistral3ForConditionalGeneration"],
        text_config=_DECODER | {"model_type": "ministral3", "vocab_size": len(tokenizer)},
        vision_config=_TOWER | {"model_type": "pixtral", "image_size": 4 * TILE},
        image_token_index=tokenizer.convert_tokens_to_ids("[IMG]"),
        spatial_merge_size=2,
    )


def _gemma4_config(tokenizer: Any) -> Any:
    experts = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}
    heads = {"global_head_dim": 16, "num_global_key_value_heads": 2, "hidden_size_per_layer_input": 0}
    window = {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"], "pad_token_id": 0}
    text = _DECODER | experts | heads | window | {"vocab_size": len(tokenizer)}
    return hf.Gemma4Config(
        architectures=["Gemma4ForConditionalGeneration"],
        text_config=text,
        vision_config=_TOWER | {"num_key_value_heads": 2, "global_head_dim": 16, "position_embedding_size": 64},
        audio_config=None,
        image_token_id=tokenizer.image_token_id,
    )


def _qwen3_5_config(tokenizer: Any) -> Any:
    number_of = tokenizer.convert_tokens_to_ids
    ids = {"vision_start": "<|vision_start|>", "vision_end": "<|vision_end|>"}
    ids |= {"image": "<|image_pad|>", "video": "<|video_pad|>"}
    linear = {f"linear_{name}_head_dim": 8 for name in ("key", "value")}
    linear |= {f"linear_num_{name}_heads": 2 for name in ("key", "value")}
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}
    kinds = {"layer_types": ["linear_attention", "full_attention"], "full_attention_interval": 2}
    tower = {"depth": 1, "num_heads": 2, "hidden_size": 32, "intermediate_size": 64, "patch_size": PATCH}
    return hf.Qwen3_5Config(
        architectures=["Qwen3_5ForConditionalGeneration"],
        text_config=_DECODER | linear | kinds | {"vocab_size": len(tokenizer), "rope_parameters": rope},
        vision_config=tower | {"out_hidden_size": 32, "num_position_embeddings": 16},
        **{f"{name}_token_id": number_of(token) for name, token in ids.items()},
    )


_CONFIGS: dict[str, Callable[[Any], Any]] = {
    "gemma3": _gemma3_config,
    "gemma4": _gemma4_config,
    "ministral3": _ministral3_config,
}


def _qwen3_vl(provider: Any) -> None:
    def layer(**_: Any) -> Any:
        return decoder_layer(qk_layernorm=True)

    def tower_layer() -> Any:
        made = get_vit_layer_with_local_spec()
        made.submodules.self_attention.submodules.core_attention = CpuAttention
        return made

    qwen3_vl_provider.get_gpt_layer_with_transformer_engine_spec = layer
    qwen3_vl.get_vit_layer_with_transformer_engine_spec = tower_layer
    qwen3_vl.TENorm = WrappedTorchNorm
    qwen3_vl.TEColumnParallelLinear, qwen3_vl.TERowParallelLinear = ColumnParallelLinear, RowParallelLinear


def _gemma3(provider: Any) -> None:
    def layer(config: Any) -> Any:
        made = decoder_layer(qk_layernorm=True)
        attention = made.submodules.self_attention
        attention.module = gemma3_provider.Gemma3SelfAttention
        attention.params["attn_mask_type"] = AttnMaskType.no_mask
        attention.submodules.linear_proj = RowParallelLinearNorm
        layers = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinearNorm)
        made.submodules.mlp = ModuleSpec(module=MLP, submodules=layers)
        return made

    modeling_gemma3_vl.TENorm = WrappedTorchNorm
    provider.transformer_layer_spec = layer
    provider.interleaved_attn_pattern = (1, 1)
    for config in (provider, provider.vision_projector_config):
        config.layernorm_zero_centered_gamma = False
    projector = provider.vision_projector_config
    projector.image_size, projector.patch_dim, projector.tokens_per_image = TILE, PATCH, 4


def _gemma4(provider: Any) -> None:
    def layers(config: Any, **options: Any) -> Any:
        made = modeling_gemma4._gemma4_block_spec(config, use_transformer_engine=False, **options)
        for layer in made.layer_specs:
            layer.submodules.self_attention.submodules.core_attention = CpuAttention
            layer.submodules.self_attention.submodules.linear_proj = RowParallelLinearNorm
        return made

    provider.transformer_layer_spec = layers
    provider.moe_grouped_gemm = provider.moe_permute_fusion = False


def _qwen3_5(provider: Any) -> None:
    _qwen3_vl(provider)
    provider.layernorm_zero_centered_gamma = False
    variants._get_backend_spec_provider = lambda config: CpuLayers()
    variants._get_self_attention_module_spec = _self_attention
    common.HAVE_FLA, common.l2norm = True, functools.partial(torch.nn.functional.normalize, dim=-1)
    gdn.causal_conv1d, gdn.chunk_gated_delta_rule = causal_convolution, gated_delta_rule


def _self_attention(config: Any, backend: Any = None) -> Any:
    attention = decoder_layer(qk_layernorm=True).submodules.self_attention
    attention.metainfo["fuse_input_layernorm"] = False
    return attention


def _ministral3(provider: Any) -> None:
    provider.transformer_layer_spec = lambda config: decoder_layer()


_ON_CPU: dict[str, Callable[[Any], None]] = {
    "qwen3_vl": _qwen3_vl,
    "gemma3": _gemma3,
    "gemma4": _gemma4,
    "qwen3_5": _qwen3_5,
    "ministral3": _ministral3,
}
"""What changes a provider, and the modules of Bridge that it uses, for a CPU."""
