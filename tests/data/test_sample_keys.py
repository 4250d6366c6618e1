"""Finding samples by the forms of their names, and parts by theirs. (That every kind of records finds its samples:
`test_records_contract.py`.)"""

import gzip
import os
import pickle
import signal
import sqlite3
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bridge_data import storage
from bridge_data.data import Records, Subset, key_index
from bridge_data.data.metadata import INDEX_SQLITE
from bridge_data.errors import ConfigError, DatasetError, SampleError
from bridge_data.prepare.tars import refresh_index
from bridge_data.runs.named_samples import find_sample
from bridge_data.task.stores.part_reader import PartReader
from tests.data.joins import dataset, narrowed
from tests.data.tars import prepare_by_ratio, write_tar
from tests.task.stores.media import content, write_media


def found(name: str, *several: Records) -> list[tuple[int, int, str]]:
    return [(one.records, one.index, one.name) for one in find_sample(several, name)]


@pytest.mark.parametrize("with_sqlite", [True, False])
def test_a_sample_is_found_by_each_form_of_its_name(tmp_path: Path, with_sqlite: bool) -> None:
    shards = dataset(tmp_path / "a", [["1", "2"], ["3", "x/4:5"]], exclude=["0.tar/2"])
    if not with_sqlite:
        (tmp_path / "a" / ".nv-meta" / INDEX_SQLITE).unlink()
    for name in ("3", "1.tar/3", "1.tar:3", "a/1.tar:3", f"{tmp_path}/a/1.tar/3"):
        assert found(name, shards) == [(0, 1, "1.tar:3")]
    for name in ("x/4:5", "1.tar/x/4:5", "1.tar:x/4:5"):
        assert found(name, shards) == [(0, 2, "1.tar:x/4:5")]
    for name in ("2", "4", "0.tar:3", "0.tar:"):
        with pytest.raises(ConfigError, match=r"no sample has the key .* The first sample there is 0.tar:1"):
            found(name, shards)
    with pytest.raises(ConfigError, match="there are no samples"):
        found("1", Subset(shards, 0, 0))


def test_a_key_of_several_samples_lists_them(tmp_path: Path) -> None:
    a, b = dataset(tmp_path / "a", [["1", "2"], ["1"]]), dataset(tmp_path / "b", [["1"]])
    with pytest.raises(ConfigError, match=r"'1' is the key of 2 samples; say which is meant: 0.tar:1, 1.tar:1$"):
        found("1", a)
    assert found("1.tar:1", a) == [(0, 2, "1.tar:1")]
    assert found("1", narrowed(tmp_path / "a", split_parts={"train": ["1.tar"]})) == [(0, 0, "1.tar:1")]
    with pytest.raises(ConfigError, match=rf"{tmp_path}/a/0.tar:1, {tmp_path}/b/0.tar:1"):
        found("0.tar:1", a, b)
    assert found("b/0.tar:1", a, b) == [(1, 0, "0.tar:1")]
    twice = found("2", a, Subset(a, 1, 3), Subset(a, 2, 3))
    assert twice == [(0, 1, "0.tar:2"), (1, 0, "0.tar:2")]  # a data set that is there twice is one


def test_the_key_of_a_pack_names_its_samples(tmp_path: Path) -> None:
    shards = dataset(tmp_path / "a", [["1", "2,3"], ["4"]])
    with pytest.raises(
        ConfigError, match=r"is the key of a pack; say which of its samples is meant: 0.tar/1, 1.tar/4$"
    ):
        found("0.tar/1,1.tar/4", shards)
    assert found("2,3", shards) == [(0, 1, "0.tar:2,3")]
    with pytest.raises(ConfigError, match="no sample has the key '5,6'"):
        found("5,6", shards)


def test_a_damaged_index_is_told(tmp_path: Path) -> None:
    shards = dataset(tmp_path / "a", [["1", "2"]])
    with sqlite3.connect(tmp_path / "a" / ".nv-meta" / INDEX_SQLITE) as database:
        database.execute("UPDATE samples SET sample_index = 'x'")
    with pytest.raises(DatasetError, match="is damaged: it has '1' at position 'x'"):
        found("1", shards)


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_media(tmp_path_factory.mktemp("media"))


def read(parts: PartReader, name: str) -> bytes:
    return parts.read(parts.find(name))


def test_every_part_is_found_by_its_name_also_behind_that_of_a_shard(media: Path) -> None:
    """The key of a sample begins with its shard, which need not be one of this data set."""
    parts = PartReader(media)
    expected = {f"{n:06d}.bin": content(n) for n in range(24)}
    expected |= {f"a/{n:06d}.left.txt": f"left {n}".encode() for n in range(24)}
    assert {name: read(parts, name) for name in parts.part_names()} == expected
    assert parts.index.shard_names[parts.find("000009.bin").shard] == "m-1.tar"
    assert parts.find("other/data-7.tar/000009.bin") == parts.find("000009.bin")
    assert read(parts, "m-1.tar/a/000009.left.txt") == b"left 9"
    for name, told in (
        ("000099.bin", "no sample has the key '000099'"),
        ("000001.jpg", "sample '000001' has no part 'jpg'; it has bin"),
        ("000001", "names no part of a sample"),
        ("x.tar/000099.bin", "no sample has the key '000099'"),
    ):
        with pytest.raises(SampleError, match=told):
            parts.find(name)


