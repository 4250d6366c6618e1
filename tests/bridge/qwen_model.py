"""A tiny Qwen2.5-VL of Megatron-Bridge, which its provider builds without Transformer Engine.

Transformers' own Qwen2.5-VL of the same sizes gives the weights. The layers are those of megatron-core's local spec.
Only its attention is that of the demo: it takes the bounds of packed sequences, which megatron-core leaves to
Transformer Engine.
"""

from collections.abc import Mapping
from typing import Any

import torch
from megatron.bridge import AutoBridge
from megatron.bridge.models.qwen_vl.qwen25_vl_provider import Qwen25VLModelProvider
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

from recipes.demo.cpu_attention import gpt_layer
from tests.bridge.megatron_weights import stage_weights
from tests.bridge.run_parts import FAMILY, SEQ_LENGTH
from tests.tiny_models.parts import tiny_model, tiny_tokenizer

FUSIONS = ("apply_rope_fusion", "gradient_accumulation_fusion", "masked_softmax_fusion", "bias_activation_fusion")
"""What only CUDA has."""


def layers(config: Any) -> TransformerBlockSubmodules:
    """The layers of the language model."""
    return TransformerBlockSubmodules(
        layer_specs=[gpt_layer(rms_norm=True)] * config.num_layers, layer_norm=WrappedTorchNorm
    )


def make_original() -> Any:
    """The model of transformers whose weights are trained."""
    made = tiny_model(FAMILY, tiny_tokenizer(FAMILY), seed=7)
    made.config.architectures = [type(made).__name__]
    return made


def set_for_cpu(provider: Any, more: Mapping[str, Any]) -> None:
    """Set what a tiny model on the CPU needs of Bridge's provider, and `more`."""
    settings = {
        "seq_length": SEQ_LENGTH,
        "calculate_per_token_loss": True,
        "variable_seq_lengths": True,
        "moe_token_dispatcher_type": "alltoall",  # the only one that allows variable lengths, used or not
        **dict.fromkeys(("bf16", "fp16", *FUSIONS), False),
        **dict.fromkeys(("params_dtype", "pipeline_dtype", "autocast_dtype"), torch.float32),
        **more,
    }
    for name, value in settings.items():
        assert hasattr(provider, name)
        setattr(provider, name, value)


def make_provider() -> Qwen25VLModelProvider:
    """Bridge's provider of that model, whose sizes and tokens Bridge reads from its config."""
    config = make_original().config
    provider = AutoBridge.from_hf_config(config).to_megatron_provider(load_weights=False)
    settings = {
        "transformer_layer_spec": layers,
        "mrope_section": config.get_text_config().rope_parameters["mrope_section"],  # Bridge has that of whole models
    }
    set_for_cpu(provider, settings)
    provider.register_pre_wrap_hook(load_original)
    return provider


def load_original(models: list[Any]) -> list[Any]:
    """Bridge's model, with the weights of transformers' model. (Bridge's own loading of them goes by the names of
    layers of Transformer Engine.)"""
    (model,), original = models, make_original()
    weights = stage_weights(original.model.language_model, original.lm_head.weight, model.config._pg_collection)
    if model.share_embeddings_and_output_weights:
        weights.pop("output_layer.weight")
    found = model.language_model.load_state_dict(weights, strict=False)
    missing = [name for name in found.missing_keys if not name.endswith("_extra_state")]
    assert not missing and not found.unexpected_keys, (missing, found.unexpected_keys)
    model.visual.load_state_dict(original.model.visual.state_dict())
    return models
