"""Tiny models of Megatron-Bridge of several families, with random weights, which their providers build on a CPU."""

from collections.abc import Callable
from typing import Any

import torch
from megatron.bridge import AutoBridge
from megatron.bridge.models.qwen_vl import qwen3_vl_provider
from megatron.bridge.models.qwen_vl.modelling_qwen3_vl import model as qwen3_vl
from megatron.core.models.vision.vit_layer_specs import get_vit_layer_with_local_spec
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.torch_norm import WrappedTorchNorm

from tests.bridge import qwen_model
from tests.bridge.cpu_layers import CpuAttention, decoder_layer
from tests.bridge.qwen_model import FUSIONS
from tests.bridge.run_parts import SEQ_LENGTH
from tests.tiny_models.parts import tiny_image_processor, tiny_model, tiny_tokenizer


def make_provider(family: str) -> Any:
    """Bridge's provider of a tiny model."""
    if family == "qwen2_5_vl":
        return qwen_model.make_provider()
    provider = AutoBridge.from_hf_config(make_config(family)).to_megatron_provider(load_weights=False)
    settings = {
        "seq_length": SEQ_LENGTH,
        "calculate_per_token_loss": True,
        "variable_seq_lengths": True,
        "moe_token_dispatcher_type": "alltoall",  # the only one that allows variable lengths, used or not
        **dict.fromkeys(("bf16", "fp16", *FUSIONS), False),
        **dict.fromkeys(("params_dtype", "pipeline_dtype", "autocast_dtype"), torch.float32),
    }
    for name, value in settings.items():
        assert hasattr(provider, name)
        setattr(provider, name, value)
    _ON_CPU[family](provider)
    return provider


def make_config(family: str) -> Any:
    """The config of the model of transformers."""
    made = tiny_model(family, tiny_tokenizer(family))
    made.config.architectures = [type(made).__name__]
    return made.config


def save_parts(family: str, folder: str, checkpoint: str) -> None:
    """Write the tokenizer and the image processor to `folder`, and the config to that of a `checkpoint`."""
    for part in (tiny_tokenizer(family), tiny_image_processor(family)):
        part.save_pretrained(folder)
    make_config(family).save_pretrained(checkpoint)


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


_ON_CPU: dict[str, Callable[[Any], None]] = {"qwen3_vl": _qwen3_vl}
"""What changes a provider, and the modules of Bridge that it uses, for a CPU."""
