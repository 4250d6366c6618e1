import contextlib
import errno
from pathlib import Path

import pytest

from bridge_data.errors import DatasetError
from bridge_data.storage.atomic import replacing, sync_folder, write_file, writing


def test_the_new_file_takes_the_place_of_the_old(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, "old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, b"old")
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_faults_name_the_folder(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=f"{tmp_path}: cannot be written to: .*No space left"), writing(tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_a_file_system_that_cannot_sync_folders_is_no_failure(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(_: int) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr("os.fsync", fsync)
    with contextlib.nullcontext() if number == errno.EINVAL else pytest.raises(OSError, match="no"):
        sync_folder(tmp_path)
