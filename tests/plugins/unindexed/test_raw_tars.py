"""Tars that nobody has prepared: a folder or a pattern, indexed in the cache when they are first opened."""

import errno
import fcntl
import logging
import multiprocessing
import os
import shutil
import signal
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from bridge_data.data import PreparedDataset, ShardSet
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plan import load_plan
from bridge_data.plugins.unindexed import raw_tars
from bridge_data.plugins.unindexed.raw_tars import find_raw_tars, open_raw_tars
from bridge_data.prepare.tar_scan import scan_tar
from bridge_data.storage.atomic import locked
from bridge_data.storage.copies import CACHE_VARIABLE
from tests.data.tars import keys_of, prepare_by_ratio, write_shards, write_tar

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of four tars with five samples each, and a cache of its own."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    write_shards(tmp_path / "data")
    return tmp_path / "data"


def opened(path: Path | str, split_part: str = "train") -> ShardSet:
    tars = find_raw_tars(str(path))
    assert tars is not None
    return open_raw_tars(tars, split_part)


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the tars that are scanned."""
    names: list[str] = []

    def scan(root: Path, name: str) -> Any:
        names.append(name)
        return scan_tar(root, name)

    monkeypatch.setattr(raw_tars, "scan_tar", scan)
    return names


def test_a_folder_has_the_samples_that_it_has_when_it_is_prepared(data: Path) -> None:
    shutil.move(data / "data-000003.tar", data / "a.tar")
    write_tar(data / "more/b.tar", {"1.txt": b"one"})
    write_tar(data / ".hidden/c.tar", {"1.txt": b"one"})
    raw = opened(data)
    keys, identity = keys_of(raw), raw.identity()
    shutil.rmtree(data / ".hidden")
    prepare_by_ratio(data, "1,0,0")
    prepared = PreparedDataset.open(data).split("train")
    assert (keys, identity) == (keys_of(prepared), prepared.identity())
    assert find_raw_tars(str(data)) is None


def test_a_pattern_names_tars_in_its_order_and_a_star_by_name(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert keys_of(opened(data / "data-{000002..000001}.tar"))[::5] == ["000010", "000005"]
    assert len(opened(data / "data-000003.tar")) == 5
    shutil.copytree(data, data.parent / "[other]")
    for pattern in ("{[other],data}/data-000003.tar", "{[other],data}/*3.tar"):
        both = opened(f"{data.parent}/{pattern}")
        assert (both.root, both.names) == (data.parent, ("[other]/data-000003.tar", "data/data-000003.tar"))
    assert opened(f"{data.parent}/[other]/data-00000?.tar").root == data.parent / "[other]"
    (data / "data-000009.tar").mkdir()
    everything = opened(f"{data}/*.tar")
    assert everything.root == data and keys_of(everything) == keys_of(opened(data / "data-{000000..000003}.tar"))
    write_tar(data / "data-000004.tar", {"newer.txt": b"a text"})
    assert len(opened(f"{data}/*.tar")) == 21
    assert "(data-000004.tar new)" in caplog.text


def test_that_a_pattern_passes_by_the_split_of_a_prepared_folder_is_told(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load_plan(f"{data}/*.tar")
    assert "all of their samples are for training" not in caplog.text
    prepare_by_ratio(data, "3,1,0")
    (source,) = load_plan(f"{data}/*.tar").sources
    assert source.num_samples == 20 and len(PreparedDataset.open(data).split("train")) == 15
    assert f"{data}/*.tar: its tars are read without {data}/.nv-meta" in caplog.text


def test_nothing_is_written_beside_the_tars_and_they_are_scanned_once(
    data: Path, scanned: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    before = sorted(data.iterdir())
    assert [len(opened(data)), len(opened(data))] == [20, 20]
    assert sorted(data.iterdir()) == before
    assert scanned == [f"data-{number:06d}.tar" for number in range(4)]
    (told,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert f"{data}: is read without .nv-meta, so its tars (4) are indexed now" in told
    assert f"`bridge-data prepare {data}`" in told


def test_of_tars_that_have_changed_only_those_are_scanned_and_named(
    data: Path, scanned: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    before = opened(data)
    write_tar(data / "data-000001.tar", {"new.txt": b"a text"})
    write_tar(data / "data-000004.tar", {"newer.txt": b"a text"})
    (data / "data-000003.tar").unlink()
    del scanned[:]
    after = opened(data)
    assert scanned == ["data-000001.tar", "data-000004.tar"] and keys_of(after)[5:6] == ["new"]
    assert after.identity() != before.identity()
    told = "data-000001.tar changed; data-000004.tar new; data-000003.tar gone"
    assert f"its tars have changed since they were indexed ({told})" in caplog.text
    assert before.index is not None  # the older one stays for the runs that read it
    assert before.index.segment("data-000000.tar").keys()[0] == "000000"


def test_all_damaged_tars_are_named(data: Path) -> None:
    for number in (1, 3):
        path = data / f"data-{number:06d}.tar"
        path.write_bytes(path.read_bytes()[:1500])
    with pytest.raises(DatasetError, match=r"2 of 4 shards cannot be used:\n.*data-000001.*\n.*data-000003"):
        opened(data)
    assert not list((data.parent / "cache").rglob("*.bridge"))


@pytest.mark.parametrize(
    ("path", "part", "says"),
    [
        ("data", "val", "no 'val': run `bridge-data prepare"),
        ("data/data-{000003..000005}.tar", "train", "2 of its 3 tars are not there: data-000004.tar, data-000005.tar"),
        ("data/data-{000001,000001}.tar", "train", "names a tar twice"),
        ("data/date-*.tar", "train", "date-*.tar: no tar has such a name"),
        ("packed", "train", "x.tgz: is compressed, and has no index: run `bridge-data prepare"),
    ],
)
def test_what_cannot_be_read_is_refused(data: Path, path: str, part: str, says: str) -> None:
    (data.parent / "packed").mkdir()
    (data.parent / "packed/x.tgz").touch()
    with pytest.raises(ConfigError) as refused:
        opened(data.parent / path, part)
    assert says in str(refused.value)


@pytest.mark.parametrize("other", [".nv-meta", "below/.nv-meta", ".writing"])
def test_a_folder_that_is_prepared_or_written_is_none_of_tars(data: Path, other: str) -> None:
    (data / other).mkdir(parents=True)
    assert find_raw_tars(str(data)) is None


def test_what_is_wrong_with_the_cache_is_an_error_with_the_way_out(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(data)
    (held,) = (data.parent / "cache").rglob("*.lock")
    write_tar(data / "data-000004.tar", {"new.txt": b"a text"})
    monkeypatch.setattr(raw_tars, "WAIT_S", 0.0)
    with locked(str(held)), pytest.raises(DatasetError, match="another process has been indexing it"):
        opened(data)
    monkeypatch.setattr(fcntl, "flock", mock.Mock(side_effect=OSError(errno.ENOLCK, "No locks available")))
    assert len(opened(data)) == 21  # a file system without locks is used without
    shutil.rmtree(data.parent / "cache")
    (data.parent / "cache").write_text("a file")
    with pytest.raises(DatasetError, match=r"cache/indexes: the index of .*data cannot be written.*BRIDGE_DATA_CACHE"):
        opened(data)


@pytest.mark.processes
def test_of_four_processes_at_once_one_makes_the_index(data: Path, scanned: list[str]) -> None:
    together, results = FORK.Barrier(4), FORK.SimpleQueue()

    def work() -> None:
        together.wait(60)
        results.put((len(opened(data)), len(scanned)))

    processes = [FORK.Process(target=work) for _ in range(4)]
    for process in processes:
        process.start()
    assert sorted(results.get() for _ in processes) == [(20, 0), (20, 0), (20, 0), (20, 4)]
    for process in processes:
        process.join()


@pytest.mark.processes
def test_a_process_that_is_killed_in_the_middle_leaves_nothing(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def scan(root: Path, name: str) -> Any:
        if name == "data-000002.tar":
            os.kill(os.getpid(), signal.SIGKILL)
        return scan_tar(root, name)

    with monkeypatch.context() as patch:
        patch.setattr(raw_tars, "scan_tar", scan)
        process = FORK.Process(target=opened, args=(data,))
        process.start()
        process.join()
    assert process.exitcode == -signal.SIGKILL
    assert len(opened(data)) == 20
    assert sorted(path.suffix for path in (data.parent / "cache/indexes").iterdir()) == [".bridge", ".lock"]
