"""Keys of members are those that their readers give."""

from pathlib import Path

import pytest

from bridge_data.errors import DatasetError
from bridge_data.prepare.member_keys import ShardKeys
from tests.shards.joins import dataset, narrowed


@pytest.fixture(params=["index.bridge", "index.sqlite"])
def keys(request: pytest.FixtureRequest, tmp_path: Path) -> ShardKeys:
    """Those of a split that turns the shards round, and leaves a sample out, by one index or the other."""
    dataset(tmp_path, [["a/1", "2"], ["3", "4", "5"]])
    if request.param == "index.sqlite":
        (tmp_path / ".nv-meta" / "index.bridge").unlink()
    shards = narrowed(tmp_path, split_parts={"train": ["1.tar", "0.tar"]}, exclude=["1.tar/4"])
    assert (shards.index is None) == (request.param == "index.sqlite")
    return ShardKeys.open(shards)


def test_keys_are_those_of_the_samples_in_their_order(keys: ShardKeys) -> None:
    assert [keys.of_shard(shard) for shard in range(2)] == [["3", "5"], ["a/1", "2"]]
    assert [keys.key(index) for index in range(4)] == ["1.tar/3", "1.tar/5", "0.tar/a/1", "0.tar/2"]


def test_a_data_set_without_index_of_keys_names_the_command(tmp_path: Path) -> None:
    dataset(tmp_path, [["1"]])
    for name in ("index.bridge", "index.sqlite"):
        (tmp_path / ".nv-meta" / name).unlink()
    with pytest.raises(DatasetError, match=r"no index of its keys; run `bridge-data prepare .* --tar-index-only`"):
        ShardKeys.open(narrowed(tmp_path))


def test_an_index_of_other_data_is_refused(tmp_path: Path) -> None:
    dataset(tmp_path / "a", [["1", "2"]])
    dataset(tmp_path / "b", [["1"]])
    (tmp_path / "a" / ".nv-meta" / "index.bridge").unlink()
    (tmp_path / "b" / ".nv-meta" / "index.sqlite").rename(tmp_path / "a" / ".nv-meta" / "index.sqlite")
    with pytest.raises(DatasetError, match=r"the index knows 1 samples in 0.tar, but the metadata 2; run"):
        ShardKeys.open(narrowed(tmp_path / "a")).of_shard(0)
    (tmp_path / "a" / ".nv-meta" / "index.sqlite").write_bytes(b"x" * 5000)
    with pytest.raises(DatasetError, match=r"index.sqlite: cannot be read: file is not a database; run"):
        ShardKeys.open(narrowed(tmp_path / "a")).of_shard(0)
