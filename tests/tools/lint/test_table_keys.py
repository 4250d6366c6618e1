"""Keys that several rows of tables have."""

from pathlib import Path

import pyarrow as pa
import pytest

from bridge_data.plan import load_plan
from bridge_data.tools.lint_checks import repeated_table_keys
from tests.tables import save_to_disk, table_of, write_parquet


def table(*keys: object) -> pa.Table:
    return table_of({"__key__": keys, "text": ["a"] * len(keys)})


@pytest.mark.parametrize("saved", [False, True])
def test_rows_are_named_once_whatever_the_sources_have_in_common(tmp_path: Path, saved: bool) -> None:
    rows = table(7, 8, 7, 9, 7)
    path = save_to_disk(tmp_path / "a", rows, per_batch=2) if saved else write_parquet(tmp_path / "a.parquet", rows)
    sources = [load_plan(path, split_part=part).sources[0] for part in ("train", "val")]
    file = "data-00000-of-00001.arrow" if saved else "a.parquet"
    found = [(fault.code, fault.shard, fault.key, fault.cause) for fault in repeated_table_keys(sources)]
    assert found == [
        ("duplicate-key", file, "7", "rows 0 and 2 have it"),
        ("duplicate-key", file, "7", "rows 0 and 4 have it"),
    ]


def test_files_that_share_a_key_are_both_named(tmp_path: Path) -> None:
    write_parquet(tmp_path / "set" / "a.parquet", table("x", "y"))
    write_parquet(tmp_path / "set" / "b.parquet", table("z", "x"))
    (fault,) = repeated_table_keys(load_plan(tmp_path / "set").sources)
    assert (fault.code, fault.shard, fault.key, fault.cause) == ("shared-key", "b.parquet", "x", "a.parquet has it too")


def test_a_row_without_a_key_is_left_to_the_reading_of_samples(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", table("x", None, "x"))
    assert list(repeated_table_keys(load_plan(path).sources)) == []


def test_tables_without_a_column_of_keys_have_none_twice(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", table_of({"text": ["a", "a"]}))
    assert list(repeated_table_keys(load_plan(path).sources)) == []
