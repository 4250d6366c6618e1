import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bridge_data.errors import StateError
from bridge_data.loader.checkpoint.state_files import (
    MANIFEST,
    STATE_KEY,
    FileRecord,
    Manifest,
    decoded,
    digest,
    encoded,
    rank_file,
    rank_files,
)
from bridge_data.order.state import LoaderState
from tests.loader.checkpoint.states import make_state

PATH = Path("runs/train_dataloader_dprank001.pt")


def test_a_file_gives_back_what_was_put_in() -> None:
    state = LoaderState.from_dict(make_state(1, 3))
    file = decoded(encoded(state, step=7, rank=1, world_size=2), PATH)
    assert (file.state, file.step, file.rank, file.world_size) == (state, 7, 1, 2)


def test_megatron_finds_the_state_where_it_looks(tmp_path: Path) -> None:
    state = LoaderState.from_dict(make_state(1, 3))
    (tmp_path / "file.pt").write_bytes(encoded(state, step=7, rank=1, world_size=2))
    assert torch.load(tmp_path / "file.pt", weights_only=True)[STATE_KEY] == state.to_dict()


@pytest.mark.parametrize("wrapped", [True, False])
def test_files_of_megatron_and_bare_states_are_read(tmp_path: Path, wrapped: bool) -> None:
    torch.save({STATE_KEY: make_state()} if wrapped else make_state(), tmp_path / "file.pt")
    file = decoded((tmp_path / "file.pt").read_bytes(), PATH)
    assert file.state.to_dict() == make_state()
    assert (file.step, file.rank, file.world_size) == (None, None, None)


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


CONTENTS = {rank_file(Path(), rank).name: bytes([rank]) * 100 for rank in range(3)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files and their manifest."""
    for name, data in CONTENTS.items():
        (tmp_path / name).write_bytes(data)
    records = {name: FileRecord.of(data) for name, data in CONTENTS.items()}
    Manifest(step=10, world_size=3, fingerprint="ab", files=records).write(tmp_path)
    return tmp_path


def test_the_name_of_the_format_does_not_follow_the_name_of_the_module(folder: Path) -> None:
    assert json.loads((folder / MANIFEST).read_text())["format"] == "bridge_data.checkpoint"


def read(folder: Path) -> dict[str, bytes]:
    manifest = Manifest.read(folder)
    assert manifest is not None
    return manifest.read_files(folder)


def test_the_files_are_read(folder: Path) -> None:
    assert read(folder) == CONTENTS
    assert Manifest.read(folder / "..") is None


def test_people_can_read_it(folder: Path) -> None:
    content = json.loads((folder / MANIFEST).read_text())
    assert (content["step"], content["world_size"], content["fingerprint"]) == (10, 3, "ab")
    assert content["files"]["train_dataloader_dprank002.pt"]["size_bytes"] == 100


def test_every_fault_is_named(folder: Path) -> None:
    rank_file(folder, 0).unlink()
    rank_file(folder, 1).write_bytes(b"\x01" * 99 + b"\x02")
    rank_file(folder, 2).write_bytes(b"\x02" * 99)
    rank_file(folder, 5).write_bytes(b"of a larger run")
    with pytest.raises(StateError) as caught:
        read(folder)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{folder}: these are not the files that step 10 saved:"
    assert lines[1] == "  train_dataloader_dprank000.pt is missing"
    assert lines[2].startswith("  train_dataloader_dprank001.pt has other content: 100 bytes, blake2b ")
    assert lines[3].startswith("  train_dataloader_dprank002.pt has other content: 99 bytes, ")
    assert lines[4] == "  train_dataloader_dprank005.pt is of another run: 3 ranks saved"
    assert "take another checkpoint" in lines[5]


def test_a_thousand_faults_fit_a_screen(folder: Path) -> None:
    for rank in range(3, 1003):
        rank_file(folder, rank).touch()
    with pytest.raises(StateError) as caught:
        read(folder)
    lines = str(caught.value).splitlines()
    assert len(lines) == 15
    assert lines[-2] == "  and 988 more"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no manifest"),
        ("[1]", "no manifest"),
        ("{}", "no manifest"),
        ('{"format": "bridge_data.checkpoint", "version": 1, "step": 3}', "no manifest"),
        ('{"format": "bridge_data.checkpoint", "version": 2}', "got version 2 of the manifest, expected 1"),
        ('{"format": "of others", "version": 1}', "no manifest"),
    ],
)
def test_a_damaged_manifest_is_refused(folder: Path, text: str, message: str) -> None:
    (folder / MANIFEST).write_text(text)
    with pytest.raises(StateError, match=f"{MANIFEST}: .*{message}"):
        read(folder)


def test_the_digest_depends_on_the_content_only() -> None:
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})
