from pathlib import Path

import pyarrow as pa
import pytest

from bridge_data.errors import DatasetError
from bridge_data.plan.table_files import open_keys
from bridge_data.shards import table_records
from tests.tables import save_to_disk, table_of, write_parquet


@pytest.mark.parametrize("form", ["parquet", "saved"])
def test_runs_are_the_keys_of_any_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """A run ends with its group, its file or `KEYS_AT_ONCE`."""
    monkeypatch.setattr(table_records, "KEYS_AT_ONCE", 3)
    keys = [f"ä{number}" for number in range(30)]
    table = table_of({"__key__": keys, "n": list(range(30))})
    if form == "saved":
        save_to_disk(tmp_path / "t", table, per_batch=7, num_files=2)
    else:
        for number, first in enumerate((0, 15)):
            write_parquet(tmp_path / "t" / f"{number}.parquet", table.slice(first, 15), per_group=7)
    records = open_keys(str(tmp_path / "t"), "train")
    for first, end in ((0, 30), (0, 0), (4, 5), (6, 8), (13, 17), (14, 30)):
        runs = list(records.keys(range(first, end)))
        assert [key for _, run in runs for key in run] == keys[first:end]
        assert all(run == keys[start : start + len(run)] and len(run) <= 3 for start, run in runs)


def test_a_row_without_a_key_is_named(tmp_path: Path) -> None:
    table = table_of({"__key__": pa.array(["a", "b", "c", None], pa.string())})
    records = open_keys(str(write_parquet(tmp_path / "t.parquet", table, per_group=2)), "train")
    assert [*records.keys(range(2))] == [(0, ["a", "b"])]
    with pytest.raises(DatasetError, match=r"t.parquet: row 3 has no __key__"):
        list(records.keys(range(4)))
