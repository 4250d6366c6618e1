import json
from pathlib import Path

import pytest

from bridge_data.errors import StateError
from recipes.trainer.checkpoint import LATEST_FILE, TOPOLOGY_FILE, iteration_folder, latest_iteration, load_checkpoint


def make_folder(checkpoint_dir: Path, iteration: int) -> Path:
    folder = iteration_folder(checkpoint_dir, iteration)
    folder.mkdir(parents=True)
    (folder / TOPOLOGY_FILE).write_text(json.dumps({"iteration": iteration, "data_parallel_size": 2}))
    return folder


def test_the_commit_decides_not_the_newest_folder(tmp_path: Path) -> None:
    assert latest_iteration(tmp_path) is None
    for iteration in (10, 20):
        make_folder(tmp_path, iteration)
    assert latest_iteration(tmp_path) is None
    (tmp_path / LATEST_FILE).write_text("10\n")
    assert latest_iteration(tmp_path) == 10
    assert (tmp_path / "iter_0000010").is_dir(), "named as Megatron names them"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, "expected the number of an iteration") for text in ("", "release", "-1")),
        ("30", r"names iteration 30, but .*iter_0000030 is missing or incomplete"),
        ("40", r"names iteration 40, but .*iter_0000040 is missing or incomplete"),
    ],
)
def test_a_commit_of_nothing_whole_is_an_error_not_a_fresh_start(tmp_path: Path, text: str, message: str) -> None:
    (make_folder(tmp_path, 40) / TOPOLOGY_FILE).unlink()
    (tmp_path / LATEST_FILE).write_text(text)
    with pytest.raises(StateError, match=message):
        latest_iteration(tmp_path)


def test_missing_data_states_and_a_renamed_folder_are_errors(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, 10)
    with pytest.raises(StateError, match="iter_0000010"):
        load_checkpoint(tmp_path, 10, {})
    folder.rename(iteration_folder(tmp_path, 20))
    with pytest.raises(StateError, match="got iteration 10, expected 20"):
        load_checkpoint(tmp_path, 20, {})
