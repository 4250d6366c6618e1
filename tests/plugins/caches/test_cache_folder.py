import contextlib
import functools
import os
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bridge_data.errors import ConfigError
from bridge_data.plugins.caches import cache_folder
from bridge_data.plugins.caches.cache_folder import CacheFolder
from tests.task.stores.processes import Child


def make(path: Path, *, max_bytes: int = 10_000, max_count: int = 100) -> CacheFolder:
    folder = CacheFolder(str(path / "cache"), max_bytes=max_bytes, max_count=max_count)
    folder.enter()
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[CacheFolder]:
    folder = make(tmp_path)
    yield folder
    folder.leave()


@contextlib.contextmanager
def in_threads(*functions: Callable[[], object]) -> Iterator[None]:
    """Run each in a thread of its own beside the block; what one raises is raised at the end."""
    with ThreadPoolExecutor(len(functions)) as executor:
        futures = [executor.submit(function) for function in functions]
        yield
        for future in futures:
            future.result(60)


def bytes_on_disk(folder: CacheFolder) -> int:
    total = 0
    for entry in os.scandir(Path(folder.path, "entries")):
        with contextlib.suppress(FileNotFoundError):
            total += entry.stat().st_size
    return total


def fill(folder: CacheFolder, name: str, size: int = 1000) -> bool:
    """Whether the entry, of this size on disk, is there now."""
    return folder.fill(name, lambda: (b"head", bytes(size - 8))) is None


def test_what_is_too_large_or_does_not_fit_is_handed_back(
    folder: CacheFolder, caplog: pytest.LogCaptureFixture
) -> None:
    large = (b"", bytes(10_001))
    assert folder.fill("large", lambda: large) is large
    assert all(fill(folder, str(number)) for number in range(10))
    caplog.clear()
    assert not fill(folder, "one more")
    assert not fill(folder, "one more")
    assert [record.message.split(":")[1][:11] for record in caplog.records] == [" it is full"]
    assert all(folder.read(str(number)) for number in range(10)), "what is still needed was removed"


def test_entries_used_longest_ago_make_room_first_for_bytes_and_for_their_number(
    folder: CacheFolder, tmp_path: Path
) -> None:
    few = make(tmp_path / "few", max_count=3)
    for number in range(9):
        assert fill(few, str(number), 10) and few.read(str(number))
    assert len(os.listdir(Path(few.path, "entries"))) <= 3
    few.leave()
    assert all(fill(folder, str(number)) for number in range(10))
    for number in (3, 5, 1):
        assert folder.read(str(number))
    assert fill(folder, "new", 2000)
    assert {name for name in map(str, range(10)) if folder.read(name)} == set("01246789")
    assert bytes_on_disk(folder) <= 10_000


def test_a_disk_that_is_nearly_full_is_left_alone(
    folder: CacheFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cache_folder, "KEEP_FREE_BYTES", 1 << 60)
    assert not fill(folder, "a")
    assert "it is full" in caplog.text
    assert bytes_on_disk(folder) == 0


def test_private_entries_count_and_are_not_removed_by_others(folder: CacheFolder) -> None:
    names = [folder.put((b"", bytes(4990))) for _ in range(3)]
    assert names[2] is None and names[0] is not None and names[1] is not None
    assert folder.read(names[0]) == (b"", bytes(4990))
    folder.discard(names[0])
    folder.discard(names[0])
    assert folder.read(names[0]) is None
    folder._full_until = 0.0
    assert fill(folder, "a", 4000)


