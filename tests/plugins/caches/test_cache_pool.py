import gc
import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge_data.errors import ConfigError, DatasetError, SampleError
from bridge_data.plugins.caches.cache_pool import CacheFileLazy, FileCacheLazy, FileStoreCachePool
from bridge_data.samples import CrudeSample, SourceInfo
from bridge_data.task.stores import (
    DecodeFileStore,
    DirectLazy,
    FileStore,
    SystemFileStore,
)
from tests.task.stores.processes import Child


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[FileStoreCachePool]:
    pool = FileStoreCachePool(parent_cache_dir=tmp_path / "cache", num_workers=2)
    yield pool
    pool.close()


@pytest.fixture
def store(tmp_path: Path) -> SystemFileStore:
    (tmp_path / "files").mkdir()
    for name in "abc":
        (tmp_path / "files" / f"{name}.txt").write_text(name.upper())
    return SystemFileStore(tmp_path / "files")


def entries(pool: FileStoreCachePool) -> list[Path]:
    return sorted((pool.cache_dir / "entries").iterdir())


def arrived(pool: FileStoreCachePool, store: FileStore[Any], name: str) -> FileCacheLazy[Any]:
    """A lazy whose file has been fetched."""
    lazy = pool.get_lazy(store, name)
    lazy._future.result(60)
    return lazy


class Gated(FileStore[bytes]):
    """A store that gives each file only when it is let."""

    def __init__(self) -> None:
        self.gate, self.asked, self.reads = threading.Event(), threading.Event(), 0

    def __getitem__(self, key: str) -> tuple[bytes, SourceInfo]:
        self.reads += 1
        self.asked.set()
        assert self.gate.wait(60)
        return key.encode(), SourceInfo(dataset_path="gated", index=key, shard_name="", file_names=(key,))

    def get_path(self) -> str:
        return f"gated {id(self)}"


class Counting:
    """A decoder that counts."""

    calls = 0

    def decode(self, fname: str, raw: bytes) -> Any:
        self.calls += 1
        return {"fname": fname, "text": raw.decode()}

    def __getstate__(self) -> dict[str, Any]:
        return {}


def test_what_was_fetched_comes_from_the_disk(pool: FileStoreCachePool, store: SystemFileStore) -> None:
    lazy = arrived(pool, store, "a.txt")
    Path(store.get_path(), "a.txt").unlink()
    sample = CrudeSample(__key__="k")
    assert lazy.get(sample) == lazy.get() == b"A"
    (source,) = sample["__sources__"]
    assert (source.dataset_path, source.index) == (store.get_path(), "a.txt")
    assert pool.get(store, "a.txt") == b"A"


def test_what_nobody_wants_any_more_is_not_fetched(tmp_path: Path) -> None:
    pool, gated = FileStoreCachePool(parent_cache_dir=tmp_path / "cache", num_workers=1), Gated()
    first, second = pool.get_lazy(gated, "x"), pool.get_lazy(gated, "y")
    assert gated.asked.wait(60)
    future = second._future
    del second
    gc.collect()
    assert future.cancelled()
    gated.gate.set()
    assert first.get() == b"x"
    pool.close()
    assert gated.reads == 1


def test_what_finds_no_room_is_handed_to_who_waits_for_it(tmp_path: Path) -> None:
    pool, gated = FileStoreCachePool(parent_cache_dir=tmp_path / "cache", max_cache_size_gbytes=1e-8), Gated()
    lazy = pool.get_lazy(gated, "x" * 100)
    assert gated.asked.wait(60)
    opener = threading.Timer(0, lambda: lazy._wanted.wait(60) and gated.gate.set())
    opener.start()
    assert (lazy.get(), gated.reads) == (b"x" * 100, 1)
    opener.join()
    late = arrived(pool, gated, "y" * 100)
    assert late._future.result(0) is None, "content that nobody waits for is held in memory"
    assert (late.get(), gated.reads) == (b"y" * 100, 3)
    pool.close()


def test_a_failure_is_met_by_who_needs_the_file(pool: FileStoreCachePool, store: SystemFileStore) -> None:
    missing, mended = arrived(pool, store, "x.txt"), arrived(pool, store, "y.txt")
    Path(store.get_path(), "y.txt").write_text("Y")
    with pytest.raises(SampleError, match=r"no file 'x.txt'.* Sample k requested it"):
        missing.get({"__key__": "k"})
    assert mended.get() == b"Y"
    os.rename(store.get_path(), store.get_path() + "-gone")
    with pytest.raises(DatasetError, match="the folder is gone"):
        arrived(pool, store, "c.txt").get()


def test_files_are_kept_raw_and_shared_whatever_decodes_them(pool: FileStoreCachePool, store: SystemFileStore) -> None:
    first, second = (DecodeFileStore(store, decoder=Counting()) for _ in range(2))
    lazies = [arrived(pool, each, "a.txt") for each in (first, second, store)]
    Path(store.get_path(), "a.txt").unlink()
    assert [lazy.get() for lazy in lazies] == [{"fname": "a.txt", "text": "A"}] * 2 + [b"A"]
    assert (len(entries(pool)), first.decoder.calls) == (1, 1)  # type: ignore[attr-defined]


