"""What every `Store` promises, of a stranger's and of ours; and a whole loader that reads by the stranger's, which is
found by its entry point and named nowhere in the package."""

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge_data import WorkerConfig, get_savable_loader, get_train_dataset, storage
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.prepare.splits import parse_ratio, split_by_ratio
from bridge_data.prepare.tars import prepare
from bridge_data.storage import RemotePath, Version, local_copy, store, store_of
from tests.prepared import write_blend, write_texts

ENTRY_POINT = "[bridge_data.stores]\nzip = tests.storage.zip_store:ZipStore\n"


@pytest.fixture
def zips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty zip file, in a process where a package with the store of zip files is installed."""
    installed = tmp_path / "installed" / "zip_store-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: zip-store\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(ENTRY_POINT)
    monkeypatch.syspath_prepend(str(installed.parent))
    monkeypatch.setenv("ZIP_FOLDER", str(tmp_path))
    monkeypatch.setenv("BRIDGE_DATA_CACHE", str(tmp_path / "cache"))
    yield "zip://some"
    store._stores.pop("zip", None)


@pytest.fixture(params=["zip", "s3"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty store."""
    if request.param == "zip":
        found: str = request.getfixturevalue("zips")
        return found
    pytest.importorskip("bridge_data.plugins.stores")
    return str(request.getfixturevalue("bucket").url)


def test_what_was_written_is_found_read_listed_and_deleted(url: str, tmp_path: Path) -> None:
    kept = store_of(url)
    (tmp_path / "file").write_bytes(b"0123456789")
    written = kept.write(f"{url}/a/b", tmp_path / "file"), kept.write(f"{url}/a/c/d", b"xyz")
    assert written == (kept.find(f"{url}/a/b"), kept.find(f"{url}/a/c/d"))
    assert [version.num_bytes for version in written if version] == [10, 3]
    assert kept.list(f"{url}/a") == {"b": written[0], "c/d": written[1]}
    assert [*kept.list(url)] == ["a/b", "a/c/d"] and kept.list(f"{url}/a/c/d") == kept.list(f"{url}/n") == {}
    assert kept.read(f"{url}/a/b", 2, 3) == (b"234", written[0])
    assert kept.read_all(f"{url}/a/b") == b"0123456789" and kept.size_bytes(f"{url}/a/b") == 10
    assert (kept.is_folder(url), kept.is_folder(f"{url}/a"), kept.is_folder(f"{url}/a/b")) == (True, True, False)
    kept.delete(f"{url}/a/b")
    kept.delete(f"{url}/a/b")
    assert (kept.find(f"{url}/a/b"), kept.read_all(f"{url}/a/b"), kept.find(f"{url}/a")) == (None, None, None)
    assert [*kept.list(url)] == ["a/c/d"]


def test_a_version_changes_with_the_object(url: str) -> None:
    kept = store_of(url)
    first = kept.write(f"{url}/a", b"one")
    assert kept.write(f"{url}/a", b"two") == kept.find(f"{url}/a") != first
    assert kept.read(f"{url}/a", 0, 3) == (b"two", kept.find(f"{url}/a"))


def test_a_read_is_short_only_if_the_object_ends_before_and_the_core_says_so(url: str) -> None:
    kept = store_of(url)
    version = kept.write(f"{url}/a", b"0123456789")
    assert kept.read(f"{url}/a", 8, 2) == (b"89", version) and kept.read(f"{url}/a", 3, 0) == (b"", version)
    for start, num_bytes in ((8, 3), (10, 1), (5000, 1)):
        assert len(kept.read(f"{url}/a", start, num_bytes)[0]) < num_bytes
        with pytest.raises(DatasetError, match=rf"{url}/a: wanted bytes {start} to {start + num_bytes}.* has 10"):
            storage.read(f"{url}/a", start, num_bytes)


def test_what_is_not_there_is_an_error_that_names_it(url: str) -> None:
    for read in (storage.read_all, storage.size_bytes, storage.version, lambda path: storage.read(path, 0, 1)):
        with pytest.raises(DatasetError, match=rf"{url}/a.*no such object") as caught:
            read(f"{url}/a")
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert storage.read_if_there(f"{url}/a") is None and local_copy(f"{url}/a") is None


def test_a_copy_on_this_machine_is_made_once_and_anew_when_the_object_changes(url: str) -> None:
    place = RemotePath(f"{url}/index")
    storage.write(place, b"old" * 1000)
    first = local_copy(place)
    assert first is not None and first.read_bytes() == b"old" * 1000
    made = first.stat().st_ino
    assert local_copy(place) == first and first.stat().st_ino == made
    storage.write(place, b"new")
    second = local_copy(place)
    assert second is not None and second.read_bytes() == b"new" and not first.exists()
    storage.delete(place)
    assert local_copy(place) is None and not second.exists()


def read_texts(path: object, num_workers: int, state: Any = None, num_batches: int = 40) -> tuple[list[list[str]], Any]:
    """(The texts of the next batches, the state after them)."""
    config = WorkerConfig(rank=0, world_size=1, num_workers=num_workers, num_lanes=2)
    data = get_train_dataset(
        str(path), worker_config=config, batch_size=4, shuffle_buffer_size=20, max_samples_per_sequence=10
    )
    with get_savable_loader(data) as loader:
        if state is not None:
            loader.restore_state_rank(state)
        batches = iter(loader)
        return [next(batches).text for _ in range(num_batches)], json.loads(json.dumps(loader.save_state_rank()))


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_reads_by_a_store_that_the_package_does_not_know(zips: str, tmp_path: Path, num_workers: int) -> None:
    for name, size in (("a", 120), ("b", 60)):
        write_texts(tmp_path / "local" / name, size, lambda number, name=name: f"{name}{number}")  # type: ignore[misc]
        for tar in (tmp_path / "local" / name).glob("*.tar"):
            storage.upload(RemotePath(f"{zips}/{name}/{tar.name}"), tar)
        prepare(RemotePath(f"{zips}/{name}"), lambda names: split_by_ratio(names, ratio=parse_ratio("1,0,0")))
        copied = tmp_path / "local" / name / ".nv-meta" / "dataset.yaml"
        storage.upload(RemotePath(f"{zips}/{name}/.nv-meta/dataset.yaml"), copied)
    blend = write_blend(tmp_path / "local" / "blend.yaml", {"a": 3, "b": 1})
    storage.upload(RemotePath(f"{zips}/blend.yaml"), blend)
    expected, _ = read_texts(blend, 0)
    found, state = read_texts(f"{zips}/blend.yaml", num_workers, num_batches=15)
    rest, _ = read_texts(f"{zips}/blend.yaml", num_workers, state, num_batches=25)
    assert found + rest == expected


def test_a_url_without_a_store_is_an_error_that_names_the_plug_in() -> None:
    for action in (storage.location, storage.read_all, storage.size_bytes, storage.is_file, storage.is_folder):
        with pytest.raises(ConfigError, match=r"ftp://a/b: unknown kind of URL; expected a local path.*plug-in 'ftp'"):
            action("ftp://a/b")


def test_a_version_of_an_object_is_a_larger_number_than_any_time() -> None:
    assert Version(1, 2**61).stamp < Version(1, "a").stamp != Version(1, "b").stamp
