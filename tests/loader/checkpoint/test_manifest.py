import json
from pathlib import Path

import pytest

from bridge_data.errors import StateError
from bridge_data.loader.checkpoint.manifest import MANIFEST, FileRecord, Manifest, digest
from bridge_data.loader.checkpoint.state_file import rank_file

CONTENTS = {rank_file(Path(), rank).name: bytes([rank]) * 100 for rank in range(3)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files and their manifest."""
    for name, data in CONTENTS.items():
        (tmp_path / name).write_bytes(data)
    records = {name: FileRecord.of(data) for name, data in CONTENTS.items()}
    Manifest(step=10, world_size=3, fingerprint="ab", files=records).write(tmp_path)
    return tmp_path


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
        ('{"format": "bridge_data.loader.checkpoint", "version": 1, "step": 3}', "no manifest"),
        ('{"format": "bridge_data.loader.checkpoint", "version": 2}', "got version 2 of the manifest, expected 1"),
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
