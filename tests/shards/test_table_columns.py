"""What is decoded at once of a table, and how large its blocks are."""

import logging
from pathlib import Path

import pytest

from bridge_data.errors import ConfigError
from bridge_data.shards import table_columns
from bridge_data.shards.blocks import OVERHEAD_BYTES, READ_BYTES
from bridge_data.shards.table_columns import MAX_HELD_BYTES, MAX_READ_BYTES, block_bytes
from bridge_data.shards.table_records import TableRecords, open_records
from bridge_data.storage import location
from tests.tables import table_of, write_parquet


def records_of(folder: Path, name: str) -> TableRecords:
    return open_records(location(folder), [(name, str(folder / name))], "train", list)


def test_blocks_of_parquet_are_as_large_as_can_be_held_and_no_larger_than_pages(tmp_path: Path) -> None:
    texts = table_of({"text": [f"{number:0500d}" for number in range(20_000)]})
    write_parquet(tmp_path / "a.parquet", texts, per_group=20_000)
    write_parquet(tmp_path / "b.parquet", table_of({"jpg": [bytes(20_000)] * 200}), per_group=200)
    assert 170_000 < records_of(tmp_path, "a.parquet").read_bytes < READ_BYTES
    assert records_of(tmp_path, "b.parquet").read_bytes == READ_BYTES
    for sample_bytes in (10, 204, 1000, 16_000):
        num_samples = block_bytes(1 << 24, sample_bytes) / sample_bytes
        assert 0.99 < num_samples * (sample_bytes + OVERHEAD_BYTES) / MAX_HELD_BYTES < 1.01
    assert block_bytes(1 << 24, 50_000) == MAX_READ_BYTES


def test_what_must_be_decoded_at_once_is_told_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    table = table_of({"tokens": [list(range(100))] * 2000})
    write_parquet(tmp_path / "a.parquet", table, per_group=2000, use_dictionary=False)
    monkeypatch.setattr(table_columns, "SLOW_UNIT_BYTES", 1 << 18)
    with caplog.at_level(logging.WARNING, "bridge_data"):
        records_of(tmp_path, "a.parquet")
        records_of(tmp_path, "a.parquet")
    (record,) = caplog.records
    assert "row group 0, column 'tokens': 1 MiB are decoded at once for each block" in record.getMessage()
    monkeypatch.setattr(table_columns, "MAX_UNIT_BYTES", 1 << 18)
    with pytest.raises(
        ConfigError,
        match=r"column 'tokens': 1 MiB are decoded at once.*row groups of up to .* MiB, or `bridge-data convert` it",
    ):
        records_of(tmp_path, "a.parquet")
