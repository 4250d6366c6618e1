import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bridge_data.errors import ConfigError
from bridge_data.limits import Limits
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from bridge_data.tools.duplicates import HashConfig, SampleHashes, hash_samples, sample_hashes
from bridge_data.tools.duplicates.sample_hashes import MAX_EXAMPLES, content_digest
from tests.prepared import write_texts
from tests.tools.duplicates.pictures import encoded, jpeg, with_copies, write_shards

ONE = HashConfig(num_workers=1)
PICTURES = HashConfig(num_workers=1, pictures=True)


def names(hashes: SampleHashes) -> list[str]:
    """Split part, shard and key of all samples."""
    samples = [(hashes.tasks[hashes.task_of(number)].split_part, hashes.sample(number)) for number in _all(hashes)]
    return [f"{part} {sample.shard_name}:{sample.key}" for part, sample in samples]


def _all(hashes: SampleHashes) -> range:
    return range(len(hashes.high))


def test_samples_are_in_the_order_of_split_parts_and_train_is_last(tmp_path: Path) -> None:
    folder = with_copies(tmp_path / "set")
    hashes = hash_samples([folder], ONE)
    assert names(hashes) == [
        *("val data-1.tar:a", "val data-1.tar:cat", "test data-2.tar:u", "test data-2.tar:v"),
        *(f"train data-0.tar:{key}" for key in ("b", "again", "small", "mirrored", "other")),
    ]
    assert hashes.digest(0) == hashes.digest(4) == content_digest({"txt": b"a cup", "jpg": jpeg("coffee")}).hex()
    assert len({hashes.digest(number) for number in _all(hashes)}) == 8
    assert hashes.num_bytes[0] == len(jpeg("coffee")) + 5
    named = hash_samples([folder], dataclasses.replace(ONE, split_parts=("train", "val")))
    assert [name.split()[0] for name in names(named)] == ["train"] * 5 + ["val"] * 2


def test_only_the_parts_that_are_named_count(tmp_path: Path) -> None:
    folder = with_copies(tmp_path / "set")
    hashes = hash_samples([folder], dataclasses.replace(ONE, parts=("jpg",), split_parts=("test",)))
    assert hashes.digest(0) == hashes.digest(1)
    nothing = hash_samples([folder], dataclasses.replace(ONE, parts=("wav",)))
    assert nothing.faults.counts == {"empty": 9}
    assert not any(map(nothing.is_known, _all(nothing)))


def test_parts_are_told_apart_by_name_and_bytes() -> None:
    several = [{"a": b"12"}, {"b": b"12"}, {"a": b"1", "b": b"2"}, {"a": b"", "b": b"12"}, {"a": b"121:0:b"}]
    assert len({content_digest(parts) for parts in several}) == len(several)
    assert content_digest({"a": b"1", "b": b"2"}) == content_digest({"b": b"2", "a": b"1"})


def test_memory_is_24_bytes_a_sample(tmp_path: Path) -> None:
    def per_sample(hashes: SampleHashes) -> float:
        arrays = (hashes.high, hashes.low, hashes.num_bytes, hashes.pictures)
        return sum(array.nbytes for array in arrays) / len(hashes.high)

    folder = with_copies(tmp_path / "set")
    assert per_sample(hash_samples([folder], ONE)) == 16
    assert per_sample(hash_samples([folder], PICTURES)) == 24


@pytest.mark.processes
def test_the_number_of_processes_changes_nothing(tmp_path: Path) -> None:
    folder, texts = with_copies(tmp_path / "set"), write_texts(tmp_path / "texts", 300)
    (texts / "data-0003.tar").write_bytes(b"")
    one, two = (hash_samples([folder, texts], dataclasses.replace(PICTURES, num_workers=number)) for number in (1, 2))
    for field in ("high", "low", "num_bytes", "pictures"):
        np.testing.assert_array_equal(getattr(one, field), getattr(two, field))
    assert (one.tasks, one.faults) == (two.tasks, two.faults)
    assert one.faults.counts == {"unreadable": 50}


