"""Every page of the documentation runs as it stands, and shows what it prints."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import lightning.pytorch as pl
import pytest
import torch
from transformers import CLIPImageProcessor

from bridge_data import DefaultTaskEncoder, EnergonDatasetConfig
from recipes.demo.compare import read_run
from tests.docs.pages import ROOT, PageRun, is_shown_as, plain_calls, read_blocks
from tests.encoders.multimodal_parts import make_tokenizer
from tests.plugins.convert.originals import captioned_mds, picture

QUICKSTART = ROOT / "docs" / "quickstart.md"
INDEX = ROOT / "docs" / "README.md"
PAGES = sorted(path for path in (ROOT / "docs").glob("*.md") if path != QUICKSTART)
LONG_PAGES = {"distributed"}
"""They launch jobs of several ranks: a minute."""
LINKING = [*(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING", "SECURITY")), QUICKSTART, *PAGES]


def links(page: Path) -> list[tuple[str, str]]:
    """The links of a page to files and sections: (path, section), either of which may be empty."""
    return re.findall(r"\]\(([^)#:]*)(?:#([\w-]+))?\)", page.read_text())


def sections(markdown: str) -> set[str]:
    """The names by which links find the sections of a page, as GitHub makes them of headings."""
    prose = re.sub(r"^```.*?^```$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the quickstart leaves, in which all other pages begin."""
    folder = tmp_path_factory.mktemp("quickstart")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        PageRun(QUICKSTART).check()
    return folder


def provide(page: Path, folder: Path, request: pytest.FixtureRequest) -> None:
    """What a page takes for granted besides the folder of the quickstart."""
    if page.stem == "migration":
        captioned_mds(folder / "photos_mds")
    if page.stem == "object_stores":
        request.getfixturevalue("bucket")  # to whose server the environment leads
        (request.getfixturevalue("s3_server").folder / "training").mkdir()


@pytest.mark.long
@pytest.mark.processes
def test_quickstart_runs(quickstart: Path) -> None:
    assert (quickstart / "photos" / ".nv-meta").is_dir()


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] if page.stem in LONG_PAGES else []) for page in PAGES],
    ids=lambda page: page.stem,
)
def test_page_runs(
    page: Path, quickstart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    shutil.copytree(quickstart, tmp_path, dirs_exist_ok=True)
    provide(page, tmp_path, request)
    monkeypatch.chdir(tmp_path)
    with mock.patch.dict(os.environ):  # which a page may add to
        PageRun(page).check()


@pytest.mark.slow
@pytest.mark.processes
def test_the_small_model_without_a_gpu_trains_by_the_command_that_the_page_shows(
    quickstart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(quickstart, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "recipes.md"
    blocks = list(read_blocks(page.read_text()))
    (number,) = (number for number, block in enumerate(blocks) if "recipes.demo.on_cpu" in block.text)
    run = PageRun(page)
    for block in blocks[:number]:
        run.run(block)
    run.close()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-euc", blocks[number].text.removeprefix("$ ")],
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^step (\d+): loss", done.stdout, re.MULTILINE) == ["8", "16", "24"]
    batches = read_run(tmp_path / "runs" / "small")
    assert list(batches) == list(range(1, 25))
    assert batches[24].num_ranks == 2 and batches[24].loss < batches[1].loss


class Model(pl.LightningModule):
    """As small as a model may be that learns tokens: what the README's `Trainer` fits."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(512, 4)
        self.head = torch.nn.Linear(4, 512)

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        logits = self.head(self.embedding(batch.tokens))
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten())

    def validation_step(self, batch: Any, number: int) -> None:
        self.log("val_loss", self.training_step(batch, number), batch_size=len(batch.tokens))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.long
@pytest.mark.processes
def test_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a folder of the name that the model has on the hub, and what a run has beside its data."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw").mkdir()
    for number in range(60):
        (tmp_path / "raw" / f"{number}.jpg").write_bytes(picture(number))
        (tmp_path / "raw" / f"{number}.txt").write_text(f"number {number}")
    model = tmp_path / "llava-hf" / "llava-1.5-7b-hf"
    make_tokenizer().save_pretrained(model)
    processor = CLIPImageProcessor(size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336})
    processor.save_pretrained(model)
    run = PageRun(ROOT / "README.md")
    run.scope |= {"config": SimpleNamespace(), "encoder": DefaultTaskEncoder(), "Model": Model}
    run.check()
    assert isinstance(run.scope["config"].dataset, EnergonDatasetConfig)
    tokens, pixels = run.scope["batch"].tokens, run.scope["batch"].images
    assert len(tokens) == 2 and tokens.dtype == torch.int64
    assert (pixels.dtype, tuple(pixels.shape)) == (torch.float32, (2, 3, 336, 336))
    assert run.scope["trainer"].global_step == 4


def test_every_page_is_linked_from_the_index() -> None:
    linked = {target for target, _ in links(INDEX)}
    assert {page.name for page in (QUICKSTART, *PAGES)} - {INDEX.name} <= linked


@pytest.mark.parametrize("page", LINKING, ids=lambda page: os.path.relpath(page, ROOT))
def test_links_lead_somewhere(page: Path) -> None:
    for target, section in links(page):
        file = (page.parent / target) if target else page
        assert file.exists(), f"{page.name} links to {target}"
        if section:
            assert section in sections(file.read_text()), f"{page.name} links to {target}#{section}"


def test_pages_that_run_what_only_a_clone_has_say_so_first_and_no_others() -> None:
    for page in (QUICKSTART, *PAGES):
        text = page.read_text()
        run = "\n".join(
            block.text for block in read_blocks(text) if block.language in ("python", "bash", "diff", "console")
        )
        needs_clone = re.search(r"\b(recipes|benchmarks|tests)\.\w|configs/deploy/", run) is not None
        assert needs_clone == ("From a clone" in text.split("\n\n")[1]), page.name


def test_files_that_pages_name_exist() -> None:
    rooms = "bridge_data|recipes|benchmarks|configs|tests"
    named = [(page.name, path) for page in PAGES for path in re.findall(rf"`((?:{rooms})/[\w/.]+)`", page.read_text())]
    assert len(named) >= 10
    assert [(page, path) for page, path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_modules_that_a_page_names_are_there(page: str) -> None:
    names = {path.name for folder in ("bridge_data", "tests") for path in (ROOT / folder).rglob("*.py")}
    named = re.findall(r"`([\w/]+\.py)`", (ROOT / page).read_text())
    assert [
        name
        for name in named
        if not any((ROOT / top / name).exists() for top in ("", "bridge_data")) and name not in names
    ] == []


def test_dots_stand_for_anything_in_shown_output() -> None:
    assert is_shown_as("one\ntwo\nthree\n", "one\n...three")
    assert not is_shown_as("one\ntwo\n", "one\n...three")


def test_calls_of_the_command_line_alone_take_no_shell() -> None:
    script = "bridge-data info a --where \"x > 'y'\" \\\n  --limits n=1\nbridge-data check 'b*'\n"
    assert plain_calls(script) == [["info", "a", "--where", "x > 'y'", "--limits", "n=1"], ["check", "b*"]]
    for other in (
        "bridge-data info a > b\n",
        "bridge-data info $A\n",
        "cd a\nbridge-data info b\n",
        "bridge-data info b*\n",
    ):
        assert plain_calls(other) is None
