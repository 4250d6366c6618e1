import errno
import os
import pickle
import threading
from pathlib import Path

import pytest

from bridge_data import storage
from bridge_data.errors import DatasetError
from bridge_data.storage import local


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 4)
    return path


def test_reads_ranges_and_whole_files(file: Path) -> None:
    content = file.read_bytes()
    assert storage.read(file, 0, 1024) == storage.read_all(str(file)) == content
    assert storage.read(str(file), 10, 5) == content[10:15]
    assert storage.read(file, 1024, 0) == b""
    assert storage.size_bytes(file) == 1024


@pytest.mark.parametrize(("start", "num_bytes"), [(1000, 25), (1024, 1), (5000, 1)])
def test_a_read_beyond_the_end_is_an_error_and_not_a_short_read(file: Path, start: int, num_bytes: int) -> None:
    with pytest.raises(DatasetError, match=rf"{file}: wanted bytes {start} to {start + num_bytes}.*truncated"):
        storage.read(file, start, num_bytes)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "gone.tar"
    for action in (lambda: storage.read(path, 0, 1), lambda: storage.read_all(path), lambda: storage.size_bytes(path)):
        with pytest.raises(DatasetError, match=rf"{path}: no such file"):
            action()


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=f"{tmp_path}: cannot be read: Is a directory"):
        storage.read(tmp_path, 0, 1)


def test_a_file_that_was_cut_and_restored_reads_again(file: Path) -> None:
    content = file.read_bytes()
    assert storage.read(file, 512, 512) == content[512:]
    replacement = file.with_name("cut")
    replacement.write_bytes(content[:600])
    replacement.replace(file)
    assert storage.read(file, 512, 512) == content[512:]  # the file that was opened is still whole
    local._table.clear()
    with pytest.raises(DatasetError, match="has 600"):
        storage.read(file, 512, 512)
    file.write_bytes(content)
    assert storage.read(file, 512, 512) == content[512:]


def test_descriptors_are_bounded_and_the_least_recently_used_goes(tmp_path: Path) -> None:
    table = local.DescriptorTable(max_open=2)
    paths = [str(tmp_path / name) for name in "abc"]
    for path in paths:
        Path(path).write_text(path)
    first = table.get(paths[0])
    second = table.get(paths[1])
    assert table.get(paths[0]) is first
    table.get(paths[2])
    assert len(table) == 2
    assert table.get(paths[0]) is first
    fd = second.fd
    assert os.pread(fd, 1, 0) == b"/"  # it is out of the table, but open while somebody holds it
    del second
    with pytest.raises(OSError):
        os.fstat(fd)


def test_threads_read_right_while_descriptors_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_table", local.DescriptorTable(max_open=2))
    for number in range(8):
        (tmp_path / str(number)).write_bytes(bytes([number]) * 64)
    wrong: list[int] = []

    def work(seed: int) -> None:
        for step in range(500):
            number = (seed + step * 5) % 8
            if storage.read(tmp_path / str(number), step % 32, 32) != bytes([number]) * 32:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


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
    monkeypatch.setattr(local, "RETRY_WAITS_S", (0.0, 0.0, 0.0))
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
    local._table.clear()
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 12, limits[1]))
    try:
        assert all(storage.read(tmp_path / f"n{number}", 0, 1) == b"z" for number in range(40))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_files_kept_open_are_closed_on_request(file: Path) -> None:
    storage.read(file, 0, 1)
    assert len(local._table) >= 1
    storage.close_files()
    assert len(local._table) == 0
    assert storage.read(file, 0, 1)


def test_errors_travel_between_processes(tmp_path: Path) -> None:
    with pytest.raises(DatasetError) as caught:
        storage.read_all(tmp_path / "gone")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
