"""A language model of transformers as megatron-core's GPT: its sizes, and its weights for one rank.

Reads a decoder of the Llama kind (Llama, Mistral, Qwen2, that of Qwen-VL), and the process groups of this rank. Returns
the `TransformerConfig` of the same model, and the weights of this rank's pipeline stage and tensor-parallel slice by
their names in `GPTModel`. Both models give the same losses, except for rounding.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bridge_data.errors import ConfigError

if TYPE_CHECKING:
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer import TransformerConfig

KINDS = ("llama", "mistral", "qwen2", "qwen2_vl_text", "qwen2_5_vl_text")
"""The `model_type` of the language models whose layers megatron-core's GPT has."""

BIASED_KINDS = ("qwen2", "qwen2_vl_text", "qwen2_5_vl_text")
"""Those with a bias on queries, keys and values."""

GATES = {"silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu}


def transformer_config(text: Any, groups: "ProcessGroupCollection", dtype: torch.dtype) -> "TransformerConfig":
    """Megatron's config of a language model of transformers; `text` is the model's own config.

    Raises:
        ConfigError: if megatron-core's GPT is another model, or the parallel sizes do not divide it.
    """
    from megatron.core.transformer import TransformerConfig

    _check_layers(text)
    _check_sizes(text, groups)
    return TransformerConfig(
        num_layers=text.num_hidden_layers,
        hidden_size=text.hidden_size,
        num_attention_heads=text.num_attention_heads,
        num_query_groups=text.num_key_value_heads,
        kv_channels=head_size(text),
        ffn_hidden_size=text.intermediate_size,
        gated_linear_unit=True,
        activation_func=GATES[text.hidden_act],
        normalization="RMSNorm",
        layernorm_epsilon=text.rms_norm_eps,
        add_bias_linear=False,
        add_qkv_bias=text.model_type in BIASED_KINDS,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        init_method=_leave_empty,
        output_layer_init_method=_leave_empty,
        embedding_init_method=_leave_empty,
        bf16=dtype == torch.bfloat16,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        tensor_model_parallel_size=groups.tp.size(),
        pipeline_model_parallel_size=groups.pp.size(),
        context_parallel_size=groups.cp.size(),
        mrope_section=mrope_section(text),
        variable_seq_lengths=True,
        moe_token_dispatcher_type="alltoall",  # the only one that allows variable lengths, used or not
        calculate_per_token_loss=True,
    )


def _leave_empty(weight: Tensor) -> Tensor:
    """Initialize nothing: weights come from the model of transformers. (Without any initialization Megatron would not
    mark weights as tensor-parallel, and count only the first slice for the norm of gradients.)"""
    return weight


def head_size(text: Any) -> int:
    """Channels of an attention head."""
    size: int = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return size


def mrope_section(text: Any) -> list[int] | None:
    """Channels of time, row and column in half an attention head; None for positions of one number."""
    section: list[int] | None = text.rope_parameters.get("mrope_section")
    return section


def check_length(text: Any, seq_length: int) -> None:
    """Check that the model attends to sequences of `seq_length` tokens as megatron-core's GPT does.

    Raises:
        ConfigError: if it does not.
    """
    window = getattr(text, "sliding_window", None) if getattr(text, "use_sliding_window", True) else None
    if window is not None and window < seq_length:
        raise ConfigError(
            f"data.seq_length={seq_length}: the model attends to the last {window} tokens only (sliding_window), "
            f"recipes under Megatron to all; make it {window} at most, or use trainer=lightning"
        )
    rope, longest = text.rope_parameters["rope_type"], text.max_position_embeddings
    if rope != "default" and not (rope == "dynamic" and seq_length <= longest):
        raise ConfigError(
            f"the model's rotary embedding is of type {rope!r}; recipes under Megatron have 'default' (and 'dynamic' "
            f"up to data.seq_length={longest}); use trainer=lightning"
        )


def _check_layers(text: Any) -> None:
    """Raise a ConfigError if the layers are not those of megatron-core's GPT."""
    if text.model_type not in KINDS:
        raise ConfigError(
            f"the language model is of type {text.model_type!r}; recipes under Megatron know {', '.join(KINDS)}; use "
            "trainer=lightning, or a model of Megatron-Bridge"
        )
    if text.hidden_act not in GATES:
        raise ConfigError(
            f"the language model has hidden_act={text.hidden_act!r}; recipes under Megatron know {', '.join(GATES)}"
        )
    for name in ("attention_bias", "mlp_bias"):
        if getattr(text, name, False):
            raise ConfigError(f"the language model has {name}=True, which recipes under Megatron do not know")


def _check_sizes(text: Any, groups: "ProcessGroupCollection") -> None:
    """Raise a ConfigError if the parallel sizes do not divide the model."""
    for name, count, size in (
        ("vocab_size", text.vocab_size, groups.tp.size()),
        ("num_attention_heads", text.num_attention_heads, groups.tp.size()),
        ("num_key_value_heads", text.num_key_value_heads, groups.tp.size()),
        ("intermediate_size", text.intermediate_size, groups.tp.size()),
        ("num_hidden_layers", text.num_hidden_layers, groups.pp.size()),
    ):
        if count % size:
            kind = "pipeline" if name == "num_hidden_layers" else "tensor"
            raise ConfigError(
                f"parallel.{kind}_parallel_size={size} does not divide {name}={count} of the model; set another size"
            )


def stage_weights(decoder: Any, head: Tensor, groups: "ProcessGroupCollection") -> dict[str, Tensor]:
    """The weights of this rank by their names in `GPTModel`.

    `decoder` is the model of transformers below its head (such as `LlamaModel`); `head` are the weights of the head,
    (vocabulary, hidden).
    """
    text, state = decoder.config, decoder.state_dict()
    rank, size = groups.tp.rank(), groups.tp.size()
    stage, num_stages = groups.pp.rank(), groups.pp.size()

    def rows(tensor: Tensor) -> Tensor:
        return tensor.chunk(size)[rank]

    weights: dict[str, Tensor] = {}
    if stage == 0:
        weights["embedding.word_embeddings.weight"] = rows(state["embed_tokens.weight"])
    if stage == num_stages - 1:
        weights["decoder.final_layernorm.weight"] = state["norm.weight"]
        weights["output_layer.weight"] = rows(head)
    per_stage = text.num_hidden_layers // num_stages
    for layer in range(per_stage):
        old, new = f"layers.{stage * per_stage + layer}.", f"decoder.layers.{layer}."
        weights[f"{new}input_layernorm.weight"] = state[f"{old}input_layernorm.weight"]
        weights[f"{new}pre_mlp_layernorm.weight"] = state[f"{old}post_attention_layernorm.weight"]
        for kind in ("weight", "bias") if f"{old}self_attn.q_proj.bias" in state else ("weight",):
            parts = [state[f"{old}self_attn.{name}_proj.{kind}"] for name in "qkv"]
            weights[f"{new}self_attention.linear_qkv.{kind}"] = rows(_interleaved(parts, text))
        attention, down = state[f"{old}self_attn.o_proj.weight"], state[f"{old}mlp.down_proj.weight"]
        weights[f"{new}self_attention.linear_proj.weight"] = attention.chunk(size, dim=1)[rank]
        weights[f"{new}mlp.linear_fc2.weight"] = down.chunk(size, dim=1)[rank]
        gate, up = rows(state[f"{old}mlp.gate_proj.weight"]), rows(state[f"{old}mlp.up_proj.weight"])
        weights[f"{new}mlp.linear_fc1.weight"] = torch.cat([gate, up])
    return weights


def _interleaved(parts: list[Tensor], text: Any) -> Tensor:
    """Queries, keys and values in Megatron's order: those of each group of heads that share keys together."""
    groups = text.num_key_value_heads
    by_group = [part.reshape(groups, -1, head_size(text), *part.shape[1:]) for part in parts]
    return torch.cat(by_group, dim=1).flatten(0, 2)
