import errno
import functools
import io
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
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


def test_paths_stay_paths_and_other_urls_are_refused(tmp_path: Path) -> None:
    assert location(str(tmp_path)) == location(tmp_path) == on_disk(tmp_path) == tmp_path
    assert location("s3://b/c") == location(RemotePath("s3://b/c")) == RemotePath("s3://b/c")
    assert [*map(is_remote, ("s3://b/a", "msc://p/a", "hdfs://a", "/a:b", "C:/a", "s3:/b"))] == [True] * 3 + [False] * 3
    with pytest.raises(ConfigError, match="s3://b: this takes data on a disk"):
        on_disk(RemotePath("s3://b"))
    actions = (storage.read_all, storage.size_bytes, storage.is_file, storage.is_folder, storage.read_if_there)
    for action in (location, *actions):
        with pytest.raises(ConfigError, match="ftp://a/b: unknown kind of URL"):
            action("ftp://a/b")


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
        assert (storage.read(path, 2, 3), storage.read(path, 10, 0)) == (b"234", b"")
        assert storage.read_all(path) == storage.read_if_there(path) == b"0123456789"
        assert storage.size_bytes(path) == 10
        storage.prefetch([(path, *one) for one in [(2, 5)]])
        assert storage.read(path, 3, 4) == b"3456"
    for path, is_file, is_folder in ((file, True, False), (place, False, True), (place / "other", False, False)):
        assert (storage.is_file(path), storage.is_folder(path), path.exists()) == (
            is_file,
            is_folder,
            is_file or is_folder,
        )
        assert (path.is_file(), path.is_dir()) == (is_file, is_folder)
    assert storage.read_if_there(place / "other") is None
    for action in (functools.partial(storage.read, start=0, num_bytes=1), storage.read_all, storage.size_bytes):
        with pytest.raises(DatasetError, match=f"{place}/other.*: no such (file|object)") as caught:
            action(place / "other")
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    for start, num_bytes in ((8, 3), (10, 1), (5000, 1)):
        with pytest.raises(DatasetError, match=rf"{file}: wanted bytes {start} to {start + num_bytes}.*truncated"):
            storage.read(file, start, num_bytes)


def test_what_one_request_fetches_is_said_of_objects_alone(tmp_path: Path) -> None:
    far, near = "s3://a/file", str(tmp_path / "file")
    places = [(far, 5 << 20, 10), (near, 0, 10), (RemotePath(far), 20, 10), (far, 0, 0), (far, 0, 10)]
    assert storage.by_request(places) == [[(far, 5 << 20, 10)], [(far, 0, 10), (far, 20, 10)]]
    assert storage.by_request([(near, 0, 10)]) == []


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
    (tmp_path / "big").write_bytes(b"head")
    os.truncate(tmp_path / "big", 1 << 40)
    part = RangeFile(functools.partial(storage.read, str(tmp_path / "big")), 0, 1 << 40)
    assert part.read(4) == b"head"
    assert part.seek(-1, io.SEEK_END) == (1 << 40) - 1
    assert part.read() == b"\0"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 4)
    return path


def test_a_file_that_was_cut_and_restored_reads_again(file: Path) -> None:
    content = file.read_bytes()
    assert storage.read(file, 512, 512) == content[512:]
    replacement = file.with_name("cut")
    replacement.write_bytes(content[:600])
    replacement.replace(file)
    assert storage.read(file, 512, 512) == content[512:]  # the file that was opened is still whole
    storage.close_files()
    with pytest.raises(DatasetError, match="has 600"):
        storage.read(file, 512, 512)
    file.write_bytes(content)
    assert storage.read(file, 512, 512) == content[512:]


def test_threads_read_right_while_descriptors_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage.content, "_files", storage.RecentlyUsed(2))
    for number in range(8):
        (tmp_path / str(number)).write_bytes(bytes([number]) * 64)

    def is_right(seed: int) -> bool:
        numbers = [(seed + step * 5) % 8 for step in range(500)]
        return all(storage.read(tmp_path / str(n), n, 32) == bytes([n]) * 32 for n in numbers)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(is_right, range(4)))


def test_a_forked_child_may_close_every_inherited_descriptor(file: Path) -> None:
    content = storage.read(file, 0, 16)
    other = file.with_name("other")
    other.write_bytes(b"y" * 1024)
    child = os.fork()
    if child == 0:
        os.closerange(3, 4096)
        decoy = os.open(other, os.O_RDONLY)  # takes a number that the parent used
        right = decoy >= 3 and storage.read(file, 0, 16) == content
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert storage.read(file, 0, 16) == content


def test_transient_faults_are_tried_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage.content, "RETRY_WAITS_S", (0.0, 0.0, 0.0))
    pread, faults = os.pread, [errno.EIO, errno.ESTALE, errno.EIO]

    def faulty(fd: int, num_bytes: int, start: int) -> bytes:
        if faults:
            raise OSError(faults.pop(), "fault")
        return pread(fd, num_bytes, start)

    monkeypatch.setattr(os, "pread", faulty)
    assert storage.read(file, 3, 2) == b"\x03\x04"
    assert faults == []
    faults.extend([errno.EIO] * 10)
    with pytest.raises(DatasetError, match="cannot be read: fault"):
        storage.read(file, 3, 2)


def test_short_reads_of_the_system_are_completed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, num_bytes, start: pread(fd, min(num_bytes, 100), start))
    assert storage.read(file, 0, 1024) == file.read_bytes()


def test_too_many_open_files_are_closed(file: Path, tmp_path: Path) -> None:
    import resource

    for number in range(40):
        (tmp_path / f"n{number}").write_bytes(b"z")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    storage.close_files()
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 12, limits[1]))
    try:
        assert all(storage.read(tmp_path / f"n{number}", 0, 1) == b"z" for number in range(40))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
