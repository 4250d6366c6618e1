import itertools

import pytest
import torch

from tests.later import Later

attention = Later("recipes.packed_attention")


def attend_one_by_one(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens: list[int]) -> torch.Tensor:
    """Causal attention of each sequence of a pack on its own; (length, batch, heads, channels) in and out."""
    parts = []
    for start, end in itertools.pairwise(cu_seqlens):
        one = [x[start:end].permute(1, 2, 0, 3) for x in (q, k, v)]
        parts.append(torch.nn.functional.scaled_dot_product_attention(*one, is_causal=True).permute(2, 0, 1, 3))
    return torch.cat(parts)


class OneRank:
    def size(self) -> int:
        return 1

    def rank(self) -> int:
        return 0


def packed_attention() -> torch.nn.Module:
    from megatron.core.transformer import TransformerConfig

    config = TransformerConfig(num_layers=1, hidden_size=32, num_attention_heads=4, use_cpu_initialization=True)
    groups = type("Groups", (), {"cp": OneRank()})()
    return attention.PackedAttention(config, 1, None, None, pg_collection=groups)


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_a_pack_attends_as_its_sequences_do_alone(kv_heads: int) -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(20, 1, 4, 8, generator=generator)
    k, v = torch.randn(2, 20, 1, kv_heads, 8, generator=generator)
    cu_seqlens = [0, 7, 8, 20]
    mixed = packed_attention()(q, k, v, attention.sequence_numbers(torch.tensor([cu_seqlens]), 20))
    whole_k, whole_v = (x.repeat_interleave(4 // kv_heads, 2) for x in (k, v))
    expected = attend_one_by_one(q, whole_k, whole_v, cu_seqlens).reshape(20, 1, 32)
    torch.testing.assert_close(mixed, expected)


def test_padding_behind_the_pack_is_a_sequence_of_its_own() -> None:
    numbers = attention.sequence_numbers(torch.tensor([[0, 2, 5], [0, 6, 6]], dtype=torch.int32), 8)
    assert numbers.tolist() == [[0, 0, 1, 1, 1, 2, 2, 2], [0, 0, 0, 0, 0, 0, 2, 2]]
