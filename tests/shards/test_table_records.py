"""Tables as records: blocks, keys, identity; what is decoded at once; files that do not fit together, and damage."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_data.errors import ConfigError, DatasetError, SampleError
from bridge_data.shards import table_columns
from bridge_data.shards.blocks import OVERHEAD_BYTES, READ_BYTES, BlockBudget, BlockCache, ChunkCut
from bridge_data.shards.table_columns import MAX_HELD_BYTES, MAX_READ_BYTES, block_bytes, columns_of
from bridge_data.shards.table_records import TableRecords, open_records, open_table
from bridge_data.storage import location
from tests.shards.rows import mixed
from tests.tables import IMAGE, save_to_disk, table_of, write_parquet, write_text_table


def records_of(folder: Path, *names: str) -> TableRecords:
    return open_records(location(folder), [(name, str(folder / name)) for name in names], "train", list)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_columns_with_dots_are_not_fields_of_structs(tmp_path: Path, name: str) -> None:
    media = [{"bytes": b"picture %d" % number, "path": None} for number in range(9)]
    columns = {"meta.n": list(range(9)), "meta": [{"n": -number} for number in range(9)]}
    columns |= {"image.bytes": [b"other"] * 9, "image": media, "image.path": ["x"] * 9}
    table = table_of({**columns, "text": ["a"] * 9, "image\0": list(range(9))})
    if name == "a.parquet":
        write_parquet(tmp_path / name, table)
    else:
        (save_to_disk(tmp_path, table) / "data-00000-of-00001.arrow").rename(tmp_path / name)
    parts = records_of(tmp_path, name).reader().read(3).parts
    assert [parts[name] for name in ("meta.n", "meta", "image")] == [3, {"n": -3}, media[3]["bytes"]]
    assert parts["image.bytes"] == b"other"


def test_the_identity_differs_where_the_files_are_in_another_order(tmp_path: Path) -> None:
    write_text_table(tmp_path / "saved", 100)
    names = [f"saved/data-0000{number}-of-00002.arrow" for number in range(2)]
    assert records_of(tmp_path, *names).identity() != records_of(tmp_path, *names[::-1]).identity()
    with pytest.raises(ConfigError, match="has no digests"):
        records_of(tmp_path, *names).verified()


@pytest.mark.parametrize("name", ["a.parquet", "data-00000-of-00001.arrow"])
def test_values_and_media_that_are_missing(tmp_path: Path, name: str) -> None:
    """Are no parts of their sample; of media that are elsewhere it says so."""
    image = [{"bytes": b"content", "path": "a.png"}, {"bytes": None, "path": "b.png"}, None]
    table = table_of({"image": image, "n": [None, 1, None]}, {"image": IMAGE})
    write_parquet(tmp_path / "a.parquet", table)
    save_to_disk(tmp_path, table)
    reader = BlockCache(records_of(tmp_path, name).reader(), ChunkCut(3, 3), None, BlockBudget(1 << 20))
    assert [reader.read(index).parts for index in (0, 2)] == [{"image.jpg": b"content"}, {}]
    with pytest.raises(SampleError, match=r"column 'image' has only the path of a file"):
        reader.read(1)


def test_files_with_other_columns_are_refused_and_without_rows_are_not(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", table_of({"text": ["a"], "n": [1]}))
    write_parquet(tmp_path / "b.parquet", table_of({"text": ["a"], "n": ["1"]}))
    write_parquet(tmp_path / "c.parquet", table_of({"text": ["a"]}))
    for name, told in (("b.parquet", "string, but in .*a.parquet"), ("c.parquet", r"\(it is missing\)")):
        with pytest.raises(DatasetError, match=rf"{name}: its column 'n' has the type {told}"):
            records_of(tmp_path, "a.parquet", name)
    write_text_table(tmp_path / "d.parquet", 0)
    write_text_table(tmp_path / "saved", 0)
    for name in ("d.parquet", "saved/data-00000-of-00001.arrow"):
        assert records_of(tmp_path, name).num_samples == 0


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
    with pytest.raises(ConfigError, match=r"column 'tokens': 1 MiB are decoded at once.*`bridge-data convert` it"):
        records_of(tmp_path, "a.parquet")


WRITERS: dict[str, Callable[[Path], Path]] = {
    "Parquet": lambda folder: write_parquet(folder / "a.parquet", mixed(150), per_group=120),
    "Arrow": lambda folder: save_to_disk(folder, mixed(150)) / "data-00000-of-00001.arrow",
}


@pytest.mark.parametrize("kind", WRITERS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_damage_is_an_error_of_ours_or_changes_nothing_else(
    kind: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = WRITERS[kind](tmp_path_factory.mktemp("damaged"))
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(content[: data.draw(st.sampled_from([len(content), len(content) - 3, len(content) // 2]))])
    try:
        table = open_table(str(file))
        pairs = [
            (group, column) for group in range(len(table.counts)) for column in columns_of(table.schema, str(file))
        ]
    except (DatasetError, ConfigError) as error:
        assert str(file) in str(error)
        return
    for group, column in pairs:
        try:
            table.values(column, group, 0, min(table.counts[group], 50))
        except DatasetError as error:
            assert str(file) in str(error)
