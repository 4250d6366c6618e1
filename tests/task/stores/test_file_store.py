import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

from bridge_data.decode import SampleDecoder
from bridge_data.errors import ConfigError, FatalSampleError, SampleError
from bridge_data.samples import CrudeSample, SourceInfo, TextSample
from bridge_data.task.stores import (
    DecodeFileStore,
    DirectLazy,
    FileStore,
    FileStoreDecoder,
    Lazy,
    MockLazy,
    NoCachePool,
    PrimaryFileStore,
    SystemFileStore,
)
from bridge_data.task.stores.cache_pool import BackgroundThreads
from bridge_data.task.stores.file_store import add_source


class Letters(FileStore[bytes]):
    """A store as a user may write one."""

    def __getitem__(self, key: str) -> tuple[bytes, SourceInfo]:
        if key == "broken":
            raise FatalSampleError("no use")
        if key[0] not in "abc":
            raise SampleError(f"no file {key!r}.")
        return key.encode(), SourceInfo(dataset_path="letters", index=key, shard_name="", file_names=(key,))

    def get_path(self) -> str:
        return "letters"


class Upper(FileStoreDecoder):
    def decode(self, fname: str, raw: bytes) -> Any:
        return f"{fname}: {raw.decode().upper()}"


def test_what_is_read_is_added_to_the_sources_of_the_sample() -> None:
    crude = CrudeSample(__key__="k")
    assert [Letters().get(key, crude) for key in ("a.txt", "b.txt")] == [b"a.txt", b"b.txt"]
    assert [source.index for source in crude["__sources__"]] == ["a.txt", "b.txt"]
    typed = TextSample(__key__="k", text="")
    Letters().get("c.txt", typed)
    assert typed.__sources__ is not None and typed.__sources__[0].file_names == ("c.txt",)
    assert Letters().get("a.txt") == b"a.txt"
    add_source(None, crude["__sources__"][0])


def test_an_error_names_the_sample_that_asked() -> None:
    with pytest.raises(SampleError, match=r"no file 'x'. Sample 0.tar/7 requested it."):
        Letters().get("x", CrudeSample(__key__="0.tar/7"))
    with pytest.raises(SampleError, match=r"Sample 0.tar/8 requested it"):
        Letters().get("x", TextSample(__key__="0.tar/8", text=""))
    with pytest.raises(SampleError, match=r"no file 'x'.$"):
        Letters().get("x")
    with pytest.raises(FatalSampleError, match="Sample k requested it"):
        Letters().get("broken", {"__key__": "k"})


def test_a_store_that_says_nothing_of_media_or_files_says_so() -> None:
    with pytest.raises(ConfigError, match="letters: a Letters has no media metadata"):
        Letters().get_media_metadata("a")
    with pytest.raises(ConfigError, match="does not know all of its files"):
        Letters().list_files()


def test_decoding_goes_by_the_name(tmp_path: Path) -> None:
    store = DecodeFileStore(Letters(), decoder=SampleDecoder())
    assert (store["a.txt"][0], store["b.xyz"][0], store.get_path()) == ("a.txt", b"b.xyz", "letters")
    assert store.get_raw("a.txt")[0] == b"a.txt"
    assert store.decode_raw("c.txt", b"raw") == "raw"
    with pytest.raises(SampleError, match=r"'a.json'.*cannot be decoded"):
        store.get("a.json")


def test_an_own_decoder_will_do() -> None:
    assert DecodeFileStore(Letters(), decoder=Upper()).get("a.b") == "a.b: A.B"


def test_of_the_primary_a_key_with_a_dot_is_the_samples_own() -> None:
    primary = PrimaryFileStore(DecodeFileStore(Letters(), decoder=Upper()), "a/7")
    assert primary[".jpg"][0] == primary["a/7.jpg"][0] == "a/7.jpg: A/7.JPG"
    assert primary.get_raw(".jpg")[0] == b"a/7.jpg"
    assert primary.decode_raw(".jpg", b"x") == "a/7.jpg: X"
    assert primary.resolve(".jpg") == (primary.inner, "a/7.jpg")
    crude = CrudeSample(__key__="a/7")
    primary.get("b.txt", crude)
    assert crude["__sources__"][0].index == "b.txt"
    assert (primary.get_path(), str(primary)) == ("letters", "letters")


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
        with pytest.raises(SampleError, match=r"no file 'x'.* Sample k requested it"):
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


def test_work_is_done_by_a_few_threads() -> None:
    prefetcher = BackgroundThreads(2)
    both = threading.Barrier(2)
    names = [prefetcher.submit(lambda: (both.wait(60), threading.current_thread().name)[1]) for _ in range(2)]
    assert {future.result(60) for future in names} == {"bridge_data cache"}
    idents = {prefetcher.submit(threading.get_ident).result(60) for _ in range(50)}
    assert 1 <= len(idents) <= 2
    prefetcher.close()


def test_what_is_queued_can_be_cancelled_and_what_fails_fails_alone() -> None:
    prefetcher = BackgroundThreads(1)
    gate, begun = threading.Event(), threading.Event()
    first = prefetcher.submit(lambda: (begun.set(), gate.wait(60)))
    second, third = prefetcher.submit(lambda: 1 / 0), prefetcher.submit(lambda: 3)
    assert begun.wait(60)
    assert third.cancel() and not first.cancel()
    gate.set()
    with pytest.raises(ZeroDivisionError):
        second.result(60)
    assert prefetcher.submit(lambda: 4).result(60) == 4
    prefetcher.close()


def test_closing_waits_for_what_has_begun_and_drops_the_rest() -> None:
    prefetcher = BackgroundThreads(1)
    gate, begun = threading.Event(), threading.Event()
    first = prefetcher.submit(lambda: (begun.set(), gate.wait(60), "done")[2])
    rest = [prefetcher.submit(lambda: 1) for _ in range(5)]
    rest[-1].add_done_callback(lambda _: gate.set())
    assert begun.wait(60)
    prefetcher.close()
    assert first.result(0) == "done"
    assert all(future.cancelled() for future in rest)
    assert prefetcher.submit(lambda: "again").result(60) == "again"
    prefetcher.close()
