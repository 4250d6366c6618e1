"""The weights of a language model of transformers for one rank of megatron-core's GPT, by their names there."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from megatron.core.process_groups_config import ProcessGroupCollection


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
    by_group = [part.reshape(groups, -1, text.head_dim, *part.shape[1:]) for part in parts]
    return torch.cat(by_group, dim=1).flatten(0, 2)