def test_what_cannot_be_read_is_counted_and_named_and_left_out(tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "texts", 100)
    (folder / "data-0001.tar").unlink()
    hashes = hash_samples([folder], ONE)
    assert hashes.faults.counts == {"unreadable": 50}
    assert len(hashes.faults.examples["unreadable"]) == MAX_EXAMPLES
    assert "data-0001.tar" in hashes.faults.examples["unreadable"][0]
    assert [hashes.is_known(number) for number in _all(hashes)] == [True] * 50 + [False] * 50


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
    hashes = hash_samples([folder], PICTURES)
    assert hashes.faults.counts == {"broken": 1, "blank": 1, "several": 1}
    (broken,) = hashes.faults.examples["broken"]
    assert broken.startswith(f"{folder}: data-0.tar:broken.jpg: OSError: ")
    assert hashes.faults.examples["several"] == [f"{folder}: data-0.tar:several: left.jpg, right.jpg"]
    assert [bool(value) for value in hashes.pictures.tolist()] == [False, False, True, False]
    assert all(map(hashes.is_known, _all(hashes)))
    small = dataclasses.replace(PICTURES, limits=Limits(max_image_pixels=1000))
    assert hash_samples([folder], small).faults.counts["broken"] == 3


def test_lines_of_overlapping_split_parts_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_hashes, "LINES_AT_ONCE", 7)
    file = tmp_path / "d.jsonl"
    file.write_text("".join(f'{{"text": {number % 20}}}\n' for number in range(40)))
    prepare_jsonl(file)
    whole = hash_samples([file], ONE)
    assert len(whole.high) == 40 and whole.digest(3) == whole.digest(23)
    Path(f"{file}.split.yaml").write_text("split_parts: {train: [0, 30], val: [10, 20], test: [15, end]}\n")
    hashes = hash_samples([file], ONE)
    parts = [name.split()[0] for name in names(hashes)]
    assert [parts.count(part) for part in ("val", "test", "train")] == [10, 20, 10]
    assert sorted(int(name.rpartition(":")[2]) for name in names(hashes)) == list(range(40))
    Path(tmp_path / "other.yaml").write_text("split_parts: {few: [3, 5]}")
    assert names(hash_samples([file], dataclasses.replace(ONE, split_config="other.yaml"))) == [
        "few d.jsonl:3",
        "few d.jsonl:4",
    ]
    assert hashes.shared == {f"{file}: val and test": 5, f"{file}: val and train": 10, f"{file}: test and train": 10}


def test_a_shard_of_two_split_parts_is_read_once_without_what_is_excluded(tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "set", 20, per_shard=5, ratio="1,0,0")
    (folder / ".nv-meta/split.yaml").write_text(
        "split_parts: {train: ['data-{0000..0003}.tar'], val: [data-0001.tar]}\nexclude: [data-0001.tar/000007]\n"
    )
    hashes = hash_samples([folder], ONE)
    assert hashes.shared == {f"{folder}: val and train": 4}
    assert names(hashes)[:4] == [f"val data-0001.tar:00000{number}" for number in (5, 6, 8, 9)]
    assert len(hashes.high) == 19


@pytest.mark.parametrize(
    ("paths", "config", "message"),
    [
        (["no"], ONE, "no: no such folder or file"),
        (["texts", "./texts"], ONE, "a data set is named twice"),
        (["texts"], dataclasses.replace(ONE, split_parts=("trian",)), "no split part 'trian'; there is train, val"),
        (["blend.yaml"], ONE, "expected a prepared folder or a .jsonl file; name the data sets themselves"),
        (["texts"], dataclasses.replace(ONE, split_parts=("val",)), "there are no samples"),
    ],
)
def test_wrong_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paths: list[str], config: HashConfig, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_texts(tmp_path / "texts", 3)
    Path("blend.yaml").write_text("{}")
    with pytest.raises(ConfigError, match=message):
        hash_samples([Path(path) for path in paths], config)


def test_no_process_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"num_workers=0\): expected at least 1"):
        HashConfig(num_workers=0)


def test_a_data_set_that_is_prepared_again_is_opened_again_also_without_our_index(tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "set", 60)
    with_index = hash_samples([folder], ONE)
    (folder / ".nv-meta/index.bridge").unlink()
    without = hash_samples([folder], ONE)
    np.testing.assert_array_equal(with_index.high, without.high)
    assert names(with_index) == names(without)
    write_texts(folder, 7)
    assert len(hash_samples([folder], ONE).high) == 7 + 10
