"""Every page of the documentation runs as it stands, and shows what it prints."""

import os
import re
import shutil
from pathlib import Path
from unittest import mock

import pytest

from tests.docs.pages import ROOT, PageRun, is_shown_as, read_blocks

QUICKSTART = ROOT / "docs" / "quickstart.md"
PAGES = sorted(path for path in (ROOT / "docs").glob("*.md") if path != QUICKSTART)


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the quickstart leaves, in which all other pages begin."""
    folder = tmp_path_factory.mktemp("quickstart")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        PageRun(QUICKSTART).check()
    return folder


@pytest.mark.long
def test_quickstart_runs(quickstart: Path) -> None:
    assert (quickstart / "photos" / ".nv-meta").is_dir()


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_runs(page: Path, quickstart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(quickstart, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    with mock.patch.dict(os.environ):  # which a page may add to
        PageRun(page).check()


@pytest.mark.long
def test_readme_runs(quickstart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes the data set of the quickstart, by the same commands: they need not run twice."""
    shutil.copytree(quickstart, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    PageRun(ROOT / "README.md", done=list(read_blocks(QUICKSTART.read_text()))).check()


def test_every_page_is_linked_from_the_readme() -> None:
    linked = re.findall(r"\]\((docs/\w+\.md)\)", (ROOT / "README.md").read_text())
    assert set(linked) == {os.path.relpath(page, ROOT) for page in (QUICKSTART, *PAGES)}


def test_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", QUICKSTART, *PAGES):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_blocks_are_found() -> None:
    page = 'Text\n```python\nprint(1)\n```\n```yaml title="a.yaml"\nx: 1\n```\n'
    assert [(b.language, b.title, b.text, b.line) for b in read_blocks(page)] == [
        ("python", None, "print(1)\n", 3),
        ("yaml", "a.yaml", "x: 1\n", 6),
    ]


def test_dots_stand_for_anything_in_shown_output() -> None:
    assert is_shown_as("one\ntwo\nthree\n", "one\n...three")
    assert not is_shown_as("one\ntwo\n", "one\n...three")
