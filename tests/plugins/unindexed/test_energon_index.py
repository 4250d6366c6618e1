"""Data as Energon leaves them: a database and offsets, and no index of ours. (`tests/peer` has real ones.)"""

import contextlib
import dataclasses
import errno
import fcntl
import logging
import multiprocessing
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from bridge_data import WorkerConfig, get_train_dataset
from bridge_data.data import PreparedDataset, ShardReader
from bridge_data.data.index_file import UNKNOWN, BridgeIndex
from bridge_data.plan import load_plan
from bridge_data.plugins.unindexed import energon_index
from bridge_data.storage.copies import CACHE_VARIABLE
from tests.data.tars import prepare_by_ratio, text_of, write_shards, write_tar

INDEX = Path(".nv-meta/index.bridge")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A prepared folder without our index, and a cache of its own."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    folder = tmp_path / "data"
    write_shards(folder, num_shards=6)
    prepare_by_ratio(folder, "1,0,0")
    shutil.copyfile(folder / INDEX, tmp_path / "ours")
    (folder / INDEX).unlink()
    return folder


def opened(folder: Path) -> PreparedDataset:
    return PreparedDataset.open(folder, make_index=energon_index.index_of_energon)


def texts(dataset: PreparedDataset) -> list[bytes]:
    reader = ShardReader(dataset.split("train"))
    return [reader.read(number).parts["txt"] for number in range(len(reader))]


def cached(folder: Path) -> list[str]:
    return [path.suffix for path in (folder.parent / "cache").rglob("*.*")]


def test_the_index_is_the_one_that_prepare_writes(data: Path) -> None:
    before = PreparedDataset.open(data)
    made, ours = opened(data), BridgeIndex.open(data.parent / "ours")
    assert before.index is None and made.index is not None and ours is not None
    read = [dataclasses.replace(entry, head_checksum=UNKNOWN) for entry in ours.entries.values()]
    assert list(made.index.entries.values()) == read, "no shard was read"
    for name in ours.entries:
        assert made.index.segment_bytes(name) == ours.segment_bytes(name)
    assert (data / INDEX).is_file() and PreparedDataset.open(data).index is not None and cached(data) == []
    one, other = before.split("train"), made.split("train")
    assert one.sample_bytes == other.sample_bytes and one.identity() == other.identity()
    assert prepare_by_ratio(data, "1,0,0").num_scanned == 0  # which takes it for its own


def test_a_data_set_for_training_makes_it_and_a_look_at_the_data_does_not(data: Path) -> None:
    (data / ".nv-meta/dataset.yaml").write_text(
        "sample_type: {__module__: megatron.energon, __class__: TextSample}\nfield_map: {text: txt}\n"
    )
    load_plan(data)
    assert not (data / INDEX).exists()
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    get_train_dataset(data, worker_config=config, batch_size=1, shuffle_buffer_size=10, max_samples_per_sequence=10)
    assert (data / INDEX).is_file()


def test_where_the_data_cannot_be_written_it_is_in_the_cache(
    data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    replacing = energon_index.replacing

    def only_elsewhere(path: Path) -> contextlib.AbstractContextManager[Path]:
        if path.is_relative_to(data):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return replacing(path)

    monkeypatch.setattr(energon_index, "replacing", only_elsewhere)
    caplog.set_level(logging.INFO, "bridge_data")
    for _ in range(2):
        assert opened(data).index is not None and texts(opened(data)) == [text_of(number) for number in range(30)]
        assert cached(data) == [".bridge"] and not (data / INDEX).exists()
        assert caplog.text.count("our index was made of it") == 1


def test_shards_that_changed_after_the_database_are_compared_with_their_headers(data: Path) -> None:
    os.utime(data / "data-000002.tar")
    os.utime(data / ".nv-meta/index.sqlite", ns=(0, (data / "data-000001.tar").stat().st_mtime_ns))
    os.utime(data / "data-000000.tar", ns=(1, 1))
    shards = opened(data).split("train")
    reader = ShardReader(shards)
    assert [reader.read(number).parts["txt"] for number in range(30)] == [text_of(number) for number in range(30)]
    assert shards.index is not None
    for shard, reads_headers in ((0, False), (2, True)):
        content_offset = shards.index.segment(shards.names[shard]).parts(0)[0][1]
        assert (reader.byte_ranges(range(5 * shard, 5 * shard + 1))[0][1] < content_offset) is reads_headers
    write_tar(data / "data-000004.tar", {f"{number:06d}.txt": b"new" for number in range(20, 25)})
    (data / INDEX).unlink()
    with pytest.raises(Exception, match=r"data-000004\.tar"):
        texts(opened(data))


DAMAGE = {
    "a sample is missing": "DELETE FROM samples WHERE sample_key = '000007'",
    "a sample has no parts": "DELETE FROM sample_parts WHERE tar_file_id = 1 AND sample_index = 2",
    "a sample is elsewhere": "UPDATE samples SET byte_offset = byte_offset + 512 WHERE sample_key = '000007'",
    "a sample is longer": "UPDATE samples SET byte_size = byte_size + 512 WHERE sample_key = '000009'",
    "a part is in another sample": "UPDATE sample_parts SET content_byte_offset = 512 WHERE sample_index = 3",
    "a part ends in another sample": "UPDATE sample_parts SET content_byte_size = 99999 WHERE sample_index = 3",
    "a size is no number": "UPDATE sample_parts SET content_byte_size = 'x' WHERE sample_index = 3",
    "a key is no text": "UPDATE samples SET sample_key = x'37' WHERE sample_key = '000007'",
    "it knows no parts": "DROP TABLE sample_parts",
}


@pytest.mark.parametrize("statement", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_database_that_does_not_agree_gives_none(
    data: Path, statement: str, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.closing(sqlite3.connect(data / ".nv-meta/index.sqlite")) as db:
        db.execute(statement)
        db.commit()
    dataset = opened(data)
    assert dataset.index is None and not (data / INDEX).exists() and cached(data) == []
    assert "so samples are found by their headers" in caplog.text
    assert texts(dataset) == [text_of(number) for number in range(30)]


def test_it_is_not_made_of_a_large_data_set(
    data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(energon_index, "MAX_SAMPLES", 29)
    assert opened(data).index is None
    assert f"With 30 samples the index is not made on opening: run `bridge-data prepare {data} --tar-index-only`" in (
        caplog.text
    )
    prepare_by_ratio(data, "1,0,0")
    assert opened(data).index is not None


@pytest.mark.processes
def test_one_process_makes_it_and_the_others_wait(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fork, make = multiprocessing.get_context("fork"), energon_index._make
    told = fork.SimpleQueue()
    monkeypatch.setattr(energon_index, "_make", lambda *given: (told.put("made"), make(*given)))
    children = [fork.Process(target=lambda: told.put(str(opened(data).index is not None))) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert sorted(told.get() for _ in range(5)) == ["True"] * 4 + ["made"] and told.empty()


def test_an_index_that_is_there_is_left_to_prepare(data: Path) -> None:
    shutil.copyfile(data.parent / "ours", data / INDEX)
    (data / ".nv-meta/index.uuid").write_text("of a later preparation")
    assert opened(data).index is None
    (data / INDEX).write_bytes(b"damaged")
    assert opened(data).index is None and (data / INDEX).read_bytes() == b"damaged"


def test_a_process_goes_without_if_another_takes_too_long(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energon_index, "WAIT_S", 0.0)
    descriptor = os.open(data, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert opened(data).index is None
    os.close(descriptor)
    assert opened(data).index is not None
