"""`where:` in metadatasets and as an option: it chooses what Python does; jobs resume; mistakes name lines."""

import io
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
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from bridge_data.prepare.media import MediaRule, prepare_media
from bridge_data.prepare.tombstone_writing import forget_samples
from bridge_data.samples import TextSample
from bridge_data.shards.sample_lookup import find_sample
from tests.prepared import CRUDE, write_dataset, write_texts
from tests.tables import write_text_table

SIZE = 300


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRIDGE_DATA_CACHE", str(tmp_path / "cache"))
    write_texts(tmp_path / "texts", SIZE)
    write_text_table(tmp_path / "table.parquet", SIZE, str, per_group=60)
    keys = [f"{number:06d}" for number in range(0, SIZE, 2)]
    table = {"key": keys, "score": [int(key) % 10 / 10 for key in keys]}
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "scores.parquet")
    (tmp_path / "lines.jsonl").write_text("".join(f'{{"text": "{"x" * number}"}}\n' for number in range(SIZE)))
    return tmp_path


def test_keys_that_were_copied_from_batches_leave_out_their_samples(folder: Path) -> None:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    options: dict[str, Any] = {"shuffle_buffer_size": None, "max_samples_per_sequence": None, "batch_size": 3}
    texts: dict[str, Any] = {"sample_type": TextSample, "field_map": {"text": "text"}}
    for name, more in (("texts", {}), ("table.parquet", texts)):
        dataset = get_train_dataset(folder / name, worker_config=config, **options, **more)
        keys: list[str] = next(iter(get_loader(dataset))).__key__
        (source,) = load_plan(folder / name, where=f"__key__ not in {tuple(keys)}").sources
        found = [source.key_or_place(index) for index in range(source.num_samples)]
        assert len(found) == SIZE - 3 and not {*found} & {*keys}


def test_what_is_wrong_with_an_option_is_told_with_each_word_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"^options: where: unknown column 'size'"):
        load_plan(folder / "texts", where="size > 1")
    with pytest.raises(ConfigError, match=r"^options: columns: is a file of columns for `where:`, which is missing"):
        load_plan(folder / "texts", columns=folder / "scores.parquet")
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ConfigError, match=r"^options: where: the package duckdb is missing: pip install"):
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
        (["path: table.parquet", "sample_type: {__module__: bridge_data, __class__: TextSample}",
          "field_map: {text: text}", "where: text like '%7'"], lambda n: n % 10 == 7),
        (["where: index % 2 = 0", "blend:", "  - path: texts", "    where: index % 3 = 0"], lambda n: n % 6 == 0),
    ],
)  # fmt: skip
def test_what_is_read_is_what_python_chooses(folder: Path, lines: list[str], is_chosen: Callable[[int], bool]) -> None:
    assert read(write(folder, *lines)) == [number for number in range(SIZE) if is_chosen(number)]


def test_the_option_chooses_as_yaml_does(folder: Path) -> None:
    options = {"where": "score > 0.7", "columns": folder / "scores.parquet"}
    assert read(folder / "texts", **options) == [number for number in range(SIZE) if number % 10 == 8]
    assert read(write(folder, "path: texts", "where: index < 50"), **options) == [8, 18, 28, 38, 48]


def test_lines_of_a_file_are_chosen_by_their_size(folder: Path) -> None:
    prepare_jsonl(folder / "lines.jsonl")
    plan = load_plan(
        write(folder, "path: lines.jsonl", "where: bytes >= 113")
    )  # 12 around the text, and the end of the line
    assert plan.sources[0].num_samples == SIZE - 100


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
    def picture(width: int) -> bytes:
        file = io.BytesIO()
        Image.new("RGB", (width, 5)).save(file, "PNG")
        return file.getvalue()

    samples = ({"__key__": f"{number:04d}", "png": picture(number + 1)} for number in range(90))
    prepare_media(write_dataset(folder / "pictures", samples, definition=CRUDE), MediaRule("EXTENSION"))
    (source,) = load_plan(write(folder, "path: pictures", "where: png.width > 60 and png.bytes > 0")).sources
    reader = source.records.reader()
    assert [reader.read(index).key for index in range(source.num_samples)] == [f"{n:04d}" for n in range(60, 90)]


def job(data: Path, world_size: int) -> list[Any]:
    return [
        get_savable_loader(
            get_train_dataset(
                data,
                worker_config=WorkerConfig(rank=rank, world_size=world_size, num_workers=0, num_lanes=4),
                batch_size=1,
                shuffle_buffer_size=None,
                max_samples_per_sequence=10,
                repeat=False,
            )
        )
        for rank in range(world_size)
    ]


def test_a_job_goes_on_with_another_number_of_ranks(folder: Path) -> None:
    file = write(folder, "path: texts", "where: index % 5 <> 0")
    loaders, found = job(file, 2), []
    for _ in range(30):
        found += [text for loader in loaders for text in next(iter(loader)).text]
    state = merge_states([loader.save_state_rank() for loader in loaders])
    later = job(file, 4)
    for loader in later:
        loader.restore_state_rank(state)
        found += [text for batch in loader for text in batch.text]
    assert sorted(map(int, found)) == [number for number in range(SIZE) if number % 5]

    (other,) = job(write(folder, "path: texts", "where: index % 5 <> 1"), 1)
    with pytest.raises(StateError, match="where"):
        other.restore_state_rank(state)


def saved_after_a_step(file: Path) -> dict[str, Any]:
    (loader,) = job(file, 1)
    next(iter(loader))
    return loader.save_state_rank()


def test_a_state_goes_on_with_the_same_condition_in_other_words(folder: Path) -> None:
    state = saved_after_a_step(write(folder, "path: texts", "where: index % 5 <> 0 and txt.bytes > 1"))
    (other,) = job(write(folder, "where: 1<txt.bytes", "blend: [{path: texts, where: 'not INDEX%5=0'}]"), 1)
    other.restore_state_rank(state)
    assert len([text for batch in other for text in batch.text]) == 232 - 1


def test_a_state_is_refused_after_ones_own_columns_have_changed(folder: Path) -> None:
    file = write(folder, "path: texts", "where: score > 0.5", "columns: scores.parquet")
    state = saved_after_a_step(file)
    table = pyarrow.parquet.read_table(folder / "scores.parquet")
    pyarrow.parquet.write_table(table.append_column("other", table["score"]), folder / "scores.parquet")
    (same,) = job(file, 1)
    same.restore_state_rank(state)
    pyarrow.parquet.write_table(table.slice(20), folder / "scores.parquet")
    (changed,) = job(file, 1)
    with pytest.raises(StateError, match="where"):
        changed.restore_state_rank(state)


def test_a_condition_that_chooses_nothing_of_one_part_names_the_part(folder: Path) -> None:
    write_texts(folder / "parts", 100, ratio="1,1,0")
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    options: dict[str, Any] = {"worker_config": config, "batch_size": 1, "where": "shard = 'data-0000.tar'"}
    assert len(get_val_dataset(folder / "parts", split_part="train", **options)) == 50
    with pytest.raises(
        ConfigError, match=r"chooses none of the 50 samples of .*parts \[val\]; change the condition, or"
    ):
        get_val_dataset(folder / "parts", split_part="val", **options)


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
