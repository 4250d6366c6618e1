"""A data set that is written from Python: what readers find, what an interrupted writer leaves, and what the next one
makes of it."""

import contextlib
import random
import resource
import signal
import sqlite3
import tarfile
import threading
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from bridge_data import CaptioningSample, WorkerConfig, get_loader, get_val_dataset
from bridge_data.data import PreparedDataset, ShardReader, open_shards
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plugins.doctor.lint import LintConfig, lint
from bridge_data.prepare import shard_writer
from bridge_data.prepare.part_encoding import tar_header
from bridge_data.prepare.shard_writer import HashSplit, ShardWriter, WriterConfig
from tests.prepare.killed import in_child, killed_at

CAPTIONED: dict[str, Any] = {
    "sample_type": CaptioningSample,
    "field_map": {"image": "png", "caption": "json[caption]"},
}
CAPTIONS = ("A cat on a mat", "Eine Katze auf der Größe", "マットの上の猫")
SPLIT = {"train": 0.8, "val": 0.2}


def text_sample(number: int) -> dict[str, Any]:
    return {"__key__": f"{number:05d}", "txt": f"text {number}", "json": {"number": number}}


def write_texts(folder: Path | str, numbers: Iterable[Any], **settings: Any) -> None:
    """Those that are not there yet."""
    with ShardWriter(folder, **{"split": SPLIT, "max_samples": 7} | settings) as writer:
        for number in numbers:
            sample = text_sample(number)
            if sample["__key__"] not in writer:
                writer.write(sample)


