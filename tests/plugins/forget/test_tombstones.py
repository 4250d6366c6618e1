"""What a list of forgotten samples knows of a shard, and how its lines are written."""

import json
from pathlib import Path

import pytest

from bridge_data.plugins.forget.tombstones import ShardStamp, ShardTombstones, Tombstones, TombstoneVersion, digest_of

SHARDS = {
    "new.tar": ShardTombstones(ShardStamp(10240, 7, "2:0a0b0c0d"), ((3, "000003"),)),
    "old.tar": ShardTombstones(ShardStamp(20480, 9, None), ((0, "a"), (8, "b"))),
}


@pytest.mark.parametrize(
    ("one", "other", "agree"),
    [
        ("0a", "0a", True),
        ("0a", "0b", False),
        ("2:0a", "2:0b", False),
        ("2:0a", "2d:0b", True),
        ("2:0a", None, True),
        (None, None, True),
    ],
)
def test_digests_of_the_same_kind_are_compared(one: str | None, other: str | None, agree: bool) -> None:
    first, second = ShardStamp(10, 2, one), ShardStamp(10, 2, other)
    assert first.agrees(second) is second.agrees(first) is agree
    assert not first.agrees(second._replace(num_samples=3)) and not first.agrees(second._replace(num_bytes=11))


def test_a_digest_comes_last_in_the_line_of_a_shard_and_may_be_missing() -> None:
    version = TombstoneVersion(1, "2026-01-01", "why", "forget", SHARDS, "")
    version = TombstoneVersion(1, "2026-01-01", "why", "forget", SHARDS, digest_of(version, ""))
    assert json.loads(version.line())["shards"] == {
        "new.tar": [10240, 7, [[3, "000003"]], "2:0a0b0c0d"],
        "old.tar": [20480, 9, [[0, "a"], [8, "b"]]],
    }
    found = Tombstones.parse(version.line().encode(), Path("list"), Path("data"))
    assert found.versions == (version,)
