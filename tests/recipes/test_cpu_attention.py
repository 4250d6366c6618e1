import itertools
from types import SimpleNamespace

import pytest
import torch

from tests.later import Later

attention = Later("recipes.demo.cpu_attention")


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("bounds", ["cu_seqlens_q", "cu_seqlens_q_padded"])
def test_a_pack_attends_as_its_samples_do_alone(bounds: str, kv_heads: int) -> None:
    from megatron.core.transformer import TransformerConfig

    config = TransformerConfig(num_layers=1, hidden_size=32, num_attention_heads=4, use_cpu_initialization=True)
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(20, 4, 8, generator=generator)
    k, v = torch.randn(2, 20, kv_heads, 8, generator=generator)
    ends = [0, 7, 8, 20]
    other = {"cu_seqlens_q": torch.tensor([0, 20], dtype=torch.int32), "cu_seqlens_q_padded": None}
    pack = SimpleNamespace(**(other | {bounds: torch.tensor(ends, dtype=torch.int32)}))
    mixed = attention.PackedAttention(config)(q, k, v, None, packed_seq_params=pack)
    whole = [part.repeat_interleave(4 // part.shape[1], 1).transpose(0, 1) for part in (q, k, v)]
    alone = [
        torch.nn.functional.scaled_dot_product_attention(*(part[:, start:end] for part in whole), is_causal=True)
        for start, end in itertools.pairwise(ends)
    ]
    torch.testing.assert_close(mixed, torch.cat(alone, 1).transpose(0, 1).flatten(1))
