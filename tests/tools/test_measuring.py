"""Data in a store, joins, and generators of several data sets: measured as data on a disk are."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from bridge_data.plan.opening import load_plan
from bridge_data.shards.costs import open_costs
from tests.object_store import Bucket
from tests.plan.joins import joined, prepared_plan
from tests.prepared import write_texts
from tests.tools.cli.runner import run_command
from tests.tools.measure_encoders import Words

WORDS = "tests.tools.measure_encoders:Words"


def test_data_in_a_store_have_the_costs_of_a_disk_and_are_read_from_a_copy(bucket: Bucket, tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "texts", 200)
    shutil.copytree(folder, bucket.folder / "texts")
    costs = folder / ".nv-meta/costs"
    for path in (folder, f"{bucket.url}/texts"):
        result = run_command("measure", path, "--task-encoder", WORDS, "--no-progress", "--num-workers", 2)
        assert result.exit_code == 0, result.output
    (written,) = costs.iterdir()
    stored = bucket.folder / "texts/.nv-meta/costs"
    assert [file.name for file in stored.iterdir() if file.is_file()] == [written.name]
    assert (stored / written.name).read_bytes() == written.read_bytes()
    (source,) = load_plan(f"{bucket.url}/texts").sources
    table = open_costs(source.records, Words().costs_key(source))
    assert table.take(np.array([13, 12]), "tokens").tolist() == [13, 24]


def test_a_join_has_costs_of_its_own_which_those_of_its_members_do_not_replace(tmp_path: Path) -> None:
    for name, count in (("a", 30), ("b", 20)):
        write_texts(tmp_path / name, count)
    members = [{"path": "a"}, {"path": "b", "nonmatch": "none"}]
    path = joined(tmp_path / "j.yaml", members)
    (source,) = prepared_plan(path).sources
    for data in (tmp_path / "a", path, tmp_path / "a"):
        result = run_command("measure", data, "--task-encoder", WORDS, "--no-progress", "--num-workers", 1)
        assert result.exit_code == 0, result.output
    for one in (source, *load_plan(tmp_path / "a").sources):
        table = open_costs(one.records, Words().costs_key(one))
        assert table.take(np.array([13, 12, 9]), "tokens").tolist() == [13, 24, 0]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_store_that_nobody_may_write_is_an_error(num_workers: int, tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "texts", 20)
    (folder / ".nv-meta/costs").write_text("in the way")
    result = run_command("measure", folder, "--task-encoder", WORDS, "--no-progress", "--num-workers", num_workers)
    assert result.exit_code == 1 and "--out" in result.stderr and "BRIDGE_DATA_COSTS" in result.stderr
