from pathlib import Path
from typing import Any

import pytest
import torch

from bridge_data.errors import StateError
from bridge_data.loader.checkpoint import rank_file, read_checkpoint, save_states
from tests.loader.checkpoint.states import make_state

STATE_KEY = "dataloader_state_dict"


@pytest.mark.parametrize("wrapped", [True, False])
def test_files_of_megatron_and_bare_states_are_read(tmp_path: Path, wrapped: bool) -> None:
    torch.save({STATE_KEY: make_state()} if wrapped else make_state(), tmp_path / "file.pt")
    found = read_checkpoint(tmp_path / "file.pt")
    assert found.state.to_dict() == make_state()
    assert found.step is None and found.world_size is None


def test_files_are_found_in_the_order_of_the_ranks(tmp_path: Path) -> None:
    for rank in (1000, 999, 2):
        torch.save(make_state(1, 5), rank_file(tmp_path, rank))
    for name in ("common.pt", "train_dataloader_dprank1.pt"):
        (tmp_path / name).touch()
    names = ", ".join(rank_file(tmp_path, rank).name for rank in (2, 999, 1000))
    with pytest.raises(StateError, match=f": {names} do not make one whole state"):
        read_checkpoint(tmp_path)


class Marker:
    """An object, such as other loaders keep in their states."""


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut short", b"no zip at all", b"something else", Marker()])
def test_what_is_no_plain_data_is_refused_and_not_executed(tmp_path: Path, content: Any) -> None:
    file = rank_file(tmp_path, 1)
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        torch.save({STATE_KEY: content}, file)
    with pytest.raises(StateError, match=rf"^{file}: cannot be read as a data state"):
        read_checkpoint(file)


def test_a_file_cut_at_any_place_is_refused(tmp_path: Path) -> None:
    save_states(tmp_path, make_state(), step=7, world_size=2)
    file = rank_file(tmp_path, 1)
    data = file.read_bytes()
    for length in range(0, len(data), 97):
        file.write_bytes(data[:length])
        with pytest.raises(StateError, match=file.name):
            read_checkpoint(file)


def test_megatron_finds_the_state_where_it_looks(tmp_path: Path) -> None:
    save_states(tmp_path, make_state(), step=7, world_size=2)
    assert rank_file(tmp_path, 1).name == "train_dataloader_dprank001.pt"
    content = torch.load(rank_file(tmp_path, 1), weights_only=True)
    assert content[STATE_KEY] == make_state(1, 3, 5, 7)
    assert content["format"] == "bridge_data.checkpoint", "which does not follow the name of the module"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({name: value for name, value in make_state().items() if name != "lanes"}, "lanes: .*damaged"),
        (make_state() | {"lanes": 1}, "lanes: .*damaged"),
        ({STATE_KEY: {"dataset_state": 1}}, "not a loader state"),
        ({STATE_KEY: make_state() | {"version": 99}}, "version 99"),
        ({STATE_KEY: make_state(), "format": "bridge_data.checkpoint", "version": 9}, "got version 9 of the file"),
    ],
)
def test_another_content_is_refused_with_the_name_of_the_file(
    tmp_path: Path, content: dict[str, Any], message: str
) -> None:
    torch.save(content, file := rank_file(tmp_path, 1))
    with pytest.raises(StateError, match=f"{file.name}: .*{message}"):
        read_checkpoint(file)
