import json
from typing import Any

import pytest

from bridge_data import ConfigError
from bridge_data.lanes.restoring import BatchKey, SampleKey, UnitKey, read_key

SAMPLES = [("a1", 0, 3, 0), ("b2#1", 2, 1, 4)]
MEMBERS = tuple(SampleKey(*sample) for sample in SAMPLES)


def test_keys_are_read_as_they_were_made_also_through_json() -> None:
    pack, single = ("pack", *SAMPLES), SAMPLES[0]
    batch = ("batch", 17, 1, pack, ("pack", single))
    for key, expected in (
        (single, UnitKey(MEMBERS[:1], False)),
        (pack, UnitKey(MEMBERS, True)),
        (batch, BatchKey(17, 1, (UnitKey(MEMBERS, True), UnitKey(MEMBERS[:1], True)))),
        (("batch", 0, 0, *SAMPLES), BatchKey(0, 0, tuple(UnitKey((member,), False) for member in MEMBERS))),
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
    with pytest.raises(ConfigError, match=r"is not a restore key.*expected the __restore_key__ of a sample"):
        read_key(key)


def test_a_fault_within_a_long_key_is_named() -> None:
    key = ("batch", 0, 0, *[("a1", 0, index, 0) for index in range(100)], ("a1", 0, 0.5, 0))
    with pytest.raises(
        ConfigError, match=r"\.\.\. is not a restore key, because of \('a1', 0, 0\.5, 0\) in it"
    ) as raised:
        read_key(key)
    assert len(str(raised.value)) < 600
