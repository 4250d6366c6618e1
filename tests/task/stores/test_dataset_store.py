import pickle
from pathlib import Path

import pytest

from bridge_data.errors import ConfigError, SampleError
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from bridge_data.prepare.media import prepare_media
from bridge_data.prepare.media_files import MediaRule
from bridge_data.shards.media_metadata import ImageMetadata
from bridge_data.task.stores import JsonlFileStore, WebdatasetFileStore
from tests.encoders.multimodal_parts import png
from tests.shards.tars import prepare_by_ratio, write_tar
from tests.task.stores.media import content, write_media


def test_parts_are_read_by_their_names(tmp_path: Path) -> None:
    store = WebdatasetFileStore(write_media(tmp_path))
    data, source = pickle.loads(pickle.dumps(store))["m-0.tar/000009.bin"]
    assert data == content(9)
    assert (source.dataset_path, source.shard_name, source.index, source.file_names) == (
        str(tmp_path),
        "m-1.tar",
        "000009.bin",
        ("000009.bin",),
    )
    assert len(list(store.list_files())) == 48


def test_an_error_names_the_auxiliary_data(tmp_path: Path) -> None:
    store = WebdatasetFileStore(write_media(tmp_path), name="media")
    with pytest.raises(SampleError, match=rf"auxiliary data 'media': {tmp_path}: sample '000009' has no part 'jpg'"):
        store.get("000009.jpg")
    assert str(store) == f"auxiliary data 'media' ({tmp_path})"
    with pytest.raises(ConfigError, match="not a prepared data set"):
        WebdatasetFileStore(tmp_path.parent)


def test_media_metadata_are_found_by_the_same_names(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"k.png": png(), "k.txt": b"x"})
    prepare_by_ratio(tmp_path, "1,0,0")
    prepare_media(tmp_path, MediaRule("EXTENSION"), num_workers=1)
    store = WebdatasetFileStore(tmp_path, name="m")
    for key in ("k.png", "other.tar/k.png"):
        assert isinstance(store.get_media_metadata(key), ImageMetadata)
    with pytest.raises(SampleError, match=r"'m': .*no media metadata of 'k.txt'"):
        store.get_media_metadata("k.txt")


def test_lines_are_read_by_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n\n{"a": 2}\n')
    prepare_jsonl(path)
    store = pickle.loads(pickle.dumps(JsonlFileStore(path)))
    data, source = store["1.json"]
    assert (data, source.file_names, store.get_path()) == (b'{"a": 2}', ("1.json",), str(path))
    assert list(store.list_files()) == ["0.json", "1.json"]
    for key, message in (("2.json", "it has 2 samples"), ("x.json", "number of a line"), ("1", "number of a line")):
        with pytest.raises(SampleError, match=message):
            store.get(key)
    with pytest.raises(ConfigError, match="no such file"):
        JsonlFileStore(tmp_path / "b.jsonl")
