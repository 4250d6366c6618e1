import os
import pickle
from pathlib import Path

import pytest

from bridge_data.errors import ConfigError
from bridge_data.storage import RemotePath, location, on_disk
from tests.object_store import Bucket


def test_a_url_is_used_like_a_path() -> None:
    path = RemotePath("s3://bucket/sets/a/") / "x/data.tar"
    assert str(path) == os.fspath(path) == "s3://bucket/sets/a/x/data.tar"
    assert (path.name, path.suffix, str(path.parent)) == ("data.tar", ".tar", "s3://bucket/sets/a/x")
    assert str(path.with_name("b")) == "s3://bucket/sets/a/x/b"
    assert str(path.with_suffix(".tar.idx")) == "s3://bucket/sets/a/x/data.tar.idx"
    assert path.absolute() == path == pickle.loads(pickle.dumps(path))
    assert len({path, RemotePath(str(path))}) == 1
    assert str(RemotePath("s3://bucket/").parent) == "s3://bucket"
    assert repr(path) == "RemotePath('s3://bucket/sets/a/x/data.tar')"


def test_paths_stay_paths(tmp_path: Path) -> None:
    assert location(str(tmp_path)) == location(tmp_path) == on_disk(tmp_path) == tmp_path
    assert location("s3://b/c") == location(RemotePath("s3://b/c")) == RemotePath("s3://b/c")
    with pytest.raises(ConfigError, match="unknown kind"):
        location("ftp://a/b")
    with pytest.raises(ConfigError, match="s3://b: this takes data on a disk"):
        on_disk(RemotePath("s3://b"))


def test_it_asks_the_store(bucket: Bucket) -> None:
    (bucket.folder / "a").mkdir()
    (bucket.folder / "a" / "f").write_bytes(b"f")
    folder = RemotePath(bucket.url) / "a"
    assert folder.is_dir() and folder.exists() and not folder.is_file()
    assert (folder / "f").is_file() and (folder / "f").exists() and not (folder / "f").is_dir()
    assert not (folder / "g").exists()
