from pathlib import Path
from typing import Any

import pytest
import torch

from bridge_data.errors import StateError
from bridge_data.loader.checkpoint.checkpoint_folder import STATE_KEY, decoded, encoded, rank_file, rank_files
from bridge_data.order.state import LoaderState
from tests.loader.checkpoint.states import make_state

PATH = Path("runs/train_dataloader_dprank001.pt")


def test_a_file_gives_back_what_was_put_in() -> None:
    state = LoaderState.from_dict(make_state(1, 3))
    file = decoded(encoded(state, step=7, rank=1, world_size=2), PATH)
    assert (file.state, file.version, file.step, file.rank, file.world_size) == (state, 2, 7, 1, 2)


def test_the_name_of_the_format_does_not_follow_the_name_of_the_module(tmp_path: Path) -> None:
    (tmp_path / "file.pt").write_bytes(encoded(LoaderState.from_dict(make_state()), step=7, rank=0, world_size=1))
    assert torch.load(tmp_path / "file.pt", weights_only=True)["format"] == "bridge_data.checkpoint"


def test_megatron_finds_the_state_where_it_looks(tmp_path: Path) -> None:
    state = LoaderState.from_dict(make_state(1, 3))
    (tmp_path / "file.pt").write_bytes(encoded(state, step=7, rank=1, world_size=2))
    assert torch.load(tmp_path / "file.pt", weights_only=True)[STATE_KEY] == state.to_dict()


@pytest.mark.parametrize("wrapped", [True, False])
def test_files_of_megatron_and_bare_states_are_read(tmp_path: Path, wrapped: bool) -> None:
    torch.save({STATE_KEY: make_state()} if wrapped else make_state(), tmp_path / "file.pt")
    file = decoded((tmp_path / "file.pt").read_bytes(), PATH)
    assert file.state.to_dict() == make_state()
    assert (file.version, file.step, file.rank, file.world_size) == (None,) * 4


def test_files_are_found_in_the_order_of_the_ranks(tmp_path: Path) -> None:
    assert rank_file(tmp_path, 7).name == "train_dataloader_dprank007.pt"
    for name in [rank_file(tmp_path, rank).name for rank in (1000, 10, 2)] + [
        "common.pt",
        "train_dataloader_dprank1.pt",
    ]:
        (tmp_path / name).touch()
    assert list(rank_files(tmp_path)) == [rank_file(tmp_path, rank).name for rank in (2, 10, 1000)]


class Marker:
    """An object, such as other loaders keep in their states."""


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut short", b"no zip at all", b"something else", Marker()])
def test_what_is_no_plain_data_is_refused_and_not_executed(tmp_path: Path, content: Any) -> None:
    if isinstance(content, bytes):
        (tmp_path / "file.pt").write_bytes(content)
    else:
        torch.save({STATE_KEY: content}, tmp_path / "file.pt")
    with pytest.raises(StateError, match=r"^runs/train_dataloader_dprank001.pt: cannot be read as a data state"):
        decoded((tmp_path / "file.pt").read_bytes(), PATH)


def test_a_state_with_something_missing_is_damaged(tmp_path: Path) -> None:
    for content in (
        {name: value for name, value in make_state().items() if name != "lanes"},
        make_state() | {"lanes": 1},
    ):
        torch.save(content, tmp_path / "file.pt")
        with pytest.raises(StateError, match=rf"{PATH.name}: lanes: .*damaged"):
            decoded((tmp_path / "file.pt").read_bytes(), PATH)


def test_a_file_cut_at_any_place_is_refused() -> None:
    data = encoded(LoaderState.from_dict(make_state()), step=7, rank=1, world_size=2)
    for length in range(0, len(data), 97):
        with pytest.raises(StateError, match="train_dataloader_dprank001"):
            decoded(data[:length], PATH)


def test_states_of_other_loaders_and_versions_are_refused_with_the_name_of_the_file(tmp_path: Path) -> None:
    for content, message in (
        ({STATE_KEY: {"dataset_state": 1}}, "not a loader state"),
        ({STATE_KEY: make_state() | {"version": 99}}, "order format 99"),
        (
            {STATE_KEY: make_state(), "format": "bridge_data.checkpoint", "version": 9},
            "got version 9 of the file",
        ),
    ):
        torch.save(content, tmp_path / "file.pt")
        with pytest.raises(StateError, match=f"dprank001.pt: .*{message}"):
            decoded((tmp_path / "file.pt").read_bytes(), PATH)
