import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bridge_data.errors import ConfigError, StateError
from bridge_data.loader.checkpoint import load_states, rank_file, save_rank_state, save_states
from bridge_data.loader.checkpoint.manifest import MANIFEST
from bridge_data.loader.checkpoint.state_file import decoded
from tests.loader.checkpoint.states import make_state, rank_states


@pytest.mark.parametrize("world_size", [1, 2, 4, 8, 3])
def test_states_are_saved_for_any_number_of_ranks(tmp_path: Path, world_size: int) -> None:
    save_states(tmp_path / "new", rank_states(4)[::-1], step=10, world_size=world_size)
    files = [rank_file(tmp_path / "new", rank) for rank in range(world_size)]
    assert sorted(os.listdir(tmp_path / "new")) == [file.name for file in files] + [MANIFEST]
    for rank, file in enumerate(files):
        content = decoded(file.read_bytes(), file)
        assert (content.step, content.rank, content.world_size) == (10, rank, world_size)
        assert list(content.state.lanes) == list(range(rank, 8, world_size) if rank else range(8))
    assert load_states(tmp_path / "new", step=10) == make_state()


def test_a_whole_state_is_saved_as_it_is(tmp_path: Path) -> None:
    save_states(str(tmp_path), make_state(), step=10, world_size=2)
    assert load_states(str(tmp_path)) == make_state()


def test_an_earlier_save_with_more_ranks_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "common.pt").write_text("of the model")
    save_states(tmp_path, make_state(step=10), step=10, world_size=8)
    (tmp_path / ".train_dataloader_dprank002.pt.77.tmp").write_text("left by a crash")
    save_states(tmp_path, make_state(step=20), step=20, world_size=2)
    names = [rank_file(tmp_path, rank).name for rank in range(2)]
    assert sorted(os.listdir(tmp_path)) == ["common.pt", *names, MANIFEST]
    assert load_states(tmp_path, step=20) == make_state(step=20)


def test_what_is_no_whole_state_is_not_saved(tmp_path: Path) -> None:
    for states, message in (
        (rank_states(4)[1:], "lacks lanes"),
        ([*rank_states(4)[1:], rank_states(4, step=11)[0]], "next_slot 88"),
        ([], "got no state"),
    ):
        with pytest.raises(StateError, match=message):
            save_states(tmp_path / "none", states, step=10, world_size=4)
    with pytest.raises(ConfigError, match="expected at least 1"):
        save_states(tmp_path / "none", make_state(), step=10, world_size=0)
    assert not (tmp_path / "none").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match=f"^{tmp_path}/file/below: the data state was not saved: .*Not a directory"):
        save_states(tmp_path / "file" / "below", make_state(), step=10, world_size=1)
    with pytest.raises(StateError, match=r"was not saved:\n  rank 0: .*Not a directory"):
        save_rank_state(tmp_path / "file" / "below", make_state(), step=10)


def test_a_rank_alone_saves_all(tmp_path: Path) -> None:
    save_rank_state(tmp_path, make_state(), step=10)
    assert load_states(tmp_path, step=10) == make_state()
    with pytest.raises(StateError, match=r"rank 0: data-parallel rank 0 of 1 needs lanes \[0, 2, 4, 6\]"):
        save_rank_state(tmp_path, make_state(1, 3, 5, 7), step=11)
    with pytest.raises(StateError, match="holds no data state"):
        load_states(tmp_path)


def test_a_save_that_is_killed_leaves_all_or_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.loader.checkpoint.killed_saves", str(tmp_path), "16"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    counts = re.fullmatch(r"(\d+) whole, (\d+) refused\n", result.stdout)
    assert counts is not None
    assert min(map(int, counts.groups())) > 0, "the kills did not fall into saves and between them"
