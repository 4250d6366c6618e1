from pathlib import Path
from typing import Any

import pytest

from bridge_data.decode import SampleDecoder
from bridge_data.errors import ConfigError, FatalSampleError, SampleError
from bridge_data.samples import CrudeSample, SourceInfo, TextSample
from bridge_data.task.stores import DecodeFileStore, FileStore, FileStoreDecoder, PrimaryFileStore, add_source


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
    with pytest.raises(SampleError, match=r"no file 'x'. It was asked for by sample 0.tar/7."):
        Letters().get("x", CrudeSample(__key__="0.tar/7"))
    with pytest.raises(SampleError, match=r"by sample 0.tar/8."):
        Letters().get("x", TextSample(__key__="0.tar/8", text=""))
    with pytest.raises(SampleError, match=r"no file 'x'.$"):
        Letters().get("x")
    with pytest.raises(FatalSampleError, match="by sample k"):
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
