import dataclasses
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bridge_data.errors import ConfigError, DatasetError
from bridge_data.limits import Limits
from bridge_data.plugins.duplicates import DuplicateConfig, sample_rows
from bridge_data.plugins.duplicates.sample_rows import MAX_EXAMPLES, SampleRows, content_digest, read_rows
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from tests.plan.test_formats import TEXTS, Kind, kind, written
from tests.plugins.duplicates.pictures import encoded, jpeg, with_copies, write_shards
from tests.prepared import write_texts
from tests.tables import IMAGE, table_of, write_parquet

__all__ = ["kind"]

ONE = DuplicateConfig(num_workers=1)
PICTURES = DuplicateConfig(num_workers=1, distance=4)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return with_copies(tmp_path / "set")


def read(*paths: Path, config: DuplicateConfig = ONE) -> SampleRows:
    folder = paths[0].with_name("rows")
    folder.mkdir(exist_ok=True)
    return read_rows(paths, config, folder)


def column(rows: SampleRows, name: str) -> list[Any]:
    return rows.table[name].to_pylist()  # type: ignore[no-any-return]


def names(rows: SampleRows) -> list[str]:
    """Split part, shard and key of all samples."""
    columns = (column(rows, name) for name in ("source", "shard", "key"))
    return [f"{rows.parts[at].name} {shard.decode()}:{key.decode()}" for at, shard, key in zip(*columns, strict=True)]


def test_samples_are_in_the_order_of_split_parts_and_train_is_last_and_named_parts_count(folder: Path) -> None:
    rows = read(folder)
    assert names(rows) == [
        "val data-1.tar:a",
        "val data-1.tar:cat",
        "test data-2.tar:u",
        "test data-2.tar:v",
        *(f"train data-0.tar:{key}" for key in ("b", "again", "small", "mirrored", "other")),
    ]
    digests = column(rows, "digest")
    assert digests[0] == digests[4] == content_digest({"txt": b"a cup", "jpg": jpeg("coffee")})
    assert len(set(digests)) == 8
    assert column(rows, "bytes")[0] == len(jpeg("coffee")) + 5
    named = read(folder, config=dataclasses.replace(ONE, split_parts=("train", "val")))
    assert [name.split()[0] for name in names(named)] == ["train"] * 5 + ["val"] * 2
    named = read(folder, config=dataclasses.replace(ONE, parts=("jpg",), split_parts=("test",)))
    assert len(set(column(named, "digest"))) == 1


