"""Keys of members are those that their readers give."""

from pathlib import Path

import pytest

from bridge_data.errors import DatasetError
from bridge_data.plan.table_files import open_keys
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from bridge_data.prepare.member_keys import ShardKeys, keys_of
from bridge_data.shards import Subset
from bridge_data.shards.jsonl_file import open_jsonl
from tests.shards.joins import dataset, narrowed
from tests.tables import table_of, write_parquet


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


@pytest.mark.parametrize("size", [1, 2, 4, 100])
def test_pieces_are_all_samples_in_order(tmp_path: Path, size: int) -> None:
    """Of tars a piece has whole shards, as their keys are read by the shard."""
    table = table_of({"__key__": list("abcdefg")})
    for number, rows in enumerate((table.slice(0, 5), table.slice(5, 0), table.slice(5))):
        write_parquet(tmp_path / "t" / f"{number}.parquet", rows, per_group=2)
    lines = tmp_path / "l.jsonl"
    lines.write_text("{}\n" * 9)
    prepare_jsonl(lines)
    tars = dataset(tmp_path / "s", [["a"], ["b", "c", "d"], ["e"], ["f", "g"]], exclude=["2.tar/e"])
    known = [
        (keys_of(open_keys(str(tmp_path / "t"), "train")), "abcdefg"),
        (keys_of(Subset(open_jsonl(lines, "train"), 2, 9)), "2345678"),
        (keys_of(tars), "abcdfg"),
    ]
    for keys, expected in known:
        pieces = list(keys.pieces(size))
        assert [index for piece in pieces for index in piece] == list(range(len(expected)))
        assert [[*keys.of(piece)] for piece in pieces] == [[expected[index] for index in piece] for piece in pieces]
        assert all(0 < len(piece) <= max(size, 3) for piece in pieces)
        assert expected[1] in keys.key(1)


def test_a_member_without_samples_has_one_empty_piece(tmp_path: Path) -> None:
    empty = write_parquet(tmp_path / "a.parquet", table_of({"__key__": ["a"]}).slice(0, 0))
    for keys in (keys_of(open_keys(str(empty), "train")), keys_of(dataset(tmp_path / "s", [["a"]], ["0.tar/a"]))):
        assert [[*keys.of(piece)] for piece in keys.pieces(10)] == [[]]