def test_one_look_up_goes_through_the_indexes(media: Path) -> None:
    """Never a scan, whatever the size."""
    with sqlite3.connect(media / ".nv-meta/index.sqlite") as database:
        plan = [row[3] for row in database.execute("EXPLAIN QUERY PLAN " + key_index._PART, ("k", "p"))]
    assert all(step.startswith("SEARCH") for step in plan), plan


def test_a_reader_travels_and_serves_many_threads(media: Path) -> None:
    parts = PartReader(media)
    read(parts, "000000.bin")
    parts = pickle.loads(pickle.dumps(parts))
    with ThreadPoolExecutor(4) as threads:
        found = [*threads.map(read, [parts] * 480, [f"{n % 24:06d}.bin" for n in range(480)])]
    assert found == [content(n % 24) for n in range(480)]


def test_a_forked_process_waits_for_no_thread_of_its_parent(media: Path) -> None:
    parts = PartReader(media)
    read(parts, "000000.bin")
    with parts.index.database._lock:  # as a thread that reads holds it
        pid = os.fork()
        if pid == 0:
            signal.alarm(60)  # kills a child that waits
            os._exit(0 if read(parts, "000011.bin") == content(11) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_long_names_and_compressed_shards_are_read(tmp_path: Path) -> None:
    name = "folder/" + "n" * 150
    write_tar(tmp_path / "a.tar", {f"{name}.bin": b"long", "k.bin": b"short"}, format=tarfile.GNU_FORMAT)
    tar = write_tar(tmp_path / "b.tar", {f"{name}2.bin": b"pax", "j.bin": b"end"}, format=tarfile.PAX_FORMAT)
    (tmp_path / "b.tgz").write_bytes(gzip.compress(tar.read_bytes()))
    tar.unlink()
    prepare_by_ratio(tmp_path, "1,0,0")
    parts = PartReader(tmp_path)
    assert [read(parts, each) for each in parts.part_names()] == [b"long", b"short", b"pax", b"end"]


def without_parts(folder: Path) -> PartReader:
    """A reader of an older index, which knows no parts."""
    with sqlite3.connect(folder / ".nv-meta/index.sqlite") as database:
        database.execute("DROP TABLE sample_parts")
    return PartReader(folder)


def test_an_older_index_that_knows_no_parts_serves_too(tmp_path: Path) -> None:
    parts = without_parts(write_media(tmp_path))
    assert read(parts, "000009.bin") == content(9)
    assert read(parts, "a/000009.left.txt") == b"left 9"
    with pytest.raises(SampleError, match="there is no part"):
        parts.find("000009.jpg")


def test_what_was_replaced_is_gone_or_not_prepared_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a prepared data set"):
        PartReader(tmp_path)
    parts = PartReader(write_media(tmp_path / "m"))
    write_tar(tmp_path / "m/m-1.tar", {"000008.bin": b"other", "000009.bin": b"others" * 400})
    with pytest.raises(DatasetError, match=r"m-1.tar: does not hold '000009.bin' at byte"):
        read(parts, "000009.bin")
    (tmp_path / "m/m-1.tar").unlink()
    storage.close_files()
    with pytest.raises(DatasetError, match="no such file"):
        read(PartReader(tmp_path / "m"), "000009.bin")
    (tmp_path / "m/.nv-meta/index.sqlite").write_bytes(b"nothing" * 1000)
    with pytest.raises(DatasetError, match=r"index.sqlite: cannot be read"):
        PartReader(tmp_path / "m").find("000000.bin")
    write_media(tmp_path / "n")
    (tmp_path / "n/.nv-meta/index.sqlite").unlink()
    with pytest.raises(ConfigError, match=r"no index of its keys.*--tar-index-only"):
        PartReader(tmp_path / "n")
    refresh_index(tmp_path / "n")
    assert read(PartReader(tmp_path / "n"), "000000.bin") == content(0)


def test_a_key_of_several_shards_needs_the_name_of_the_shard(tmp_path: Path) -> None:
    for shard in ("a.tar", "sub/b.tar"):
        write_tar(tmp_path / shard, {"0001.txt": shard.encode(), "0001.bin": b"", f"{shard[-5]}.txt": b"own"})
    prepare_by_ratio(tmp_path)
    parts = PartReader(tmp_path)
    for name in ("0001.txt", "other.tar/0001.txt"):
        with pytest.raises(
            SampleError, match=r"samples of 2 shards have the key '0001'.*: a\.tar/0001\.txt, sub/b\.tar/0001\.txt\. `"
        ):
            parts.find(name)
    for shard in ("a.tar", "sub/b.tar"):
        assert read(parts, f"{shard}/0001.txt") == read(parts, f"{shard}:0001.txt") == shard.encode()
    assert read(parts, "a.txt") == read(parts, "other.tar/b.txt") == b"own"
    with pytest.raises(SampleError, match="sample '0001' has no part 'jpg'; it has bin, txt"):
        parts.find("a.tar/0001.jpg")
