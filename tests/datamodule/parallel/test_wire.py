from typing import Any

import pytest
import torch

from bridge_data.datamodule.parallel import wire


def travelled(value: Any) -> Any:
    parts = wire.encoded(value)
    content = torch.empty(wire.num_bytes(parts), dtype=torch.uint8)
    wire.fill(content, parts)
    return wire.decoded(content)


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.bfloat16, torch.float64, torch.int64, torch.complex64])
def test_tensors_come_back_bit_by_bit_and_aligned(dtype: torch.dtype) -> None:
    sent = [torch.arange(number).to(dtype) for number in (3, 0, 17, 1)]
    got = travelled({"tensors": sent, "view": sent[2].reshape(1, 17).T, "names": ["a", None]})
    for before, after in zip(sent, got["tensors"], strict=True):
        assert after.dtype == dtype and torch.equal(before, after)
        assert after.numel() == 0 or after.data_ptr() % 64 == 0
    assert torch.equal(got["view"], sent[2].reshape(17, 1))
    assert got["names"] == ["a", None]


def test_what_came_may_be_written_to() -> None:
    got = travelled(torch.zeros(4))
    got += 1
    assert got.tolist() == [1, 1, 1, 1]
