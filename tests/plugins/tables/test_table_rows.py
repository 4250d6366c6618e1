"""Tables as a source: rows are those that are read in place, and damage breaks no others."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plugins.convert.source_kinds import open_source
from bridge_data.plugins.tables import arrow_table, parquet_table
from bridge_data.prepare.record_source import BrokenRecord, RecordSource, SourceConfig, SourceRecord
from tests.plugins.convert.originals import NUM, caption, captioned_mds, convert, picture, write_mds, write_parquet
from tests.tables import opened

THEIRS = Path(__file__).parent / "mds_written_by_mosaicml"


def rows(source: RecordSource, numbers: Sequence[int]) -> list[dict[str, object]]:
    read = list(source.read(numbers))
    assert all(isinstance(record, SourceRecord) for record in read), read
    return [dict(record.values) for record in read if isinstance(record, SourceRecord)]


def test_records_are_the_samples_as_they_are_read_in_place_with_arrays_as_lists_in_any_order(tmp_path: Path) -> None:
    """Every encoding as MosaicML's own writer (mosaicml-streaming 0.13.0) has it."""
    reader = opened(THEIRS).records.reader()
    for number, values in enumerate(rows(open_source(THEIRS), range(3))):
        parts = {name.partition(".")[0]: value for name, value in reader.read(number).parts.items()}
        arrays = [name for name, value in parts.items() if isinstance(value, np.ndarray)]
        assert arrays == ["a", "d"]
        assert values == parts | {name: parts[name].tolist() for name in arrays}
    source = open_source(captioned_mds(tmp_path))
    assert [(block.start, block.stop) for block in source.blocks()] == [(0, 10), (10, 20), (20, NUM)]
    for numbers in ([23, 0, 11], [13, 11, 12]):
        expected = [{"caption": caption(n), "image": picture(n), "number": n - 5} for n in numbers]
        assert rows(source, numbers) == expected


def test_a_damaged_sample_is_broken_and_no_other(tmp_path: Path) -> None:
    paths = {
        19: captioned_mds(tmp_path / "mds") / "shard.00001.mds",
        8: write_parquet(tmp_path / "a.parquet", compression="none"),
    }
    for number, path in paths.items():
        path.write_bytes(path.read_bytes().replace(caption(number).encode(), b"\xff" * len(caption(number).encode())))
        source = open_source(path.parent if number == 19 else path)
        read = [record for block in source.blocks() for record in source.read(block)]
        assert [record.number for record in read if isinstance(record, BrokenRecord)] == [number]
        assert read[number].where == f"{path.name}, row {number - 10 * (number == 19)}"


def test_a_damaged_file_is_refused_as_in_place_and_can_be_left_out(tmp_path: Path) -> None:
    source = captioned_mds(tmp_path / "mds")
    path = source / "shard.00001.mds"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(DatasetError, match=r"shard\.00001\.mds: cannot be read as an MDS shard"):
        open_source(source)
    result = convert(source, tmp_path / "out", "--include", "*[02].mds")
    assert result.exit_code == 0 and f"MDS shards, {NUM - 10} records" in result.output
    path.write_bytes((captioned_mds(tmp_path / "b", 3) / "shard.00000.mds").read_bytes())
    with pytest.raises(DatasetError, match=r"has 3 samples, but index\.json says 10"):
        open_source(source)


def test_a_large_group_is_decoded_once_if_its_rows_are_read_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with lists, for which reading in place would decode all of it for each block."""
    values = [
        {"text": f"{n} " * 9, "list": [n] * (n % 4), "media": {"bytes": b"%d" % n, "path": None}} for n in range(700)
    ]
    table = pa.Table.from_pylist(values)
    pq.write_table(table, tmp_path / "a.parquet")
    with pa.OSFile(str(tmp_path / "a.feather"), "wb") as sink:
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_file(sink, table.schema, options=options) as writer:
            writer.write_table(table)
    monkeypatch.setattr(parquet_table, "BATCH_BYTES", 3000)
    num_read = []

    class Counting(parquet_table._RowStream):
        def __init__(self, *arguments: object) -> None:
            num_read.append("stream")
            super().__init__(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(parquet_table, "_RowStream", Counting)
    read = arrow_table.ArrowTable._read
    monkeypatch.setattr(arrow_table.ArrowTable, "_read", lambda *given: num_read.append("batch") or read(*given))
    for name, counted in (("a.parquet", ["stream"]), ("a.feather", ["batch"])):
        source = open_source(tmp_path / name)
        num_read.clear()
        assert [row for block in source.blocks() for row in rows(source, block)] == values
        assert num_read == counted
        block = list(source.blocks())[2]
        assert rows(source, block[::-1]) == values[block.start : block.stop][::-1]  # back, and in another order


def test_files_are_chosen_before_splits_are_told_apart(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write_mds(tmp_path / split, [{"txt": split.encode()}], {"txt": "str"})
    with pytest.raises(ConfigError, match=r"holds the splits train, val; convert each by itself, such as .*/train"):
        open_source(tmp_path, SourceConfig(format="mds"))
    with pytest.raises(ConfigError, match=r"holds no files that match --include other\*"):
        open_source(tmp_path, SourceConfig(format="mds", include="other*"))
    (row,) = rows(open_source(tmp_path, SourceConfig(format="mds", include="val*")), [0])
    assert row == {"txt": "val"}


def test_rows_without_columns_are_empty_and_columns_that_may_not_be_null_are_the_same(tmp_path: Path) -> None:
    for number, nullable in enumerate((True, False)):
        table = pa.table({"a": [number]}, pa.schema([pa.field("a", pa.int64(), nullable)]))
        pq.write_table(table, tmp_path / f"{number}.parquet")
    assert rows(open_source(tmp_path), range(2)) == [{"a": 0}, {"a": 1}]
    assert rows(open_source(tmp_path, SourceConfig(dropped=frozenset({"a"}))), range(2)) == [{}, {}]
