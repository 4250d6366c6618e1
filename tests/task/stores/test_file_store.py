import pickle
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


def test_lazies_of_one_file_are_equal(store: SystemFileStore) -> None:
    pool = NoCachePool()
    a, again, b = (pool.get_lazy(store, name) for name in "aab")
    assert a == again and a != b and len({a, again, b}) == 2
    assert a != pool.get_lazy(SystemFileStore(store.get_path()), "a")
    assert a != "a"
    assert pickle.loads(pickle.dumps(a)).get() == b"A"
    own = PrimaryFileStore(store, "x")
    assert pool.get_lazy(own, ".jpg") == pool.get_lazy(PrimaryFileStore(store, "x"), ".jpg")
    assert pool.get_lazy(own, ".jpg") != pool.get_lazy(PrimaryFileStore(store, "y"), ".jpg")


def test_a_mock_calls_its_function_and_an_object_is_kept_as_it_is() -> None:
    lazy: Lazy[str] = MockLazy("a", str.upper)
    assert lazy.get() == "A"
    assert lazy == MockLazy("a", str.upper) != MockLazy("b", str.upper)
    data = object()
    stored = NoCachePool().to_cache(data, "name")
    assert isinstance(stored, MockLazy) and stored.get(CrudeSample()) is data


def test_a_store_that_says_nothing_of_media_or_files_says_so() -> None:
    with pytest.raises(ConfigError, match="letters: a Letters has no media metadata"):
        Letters().get_media_metadata("a")
    with pytest.raises(ConfigError, match="does not know all of its files"):
        Letters().list_files()


@pytest.mark.parametrize(
    ("key", "sample", "error", "told"),
    [
        ("x", CrudeSample(__key__="0.tar/7"), SampleError, r"no file 'x'. Sample 0.tar/7 requested it."),
        ("x", TextSample(__key__="0.tar/8", text=""), SampleError, r"Sample 0.tar/8 requested it"),
        ("x", None, SampleError, r"no file 'x'.$"),
        ("broken", {"__key__": "k"}, FatalSampleError, "Sample k requested it"),
    ],
)
def test_an_error_names_the_sample_that_asked(key: str, sample: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        Letters().get(key, sample)


def test_decoding_goes_by_the_name(tmp_path: Path) -> None:
    store = DecodeFileStore(Letters(), decoder=SampleDecoder())
    assert (store["a.txt"][0], store["b.xyz"][0], store.get_path()) == ("a.txt", b"b.xyz", "letters")
    assert store.get_raw("a.txt")[0] == b"a.txt"
    assert store.decode_raw("c.txt", b"raw") == "raw"
    with pytest.raises(SampleError, match=r"'a.json'.*cannot be decoded"):
        store.get("a.json")
