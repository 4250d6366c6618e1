"""`where:` in metadatasets and as an option: it chooses what Python does; jobs resume; mistakes name lines."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import yaml
from PIL import Image

from bridge_data import (
    StateError,
    WorkerConfig,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    merge_states,
)
from bridge_data.errors import ConfigError
from bridge_data.plan.opening import load_plan
from bridge_data.plugins.forget.tombstone_writing import forget_samples
from bridge_data.plugins.media.media import prepare_media
from bridge_data.plugins.media.media_rule import MediaRule
from bridge_data.plugins.where.column_writing import prepare_columns
from bridge_data.runs.named_samples import find_sample
from tests.decode.pictures import encoded
from tests.object_store import Bucket
from tests.prepared import CRUDE, write_dataset, write_texts
from tests.tables import write_text_table

SIZE = 300
FIELDS = ["sample_type: {__module__: bridge_data, __class__: TextSample}", "field_map: {text: text}"]


@pytest.fixture
def folder(bucket: Bucket) -> Path:
    """Data sets that a store serves, too."""
    write_texts(bucket.folder / "texts", SIZE)
    for number in range(3):
        first = 100 * number
        write_text_table(bucket.folder / "files" / f"{number}.parquet", 100, lambda row, first=first: str(first + row))
    write_text_table(bucket.folder / "saved", SIZE)
    keys = [f"{number:06d}" for number in range(0, SIZE, 2)]
    table = {"key": keys, "score": [int(key) % 10 / 10 for key in keys]}
    pyarrow.parquet.write_table(pyarrow.table(table), bucket.folder / "scores.parquet")
    return bucket.folder


def test_what_is_wrong_with_an_option_is_told_with_each_word_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"^where: unknown column 'size'"):
        load_plan(folder / "texts", where="size > 1")
    with pytest.raises(ConfigError, match=r"^columns: is a file of columns for `where:`, which is missing"):
        load_plan(folder / "texts", columns=folder / "scores.parquet")
    write_texts(folder / "parts", 100, ratio="1,1,0")
    told = r"chooses none of the 50 samples of .*parts \[val\]; change the condition, or"
    with pytest.raises(ConfigError, match=told):
        load_plan(folder / "parts", split_part="val", where="shard = 'data-0000.tar'")
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ConfigError, match=r"^where: .*the package duckdb, .*: pip install duckdb"):
        load_plan(folder / "texts", where="index > 1")


def write(folder: Path, *lines: str) -> Path:
    file = folder / "data.yaml"
    head = ["__module__: megatron.energon", "__class__: MetadatasetV2", "splits:", "  train:"]
    file.write_text("\n".join([*head, *(f"    {line}" for line in lines)]) + "\n")
    return file


def read(data: Any, **options: Any) -> list[int]:
    """The numbers that all samples say, in the order of the data."""
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    dataset = get_val_dataset(data, split_part="train", worker_config=config, batch_size=None, **options)
    return [int(sample.text) for sample in get_loader(dataset)]


@pytest.mark.parametrize(
    ("lines", "is_chosen"),
    [
        (["path: texts", "where: txt.bytes = 2 and index % 2 = 1"], lambda n: 10 <= n < 100 and n % 2 == 1),
        (["path: texts", "where: index % 37 = 0"], lambda n: n % 37 == 0),
        (["path: texts", "where: score >= 0.6", "columns: scores.parquet"], lambda n: n % 2 == 0 and n % 10 >= 6),
        (["path: texts", "where: index % 3 = 0", "subset: {range: [10, 20]}"], lambda n: n % 3 == 0 and 30 <= n < 60),
        (["path: saved", *FIELDS, "where: text like '%7'"], lambda n: n % 10 == 7),
        (["path: files", *FIELDS, "where: key like '%7' and shard like '1%'"], lambda n: 99 < n < 200 and n % 10 == 7),
        (["where: index % 2 = 0", "blend:", "  - path: texts", "    where: index % 3 = 0"], lambda n: n % 6 == 0),
    ],
)  # fmt: skip
def test_what_is_read_of_a_disk_and_a_store_is_what_python_chooses(
    folder: Path, bucket: Bucket, lines: list[str], is_chosen: Callable[[int], bool]
) -> None:
    file = write(folder, *lines)
    chosen = [number for number in range(SIZE) if is_chosen(number)]
    assert read(file) == read(f"{bucket.url}/data.yaml") == chosen


@pytest.mark.parametrize("at", ["folder", "url"])
def test_the_option_chooses_as_yaml_does(bucket: Bucket, folder: Path, at: str) -> None:
    options = {"where": "score > 0.7", "columns": f"{getattr(bucket, at)}/scores.parquet"}
    assert read(f"{getattr(bucket, at)}/texts", **options) == [number for number in range(SIZE) if number % 10 == 8]
    assert read(write(folder, "path: texts", "where: index < 50"), **options) == [8, 18, 28, 38, 48]


def test_stored_fields_are_read_from_the_store(bucket: Bucket) -> None:
    samples = ({"__key__": f"{n:06d}", "json": json.dumps({"score": n}).encode()} for n in range(SIZE))
    write_dataset(bucket.folder / "scored", samples, definition=CRUDE)
    prepare_columns(bucket.folder / "scored", ["json.score"])
    (source,) = load_plan(f"{bucket.url}/scored", where="json.score % 50 = 3").sources
    reader = source.records.reader()
    assert [reader.read(index).key for index in range(source.num_samples)] == [f"{n:06d}" for n in range(3, SIZE, 50)]
    told = r"unknown column 'json.lang'.*on a disk, before the data are copied to the store: `bridge-data prepare sco"
    with pytest.raises(ConfigError, match=told):
        load_plan(f"{bucket.url}/scored", where="json.lang = 'de'")


def test_excluded_and_forgotten_samples_and_names(folder: Path) -> None:
    forget_samples(folder / "texts", ["000010", "000100"], "asked for")
    split = folder / "texts" / ".nv-meta" / "split.yaml"
    document = yaml.safe_load(split.read_text())
    split.write_text(yaml.safe_dump({**document, "exclude": ["data-0000.tar/000020", "data-0001.tar"]}))
    file = write(folder, "path: texts", "where: key like '%0'")
    gone = {10, 20, 100, *range(50, 100)}
    assert sorted(read(file)) == [number for number in range(0, SIZE, 10) if number not in gone]
    records = [source.records for source in load_plan(file).sources]
    assert find_sample(records, "000120")[0].key == "000120"
    with pytest.raises(ConfigError, match="no sample has the key"):
        find_sample(records, "000121")


def test_pictures_are_chosen_by_their_width(folder: Path) -> None:
    samples = ({"__key__": f"{n:04d}", "png": encoded(Image.new("RGB", (n + 1, 5)), "PNG")} for n in range(90))
    prepare_media(write_dataset(folder / "pictures", samples, definition=CRUDE), MediaRule("EXTENSION"))
    (source,) = load_plan(write(folder, "path: pictures", "where: png.width > 60 and png.bytes > 0")).sources
    assert source.records.shards == [("data-0001.tar", 30)]
    assert source.num_samples == 30


def job(data: Path | str, world_size: int) -> list[Any]:
    settings: dict[str, Any] = {"shuffle_buffer_size": None, "max_samples_per_sequence": 10, "repeat": False}
    configs = [WorkerConfig(rank, world_size, 0, num_lanes=4) for rank in range(world_size)]
    return [get_savable_loader(get_train_dataset(data, worker_config=one, batch_size=1, **settings)) for one in configs]


def test_a_job_goes_on_with_another_number_of_ranks_and_the_same_condition_in_other_words(
    folder: Path, bucket: Bucket
) -> None:
    """From a store, and then from the disk."""
    write(folder, "path: texts", "where: index % 5 <> 0")
    loaders, found = job(f"{bucket.url}/data.yaml", 2), []
    for batches in [iter(loader) for loader in loaders]:
        found += [text for _ in range(30) for text in next(batches).text]
    state = json.loads(json.dumps(merge_states([loader.save_state_rank() for loader in loaders])))
    words = ["where: 0 <= txt.bytes", "blend: [{path: texts, where: 'not INDEX%5=0'}]"]
    later = job(write(folder, *words), 4)
    for loader in later:
        loader.restore_state_rank(state)
        found += [text for batch in loader for text in batch.text]
    assert sorted(map(int, found)) == [number for number in range(SIZE) if number % 5]
    (other,) = job(write(folder, "path: texts", "where: index % 5 <> 1"), 1)
    with pytest.raises(StateError, match="which samples are chosen"):
        other.restore_state_rank(state)


def test_a_state_is_refused_after_ones_own_columns_have_changed(folder: Path) -> None:
    file = write(folder, "path: texts", "where: score > 0.5", "columns: scores.parquet")
    state = job(file, 1)[0].save_state_rank()
    table = pyarrow.parquet.read_table(folder / "scores.parquet")
    pyarrow.parquet.write_table(table.append_column("other", table["score"]), folder / "scores.parquet")
    job(file, 1)[0].restore_state_rank(state)
    pyarrow.parquet.write_table(table.slice(20), folder / "scores.parquet")
    with pytest.raises(StateError, match="which samples are chosen"):
        job(file, 1)[0].restore_state_rank(state)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["path: texts", "where: txt.byte > 3"],
            r"data.yaml:6: where: unknown column 'txt.byte'; did you mean 'txt.*texts \[train\]\)",
        ),
        (["path: texts", "where: txt.bytes"], r"data.yaml:6: where: .* expected BOOLEAN"),
        (["path: texts", "where: index <"], r"data.yaml:6: where: "),
        (["path: texts", "where: index < 0"], r"data.yaml:6: where: .* chooses none of the 300 samples"),
        (["path: texts", "where: a = 0", "columns: none.parquet"], r"data.yaml:6: columns: .*none.parquet: no such"),
        (["path: texts", "columns: scores.parquet"], r"data.yaml:6: columns: is a file of columns for `where:`"),
    ],
)
def test_mistakes_name_file_and_line(folder: Path, lines: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(write(folder, *lines))
