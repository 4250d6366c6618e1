from typing import Any

import pytest
import torch

from bridge_data.plugins.sharing.background import filled, from_bytes, to_parts


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.bfloat16, torch.float64, torch.int64, torch.complex64])
def test_tensors_come_back_bit_by_bit_and_aligned_and_may_be_written_to(dtype: torch.dtype) -> None:
    sent = [torch.arange(number).to(dtype) for number in (3, 0, 17, 1)]
    content = {"tensors": sent, "view": sent[2].reshape(1, 17).T, "names": ["a", None]}
    got: Any = from_bytes(filled(to_parts(content)))
    for before, after in zip(sent, got["tensors"], strict=True):
        assert after.dtype == dtype and torch.equal(before, after)
        assert after.numel() == 0 or after.data_ptr() % 64 == 0
    assert torch.equal(got["view"], sent[2].reshape(17, 1))
    assert got["names"] == ["a", None]
    got["tensors"][0].zero_()
    assert not got["tensors"][0].any()
