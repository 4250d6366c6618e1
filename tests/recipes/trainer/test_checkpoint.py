import json
from pathlib import Path

import pytest

from bridge_data.errors import StateError
from recipes.trainer.checkpoint import LATEST_FILE, TOPOLOGY_FILE, iteration_folder, latest_iteration, load_checkpoint


def commit(checkpoint_dir: Path, text: str) -> None:
    (checkpoint_dir / LATEST_FILE).write_text(text)


def make_folder(checkpoint_dir: Path, iteration: int) -> Path:
    folder = iteration_folder(checkpoint_dir, iteration)
    folder.mkdir(parents=True)
    (folder / TOPOLOGY_FILE).write_text(json.dumps({"iteration": iteration, "data_parallel_size": 2}))
    return folder


def test_without_a_commit_there_is_no_checkpoint(tmp_path: Path) -> None:
    assert latest_iteration(tmp_path) is None
    make_folder(tmp_path, 10)
    assert latest_iteration(tmp_path) is None


def test_the_commit_decides_not_the_newest_folder(tmp_path: Path) -> None:
    for iteration in (10, 20):
        make_folder(tmp_path, iteration)
    commit(tmp_path, "10\n")
    assert latest_iteration(tmp_path) == 10


def test_folders_are_named_as_megatron_names_them(tmp_path: Path) -> None:
    assert iteration_folder(tmp_path, 10).name == "iter_0000010"


@pytest.mark.parametrize("text", ["", "release", "-1"])
def test_a_commit_that_is_no_number_says_what_to_do(tmp_path: Path, text: str) -> None:
    commit(tmp_path, text)
    with pytest.raises(StateError, match="expected the number of an iteration"):
        latest_iteration(tmp_path)


def test_a_commit_without_its_folder_is_an_error_not_a_fresh_start(tmp_path: Path) -> None:
    commit(tmp_path, "30")
    with pytest.raises(StateError, match=r"names iteration 30, but .*iter_0000030 is missing or incomplete"):
        latest_iteration(tmp_path)


def test_a_folder_that_was_not_finished_is_an_error(tmp_path: Path) -> None:
    (make_folder(tmp_path, 30) / TOPOLOGY_FILE).unlink()
    commit(tmp_path, "30")
    with pytest.raises(StateError, match="missing or incomplete"):
        latest_iteration(tmp_path)


def test_missing_data_states_are_an_error_not_a_fresh_start(tmp_path: Path) -> None:
    make_folder(tmp_path, 10)
    with pytest.raises(StateError, match="iter_0000010"):
        load_checkpoint(tmp_path, 10, {})


def test_a_renamed_folder_is_an_error(tmp_path: Path) -> None:
    make_folder(tmp_path, 10).rename(iteration_folder(tmp_path, 20))
    with pytest.raises(StateError, match="got iteration 10, expected 20"):
        load_checkpoint(tmp_path, 20, {})
