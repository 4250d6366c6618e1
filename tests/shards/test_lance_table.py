"""Rows of Lance data sets: the same values as Lance reads, of the version that was opened; damage is told."""

import json
import pickle
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bridge_data import TextSample, WorkerConfig, get_savable_loader, get_train_dataset, prepare_metadataset
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plan import load_plan
from bridge_data.prepare.tombstone_writing import forget_samples
from bridge_data.shards.lance_table import LanceTable
from bridge_data.shards.table_columns import columns_of
from bridge_data.storage import Version
from tests.decode.pictures import encoded, picture
from tests.plan.joins import joined, own
from tests.shards.test_parquet_table import mixed
from tests.tables import opened, read, table_of

lance = pytest.importorskip("lance")


def write(path: Path, table: pa.Table, *, per_fragment: int = 40, **options: Any) -> Path:
    lance.write_dataset(table, path, max_rows_per_file=per_fragment, **options)
    return path


def texts(*numbers: int) -> pa.Table:
    return table_of({"text": [f"text {number}" for number in numbers], "__key__": [f"k{n}" for n in numbers]})


def compare(path: Path, table: pa.Table) -> None:
    found = LanceTable(str(path))
    assert sum(found.counts) == len(table)
    chosen, first = random.Random(1), 0
    for group, count in enumerate(found.counts):
        for column in columns_of(found.schema, str(path)):
            begin = chosen.randrange(count)
            end = min(count, begin + chosen.randrange(1, 40))
            wanted = table[column.name].slice(first + begin, end - begin).to_pylist()
            if column.is_media:
                wanted = [value and value[column.field] for value in wanted]
            assert found.values(column, group, begin, end) == wanted, (column, group, begin, end)
            assert found.column_bytes(group, column) >= 0
        first += count


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_rows_are_those_that_lance_reads(tmp_path: Path, version: str) -> None:
    table = mixed().slice(0, 500)
    table = table.append_column("vector", pa.array([[n, n + 1] for n in range(500)], pa.list_(pa.float32(), 2)))
    write(tmp_path / "a.lance", table, data_storage_version=version, per_fragment=130)
    compare(tmp_path / "a.lance", lance.dataset(tmp_path / "a.lance").to_table())


def test_deleted_rows_are_not_there(tmp_path: Path) -> None:
    path = write(tmp_path / "a.lance", texts(*range(100)))
    lance.dataset(path).delete("text like '%7' or text like '%0'")
    assert read(opened(path)) == [f"text {n}" for n in range(100) if n % 10 not in (0, 7)]


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
    source = opened(path)
    assert source.records.part_names(0) == ["image.jpg", "big.jpg", "none"]
    samples = [source.records.reader().read(index).parts for index in range(6)]
    assert [sample["image.jpg"] for sample in samples] == [sample["big.jpg"] for sample in samples] == pictures
    assert [sample.get("none") for sample in samples] == [None, "b", None, "d", "e", None]
    assert source.records.sample_bytes is not None and source.records.sample_bytes > 1.9 * len(pictures[0])


def test_a_version_stays_the_one_that_was_opened(tmp_path: Path) -> None:
    path = write(tmp_path / "a.lance", texts(*range(90)))
    source = opened(path)
    sent = pickle.dumps(source.records)
    assert read(source)[:2] == ["text 0", "text 1"]
    write(path, texts(*range(90, 120)), mode="append")
    lance.dataset(path).delete("text = 'text 3'")
    assert read(source) == [f"text {n}" for n in range(90)]
    reader = pickle.loads(sent).reader()
    assert [reader.read(n).parts["text"] for n in (3, 89)] == ["text 3", "text 89"]
    assert opened(path).num_samples == 119
    assert opened(path).fingerprint != source.fingerprint
    write(path, texts(5, 6), mode="overwrite")
    assert read(source)[3] == "text 3"


def test_an_index_does_not_change_the_data(tmp_path: Path) -> None:
    path = write(tmp_path / "a.lance", texts(*range(90)))
    before = opened(path)
    lance.dataset(path).create_scalar_index("text", "BTREE")
    assert lance.dataset(path).version > 1
    assert opened(path).fingerprint == before.fingerprint


def test_a_data_set_that_is_replaced_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "a.lance", texts(*range(90)))
    sent, used = pickle.dumps(opened(path).records), opened(path).records.reader()
    used.read(0)
    shutil.rmtree(path)
    write(path, texts(*range(90, 180)))
    with pytest.raises(DatasetError, match=r"a\.lance: was replaced while it was in use"):
        pickle.loads(sent).reader().read(5)
    with pytest.raises(DatasetError, match=r"a\.lance: fragment 2, column 'text': cannot be read"):
        used.read(85)
    with pytest.raises(DatasetError, match=r"a\.lance: cannot be opened as a Lance data set.*not found"):
        LanceTable(str(path), Version(1, "7-0123"))