def tars(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.tar"))}


def contents(folder: Path) -> dict[str, list[tuple[str, dict[str, bytes]]]]:
    """Key and parts of all samples, by split part."""
    readers = {part: ShardReader(open_shards(folder, part)) for part in PreparedDataset.open(folder).split_parts()}
    samples = {part: [reader.read(number) for number in range(len(reader))] for part, reader in readers.items()}
    return {part: [(sample.key, sample.parts) for sample in found] for part, found in samples.items()}


def test_pictures_with_captions_in_three_languages(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pictures = {f"größe/{number:03d}": rng.integers(0, 256, (6, 8, 3), dtype=np.uint8) for number in range(30)}
    with ShardWriter(tmp_path / "photos", split=SPLIT, max_samples=5, **CAPTIONED) as writer:
        for number, (key, pixels) in enumerate(pictures.items()):
            caption = {"caption": CAPTIONS[number % 3]}
            writer.write({"__key__": key, "png": Image.fromarray(pixels), "json": caption, "npy": pixels[0]})
        assert writer.num_samples == 30
    found = {}
    for part in SPLIT:
        config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        data = get_val_dataset(
            tmp_path / "photos", split_part=part, batch_size=None, worker_config=config, image_decode="rgb8"
        )
        for sample in get_loader(data):
            found[sample.__key__.partition("/")[2]] = sample
    assert found.keys() == pictures.keys()
    for number, (key, pixels) in enumerate(pictures.items()):
        assert (found[key].image == pixels).all() and found[key].caption == CAPTIONS[number % 3]
    assert lint(tmp_path / "photos", LintConfig(num_workers=1)).counts == {}


def test_the_files_are_those_of_prepare(tmp_path: Path) -> None:
    write_texts(tmp_path / "a", range(60))
    meta = tmp_path / "a" / ".nv-meta"
    assert {path.name for path in meta.iterdir()} == {
        ".info.json",
        "dataset.yaml",
        "index.bridge",
        "index.sqlite",
        "index.uuid",
        "split.yaml",
        "writer.yaml",
    }
    split = yaml.safe_load((meta / "split.yaml").read_text())
    assert split["split_parts"]["train"] == ["train-{000000..000007}.tar"]
    assert {path.name for path in (tmp_path / "a").iterdir()} == {
        ".nv-meta",
        *(name + ending for name in tars(tmp_path / "a") for ending in ("", ".idx")),
    }
    with sqlite3.connect(meta / "index.sqlite") as db:
        assert db.execute("SELECT count(*) FROM samples").fetchone() == (60,)


@pytest.mark.parametrize("name", ["a.txt", "x" * 96 + ".txt", "x" * 97 + ".txt", "größe.txt", "a/b.left.png"])
@pytest.mark.parametrize("num_bytes", [0, 1, 511, 8**11 - 1, 8**11])
def test_headers_are_those_of_tarfile(name: str, num_bytes: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = num_bytes, 0o444
    assert tar_header(name, num_bytes) == info.tobuf(tarfile.PAX_FORMAT, "utf-8")


def test_a_shard_takes_no_more_than_its_limits(tmp_path: Path) -> None:
    write_texts(tmp_path / "few", range(20), split=None, max_samples=6)
    with ShardWriter(tmp_path / "small", max_bytes=10_000) as writer:
        for number in range(5):
            writer.write({"__key__": str(number), "bin": bytes(3_000 if number else 30_000)})
    for name, counts in (("few", [6, 6, 6, 2]), ("small", [1, 2, 2])):
        expected = {f"train-{number:06d}.tar": count for number, count in enumerate(counts)}
        assert PreparedDataset.open(tmp_path / name).shard_counts == expected


def part_of_keys(folder: Path) -> dict[str, str]:
    return {key: part for part, samples in contents(folder).items() for key, _ in samples}


def test_the_part_of_a_sample_is_that_of_its_key_whatever_else_is_written(tmp_path: Path) -> None:
    write_texts(tmp_path / "a", range(50), sample_type="TextSample", field_map={"text": "txt"})
    write_texts(tmp_path / "b", range(300), max_samples=100)
    before, after, shards = part_of_keys(tmp_path / "a"), part_of_keys(tmp_path / "b"), tars(tmp_path / "a")
    assert before.items() <= after.items()
    assert after["00000"] == "val"  # for ever: the hash is part of the format
    write_texts(tmp_path / "a", range(300))  # samples are added
    assert shards.items() < tars(tmp_path / "a").items() and part_of_keys(tmp_path / "a") == after
    assert "TextSample" in (tmp_path / "a/.nv-meta/dataset.yaml").read_text()
    split = HashSplit(WriterConfig(split={"train": 80, "none": 0, "val": 15, "test": 5}).shares())
    parts = [split.part_of(f"key {number}") for number in range(20_000)]
    shares = {part: round(parts.count(part) / 20_000, 2) for part in sorted({*parts})}
    assert shares == {"test": 0.05, "train": 0.8, "val": 0.15}


def refused(error: type[Exception], told: str, numbers: Iterable[int], folder: Path, **settings: Any) -> None:
    """Writing these samples is an error."""
    with pytest.raises(error, match=told):
        write_texts(folder, numbers, **settings)


def test_an_exception_leaves_whole_shards_and_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), ShardWriter(tmp_path / "a", max_samples=4) as writer:
        for number in range(10):
            writer.write(text_sample(number))
        print(1 // 0)
    assert [*tars(tmp_path / "a")] == ["train-000000.tar", "train-000001.tar"]
    assert not (tmp_path / "a/.nv-meta").exists() and not [*(tmp_path / "a").rglob("*.tmp")]
    write_texts(tmp_path / "a", range(13), split=None, max_samples=4)
    write_texts(tmp_path / "b", range(13), split=None, max_samples=4)
    assert tars(tmp_path / "a") == tars(tmp_path / "b") and not (tmp_path / "a/.writing").exists()


def test_a_key_that_is_written_twice_also_if_it_is_no_longer_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_writer, "MAX_RECENT", 4)
    with ShardWriter(tmp_path, max_samples=4) as writer:
        for number in range(30):
            writer.write(text_sample(number))
        for number in (1, 29):
            told = rf"'{number:05d}' is written twice: it is in train-00000{number // 4}\.tar, and was to go into tr"
            with pytest.raises(DatasetError, match=told):
                writer.write(text_sample(number))
    with ShardWriter(tmp_path, max_samples=4) as writer:
        assert [number for number in range(40) if f"{number:05d}" in writer] == list(range(30))
        with pytest.raises(DatasetError, match=r"is in train-000001.tar, and was to go into train-000008.tar"):
            writer.write(text_sample(5))
        writer.write(text_sample(30))
    assert len(contents(tmp_path)["train"]) == 31 and not (tmp_path / ".writing").exists()


def test_a_sample_without_a_part_of_the_field_map(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, **CAPTIONED) as writer:
        writer.write({"__key__": "0", "png": b"", "json": {}})
        with pytest.raises(ConfigError, match="sample '1': has no part json for the field 'caption'; it has png"):
            writer.write({"__key__": "1", "png": b""})
    with pytest.raises(ConfigError, match="captoin"):
        ShardWriter(tmp_path, sample_type=CaptioningSample, field_map={"image": "png", "captoin": "txt"})


def test_ranks_write_shards_of_their_own_and_the_last_prepares(tmp_path: Path) -> None:
    numbers = range(60)
    for rank in (2, 0, 1):
        assert not (tmp_path / ".nv-meta").exists()
        write_texts(tmp_path, numbers[rank::3], rank=rank, world_size=3)
    assert {name[:-10] for name in tars(tmp_path)} == {f"{part}-{rank:05d}-" for part in SPLIT for rank in range(3)}
    write_texts(tmp_path / "alone", numbers)
    found, alone = contents(tmp_path), contents(tmp_path / "alone")
    assert {part: sorted(samples) for part, samples in found.items()} == alone
    assert not (tmp_path / ".writing").exists()


def test_ranks_that_finish_at_the_same_time(tmp_path: Path) -> None:
    barrier, errors = threading.Barrier(4), []

    def run(rank: int) -> None:
        try:
            with ShardWriter(tmp_path, rank=rank, world_size=4, max_samples=3) as writer:
                for number in range(rank, 40, 4):
                    writer.write(text_sample(number))
                barrier.wait()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and len(contents(tmp_path)["train"]) == 40


def test_a_rank_that_failed_goes_on_while_the_others_are_done(tmp_path: Path) -> None:
    def failing(numbers: range) -> Iterator[int]:
        yield from numbers
        raise ZeroDivisionError

    write_texts(tmp_path, range(0, 40, 2), rank=0, world_size=2)
    refused(ZeroDivisionError, "^$", failing(range(1, 30, 2)), tmp_path, rank=1, world_size=2)
    assert not (tmp_path / ".nv-meta").exists()
    write_texts(tmp_path, range(1, 40, 2), rank=1, world_size=2)
    for rank in range(2):
        write_texts(tmp_path / "whole", range(rank, 40, 2), rank=rank, world_size=2)
    assert tars(tmp_path) == tars(tmp_path / "whole")
    told = r"such as '00004' in train-00000-000000.tar and train-00001-000000.tar"
    write_texts(tmp_path / "same", range(5), split=None, rank=0, world_size=2)
    refused(DatasetError, told, range(4, 8), tmp_path / "same", split=None, rank=1, world_size=2)
    assert not (tmp_path / "same/.nv-meta").exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"split": {}},
        {"split": {"train": -1, "val": 2}},
        {"split": {"train": 0}},
        {"split": {"a/b": 1}},
        {"split": "8,1,1"},
        {"max_bytes": 0},
        {"max_samples": 1.5},
        {"rank": 2, "world_size": 2},
        {"world_size": 0},
    ],
)
def test_settings_that_are_wrong(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        ShardWriter(tmp_path, **settings)


def test_folders_of_others_or_with_other_settings_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/data-0.tar").write_bytes(b"")
    refused(ConfigError, r"holds tars of others, such as data-0.tar", range(3), tmp_path / "a")
    write_texts(tmp_path / "b", range(3))
    told = r"was written with the split .*4/5"
    refused(ConfigError, told, range(5), tmp_path / "b", split={"train": 1, "val": 1})
    (tmp_path / "b/.nv-meta/writer.yaml").unlink()
    refused(ConfigError, r"not by a ShardWriter", range(5), tmp_path / "b")
    with pytest.raises(KeyboardInterrupt), ShardWriter(tmp_path / "c", max_samples=7):
        raise KeyboardInterrupt
    told = "with max_samples=7, here it is 8"
    refused(ConfigError, told, range(3), tmp_path / "c", split=None, max_samples=8)


@pytest.mark.parametrize(
    "other", [{"world_size": 2}, {"sample_type": "TextSample", "field_map": {"text": "txt"}}, {"split": {"val": 1}}]
)
def test_ranks_agree_on_their_settings(tmp_path: Path, other: dict[str, Any]) -> None:
    with (
        ShardWriter(tmp_path, world_size=3),
        pytest.raises(ConfigError, match=r"is being written with .*, here it is"),
        ShardWriter(tmp_path, **{"world_size": 3, "rank": 1} | other),
    ):
        pass


def test_nothing_written_is_no_data_set_and_a_part_without_samples_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    split = {**SPLIT, "test": 0}
    refused(DatasetError, "no sample was written", (), tmp_path, split=split)
    write_texts(tmp_path, [1], split=split)
    assert "no sample in split part 'train'" in caplog.text and contents(tmp_path)["val"]
    assert "'test'" not in caplog.text, "none was asked for"


@pytest.mark.parametrize("fails", [False, True])
def test_a_writer_is_used_once_in_a_block_and_takes_no_sample_that_would_be_lost(tmp_path: Path, fails: bool) -> None:
    """Its folder for shards that are not whole stays where other ranks are at work, or the block failed."""
    writer = ShardWriter(tmp_path, rank=0, world_size=2)
    with pytest.raises(DatasetError, match="not open"):
        writer.write(text_sample(0))
    with pytest.raises(ConfigError, match="ask in its `with` block"):
        "00000" in writer  # noqa: B015
    with contextlib.suppress(KeyError), writer:
        writer.write(text_sample(0))
        if fails:
            raise KeyError
    with pytest.raises(DatasetError, match="nothing can be written any more: it is not open"):
        writer.write(text_sample(1))
    with pytest.raises(ConfigError, match="make another"), writer:
        pass
    assert not [*tmp_path.rglob(".*.tmp")]


def test_two_at_once_on_one_folder(tmp_path: Path) -> None:
    with ShardWriter(tmp_path) as writer:
        writer.write(text_sample(0))
        with pytest.raises(DatasetError, match="another process is writing it"):
            write_texts(tmp_path, range(3), split=None, max_samples=10_000)
        writer.write(text_sample(1))
    assert [key for key, _ in contents(tmp_path)["train"]] == ["00000", "00001"]


@pytest.mark.processes
def test_killed_again_and_again_and_resumed(tmp_path: Path) -> None:
    write_texts(tmp_path / "whole", range(60))
    whole_tars, whole_contents = tars(tmp_path / "whole"), contents(tmp_path / "whole")
    folder, rng = tmp_path / "killed", random.Random(0)
    num_killed = 0
    while in_child(partial(killed_at, rng.randint(1, 6 + num_killed), partial(write_texts, folder, range(60)))) != 0:
        num_killed += 1
        prepared = (folder / ".nv-meta").is_dir()
        assert tars(folder).items() <= whole_tars.items()
        if prepared:
            try:
                assert contents(folder) == whole_contents
            except (ConfigError, DatasetError) as error:
                assert "prepare" in str(error)  # the commit was interrupted
    assert num_killed >= 20
    assert (tars(folder), contents(folder)) == (whole_tars, whole_contents)
    assert lint(folder, LintConfig(num_workers=1)).counts == {} and not [*folder.rglob(".*.tmp")]


@pytest.mark.processes
def test_a_full_disk_leaves_nothing_that_could_be_taken_for_whole(tmp_path: Path) -> None:
    def limited(num_bytes: int) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))
        write_texts(folder, range(60))

    folder = tmp_path / "a"
    write_texts(tmp_path / "whole", range(60))
    for limit in (100, 1_000, 3_000, 9_000):
        assert in_child(partial(limited, limit)) == 1, limit
        assert not (folder / ".nv-meta").exists() and not [*folder.rglob("*.tmp")]
        assert tars(folder).items() <= tars(tmp_path / "whole").items()
    write_texts(folder, range(60))
    assert tars(folder) == tars(tmp_path / "whole")
