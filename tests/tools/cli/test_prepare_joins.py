from pathlib import Path

import pytest

from bridge_data.plan import load_plan
from tests.plan.joins import BY_FIELDS, joined, metadataset, texts
from tests.tools.cli.conftest import Run
from tests.tools.cli.test_prepare_command import refused, succeeded


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    texts(tmp_path / "a", "abcd")
    texts(tmp_path / "b", "dcx")
    return tmp_path


def test_a_metadataset_is_prepared_and_tells_what_was_joined(run: Run, folder: Path) -> None:
    texts(folder / "c", "a")
    join = [{"path": "a"}, {"path": "b", "nonmatch": "skip"}, {"path": "c", "nonmatch": "none"}]
    path = joined(folder / "j.yaml", join)
    result = succeeded(run("prepare", path, "--num-workers", "2"))
    assert result.stdout == (
        "join on a [train]: 2 samples, 2 left out\n"
        "  b [train]: 3 samples, none for 2 (nonmatch: skip)\n"
        "  c [train]: 1 sample, none for 3 (nonmatch: none)\n"
    )
    assert load_plan(path).num_samples == 2
    assert succeeded(run("prepare", path, "--no-progress")).stdout == result.stdout


def test_a_metadataset_without_joins_is_said_to_need_nothing(run: Run, folder: Path) -> None:
    path = metadataset(folder / "m.yaml", {"path": "a"})
    assert "has no join, so there is nothing to prepare" in succeeded(run("prepare", path)).stdout


def test_what_cannot_be_joined_is_an_error(run: Run, folder: Path) -> None:
    path = joined(folder / "j.yaml", [{"path": "a"}, {"path": "b"}])
    refused(run("prepare", path), "b [train]: has no sample for 2 of the 4 samples", "data-0000.tar/a, data-0000.tar/b")


def test_flags_for_tars_are_refused(run: Run, folder: Path) -> None:
    path = metadataset(folder / "m.yaml", {"join": [{"path": "a"}], "joiner": BY_FIELDS})
    refused(run("prepare", path, "--split-ratio", "8,1,1"), "--split-ratio is for folders of tars, but", "metadataset")
