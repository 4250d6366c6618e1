"""What is counted of micro-batches."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bridge_data.lanes.lane import tokens_of


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, (0, 0)),
        ({"tokens": [1, 2]}, (0, 0)),
        ({"tokens": torch.zeros(2, 5)}, (10, 10)),
        ({"input_ids": torch.zeros(2, 5), "attention_mask": torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 0, 0]])}, (5, 10)),
        ({"input_ids": torch.zeros(2, 5), "attention_mask": torch.ones(2, 1, 5, 5)}, (10, 10)),
        ({"tokens": torch.zeros(2, 5), "cu_seqlens": torch.tensor([[0, 2, 4], [0, 3, 3]])}, (7, 10)),
        ({"input_ids": torch.zeros(1, 9), "cu_seqlens_q": torch.tensor([0, 4, 8])}, (8, 9)),
    ],
)
def test_tokens_are_counted_without_padding(fields: dict[str, Any], found: tuple[int, int]) -> None:
    assert tokens_of(fields) == tokens_of(SimpleNamespace(**fields)) == found
