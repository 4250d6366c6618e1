import json
import math
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bridge_data import ConfigError
from bridge_data.lanes.units import (
    TIMED_NS,
    BatchKey,
    LaneTally,
    SampleKey,
    UnitKey,
    batch_key,
    pack_key,
    read_key,
    tokens_of,
)
from bridge_data.order import SampleRef

SAMPLES = [("a1", 0, 3, 0), ("b2#1", 2, 1, 4)]
MEMBERS = tuple(SampleKey(*sample) for sample in SAMPLES)


def test_keys_are_read_as_they_were_made_also_through_json() -> None:
    pack, single = pack_key(SAMPLES), SAMPLES[0]
    batch = batch_key(17, 1, [pack, pack_key(SAMPLES[:1])])
    for key, expected in (
        (single, UnitKey(MEMBERS[:1], False)),
        (pack, UnitKey(MEMBERS, True)),
        (batch, BatchKey(17, 1, (UnitKey(MEMBERS, True), UnitKey(MEMBERS[:1], True)))),
        (batch_key(0, 0, SAMPLES), BatchKey(0, 0, tuple(UnitKey((member,), False) for member in MEMBERS))),
    ):
        assert read_key(key) == read_key(json.loads(json.dumps(key))) == expected


@pytest.mark.parametrize(
    "key",
    [
        (),
        None,
        "shard.tar/0001",
        7,
        ("a1", 0, 3),
        ("a1", 0, 3, -1),
        ("a1", 0, "3", 0),
        (0, 0, 3, 0),
        ("pack",),
        ("batch", 0, 0),
        [("a1", 0, 3, 0), ("a1", 0, 4, 0)],
        ("pack", ("pack", ("a1", 0, 3, 0))),
        ("BatchDataset", 0, ("a1", 0, 3, 0)),
    ],
)
def test_what_is_no_key_is_refused(key: Any) -> None:
    with pytest.raises(ConfigError, match=r"is no restore key.*expected the __restore_key__ of a sample"):
        read_key(key)


def test_a_fault_within_a_long_key_is_named() -> None:
    key = batch_key(0, 0, [*[("a1", 0, index, 0) for index in range(100)], ("a1", 0, 0.5, 0)])
    with pytest.raises(ConfigError, match=r"\.\.\. is no restore key, because of \('a1', 0, 0\.5, 0\) in it") as raised:
        read_key(key)
    assert len(str(raised.value)) < 600


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
    assert list(slow.each(refs, samples)) == [0, 1, 2, 3]
    counts = slow.take({}, 4)
    assert counts.samples == 4
    assert counts.slowest is not None
    assert counts.slowest[0] >= 50_000_000
    assert counts.slowest[1:] == (0, 0, 2)
    assert slow.take({}, 4).slowest is None