def test_the_bound_holds_for_all_who_share_the_folder(tmp_path: Path) -> None:
    """Threads of several users put in and take out what they like; at no moment is there too much."""
    folders = [make(tmp_path) for _ in range(3)]
    done, most = threading.Event(), [0]

    def work(folder: CacheFolder, seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(150):
            name = str(draw.randrange(30))
            folder._full_until = 0.0
            fill(folder, name, 100 + 97 * int(name))
            content = folder.read(str(draw.randrange(30)))
            assert content is None or content[0] == b"head"

    def watch() -> None:
        while not done.is_set():
            with folders[0]._usage():
                most[0] = max(most[0], bytes_on_disk(folders[0]))

    with in_threads(watch):
        with in_threads(*(functools.partial(work, folders[n % 3], n) for n in range(6))):
            pass
        done.set()
    assert 5_000 < most[0] <= 10_000
    for folder in folders:
        folder.leave()
    assert list(tmp_path.iterdir()) == []


def test_two_processes_fetch_an_entry_once(tmp_path: Path) -> None:
    """The second one waits for the first, and does not fetch."""

    def first(ready: Callable[[str], None]) -> None:
        make(tmp_path).fill("a", lambda: (ready("fetching"), (b"", b"from the child"))[1])
        ready("done")

    with Child(first) as child:
        folder = make(tmp_path)
        assert child.value == "fetching"
        with in_threads(lambda: folder.fill("a", lambda: pytest.fail("fetched twice"))):
            child.go_on()
        assert folder.read("a") == (b"", b"from the child")
    folder.leave()


@pytest.mark.parametrize("where", ["fetching", "writing"])
def test_a_process_killed_while_it_brings_an_entry_is_in_nobodys_way(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bring(ready: Callable[[str], None]) -> None:
        folder = make(tmp_path)
        assert folder.put((b"", bytes(500)))
        if where == "fetching":
            folder.fill("a", lambda: (ready("fetching"), (b"", bytes(8000)))[1])
        reserve = folder._reserve

        def write_half(descriptor: int, num_bytes: int) -> bool:
            has_room = reserve(descriptor, num_bytes)
            os.pwrite(descriptor, b"half", 0)
            ready("writing")
            return has_room

        monkeypatch.setattr(folder, "_reserve", write_half)
        folder.fill("a", lambda: (b"", bytes(8000)))

    with Child(bring) as child:
        folder = make(tmp_path)
        assert child.value == where
        assert folder.read("a") is None
        child.kill()
    assert folder.read("a") is None
    assert all(fill(folder, str(number)) for number in range(9)), "what the dead one had reserved is lost"
    assert bytes_on_disk(folder) <= 10_000
    assert folder.fill("a", lambda: (b"", b"mine")) is None
    assert folder.read("a") == (b"", b"mine")
    folder.leave()


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o755)
    with pytest.raises(ConfigError, match="only this user can use"):
        make(tmp_path)
    (tmp_path / "cache").rmdir()
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "cache").symlink_to(tmp_path / "real")
    with pytest.raises(ConfigError, match="only this user can use"):
        make(tmp_path)
    (tmp_path / "nowhere").symlink_to(tmp_path / "nothing")
    for path, why in (("/dev/null/x", "Not a directory"), (tmp_path / "nowhere/x", "No such file|File exists")):
        with pytest.raises(ConfigError, match=f"cannot be used: ({why}).*; set another folder"):
            CacheFolder(str(path), max_bytes=1, max_count=1).enter()


def test_many_come_and_go(tmp_path: Path) -> None:
    """One that enters while the last one leaves has a folder all the same."""

    def visit(number: int) -> None:
        for turn in range(20):
            folder = make(tmp_path)
            try:
                assert fill(folder, f"{number}-{turn % 3}", 50)
                assert folder.read(f"{number}-{turn % 3}") == (b"head", bytes(42))
            finally:
                folder.leave()

    with in_threads(*(functools.partial(visit, number) for number in range(4))):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_failed_fetch_leaves_nothing(folder: CacheFolder) -> None:
    with pytest.raises(ZeroDivisionError):
        folder.fill("a", lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    assert os.listdir(Path(folder.path, "entries")) == []
    assert fill(folder, "a")


def test_entries_that_nobody_came_for_make_room_at_last(folder: CacheFolder) -> None:
    assert all(fill(folder, str(number)) for number in range(10))
    for number in range(10):
        path = Path(folder.path, "entries", str(number))
        at = path.stat().st_mtime - cache_folder.PROTECTED_S - 100 + number
        os.utime(path, (at, at))
    assert fill(folder, "new")
    assert folder.read("0") is None and folder.read("9") is not None
