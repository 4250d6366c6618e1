import os
import pickle
import shutil
from pathlib import Path

import pytest

from bridge_data.errors import ConfigError, DatasetError, SampleError
from bridge_data.prepare.media import prepare_media
from bridge_data.prepare.media_files import MediaRule
from bridge_data.shards.media_metadata import ImageMetadata
from bridge_data.task.stores import SystemFileStore
from tests.encoders.multimodal_parts import png
from tests.object_store import Bucket


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
    with pytest.raises(SampleError, match=r"leads out of the folder|there is no file"):
        SystemFileStore(folder).get(key)


def test_links_in_the_folder_are_followed(folder: Path) -> None:
    (folder / "link.txt").symlink_to(folder.parent / "outside.txt")
    assert SystemFileStore(folder).get("link.txt") == b"secret"


@pytest.mark.parametrize("key", ["no.txt", "sub", "a.txt/b", "x" * 300, "a\0b"])
def test_a_missing_file_is_the_samples_fault(folder: Path, key: str) -> None:
    with pytest.raises(SampleError, match=r"auxiliary data 'notes' \(.*/in\): there is no file"):
        SystemFileStore(folder, name="notes").get(key)


def test_a_folder_that_is_gone_stops_the_run(folder: Path) -> None:
    store = SystemFileStore(folder)
    os.rename(folder, folder.with_name("elsewhere"))
    with pytest.raises(DatasetError, match="the folder is gone"):
        store.get("a.txt")


def test_without_a_folder_paths_are_absolute(folder: Path) -> None:
    store = SystemFileStore()
    assert store.get(str(folder / "a.txt")) == b"a"
    with pytest.raises(SampleError, match="no absolute path"):
        store.get("a.txt")
    for action in (lambda: store.get_media_metadata("a"), lambda: list(store.list_files())):
        with pytest.raises(ConfigError, match="folder"):
            action()


def test_what_is_no_folder_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        SystemFileStore(folder / "a.txt")


def test_a_folder_may_be_in_an_object_store(folder: Path, bucket: Bucket) -> None:
    (folder / "sub/i.png").write_bytes(png())
    prepare_media(folder, MediaRule("EXTENSION"), num_workers=1)
    shutil.copytree(folder, bucket.folder / "files")
    store = SystemFileStore(f"{bucket.url}/files")
    assert store.get("a.txt") == store.get("x.tar/a.txt") == b"a"
    _, source = store["sub/../a.txt"]
    assert (source.dataset_path, source.index) == (f"{bucket.url}/files", "sub/../a.txt")
    assert list(store.list_files()) == ["a.txt", "sub/b.c.bin", "sub/i.png"]
    assert store.get_media_metadata("x.tar/sub/i.png") == SystemFileStore(folder).get_media_metadata("sub/i.png")
    for key in ("../other", "/a.txt", "sub/../../a.txt"):
        with pytest.raises(SampleError, match="leads out of the folder"):
            store.get(key)
    with pytest.raises(SampleError, match=r"there is no file 'b.txt'"):
        store.get("b.txt")
    with pytest.raises(SampleError, match=r"no media metadata of 'a.txt'"):
        store.get_media_metadata("a.txt")
    with pytest.raises(ConfigError, match="no such folder"):
        SystemFileStore(f"{bucket.url}/nowhere")


def test_files_are_listed_without_the_metadata(folder: Path) -> None:
    (folder / ".nv-meta").mkdir()
    (folder / ".nv-meta/index.sqlite").write_bytes(b"")
    assert list(SystemFileStore(folder).list_files()) == ["a.txt", "sub/b.c.bin"]


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
