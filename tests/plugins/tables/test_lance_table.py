"""Rows of Lance data sets: the same values as Lance reads, of the version that was opened; damage is told."""

import pickle
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plan import load_plan
from bridge_data.plugins.tables.lance_table import LanceTable
from bridge_data.storage import Version
from tests.data.rows import compare, mixed
from tests.decode.pictures import encoded, picture
from tests.tables import opened, read, table_of

lance = pytest.importorskip("lance")


def write(path: Path, table: pa.Table, *, per_fragment: int = 40, **options: Any) -> Path:
    lance.write_dataset(table, path, max_rows_per_file=per_fragment, **options)
    return path


def texts(*numbers: int) -> pa.Table:
    return table_of({"text": [f"text {number}" for number in numbers], "__key__": [f"k{n}" for n in numbers]})


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_rows_are_those_that_lance_reads(tmp_path: Path, version: str) -> None:
    vectors = pa.array([[n, n + 1] for n in range(500)], pa.list_(pa.float32(), 2))
    table = mixed(500).append_column("vector", vectors)
    write(tmp_path / "a.lance", table, data_storage_version=version, per_fragment=130)
    compare(tmp_path / "a.lance", lance.dataset(tmp_path / "a.lance").to_table())


def test_media_are_their_bytes_in_structs_and_in_blobs(tmp_path: Path) -> None:
    pictures = [encoded(picture(seed=number), "PNG") for number in range(6)]
    blob = pa.field("big", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    columns = {
        "image": pa.array([{"bytes": one, "path": None} for one in pictures]),
        "big": pa.array(pictures, pa.large_binary()),
        "none": pa.array([None, "b", None, "d", "e", None]),
    }
    schema = pa.schema([pa.field("image", columns["image"].type), blob, pa.field("none", pa.string())])
    path = write(tmp_path / "a.lance", pa.table(columns, schema=schema), per_fragment=4, data_storage_version="2.1")
    records = opened(path).records
    assert records.reader().part_names(0) == ["image.jpg", "big.jpg", "none"]
    samples = [records.reader().read(index).parts for index in range(6)]
    assert [sample["image.jpg"] for sample in samples] == [sample["big.jpg"] for sample in samples] == pictures
    assert [sample.get("none") for sample in samples] == [None, "b", None, "d", "e", None]
    assert records.sample_bytes is not None and records.sample_bytes > 1.9 * len(pictures[0])


def test_a_version_stays_the_one_that_was_opened(tmp_path: Path) -> None:
    path = write(tmp_path / "a.lance", texts(*range(90)))
    source = opened(path)
    lance.dataset(path).create_scalar_index("text", "BTREE")  # which does not change the data
    assert lance.dataset(path).version > 1 and opened(path).fingerprint == source.fingerprint
    sent = pickle.dumps(source.records)
    write(path, texts(*range(90, 120)), mode="append")
    lance.dataset(path).delete("text like '%3'")
    assert read(source) == [f"text {n}" for n in range(90)]
    assert pickle.loads(sent).reader().read(3).parts["text"] == "text 3"
    assert read(opened(path)) == [f"text {n}" for n in range(120) if n % 10 != 3]
    assert opened(path).fingerprint != source.fingerprint
    write(path, texts(5, 6), mode="overwrite")
    assert read(source)[3] == "text 3"


@pytest.mark.parametrize("part", ["data", "_versions"])
def test_damaged_files_are_told_or_read_right(tmp_path: Path, part: str) -> None:
    path = write(tmp_path / "a.lance", texts(*range(60)))
    right = read(opened(path))
    file = next((path / part).glob("*.lance" if part == "data" else "*.manifest"))
    content = file.read_bytes()
    for number in range(0, len(content), max(1, len(content) // 40)):
        for damaged in (content[:number], content[:number] + bytes([content[number] ^ 255]) + content[number + 1 :]):
            file.write_bytes(damaged)
            try:
                assert len(read(opened(path))) == len(right)
            except (DatasetError, ConfigError) as error:
                assert str(path) in str(error) or isinstance(error, ConfigError)


def test_what_cannot_be_opened_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.lance").mkdir()
    with pytest.raises(DatasetError, match=r"a\.lance: cannot be opened as a Lance data set"):
        load_plan(tmp_path / "a.lance")
    path = write(tmp_path / "b.lance", texts(1))
    with pytest.raises(DatasetError, match=r"b\.lance: cannot be opened as a Lance data set.*not found"):
        LanceTable(str(path), Version(1, "7-0123"))
    with pytest.raises(ConfigError, match=r"c\.lance: there are no files"):
        load_plan(tmp_path / "c.lance")
    with pytest.raises(ConfigError, match=r"s3://bucket/a\.lance: Lance data sets are read from disks only"):
        LanceTable("s3://bucket/a.lance")
    monkeypatch.setitem(sys.modules, "lance", None)
    with pytest.raises(ConfigError, match=r"b\.lance: .*pip install pylance"):
        load_plan(path)
