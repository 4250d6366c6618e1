"""Tables as records: numbers, keys, blocks, identity; files that do not fit together."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from bridge_data.errors import ConfigError, DatasetError, SampleError
from bridge_data.shards.blocks import BlockBudget, BlockCache, ChunkCut
from bridge_data.shards.sample_lookup import find_sample
from bridge_data.shards.table_records import TableRecords, open_records
from bridge_data.storage import location
from tests.tables import IMAGE, save_to_disk, table_of, write_parquet, write_text_table


def records_of(folder: Path, *names: str) -> TableRecords:
    return open_records(location(folder), [(name, str(folder / name)) for name in names], "train", list)


@pytest.fixture
def two_files(tmp_path: Path) -> TableRecords:
    write_text_table(tmp_path / "a.parquet", 130, per_group=50)
    write_text_table(tmp_path / "b.parquet", 70, lambda number: str(number + 130), per_group=50)
    return records_of(tmp_path, "a.parquet", "b.parquet")


def test_samples_are_the_rows_of_all_files(two_files: TableRecords) -> None:
    assert (two_files.counts, two_files.num_samples) == ([50, 50, 30, 50, 20], 200)
    reader = pickle.loads(pickle.dumps(two_files.reader()))
    for index in (0, 49, 50, 129, 130, 199):
        raw = reader.read(index)
        assert raw.parts == {"text": str(index)}
        assert raw.full_key == two_files.describe(index) == f"{'ab'[index // 130]}.parquet/{index % 130}"
    for index in (-1, 200):
        with pytest.raises(IndexError):
            reader.read(index)


@pytest.mark.parametrize("parts", [None, frozenset({"text"}), frozenset({"none"})])
def test_blocks_have_the_samples_that_single_reads_have(two_files: TableRecords, parts: Any) -> None:
    single = two_files.reader()
    blocks = BlockCache(two_files.reader(), ChunkCut(30, 8), parts, BlockBudget(1 << 20))
    for index in reversed(range(200)):
        assert blocks.read(index) == single.read(index, parts)


def test_a_column_of_keys_has_the_keys(tmp_path: Path) -> None:
    table = table_of({"__key__": [f"sample {number}" for number in range(20)], "text": list(map(str, range(20)))})
    write_parquet(tmp_path / "a.parquet", table)
    records = records_of(tmp_path, "a.parquet")
    assert records.reader().read(7).full_key == "a.parquet/sample 7"
    assert [found.index for found in find_sample([records], "a.parquet/sample 7")] == [7]
    assert [found.index for found in find_sample([records], "sample 7")] == [7]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_columns_with_dots_are_not_fields_of_structs(tmp_path: Path, name: str) -> None:
    media = [{"bytes": b"picture %d" % number, "path": None} for number in range(9)]
    columns = {"meta.n": list(range(9)), "meta": [{"n": -number} for number in range(9)]}
    columns |= {"image.bytes": [b"other"] * 9, "image": media, "image.path": ["x"] * 9}
    table = table_of({**columns, "text": ["a"] * 9, "image\0": list(range(9))})
    path = write_parquet(tmp_path / name, table) if name == "a.parquet" else tmp_path / "saved" / name
    if name == "a.arrow":
        (save_to_disk(tmp_path / "saved", table) / "data-00000-of-00001.arrow").rename(path)
    parts = records_of(path.parent, name).reader().read(3).parts
    assert (parts["meta.n"], parts["meta"], parts["image"], parts["image.bytes"]) == (
        3,
        {"n": -3},
        media[3]["bytes"],
        b"other",
    )


def test_samples_are_found_by_file_and_row(two_files: TableRecords) -> None:
    assert [found.index for found in find_sample([two_files], "b.parquet/3")] == [133]
    with pytest.raises(ConfigError, match="is the key of 2 samples"):
        find_sample([two_files], "3")
    with pytest.raises(ConfigError, match="no sample has the key"):
        find_sample([two_files], "b.parquet/70")


def test_the_identity_differs_where_the_rows_do_and_not_where_they_are(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        write_text_table(tmp_path / folder / "a.parquet", 100)
        write_text_table(tmp_path / folder / "saved", 100)
    saved = [f"saved/data-0000{number}-of-00002.arrow" for number in range(2)]
    for names in (["a.parquet"], saved):
        one, two = (records_of(tmp_path / folder, *names).identity() for folder in ("one", "two"))
        assert one == two
    write_text_table(tmp_path / "two" / "a.parquet", 101)
    write_text_table(tmp_path / "two" / "saved", 100, lambda number: str(number) * 2)
    for names in (["a.parquet"], saved):
        one, two = (records_of(tmp_path / folder, *names).identity() for folder in ("one", "two"))
        assert one != two
    assert records_of(tmp_path / "one", *saved).identity() != records_of(tmp_path / "one", *saved[::-1]).identity()


def test_missing_values_are_parts_that_a_sample_does_not_have(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", table_of({"text": ["a", None, "c"], "n": [None, 1, 2]}))
    reader = records_of(tmp_path, "a.parquet").reader()
    assert [reader.read(index).parts for index in range(3)] == [{"text": "a"}, {"n": 1}, {"text": "c", "n": 2}]


def test_media_that_are_elsewhere_are_an_error_of_the_sample(tmp_path: Path) -> None:
    image = [{"bytes": b"content", "path": "a.png"}, {"bytes": None, "path": "b.png"}, None]
    table = table_of({"image": image}, {"image": IMAGE})
    write_parquet(tmp_path / "a.parquet", table)
    save_to_disk(tmp_path, table)
    for name in ("a.parquet", "data-00000-of-00001.arrow"):
        reader = BlockCache(records_of(tmp_path, name).reader(), ChunkCut(3, 3), None, BlockBudget(1 << 20))
        assert reader.read(0).parts == {"image.jpg": b"content"}
        with pytest.raises(SampleError, match=r"column 'image' has only the path of a file"):
            reader.read(1)
        assert reader.read(2).parts == {}


def test_files_with_other_columns_are_refused(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", table_of({"text": ["a"], "n": [1]}))
    write_parquet(tmp_path / "b.parquet", table_of({"text": ["a"], "n": ["1"]}))
    write_parquet(tmp_path / "c.parquet", table_of({"text": ["a"]}))
    with pytest.raises(DatasetError, match=r"b\.parquet: its column 'n' has the type string, but in .*a\.parquet"):
        records_of(tmp_path, "a.parquet", "b.parquet")
    with pytest.raises(DatasetError, match=r"c\.parquet: its column 'n' has the type \(it is missing\)"):
        records_of(tmp_path, "a.parquet", "c.parquet")


def test_a_table_without_rows_has_no_samples(tmp_path: Path) -> None:
    write_text_table(tmp_path / "a.parquet", 0)
    write_text_table(tmp_path / "saved", 0)
    assert records_of(tmp_path, "a.parquet").num_samples == 0
    assert records_of(tmp_path, "saved/data-00000-of-00001.arrow").num_samples == 0


def test_digests_are_refused(two_files: TableRecords) -> None:
    with pytest.raises(ConfigError, match="has no digests"):
        two_files.verified()
