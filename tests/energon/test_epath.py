"""`EPath`, on a disk; in object stores, what is done without asking them."""

import pickle
from pathlib import Path

import pytest

from bridge_data.energon.epath import EPath
from bridge_data.errors import ConfigError


def test_local_paths_are_absolute_and_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(EPath("a/./b/../c")) == str(tmp_path / "a/c") == EPath("a/c").url
    for disk in ("file://", "msc://default", "msc://__filesystem__"):
        assert EPath(f"{disk}{tmp_path}/x").local_path() == tmp_path / "x"
    path = EPath(tmp_path) / "d" / "e.tar"
    assert (path.name, path.parent, path.with_suffix(".idx").name) == ("e.tar", EPath(tmp_path / "d"), "e.idx")
    assert path.relative_to(EPath(tmp_path)) == "d/e.tar"
    assert path / "/abs" == EPath("/abs") == "/abs"
    assert {path, EPath(path)} == {path} and path < EPath(tmp_path) / "e"
    assert pickle.loads(pickle.dumps(path)) == path


def test_files_are_written_read_listed_moved_and_removed(tmp_path: Path) -> None:
    root = EPath(tmp_path)
    (root / "p/a.tar").write_bytes(b"12")
    (root / "p/q/b.tar").write_text("3")
    assert (root / "p/a.tar").size() == 2 and (root / "p").is_dir() and not (root / "p").is_file()
    with (root / "p/q/b.tar").open() as file:
        assert file.read() == "3"
    assert sorted(path.relative_to(root) for path in root.walk()) == ["p/a.tar", "p/q/b.tar"]
    assert [path.name for path in root.glob("p/*.tar")] == ["a.tar"]
    assert sorted(path.name for path in root.glob("p/**/*.tar")) == ["a.tar", "b.tar"]
    assert [path.name for path in root.glob("p/[ab].ta?")] == ["a.tar"]
    assert [path.name for path in root.glob("**/[!a].tar")] == ["b.tar"]
    (root / "p/a.tar").move(root / "c.tar")
    (root / "p").copy(root / "r")
    assert (root / "c.tar").read_text() == "12" and (root / "r/q/b.tar").read_text() == "3"
    with pytest.raises(FileNotFoundError):
        (root / "p/a.tar").read_bytes()
    (root / "r").move(root / "s/t")
    assert not (root / "r").is_dir() and [path.relative_to(root / "s") for path in (root / "s").walk()] == ["t/q/b.tar"]
    with pytest.raises(ConfigError, match="which is a part of it"):
        (root / "s").move(root / "s/t")


def test_urls_keep_their_kind_and_are_not_written() -> None:
    path = EPath("msc://profile/a/../b/./c.tar")
    assert (path.url, path.is_local(), path.name) == ("msc://profile/b/c.tar", False, "c.tar")
    assert path.parent / "d" == "msc://profile/b/d"
    with pytest.raises(ConfigError, match="takes data on a disk"):
        path.write_text("x")
    with pytest.raises(ConfigError, match="leads above its root"):
        EPath("s3://bucket/../x")
    with pytest.raises(ConfigError, match="unknown kind of URL"):
        EPath("ftp://host/x")


def test_data_sets_of_the_dataset_service_are_folders_of_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NVDATASET_CACHE_DIR", raising=False)
    with pytest.raises(ConfigError, match="NVDATASET_CACHE_DIR, the cache of the service, is not set"):
        EPath("dss://charts@v0/a.tar")
    monkeypatch.setenv("NVDATASET_CACHE_DIR", str(tmp_path))
    assert EPath("dss://charts@v0/a.tar").local_path() == tmp_path / "charts/v0/a.tar"
    with pytest.raises(ConfigError, match="names no version"):
        EPath("dss://charts/a.tar")
