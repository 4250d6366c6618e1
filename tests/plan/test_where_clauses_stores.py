"""`where:` over data in an object store: what is chosen is what would be on a disk, and a job goes on there."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bridge_data import TextSample, WorkerConfig, get_savable_loader, get_train_dataset, get_val_dataset
from bridge_data.errors import ConfigError
from bridge_data.plan import load_plan
from bridge_data.prepare import prepare_columns
from tests.object_store import Bucket
from tests.prepared import CRUDE, write_dataset, write_texts
from tests.tables import write_text_table

SIZE = 200
TEXTS: dict[str, Any] = {"sample_type": TextSample, "field_map": {"text": "text"}}


def write_data(folder: Path) -> None:
    """Tars, tables of two files, saved rows, and columns of one's own."""
    write_texts(folder / "tars", SIZE)
    for number in range(2):
        first = 100 * number
        write_text_table(folder / "files" / f"{number}.parquet", 100, lambda row, first=first: str(first + row))
    write_text_table(folder / "saved", SIZE)
    keys = [f"{number:06d}" for number in range(0, SIZE, 2)]
    pq.write_table(pa.table({"key": keys, "score": [int(key) / SIZE for key in keys]}), folder / "scores.parquet")


def read(data: str, **options: Any) -> list[int]:
    """The numbers that all samples say, in their order."""
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    dataset = get_val_dataset(data, split_part="train", worker_config=config, batch_size=None, **options)
    return [int(sample.text) for sample in get_savable_loader(dataset)]


@pytest.mark.parametrize(
    ("path", "where", "expected"),
    [
        ("tars", "index % 3 = 0 and txt.bytes = 2", [n for n in range(10, 100) if n % 3 == 0]),
        ("tars", "key like '%7'", list(range(7, SIZE, 10))),
        ("files", "text like '%7' and shard = '1.parquet'", list(range(107, SIZE, 10))),
        ("files/*.parquet", "index % 3 = 0", list(range(0, SIZE, 3))),
        ("saved", "text > '5' or key = '1'", None),
    ],
)
def test_what_is_chosen_is_what_would_be_on_a_disk(
    bucket: Bucket, path: str, where: str, expected: list[int] | None
) -> None:
    write_data(bucket.folder)
    fields = {} if path == "tars" else TEXTS
    found = read(f"{bucket.url}/{path}", where=where, **fields)
    assert found == read(str(bucket.folder / path), where=where, **fields)
    assert found and (expected is None or found == expected)


def test_columns_of_ones_own_may_be_in_the_store(bucket: Bucket) -> None:
    write_data(bucket.folder)
    expected = [number for number in range(0, SIZE, 2) if number > SIZE / 2]
    url = f"{bucket.url}/scores.parquet"
    assert read(f"{bucket.url}/tars", where="score > 0.5", columns=url) == expected
    head = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    part = {"path": "tars", "where": "score > 0.5", "columns": "scores.parquet"}
    (bucket.folder / "data.yaml").write_text(json.dumps({**head, "splits": {"train": part}}))
    assert read(f"{bucket.url}/data.yaml") == expected
    keys = [f"{number:06d}" for number in range(SIZE)]
    pq.write_table(pa.table({"key": keys, "score": [1.0] * SIZE}), bucket.folder / "scores.parquet")
    assert read(f"{bucket.url}/data.yaml") == list(range(SIZE))


def test_stored_fields_are_read_from_the_store(bucket: Bucket) -> None:
    samples = ({"__key__": f"{n:06d}", "json": json.dumps({"score": n}).encode()} for n in range(SIZE))
    write_dataset(bucket.folder / "scored", samples, definition=CRUDE)
    prepare_columns(bucket.folder / "scored", ["json.score"])
    head = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    part = {"path": "scored", "where": "json.score % 50 = 3"}
    (bucket.folder / "data.yaml").write_text(json.dumps({**head, "splits": {"train": part}}))
    (source,) = load_plan(f"{bucket.url}/data.yaml").sources
    reader = source.records.reader()
    assert [reader.read(index).key for index in range(source.num_samples)] == [f"{n:06d}" for n in range(3, SIZE, 50)]
    told = (
        r"unknown column 'json.lang'.*on a disk, before the data are copied to the store: `bridge-data prepare scored "
    )
    with pytest.raises(ConfigError, match=told):
        read(f"{bucket.url}/scored", where="json.lang = 'de'")


@pytest.mark.processes
def test_a_job_resumes_in_the_store_and_each_chosen_sample_comes_once_an_epoch(bucket: Bucket) -> None:
    write_data(bucket.folder)

    def loader(num_workers: int) -> Any:
        config = WorkerConfig(rank=0, world_size=1, num_workers=num_workers, num_lanes=4)
        settings = {"batch_size": 10, "shuffle_buffer_size": 20, "max_samples_per_sequence": 10}
        return get_savable_loader(
            get_train_dataset(f"{bucket.url}/files", worker_config=config, where="index % 5 = 0", **settings, **TEXTS)
        )

    with loader(2) as first:
        batches = iter(first)
        seen = [text for _ in range(3) for text in next(batches).text]
        state = json.loads(json.dumps(first.save_state_rank()))
    with loader(0) as second:
        second.restore_state_rank(state)
        batches = iter(second)
        seen += [text for _ in range(5) for text in next(batches).text]
    assert sorted(map(int, seen)) == sorted([*range(0, SIZE, 5)] * 2)
