import functools
import io
import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data import storage
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.storage import RangeFile, RemotePath, is_remote, location, on_disk
from tests.object_store import Bucket


def test_a_url_is_used_like_a_path() -> None:
    path = RemotePath("s3://bucket/sets/a/") / "x/data.tar"
    assert str(path) == os.fspath(path) == "s3://bucket/sets/a/x/data.tar"
    assert (path.name, path.suffix, str(path.parent)) == ("data.tar", ".tar", "s3://bucket/sets/a/x")
    assert str(path.with_name("b")) == "s3://bucket/sets/a/x/b"
    assert str(path.with_suffix(".tar.idx")) == "s3://bucket/sets/a/x/data.tar.idx"
    assert path.absolute() == path == pickle.loads(pickle.dumps(path))
    assert len({path, RemotePath(str(path))}) == 1
    assert str(RemotePath("s3://bucket/").parent) == "s3://bucket"
    assert repr(path) == "RemotePath('s3://bucket/sets/a/x/data.tar')"


def test_paths_stay_paths(tmp_path: Path) -> None:
    assert location(str(tmp_path)) == location(tmp_path) == on_disk(tmp_path) == tmp_path
    assert location("s3://b/c") == location(RemotePath("s3://b/c")) == RemotePath("s3://b/c")
    with pytest.raises(ConfigError, match="unknown kind"):
        location("ftp://a/b")
    with pytest.raises(ConfigError, match="s3://b: this takes data on a disk"):
        on_disk(RemotePath("s3://b"))


def test_it_asks_the_store(bucket: Bucket) -> None:
    (bucket.folder / "a").mkdir()
    (bucket.folder / "a" / "f").write_bytes(b"f")
    folder = RemotePath(bucket.url) / "a"
    assert folder.is_dir() and folder.exists() and not folder.is_file()
    assert (folder / "f").is_file() and (folder / "f").exists() and not (folder / "f").is_dir()
    assert not (folder / "g").exists()


@pytest.fixture(params=["disk", "store"])
def place(request: pytest.FixtureRequest, bucket: Bucket, tmp_path: Path) -> Path | RemotePath:
    """A folder with a file, on the disk and in a store."""
    folder = tmp_path / "a" if request.param == "disk" else bucket.folder / "a"
    folder.mkdir()
    (folder / "file").write_bytes(b"0123456789")
    return folder if request.param == "disk" else RemotePath(f"{bucket.url}/a")


def test_disks_and_stores_are_read_alike(place: Path | RemotePath) -> None:
    file = place / "file"
    for path in (file, str(file)):
        assert storage.read(path, 2, 3) == b"234"
        assert storage.read_all(path) == storage.read_if_there(path) == b"0123456789"
        assert storage.size_bytes(path) == 10
        storage.prefetch([(path, *one) for one in [(2, 5)]])
        assert storage.read(path, 3, 4) == b"3456"
    assert storage.is_file(file) and not storage.is_file(place)
    assert storage.is_folder(place) and not storage.is_folder(file)
    assert not storage.is_file(place / "other") and not storage.is_folder(place / "other")
    assert storage.read_if_there(place / "other") is None
    with pytest.raises(DatasetError, match=f"{place}/other"):
        storage.read_all(place / "other")


def test_other_urls_are_refused() -> None:
    for action in (storage.read_all, storage.size_bytes, storage.is_file, storage.is_folder, storage.read_if_there):
        with pytest.raises(ConfigError, match="ftp://a/b: unknown kind of URL"):
            action("ftp://a/b")


def test_what_one_request_fetches_is_said_of_objects_alone(tmp_path: Path) -> None:
    far, near = "s3://a/file", str(tmp_path / "file")
    places = [(far, 5 << 20, 10), (near, 0, 10), (RemotePath(far), 20, 10), (far, 0, 0), (far, 0, 10)]
    assert storage.by_request(places) == [[(far, 5 << 20, 10)], [(far, 0, 10), (far, 20, 10)]]
    assert storage.by_request([(near, 0, 10)]) == []


def test_what_has_no_scheme_is_local() -> None:
    assert all(map(is_remote, ("s3://bucket/a", "msc://profile/a", "hdfs://a")))
    assert not any(map(is_remote, ("a/b", "/a:b", "C:/a", "s3:/bucket")))


DATA = bytes(range(256)) * 10

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(0, 3000)),
        st.tuples(st.just("seek"), st.integers(0, 3000)),
        st.tuples(st.just("end"), st.integers(-100, 0)),
    ),
    max_size=10,
)


@given(steps=STEPS, start=st.integers(0, 2560), end=st.integers(0, 2560))
def test_a_range_is_a_file_of_these_bytes(tmp_path_factory, steps, start, end) -> None:  # type: ignore[no-untyped-def]
    start, end = sorted((start, end))
    path = tmp_path_factory.getbasetemp() / "data.bin"
    path.write_bytes(DATA)
    read = functools.partial(storage.read, str(path))
    file, plain = io.BufferedReader(RangeFile(read, start, end - start), 1 << 10), io.BytesIO(DATA[start:end])
    for action, number in steps:
        if action == "read":
            assert file.read(number) == plain.read(number)
        elif action == "seek" or end - start + number < 0:
            assert file.seek(abs(number)) == plain.seek(abs(number))
        else:
            assert file.seek(number, io.SEEK_END) == plain.seek(number, io.SEEK_END)
        assert file.tell() == plain.tell()


def test_nothing_of_a_range_is_read_ahead_of_need(tmp_path: Path) -> None:
    path = tmp_path / "big"
    path.write_bytes(b"head")
    with open(path, "r+b") as file:
        file.truncate(1 << 40)
    part = RangeFile(functools.partial(storage.read, str(path)), 0, 1 << 40)
    assert part.read(4) == b"head"
    assert part.seek(-1, io.SEEK_END) == (1 << 40) - 1
    assert part.read() == b"\0"