@pytest.mark.parametrize("part", ["data", "_versions"])
def test_damaged_files_are_told_or_read_right(tmp_path: Path, part: str) -> None:
    path = write(tmp_path / "a.lance", texts(*range(60)))
    right = read(opened(path))
    file = next((path / part).glob("*.lance" if part == "data" else "*.manifest"))
    content = file.read_bytes()
    for number in range(0, len(content), max(1, len(content) // 60)):
        for damaged in (content[:number], content[:number] + bytes([content[number] ^ 255]) + content[number + 1 :]):
            file.write_bytes(damaged)
            try:
                found = read(opened(path))
            except DatasetError as error:
                assert str(path) in str(error)
            except ConfigError:
                continue
            else:
                assert len(found) == len(right)


def test_another_folder_and_a_store_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.lance").mkdir()
    with pytest.raises(DatasetError, match=r"a\.lance: cannot be opened as a Lance data set"):
        load_plan(tmp_path / "a.lance")
    with pytest.raises(ConfigError, match=r"b\.lance: there are no files"):
        load_plan(tmp_path / "b.lance")
    with pytest.raises(ConfigError, match=r"s3://bucket/a\.lance: Lance data sets are read from disks only"):
        LanceTable("s3://bucket/a.lance")


def test_without_its_package_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.lance", texts(1))
    monkeypatch.setitem(sys.modules, "lance", None)
    with pytest.raises(ConfigError, match=r'a\.lance: needs pylance.*pip install "bridge-data\[lance\]"'):
        load_plan(path)


def test_several_by_a_pattern_with_a_config_beside_them(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.lance", texts(*range(10 * number, 10 * number + 10)))
    (tmp_path / "fields.yaml").write_text(
        "sample_type: {__module__: megatron.energon, __class__: TextSample}\nfield_map: {text: text}\n"
    )
    head = "__module__: megatron.energon\n__class__: MetadatasetV2\n"
    (tmp_path / "m.yaml").write_text(
        f"{head}splits: {{train: {{path: '[0-2].lance', dataset_config: fields.yaml, subset: {{range: [5, 25]}}}}}}\n"
    )
    source = opened(tmp_path / "m.yaml")
    assert (source.num_samples, source.sample_class) == (20, TextSample)
    assert source.records.reader().read(7).full_key == "1.lance/k12"


def test_rows_are_chosen_forgotten_and_joined_by_their_keys(tmp_path: Path) -> None:
    path = write(tmp_path / "a.lance", texts(*range(90)))
    assert read(opened(path, where="text like '%3' and __key__ != 'a.lance/k23'"))[:3] == [
        "text 3",
        "text 13",
        "text 33",
    ]
    forget_samples(path, ["a.lance/k7", "k8"], "asked for")
    assert (tmp_path / "_forgotten.bridge").is_file()
    assert read_all(path, 0) == sorted(f"text {n}" for n in range(90) if n not in (7, 8))
    (tmp_path / "_forgotten.bridge").unlink()
    write(tmp_path / "b.lance", texts(5, 3, 80))
    fields = {"sample_type": "TextSample", "field_map": {"text": "text"}}
    members = {"left": {"path": "b.lance", **fields}, "right": {"path": "a.lance", **fields}}
    prepare_metadataset(joined(tmp_path / "m.yaml", members, own("Both")))
    (source,) = load_plan(tmp_path / "m.yaml", trusted_modules=["tests"]).sources
    reader = source.records.reader()
    keys = [[member.key for member in reader.read(row).members] for row in range(3)]  # type: ignore[attr-defined]
    assert keys == [["k5", "k5"], ["k3", "k3"], ["k80", "k80"]]


def loader_of(path: Path, num_workers: int) -> Any:
    config = WorkerConfig(rank=0, world_size=1, num_workers=num_workers, num_lanes=4)
    settings: dict[str, Any] = {"batch_size": 10, "shuffle_buffer_size": 20, "max_samples_per_sequence": 10}
    fields: dict[str, Any] = {"sample_type": TextSample, "field_map": {"text": "text"}}
    return get_savable_loader(get_train_dataset(path, worker_config=config, repeat=False, **settings, **fields))


def read_all(path: Path, num_workers: int) -> list[str]:
    with loader_of(path, num_workers) as loader:
        return sorted(text for batch in loader for text in batch.text)


@pytest.mark.processes
def test_a_job_resumes_and_each_row_comes_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a.lance", texts(*range(200)))
    with loader_of(path, 2) as first:
        batches = iter(first)
        seen = [text for _ in range(5) for text in next(batches).text]
        state = json.loads(json.dumps(first.save_state_rank()))
        lost = [next(batches).text for _ in range(2)]
    with loader_of(path, 0) as second:
        second.restore_state_rank(state)
        again = [batch.text for batch in second]
    assert again[:2] == lost
    assert sorted(seen + [text for batch in again for text in batch]) == sorted(f"text {n}" for n in range(200))
