"""The recipes from end to end, on a little data; of the sides, those that this environment has."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from benchmarks.figures import ROOT
from benchmarks.recipes import data, tables
from benchmarks.recipes.__main__ import FILE, Extent, measured
from benchmarks.recipes.sides import BRIDGE, RECIPES, SIDES, TRANSFORMERS, available
from benchmarks.speed.programs import BARE, OURS
from benchmarks.speed.summary import summarize
from benchmarks.speed.tables import in_page


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("skimage", reason="scikit-image is not installed: the extra bench has it")
    return tmp_path_factory.mktemp("data")


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_all_sides_make_equal_batches_and_leave_nothing_running(folder: Path, recipe: str) -> None:
    before = set(psutil.Process().children(recursive=True))
    workers = 2 if recipe == "qwen" else 0
    sides = tuple(name for name, side in SIDES.items() if side.python.exists())
    extent = Extent(folder=folder, rounds=1, seconds=0.1, scale=0.01, sides=sides)
    found = summarize(measured(recipe, workers, extent))
    assert found.keys() == available(RECIPES[recipe], workers).keys() & {*sides}
    for one in found.values():
        assert one["check"] == "equal"
        assert one["samples_per_s"] > 0
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.mark.slow
def test_a_field_that_differs_is_told(folder: Path, tmp_path: Path) -> None:
    made, file = data.make("recipe_texts", folder, 0.01), tmp_path / "batches.pt"
    where = ["--workload", "sft", "--data", str(made)]
    side = SIDES[TRANSFORMERS]

    def printed(*arguments: str) -> dict[str, str]:
        program = Path("benchmarks/peers") / side.program
        command = [sys.executable, str(program), *arguments]
        return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout.splitlines()[-1])

    printed("show", *where, "--batches", "1", "--to", str(file))
    assert printed("check", *where, "--of", str(file)) == {"check": "equal"}
    [(keys, fields)] = torch.load(file)
    fields["labels"][0, 0] += 1
    torch.save([(keys, fields)], file)
    assert printed("check", *where, "--of", str(file))["check"].startswith("labels of")
    torch.save([(keys, {"labels": fields["labels"]})], file)
    assert printed("check", *where, "--of", str(file))["check"].startswith("fields ['labels']; expected")


def test_bridge_and_the_bare_loop_take_part_where_they_can() -> None:
    assert BRIDGE in available(RECIPES["qwen"], 2)
    assert BRIDGE not in available(RECIPES["llava"], 2)
    assert BARE in available(RECIPES["llava"], 0)
    assert available(RECIPES["llava"], 2).keys() == {OURS, TRANSFORMERS}


def test_the_tables_of_pages_are_made_of_the_results() -> None:
    for page, text in tables.pages(json.loads(FILE.read_text())).items():
        content = (ROOT / page).read_text()
        assert in_page(content, text, tables.BEGIN, tables.END) == content
