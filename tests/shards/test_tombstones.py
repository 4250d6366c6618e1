"""What a list of forgotten samples knows of a shard, and how its lines are written."""

import json
from pathlib import Path
from unittest import mock

import pytest

from bridge_data.shards.tombstones import ShardStamp, ShardTombstones, Tombstones, TombstoneVersion, digest_of

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


@pytest.mark.parametrize("digest", ["{}", "same", None])
def test_each_of_many_shards_of_one_size_is_asked_once(tmp_path: Path, digest: str | None) -> None:
    names = [f"{number}.tar" for number in range(2000)]
    stamps = {name: ShardStamp(1, 7, digest and "2:" + digest.format(name)) for name in names}
    forgetting = {name: ShardTombstones(stamps[name], ((3, "3"),)) for name in names[::20]}
    for name in forgetting:
        (tmp_path / name).write_text("x")
    found = Tombstones(tmp_path / "list", tmp_path, (TombstoneVersion(1, "2026-01-01", "", "forget", forgetting, ""),))
    stamped, read = mock.Mock(side_effect=stamps.__getitem__), mock.Mock(side_effect=str.encode)
    now = found.names_now(stamps, stamped, read, lambda path, name, position: False, are_tars=True)
    assert now == {name: [name] for name in forgetting}
    for asked in (stamped, read):
        assert len({*map(str, asked.mock_calls)}) == len(asked.mock_calls)
    assert read.called is (digest != "{}")
