import os
import threading
from pathlib import Path

from bridge_data.storage.locks import EXCLUSIVE, SHARED, lock, locked
from tests.task.stores.processes import Child


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
    got: list[os.stat_result] = []

    def wait_for_it() -> None:
        with locked(path) as descriptor:
            got.append(os.fstat(descriptor))

    with locked(path):
        thread = threading.Thread(target=wait_for_it)
        thread.start()
        os.rename(path, path + ".done")
        os.close(os.open(path, os.O_CREAT))
    thread.join()
    assert got[0].st_ino == os.stat(path).st_ino


def test_a_killed_process_holds_no_lock(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    with Child(lambda ready: (lock(path, EXCLUSIVE), ready("locked"))) as child:
        assert lock(path, EXCLUSIVE, wait=False) is None
        child.kill()
        descriptor = lock(path, EXCLUSIVE, wait=False)
        assert descriptor is not None
        os.close(descriptor)
