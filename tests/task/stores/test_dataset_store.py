import dataclasses
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bridge_data.decode import SampleDecoder
from bridge_data.decode.media_metadata import ImageMetadata
from bridge_data.errors import ConfigError, DatasetError, SampleError
from bridge_data.plan import Source, load_plan
from bridge_data.plan.auxiliary import AuxReference
from bridge_data.plugins.joins.joined_reader import Join
from bridge_data.plugins.media.media import prepare_media
from bridge_data.plugins.media.media_rule import MediaRule
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from bridge_data.task.stores import JsonlFileStore, SystemFileStore, WebdatasetFileStore, open_aux, open_primary
from tests.data.tars import prepare_by_ratio, write_tar
from tests.encoders.multimodal_parts import png
from tests.object_store import Bucket
from tests.task.stores.media import content, write_job, write_media


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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in/sub").mkdir(parents=True)
    (tmp_path / "in/a.txt").write_bytes(b"a")
    (tmp_path / "in/sub/b.c.bin").write_bytes(b"bc")
    (tmp_path / "outside.txt").write_bytes(b"secret")
    return tmp_path / "in"


def test_files_are_read_by_their_relative_paths(folder: Path) -> None:
    store = SystemFileStore(folder)
    content, source = store["sub/b.c.bin"]
    assert content == b"bc"
    assert (source.dataset_path, source.index, source.file_names) == (str(folder), "sub/b.c.bin", ("sub/b.c.bin",))
    assert store.get("sub/../a.txt") == b"a"
    assert pickle.loads(pickle.dumps(store)).get("a.txt") == b"a"
    assert (store.get_path(), str(store)) == (str(folder), str(folder))


def test_the_key_of_a_sample_may_be_used_as_it_is(folder: Path) -> None:
    store = SystemFileStore(folder)
    assert store.get("data/x-01.tar/sub/b.c.bin") == b"bc"
    (folder / "y.tar").mkdir()
    (folder / "y.tar/a.txt").write_bytes(b"in a folder of that name")
    assert store.get("y.tar/a.txt") == b"in a folder of that name"


@pytest.mark.parametrize(
    "key", ["../outside.txt", "sub/../../outside.txt", "/etc/passwd", "", ".", "x.tar/../../outside.txt"]
)
def test_a_key_that_leads_out_of_the_folder_is_refused(folder: Path, key: str) -> None:
    with pytest.raises(SampleError, match=r"is outside of the folder|there is no file"):
        SystemFileStore(folder).get(key)


def test_a_key_may_be_absolute_if_it_leads_into_the_folder(folder: Path, bucket: Bucket) -> None:
    link = folder.with_name("link")
    link.symlink_to(folder)
    for base in (folder, link):
        store = SystemFileStore(base)
        for key in (f"{folder}/a.txt", f"{folder.as_uri()}/a.txt", f"../{base.name}/a.txt", f"{base}/sub/../a.txt"):
            content, source = store[key]
            assert (content, source.index) == (b"a", "a.txt")
    with pytest.raises(SampleError, match="is outside of the folder"):
        SystemFileStore(folder).get(f"{folder}x/a.txt")
    shutil.copytree(folder, bucket.folder / "files")
    assert SystemFileStore(f"{bucket.url}/files").get(f"{bucket.url}/files/a.txt") == b"a"


@pytest.mark.parametrize("key", ["no.txt", "sub", "a.txt/b", "x" * 300, "a\0b"])
def test_a_missing_file_is_the_samples_fault(folder: Path, key: str) -> None:
    with pytest.raises(SampleError, match=r"auxiliary data 'notes' \(.*/in\): there is no file"):
        SystemFileStore(folder, name="notes").get(key)


def test_without_a_folder_paths_are_absolute(folder: Path) -> None:
    store = SystemFileStore()
    assert store.get(str(folder / "a.txt")) == b"a"
    with pytest.raises(SampleError, match="not an absolute path"):
        store.get("a.txt")
    for action in (lambda: store.get_media_metadata("a"), lambda: list(store.list_files())):
        with pytest.raises(ConfigError, match="folder"):
            action()


