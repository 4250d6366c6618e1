"""What is counted of micro-batches."""

import math
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bridge_data.lanes.units import NO_COUNTS, TIMED_NS, Counts, LaneTally, tokens_of
from bridge_data.order import SampleRef


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


def test_what_takes_long_is_timed_one_by_one_and_what_does_not_by_the_draw() -> None:
    refs = [(number, SampleRef(0, 0, number)) for number in range(4)]
    slow, quick = LaneTally(), LaneTally()
    for _ in range(4):
        assert not slow.times_each
        slow.note_draw(refs, 4 * 10 * TIMED_NS)
        quick.note_draw(refs, 4000)
    assert (slow.times_each, slow.slowest_ns, slow.longest_ns) == (True, 10 * TIMED_NS, math.inf)
    assert (quick.times_each, quick.slowest_ns, quick.longest_ns) == (False, 4000, 4000)
    samples = (time.sleep(0.05 * (number == 2)) or number for number in range(4))
    assert list(slow.each([ref for _, ref in refs], samples)) == [0, 1, 2, 3]
    counts = Counts(*slow.take({}, 4))
    assert counts.samples == 4
    assert counts.slowest[0] >= 50_000_000
    assert counts.slowest[1:] == (0, 0, 2)
    assert Counts(*slow.take({}, 4)).slowest == NO_COUNTS.slowest
