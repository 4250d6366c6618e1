"""Columns of one's own: read in batches, only those that are wanted, from a path or a store."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bridge_data.errors import ConfigError
from bridge_data.shards.where.own_columns import OwnColumns
from bridge_data.shards.where.sample_columns import ROWS_AT_ONCE
from tests.object_store import Bucket

SIZE = ROWS_AT_ONCE + 10


def write(path: Path) -> Path:
    table = {"key": list(map(str, range(SIZE))), "score": list(range(SIZE)), "other": [b"x"] * SIZE}
    pq.write_table(pa.table(table), path)
    return path


def test_batches_are_bounded_and_have_the_wanted_columns(tmp_path: Path) -> None:
    own = OwnColumns(str(write(tmp_path / "own.parquet")))
    assert list(own.types()) == ["key", "score", "other"]
    batches = list(own.batches(["key", "score"]))
    assert [batch.num_rows for batch in batches] == [ROWS_AT_ONCE, 10]
    assert all(batch.schema.names == ["key", "score"] for batch in batches)
    assert [score for batch in batches for score in batch.column("score").to_pylist()] == list(range(SIZE))


def test_two_columns_with_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.table([pa.array(["a"]), pa.array([1]), pa.array([2])], names=["key", "score", "score"])
    pq.write_table(table, tmp_path / "own.parquet")
    with pytest.raises(ConfigError, match=r"own\.parquet: has several columns 'score': rename all but one"):
        OwnColumns(str(tmp_path / "own.parquet")).types()


def test_another_content_is_another_version(tmp_path: Path) -> None:
    path = write(tmp_path / "own.parquet")
    before = OwnColumns(str(path)).version
    assert OwnColumns(str(path)).version == before
    pq.write_table(pa.table({"key": ["a"], "score": [1]}), path)
    assert OwnColumns(str(path)).version != before


def test_a_file_in_a_store_is_read_and_a_missing_one_named(bucket: Bucket) -> None:
    write(bucket.folder / "own.parquet")
    own = OwnColumns(f"{bucket.url}/own.parquet")
    assert sum(batch.num_rows for batch in own.batches(["key"])) == SIZE
    with pytest.raises(ConfigError, match=rf"columns: {bucket.url}/none.parquet: no such file"):
        OwnColumns(f"{bucket.url}/none.parquet")