def test_decoded_objects_are_kept_and_shared_by_equal_stores_of_one_pool(
    tmp_path: Path, store: SystemFileStore
) -> None:
    pool = FileStoreCachePool(parent_cache_dir=tmp_path / "cache", method="pickle")
    decoding = DecodeFileStore(store, decoder=Counting())
    lazy, again, raw = arrived(pool, decoding, "a.txt"), arrived(pool, decoding, "a.txt"), arrived(pool, store, "a.txt")
    sample = CrudeSample()
    assert lazy.get(sample) == again.get() == {"fname": "a.txt", "text": "A"}
    assert sample["__sources__"][0].index == "a.txt"
    assert (raw.get(), decoding.decoder.calls, len(entries(pool))) == (b"A", 1, 2)  # type: ignore[attr-defined]
    other = FileStoreCachePool(parent_cache_dir=tmp_path / "cache", method="pickle")
    assert other._name(decoding, "a.txt") != pool._name(decoding, "a.txt")
    assert pickle.loads(pickle.dumps(pool))._name(decoding, "a.txt") == pool._name(decoding, "a.txt")
    other.close()
    pool.close()


def test_an_object_is_put_away_until_it_is_got(pool: FileStoreCachePool) -> None:
    data = {"x": list(range(1000))}
    lazy = pool.to_cache(data, "numbers")
    assert isinstance(lazy, CacheFileLazy) and len(entries(pool)) == 1
    found = lazy.get(CrudeSample())
    assert found == data and found is not data and lazy.get() is found
    assert entries(pool) == []
    dropped = pool.to_cache(data, "numbers")
    assert dropped != lazy and dropped == dropped
    del dropped
    gc.collect()
    assert entries(pool) == []


@pytest.mark.processes
def test_a_forked_process_uses_the_folder_in_its_own_right(pool: FileStoreCachePool, store: SystemFileStore) -> None:
    arrived(pool, store, "a.txt")
    private = pool.to_cache("mine", "x")

    def use(ready: Any) -> None:
        first = arrived(pool, store, "a.txt").get()
        nonlocal private
        private = None  # type: ignore[assignment]
        gc.collect()
        ready(f"{first!r} {arrived(pool, store, 'b.txt').get()!r}")
        pool.close()

    with Child(use) as child:
        assert child.value == "b'A' b'B'"
        child.go_on()
    assert private.get() == "mine"
    assert pool.get(store, "a.txt") == b"A"


def test_a_closed_pool_fetches_no_more(pool: FileStoreCachePool, store: SystemFileStore) -> None:
    done, later = arrived(pool, store, "a.txt"), pool.get_lazy(store, "b.txt")
    pool.close()
    assert not pool.cache_dir.exists()
    assert (done.get(), later.get(), pool.get(store, "c.txt")) == (b"A", b"B", b"C")
    for action in (lambda: pool.get_lazy(store, "a.txt"), lambda: pool.to_cache(1, "x")):
        with pytest.raises(ConfigError, match="the cache pool is closed"):
            action()
    pool.close()


def test_a_pool_that_is_forgotten_cleans_up(tmp_path: Path, store: SystemFileStore) -> None:
    pool = FileStoreCachePool(parent_cache_dir=tmp_path / "cache")
    arrived(pool, store, "a.txt").get()
    folder = pool.cache_dir
    del pool
    gc.collect()
    assert not folder.exists()


def test_a_cache_that_breaks_costs_time_only(
    pool: FileStoreCachePool, store: SystemFileStore, caplog: pytest.LogCaptureFixture
) -> None:
    (pool.cache_dir / "entries").rename(pool.cache_dir / "moved")
    assert [arrived(pool, store, f"{name}.txt").get() for name in "abc"] == [b"A", b"B", b"C"]
    assert pool.to_cache(7, "x").get() == 7
    assert [record.message.endswith("not caching") for record in caplog.records] == [True]
    (pool.cache_dir / "moved").rename(pool.cache_dir / "entries")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("method", "zip"),
        ("num_workers", 0),
        ("max_cache_count", 0),
        ("max_cache_size_gbytes", 0),
        ("max_cache_size_gbytes", float("nan")),
        ("parent_cache_dir", 3),
    ],
)
def test_wrong_settings_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"FileStoreCachePool(\(|: ){name}={value!r}"):
        FileStoreCachePool(**{name: value})


def test_what_was_taken_away_is_read_again_and_an_object_is_gone(
    pool: FileStoreCachePool, store: SystemFileStore
) -> None:
    lazy, stored = arrived(pool, store, "a.txt"), pool.to_cache([1], "one")
    for path in entries(pool):
        path.unlink()
    assert lazy.get() == b"A"
    with pytest.raises(DatasetError, match="'one' was stored here and is gone"):
        stored.get()
    moved = pickle.loads(pickle.dumps(lazy))
    assert type(moved) is DirectLazy and moved.get() == b"A"
    with pytest.raises(ConfigError, match=r"lazy of to_cache \('one'\) cannot leave the process"):
        pickle.dumps(stored)
