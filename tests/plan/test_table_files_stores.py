"""Tables in an object store: their rows, splits and patterns are those of the local copy."""

import json
from pathlib import Path
from typing import Any

import pytest

from bridge_data import TextSample, WorkerConfig, get_savable_loader, get_train_dataset, get_val_dataset
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plan import load_plan
from bridge_data.plan.opening import split_parts
from bridge_data.prepare.tombstone_writing import forget_samples
from bridge_data.storage import RemotePath
from tests.object_store import Bucket
from tests.tables import write_text_table

TEXTS: dict[str, Any] = {"sample_type": TextSample, "field_map": {"text": "text"}}


def write_tables(folder: Path) -> None:
    """Tables of every kind, whose rows are told apart."""
    write_text_table(folder / "one.parquet", 90)
    for name, first in (("train-00000-of-00002", 0), ("train-00001-of-00002", 100), ("validation-00000-of-00001", 200)):
        write_text_table(folder / "hub" / "data" / f"{name}.parquet", 40, lambda row, first=first: str(row + first))
    write_text_table(folder / "saved", 90)
    for part in ("train", "val"):
        write_text_table(folder / "dict" / part, 30)
    (folder / "dict" / "dataset_dict.json").write_text('{"splits": ["train", "val"]}')
    write_text_table(folder / "hub" / ".hidden" / "train.parquet", 5)


def keys_and_texts(path: str, split_part: str = "train") -> list[tuple[str, str]]:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    dataset = get_val_dataset(path, split_part=split_part, worker_config=config, batch_size=None, **TEXTS)
    return [(sample.__key__, sample.text) for sample in get_savable_loader(dataset)]


@pytest.mark.parametrize(
    ("path", "split_part", "num_rows"),
    [
        ("one.parquet", "train", 90),
        ("saved", "train", 90),
        ("dict", "val", 30),
        ("hub/data", "train", 80),
        ("hub/data", "val", 40),
        ("hub/data/train-*.parquet", "train", 80),
        ("hub/**/*.parquet", "train", 120),
        ("hub/data/{train-00000-of-00002,validation-00000-of-00001}.parquet", "train", 80),
        ("*.parquet", "train", 90),
    ],
)
def test_rows_are_those_of_the_local_copy(bucket: Bucket, path: str, split_part: str, num_rows: int) -> None:
    write_tables(bucket.folder)
    found = keys_and_texts(f"{bucket.url}/{path}", split_part)
    assert found == keys_and_texts(str(bucket.folder / path), split_part)
    assert len(found) == num_rows


def test_lists_of_forgotten_samples_are_read_from_every_folder(bucket: Bucket) -> None:
    write_tables(bucket.folder)
    forget_samples(bucket.folder / "hub" / "data", ["train-00001-of-00002.parquet/3"], "asked for")
    forget_samples(bucket.folder / "dict", ["val/data-00000-of-00002.arrow/7"], "asked for")
    for path, split_part, num_rows in (
        ("hub/data", "train", 79),
        ("hub/**/*.parquet", "train", 119),
        ("dict", "val", 29),
    ):
        found = keys_and_texts(f"{bucket.url}/{path}", split_part)
        assert found == keys_and_texts(str(bucket.folder / path), split_part)
        assert len(found) == num_rows
    (bucket.folder / "hub" / "data" / "_forgotten.bridge").write_text("{}")
    with pytest.raises(DatasetError, match=rf"{bucket.url}/hub/data/_forgotten.bridge:1: .* is damaged"):
        load_plan(f"{bucket.url}/hub/data")


def test_split_parts_are_those_of_the_local_copy(bucket: Bucket) -> None:
    write_tables(bucket.folder)
    for name in ("dict", "hub/data"):
        assert list(load_plan(f"{bucket.url}/{name}", split_part="val", training=False).sources)
        assert split_parts(bucket.folder / name) == split_parts(RemotePath(f"{bucket.url}/{name}"))


def test_a_pattern_that_no_object_matches_is_refused(bucket: Bucket) -> None:
    write_tables(bucket.folder)
    with pytest.raises(ConfigError, match=r"hub/none-\*\.parquet: there are no files"):
        load_plan(f"{bucket.url}/hub/none-*.parquet")


@pytest.mark.processes
def test_a_job_resumes_and_each_row_comes_once_an_epoch(bucket: Bucket) -> None:
    write_tables(bucket.folder)

    def loader(num_workers: int) -> Any:
        config = WorkerConfig(rank=0, world_size=1, num_workers=num_workers, num_lanes=4)
        settings = {"batch_size": 10, "shuffle_buffer_size": 20, "max_samples_per_sequence": 10}
        return get_savable_loader(
            get_train_dataset(f"{bucket.url}/hub/data/train-*.parquet", worker_config=config, **settings, **TEXTS)
        )

    with loader(2) as first:
        batches = iter(first)
        seen = [text for _ in range(5) for text in next(batches).text]
        state = json.loads(json.dumps(first.save_state_rank()))
        lost = [next(batches).text for _ in range(2)]
    with loader(0) as second:
        second.restore_state_rank(state)
        batches = iter(second)
        again = [next(batches).text for _ in range(11)]
    assert again[:2] == lost
    seen += [text for batch in again for text in batch]
    rows = [str(number + first) for first in (0, 100) for number in range(40)]
    assert sorted(seen) == sorted(rows * 2)


def test_a_file_that_is_replaced_is_an_error_and_other_data(bucket: Bucket) -> None:
    path, url = bucket.folder / "long.parquet", f"{bucket.url}/long.parquet"
    write_text_table(path, 4_000, lambda row: f"{row:0500d}", per_group=500)
    (source,) = load_plan(url).sources
    reader = source.records.reader()
    assert reader.read(3).parts["text"] == f"{3:0500d}"
    before = source.records.identity()
    write_text_table(path, 4_000, lambda row: f"{-row:0500d}", per_group=500)
    with pytest.raises(DatasetError, match=rf"{url}: .*was replaced while it was in use.* in a store the ETag"):
        for index in range(0, 4_000, 100):
            reader.read(index)
    (changed,) = load_plan(url).sources
    assert changed.records.identity() != before
