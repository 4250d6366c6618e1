import contextlib
import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest

from bridge_data.errors import DatasetError
from bridge_data.prepare.sqlite_index import clone_file
from bridge_data.storage.atomic import EXCLUSIVE, SHARED, lock, locked, replacing, sync_folder, write_file, writing
from tests.task.stores.processes import Child


def test_the_new_file_takes_the_place_of_the_old_unless_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / ("é" * 127)  # 254 bytes, and 255 are allowed
    write_file(path, "old")
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    with replacing(path) as first:
        first.write_text("first")
        assert path.read_text() == "old"
        with replacing(path) as second:
            second.write_text("second")
        assert (first.read_text(), path.read_text()) == ("first", "second")
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_clone_is_a_file_of_its_own(tmp_path: Path) -> None:
    content = os.urandom(100_000)
    (tmp_path / "file").write_bytes(content)
    (tmp_path / "clone").write_bytes(bytes(200_000))
    clone_file(tmp_path / "file", tmp_path / "clone")
    assert (tmp_path / "clone").read_bytes() == content
    (tmp_path / "clone").write_bytes(b"other")
    assert (tmp_path / "file").read_bytes() == content


def test_faults_name_the_folder(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=f"{tmp_path}: cannot be written to: .*No space left"), writing(tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_a_file_system_that_cannot_sync_folders_is_no_failure(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.fsync", mock.Mock(side_effect=OSError(number, "no")))
    with contextlib.nullcontext() if number == errno.EINVAL else pytest.raises(OSError, match="no"):
        sync_folder(tmp_path)


def test_locks_exclude_each_other_within_a_process(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    with locked(path):
        assert lock(path, EXCLUSIVE, wait=False) is None
        assert lock(path, SHARED, wait=False) is None
    first, second = lock(path, SHARED), lock(path, SHARED, wait=False)
    assert first is not None and second is not None
    assert lock(path, EXCLUSIVE, wait=False) is None
    os.close(first), os.close(second)


def test_a_lock_on_a_file_that_was_replaced_is_not_counted(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")

    def wait_for_it() -> int:
        with locked(path) as descriptor:
            return os.fstat(descriptor).st_ino

    with ThreadPoolExecutor(1) as pool, locked(path):
        got = pool.submit(wait_for_it)
        os.rename(path, path + ".done")
        Path(path).touch()
    assert got.result() == os.stat(path).st_ino


def test_a_killed_process_holds_no_lock(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    with Child(lambda ready: (lock(path, EXCLUSIVE), ready("locked"))) as child:
        assert lock(path, EXCLUSIVE, wait=False) is None
        child.kill()
        descriptor = lock(path, EXCLUSIVE, wait=False)
    assert descriptor is not None
    os.close(descriptor)


def test_a_pipe_or_a_device_is_never_replaced_by_a_file(tmp_path: Path) -> None:
    """Nor is what a link leads to: root could replace /dev/null for the whole machine."""
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link):
        with pytest.raises(FileExistsError, match="is a device, a pipe or a socket"):
            write_file(path, "text")
    assert pipe.is_fifo() and link.is_symlink() and sorted(tmp_path.iterdir()) == [link, pipe]
    with pytest.raises(IsADirectoryError):
        write_file(Path("/"), "text")
