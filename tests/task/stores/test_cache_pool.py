import pickle
from pathlib import Path

import pytest

from bridge_data.errors import SampleError
from bridge_data.samples import CrudeSample
from bridge_data.task.stores import DirectLazy, Lazy, MockLazy, NoCachePool, PrimaryFileStore, SystemFileStore


@pytest.fixture
def store(tmp_path: Path) -> SystemFileStore:
    for name in "ab":
        (tmp_path / name).write_text(name.upper())
    return SystemFileStore(tmp_path)


def test_without_a_cache_a_lazy_is_read_when_it_is_needed(store: SystemFileStore) -> None:
    pool, sample = NoCachePool(), CrudeSample(__key__="k")
    lazy = pool.get_lazy(store, "a")
    assert isinstance(lazy, DirectLazy) and lazy.pool is pool
    Path(store.get_path(), "a").write_text("later")
    assert lazy.get(sample) == b"later"
    Path(store.get_path(), "a").unlink()
    assert (lazy.get(), len(sample["__sources__"])) == (b"later", 1)
    assert pool.get(store, "b", sample) == b"B"
    assert [source.index for source in sample["__sources__"]] == ["a", "b"]
    pool.close()


def test_a_lazy_of_a_missing_file_fails_when_it_is_needed(store: SystemFileStore) -> None:
    lazy = NoCachePool().get_lazy(store, "x")
    for _ in range(2):
        with pytest.raises(SampleError, match=r"no file 'x'.* by sample k"):
            lazy.get({"__key__": "k"})


def test_lazies_of_one_file_are_equal(store: SystemFileStore) -> None:
    pool = NoCachePool()
    a, again, b = (pool.get_lazy(store, name) for name in "aab")
    assert a == again and a != b and len({a, again, b}) == 2
    assert a != pool.get_lazy(SystemFileStore(store.get_path()), "a")
    assert a != "a"
    own = PrimaryFileStore(store, "x")
    assert pool.get_lazy(own, ".jpg") == pool.get_lazy(PrimaryFileStore(store, "x"), ".jpg")
    assert pool.get_lazy(own, ".jpg") != pool.get_lazy(PrimaryFileStore(store, "y"), ".jpg")


def test_an_object_is_kept_as_it_is() -> None:
    data = object()
    lazy = NoCachePool().to_cache(data, "name")
    assert isinstance(lazy, MockLazy) and lazy.fname == "name"
    assert lazy.get(CrudeSample()) is lazy.get() is data


def test_a_mock_calls_its_function() -> None:
    lazy: Lazy[str] = MockLazy("a", str.upper)
    assert (lazy.get(), lazy.ds, lazy.pool) == ("A", None, None)
    assert lazy == MockLazy("a", str.upper) != MockLazy("b", str.upper)
    assert lazy != MockLazy("a", str.lower)
    assert hash(lazy) == hash(MockLazy("a", str.upper))


def test_a_lazy_may_travel(store: SystemFileStore) -> None:
    assert pickle.loads(pickle.dumps(NoCachePool().get_lazy(store, "a"))).get() == b"A"