def test_a_folder_may_be_in_an_object_store(folder: Path, bucket: Bucket) -> None:
    (folder / "sub/i.png").write_bytes(png())
    prepare_media(folder, MediaRule("EXTENSION"), num_workers=1)
    shutil.copytree(folder, bucket.folder / "files")
    store = SystemFileStore(f"{bucket.url}/files")
    assert store.get("a.txt") == store.get("x.tar/a.txt") == b"a"
    _, source = store["sub/../a.txt"]
    assert (source.dataset_path, source.index) == (f"{bucket.url}/files", "a.txt")
    assert list(store.list_files()) == ["a.txt", "sub/b.c.bin", "sub/i.png"]
    assert store.get_media_metadata("x.tar/sub/i.png") == SystemFileStore(folder).get_media_metadata("sub/i.png")
    for key in ("../other", "/a.txt", "sub/../../a.txt"):
        with pytest.raises(SampleError, match="is outside of the folder"):
            store.get(key)
    with pytest.raises(SampleError, match=r"there is no file 'b.txt'"):
        store.get("b.txt")
    with pytest.raises(SampleError, match=r"no media metadata of 'a.txt'"):
        store.get_media_metadata("a.txt")
    with pytest.raises(ConfigError, match="no such folder"):
        SystemFileStore(f"{bucket.url}/nowhere")


def test_media_metadata_come_from_the_index(folder: Path) -> None:
    (folder / "sub/i.png").write_bytes(png())
    with pytest.raises(ConfigError, match="has no media metadata"):
        SystemFileStore(folder).get_media_metadata("sub/i.png")
    prepare_media(folder, MediaRule("EXTENSION"), num_workers=1)
    store = SystemFileStore(folder)
    for key in ("sub/i.png", "x.tar/sub/i.png", "sub/../sub/i.png"):
        found = store.get_media_metadata(key)
        assert isinstance(found, ImageMetadata) and found.format == "PNG"
    with pytest.raises(Exception, match=r"no media metadata of 'a.txt'"):
        store.get_media_metadata("a.txt")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    (source,) = load_plan(write_job(tmp_path_factory.mktemp("job"))).sources
    return source


def test_what_is_joined_has_no_primary(source: Source) -> None:
    joined = dataclasses.replace(source, composition=Join(members=(source, source), names=None, joiner=print))
    with pytest.raises(ConfigError, match="no primary one; name the ones to be read in `aux`"):
        open_primary(joined, None)


def test_stores_are_opened_by_name_and_decode_if_the_encoder_does(source: Source) -> None:
    for decoder, decoded in ((SampleDecoder(), str), (None, str.encode)):
        stores, primary = open_aux(source, decoder), open_primary(source, decoder)
        assert (stores["media"].get("000003.bin"), stores["files"].get("sub/3.txt")) == (content(3), decoded("note 3"))
        assert (primary.get_path(), primary.get("000003.txt")) == (source.path, decoded("text 3"))
    assert str(stores["media"]).startswith("auxiliary data 'media' (")
    with pytest.raises(SampleError, match=r"auxiliary data 'media'.*: sample '000009' has no part 'jpg'"):
        stores["media"].get("000009.jpg")


def test_the_primary_of_lines_gives_the_lines(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"n": 0}\n{"n": 1}\n')
    prepare_jsonl(path)
    (source,) = load_plan(path).sources
    assert open_primary(source, SampleDecoder()).get("1.json") == {"n": 1}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda source, path: WebdatasetFileStore(path), "not a prepared data set"),
        (lambda source, path: SystemFileStore(path / "in/a.txt"), "no such folder"),
        (lambda source, path: opened(source, AuxReference("it", "x", "folder", "x")), "'it' .*: no such folder"),
        (lambda source, path: opened(source, AuxReference("it", str(path), "dataset", "x")), "not a prepared data set"),
    ],
)
def test_what_is_not_there_is_refused(
    source: Source, folder: Path, make: Callable[[Source, Path], Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make(source, folder.parent)


def opened(source: Source, reference: AuxReference) -> Any:
    return open_aux(dataclasses.replace(source, aux={"it": reference}), None)


def test_files_of_a_folder_are_listed_without_its_metadata_until_it_is_gone(folder: Path) -> None:
    (folder / ".nv-meta").mkdir()
    (folder / ".nv-meta/index.sqlite").write_bytes(b"")
    (folder / "link.txt").symlink_to(folder.parent / "outside.txt")
    store = SystemFileStore(folder)
    assert list(store.list_files()) == ["a.txt", "link.txt", "sub/b.c.bin"]
    assert store.get("link.txt") == b"secret", "links in the folder are followed"
    os.rename(folder, folder.with_name("elsewhere"))
    with pytest.raises(DatasetError, match="the folder is gone"):
        store.get("a.txt")