def test_a_full_disk_is_an_error_with_the_way_out(tmp_path: Path) -> None:
    data = write_texts(tmp_path / "set", 2000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        with pytest.raises(DatasetError, match=r"rows: cannot be written to: .*; set TMPDIR"):
            read(data)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_parts_are_told_apart_by_name_and_bytes_and_values_of_tables_whole() -> None:
    several = [{"a": b"12"}, {"b": b"12"}, {"a": b"1", "b": b"2"}, {"a": b"", "b": b"12"}, {"a": b"121:0:b"}]
    assert len({content_digest(parts) for parts in several}) == len(several)
    assert content_digest({"a": b"1", "b": b"2"}) == content_digest({"b": b"2", "a": b"1"})
    long, other = np.zeros(5000), np.zeros(5000)
    other[2500] = 1
    values = [1, 1.5, "a", None, [1, 2], {"a": [b"1"]}, {"a": [b"2"]}, long, other, long[None], torch.tensor(other) * 2]
    values += [[long], [other], [torch.tensor(long[:5])]]
    assert len({sample_rows._bytes(value) for value in values}) == len(values)
    assert sample_rows._bytes([other]) == sample_rows._bytes([other.copy()])


@pytest.mark.processes
def test_the_number_of_processes_changes_nothing(folder: Path, tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts", 300)
    (texts / "data-0003.tar").write_bytes(b"")
    one, two = (read(folder, texts, config=dataclasses.replace(PICTURES, num_workers=number)) for number in (1, 2))
    assert one.table.equals(two.table)
    assert (one.parts, one.faults) == (two.parts, two.faults)
    assert one.faults.counts == {"unreadable": 50}


def test_what_cannot_be_read_is_counted_and_named_and_left_out(tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts", 100)
    (texts / "data-0001.tar").unlink()
    rows = read(texts)
    assert rows.faults.counts == {"unreadable": 50}
    examples = rows.faults.examples["unreadable"]
    assert len(examples) == MAX_EXAMPLES and "data-0001.tar" in examples[0]
    assert column(rows, "number") == list(range(50))
    (texts / "data-0000.tar").write_bytes(b"")
    assert column(read(texts), "number") == []


def test_pictures_that_are_broken_blank_or_several_are_counted_and_named(tmp_path: Path) -> None:
    folder = write_shards(
        tmp_path / "set",
        {
            "broken": {"jpg": jpeg("coffee")[:2000]},
            "blank": {"png": encoded(Image.new("RGB", (64, 64), "white"))},
            "several": {"left.jpg": jpeg("coffee"), "right.jpg": jpeg("rocket")},
            "text": {"txt": b"no picture"},
        },
    )
    rows = read(folder, config=PICTURES)
    assert rows.faults.counts == {"broken": 1, "blank": 1, "several": 1}
    (broken,) = rows.faults.examples["broken"]
    assert broken.startswith(f"{folder}: data-0.tar:broken.jpg: OSError: ")
    assert rows.faults.examples["several"] == [f"{folder}: data-0.tar:several: left.jpg, right.jpg"]
    assert [picture is None for picture in column(rows, "picture")] == [True, True, False, True]
    small = dataclasses.replace(PICTURES, limits=Limits(max_image_pixels=1000))
    assert read(folder, config=small).faults.counts["broken"] == 3


def test_lines_of_overlapping_split_parts_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_rows, "MAX_TASK_SAMPLES", 7)
    file = tmp_path / "d.jsonl"
    file.write_text("".join(f'{{"text": {number % 20}}}\n' for number in range(40)))
    prepare_jsonl(file)
    digests = column(read(file), "digest")
    assert len(digests) == 40 and digests[3] == digests[23]
    Path(f"{file}.split.yaml").write_text("split_parts: {train: [0, 30], val: [10, 20], test: [15, end]}\n")
    rows = read(file)
    parts = [name.split()[0] for name in names(rows)]
    assert [parts.count(part) for part in ("val", "test", "train")] == [10, 20, 10]
    assert sorted(int(name.rpartition(":")[2]) for name in names(rows)) == list(range(40))
    Path(tmp_path / "other.yaml").write_text("split_parts: {few: [3, 5]}")
    few = read(file, config=dataclasses.replace(ONE, split_config="other.yaml"))
    assert names(few) == ["few d.jsonl:3", "few d.jsonl:4"]
    assert rows.shared == {f"{file}: val and test": 5, f"{file}: val and train": 10, f"{file}: test and train": 10}


def test_a_shard_of_two_split_parts_is_read_once_without_what_is_excluded(tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "set", 20, per_shard=5, ratio="1,0,0")
    (folder / ".nv-meta/split.yaml").write_text(
        "split_parts: {train: ['data-{0000..0003}.tar'], val: [data-0001.tar]}\nexclude: [data-0001.tar/000007]\n"
    )
    rows = read(folder)
    assert rows.shared == {f"{folder}: val and train": 4}
    assert names(rows)[:4] == [f"val data-0001.tar:00000{number}" for number in (5, 6, 8, 9)]
    assert len(rows.table) == 19


def test_all_data_that_are_read_in_place_have_their_samples_in_order(kind: Kind, tmp_path: Path) -> None:
    texts = [*TEXTS, *TEXTS]
    config = dataclasses.replace(ONE, parts=("text", "txt", "json"))
    digests = column(read(written(kind, tmp_path / "data", texts), config=config), "digest")
    by_text = dict(zip(texts, digests, strict=False))
    assert digests == [by_text[text] for text in texts[: len(digests)]]
    assert len(set(digests)) == len(by_text)


def test_pictures_in_tables_are_compared(tmp_path: Path) -> None:
    pictures = [{"bytes": jpeg("coffee", quality), "path": None} for quality in (90, 40)]
    path = write_parquet(tmp_path / "a.parquet", table_of({"image": pictures}, {"image": IMAGE}))
    assert None not in column(read(path, config=PICTURES), "picture")


@pytest.mark.parametrize(
    ("paths", "changes", "message"),
    [
        (["no"], {}, "no: no such folder or file"),
        (["texts", "./texts"], {}, "a data set is named twice"),
        (["texts"], {"split_parts": ("trian",)}, "no split part 'trian'; there is train, val"),
        (["blend.yaml"], {}, "blend.yaml: .*name the data sets themselves"),
        (["texts"], {"split_parts": ("val",)}, "there are no samples"),
        (["texts"], {"parts": ("wav",)}, r"texts: no sample has a part wav \(--parts\)"),
        (["a.jsonl"], {"parts": ("wav",)}, r"a\.jsonl: no sample has a part wav \(--parts\)"),
        (["texts"], {"num_workers": 0}, "num_workers="),
        (["texts"], {"distance": 11}, "distance="),
        (["texts"], {"distance": -1}, "distance="),
    ],
)
def test_wrong_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paths: list[str], changes: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_texts(tmp_path / "texts", 3)
    Path("blend.yaml").write_text("{}")
    Path("a.jsonl").write_text('{"t": 1}\n')
    prepare_jsonl(Path("a.jsonl"))
    with pytest.raises(ConfigError, match=message):
        read(*map(Path, paths), config=dataclasses.replace(ONE, **changes))


def test_a_data_set_that_is_prepared_again_is_opened_again_also_without_our_index(tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "set", 60)
    with_index = read(folder)
    (folder / ".nv-meta/index.bridge").unlink()
    assert read(folder).table.equals(with_index.table)
    write_texts(folder, 7)
    assert len(read(folder).table) == 7 + 10
