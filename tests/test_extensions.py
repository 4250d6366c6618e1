"""What other packages offer by entry points is found, or is an error that names the package."""

import sys
from pathlib import Path

import pytest

from bridge_data.errors import ConfigError
from bridge_data.extensions import Seam, needed_package

STORES = Seam[type[Path]]("stores")


def install(site: Path, package: str, entry_points: str) -> None:
    """A package with these entry points of the kind `stores`."""
    folder = site / f"{package}-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[bridge_data.stores]\n{entry_points}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def test_what_another_package_offers_is_found_and_what_nobody_does_is_named(site: Path) -> None:
    install(site, "theirs", "ours = pathlib:Path")
    assert STORES.find("ours") is Path
    assert "ours" in STORES.names_of_others
    assert STORES.find("nobodys") is None
    with pytest.raises(ConfigError, match=r"nobodys://.*'nobodys'.*bridge_data\.stores"):
        STORES.get("nobodys", needed_by="nobodys://")


def test_a_name_that_two_packages_offer_is_refused(site: Path) -> None:
    install(site, "one", "same = pathlib:Path")
    install(site, "two", "same = pathlib:PurePath")
    with pytest.raises(ConfigError, match=r"'same'.*twice: .*(one|two).*(one|two)"):
        STORES.find("same")


@pytest.mark.parametrize("target", ["no_such_module_anywhere:Store", "pathlib:NoSuchName"])
def test_what_cannot_be_imported_names_its_package(site: Path, target: str) -> None:
    install(site, "broken", f"lost = {target}")
    with pytest.raises(ConfigError, match=rf"'lost'.*{target} of broken"):
        STORES.find("lost")


def test_a_package_that_is_missing_or_broken_is_named_with_the_way_out(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lance", None)
    with pytest.raises(ConfigError, match=r"^a table needs .* lance, .*: pip install pylance, or write another"):
        needed_package("lance", "a table", "write another")
    (site / "broken_library.py").write_text("from os import what_nobody_has")
    with pytest.raises(ConfigError, match=r"^a table needs .* broken_library, .*\(.*what_nobody_has"):
        needed_package("broken_library", "a table")
