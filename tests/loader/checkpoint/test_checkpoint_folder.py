import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch

from bridge_data.errors import ConfigError, StateError
from bridge_data.loader.checkpoint import load_states, rank_file, read_checkpoint, save_rank_state, save_states
from bridge_data.loader.checkpoint.state_files import (
    MANIFEST,
    STATE_KEY,
    FileRecord,
    Manifest,
    decoded,
    digest,
    encoded,
    new_file,
    share_of,
)
from bridge_data.order.state import LoaderState, merge_states
from bridge_data.storage import reading
from tests.loader.checkpoint.states import FINGERPRINT, make_state, rank_states

WHOLE = LoaderState.from_dict(make_state())


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_ranks_share_the_lanes_where_they_can(world_size: int) -> None:
    shares = [share_of(WHOLE, rank, world_size) for rank in range(world_size)]
    assert [len(share.lanes) for share in shares] == [8 // world_size] * world_size
    assert merge_states([share.to_dict() for share in shares]) == make_state()
    assert [share_of(share, rank, world_size) for rank, share in enumerate(shares)] == shares


@pytest.mark.parametrize("world_size", [3, 5, 16])
def test_otherwise_some_keep_more(world_size: int) -> None:
    shares = [share_of(WHOLE, rank, world_size) for rank in range(world_size)]
    assert sum(len(share.lanes) for share in shares) == 8
    assert merge_states([share.to_dict() for share in shares]) == make_state()


def test_a_state_of_another_rank_is_refused() -> None:
    with pytest.raises(StateError, match=r"rank 0 of 2 needs lanes \[0, 2, 4, 6\], the state holds \[1, 3, 5, 7\]"):
        share_of(share_of(WHOLE, 1, 2), 0, 2)
    with pytest.raises(StateError, match=r"rank 0 of 3 needs lanes \[0, 6\], the state holds \[1, 3, 5, 7\]"):
        share_of(share_of(WHOLE, 1, 2), 0, 3)


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
    assert load_states(tmp_path, step=10) == make_state(), "the earlier checkpoint is still there"
    save_rank_state(tmp_path, make_state(step=12), step=12)
    assert load_states(tmp_path, step=12) == make_state(step=12)


def test_a_rank_that_fails_in_any_way_tells_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(manifest: Manifest, folder: Path) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Manifest, "write", fail)
    with pytest.raises(StateError, match=r"rank 0: ZeroDivisionError: a bug"):
        save_rank_state(tmp_path, make_state(), step=10)


@pytest.mark.parametrize("step", [numpy.int64(10), torch.tensor(10)])
def test_a_step_may_be_an_integer_of_numpy_or_torch(tmp_path: Path, step: int) -> None:
    save_rank_state(tmp_path, make_state(), step=step)
    assert load_states(tmp_path, step=10) == make_state()
    save_states(tmp_path, make_state(), step=step, world_size=2)
    assert read_checkpoint(tmp_path / "train_dataloader_dprank001.pt").step == 10


@pytest.mark.processes
@pytest.mark.parametrize("how", ["by_one", "by_ranks", "at_random"])
def test_a_save_that_is_killed_leaves_the_old_checkpoint_or_the_new_one(tmp_path: Path, how: str) -> None:
    command = [sys.executable, "-m", "tests.loader.checkpoint.killed_saves", how, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert result.returncode == 0, result.stderr
    counts = re.fullmatch(r"(\d+) old, (\d+) new, (\d+) with files to be renamed\n", result.stdout)
    assert counts is not None
    assert min(map(int, counts.groups())) > 0, "the kills did not fall before, into and after the renaming"


def test_a_checkpoint_whose_files_are_not_all_renamed_is_whole(tmp_path: Path) -> None:
    save_states(tmp_path, make_state(step=10), step=10, world_size=4)
    old = rank_file(tmp_path, 3).read_bytes()
    save_states(tmp_path, make_state(step=20), step=20, world_size=4)
    rank_file(tmp_path, 3).rename(tmp_path / ".train_dataloader_dprank003.pt.new")
    assert load_states(tmp_path, step=20) == make_state(step=20)
    rank_file(tmp_path, 3).write_bytes(old)
    assert load_states(tmp_path, step=20) == make_state(step=20)
    (tmp_path / ".train_dataloader_dprank003.pt.new").write_bytes(old[:-1])
    with pytest.raises(StateError, match=r"train_dataloader_dprank003\.pt has other content"):
        load_states(tmp_path)


def test_files_of_megatron_are_there_until_a_save_over_them_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_foreign(tmp_path / "iter_0000010", rank_states(4))
    with monkeypatch.context() as patched:
        patched.setattr(Manifest, "write", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
        with pytest.raises(StateError, match="no space left"):
            save_states(folder, make_state(step=20), step=20, world_size=2)
    assert load_states(folder, step=10) == make_state()
    save_states(folder, make_state(step=20), step=20, world_size=2)
    assert load_states(folder, step=20) == make_state(step=20)
    assert len(os.listdir(folder)) == 3


def test_a_damaged_manifest_does_not_hinder_the_next_save(tmp_path: Path) -> None:
    save_states(tmp_path, make_state(step=10), step=10, world_size=2)
    (tmp_path / MANIFEST).write_text("{")
    save_states(tmp_path, make_state(step=20), step=20, world_size=2)
    assert load_states(tmp_path, step=20) == make_state(step=20)


def cut_short(folder: Path) -> Path:
    """A save of step 20 over one of step 10 by 2 ranks, killed before the file of rank 1 was renamed."""
    save_states(folder, make_state(step=10), step=10, world_size=2)
    old = rank_file(folder, 1).read_bytes()
    save_states(folder, make_state(step=20), step=20, world_size=2)
    rank_file(folder, 1).rename(new_file(rank_file(folder, 1)))
    rank_file(folder, 1).write_bytes(old)
    return folder


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE, errno.EACCES])
@pytest.mark.parametrize("name", [MANIFEST, new_file(rank_file(Path(), 1)).name])
def test_a_file_that_cannot_be_read_is_not_taken_for_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, name: str
) -> None:
    folder = cut_short(tmp_path)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    read = Path.read_bytes
    failures = []

    def fail(path: Path) -> bytes:
        if path.name == name:
            failures.append(path)
            raise OSError(error, os.strerror(error), str(path))
        return read(path)

    monkeypatch.setattr(reading, "RETRY_WAITS_S", (0.0, 0.0, 0.0))
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", fail)
        for save in (
            lambda: save_states(folder, make_state(step=30), step=30, world_size=2),
            lambda: save_rank_state(folder, make_state(step=30), step=30),
            lambda: load_states(folder),
        ):
            with pytest.raises(StateError, match=re.escape(f"{name}: cannot be read: {os.strerror(error)}")):
                save()
    assert failures
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert load_states(folder, step=20) == make_state(step=20)
    save_states(folder, make_state(step=30), step=30, world_size=2)
    assert load_states(folder, step=30) == make_state(step=30)


def test_a_transient_fault_of_the_manifest_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = cut_short(tmp_path)
    read, faults = Path.read_bytes, [errno.EIO, errno.ESTALE]

    def fail_twice(path: Path) -> bytes:
        if path.name == MANIFEST and faults:
            raise OSError(faults.pop(), "transient", str(path))
        return read(path)

    monkeypatch.setattr(reading, "RETRY_WAITS_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(Path, "read_bytes", fail_twice)
    assert load_states(folder, step=20) == make_state(step=20)
    assert not faults


def test_a_checkpoint_of_a_later_format_is_not_replaced(tmp_path: Path) -> None:
    folder = cut_short(tmp_path)
    content = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(content | {"version": 99}))
    with pytest.raises(StateError, match="got version 99 of the manifest"):
        save_states(folder, make_state(step=30), step=30, world_size=2)
    assert new_file(rank_file(folder, 1)).exists()


@pytest.mark.parametrize(
    "edit",
    [
        {"step": "ten"},
        {"world_size": None},
        {"fingerprint": 3},
        {"replaced": 3},
        {"replaced": [3]},
        {"files": [3]},
        {"files": {"train_dataloader_dprank000.pt": {"size_bytes": "many", "blake2b": "0"}}},
        {"files": {"train_dataloader_dprank000.pt": {"size_bytes": 3, "blake2b": None}}},
        {"format": "of others"},
        {"more": 1},
    ],
)
def test_a_manifest_with_a_wrong_field_is_damaged(tmp_path: Path, edit: dict[str, object]) -> None:
    save_states(tmp_path, make_state(), step=10, world_size=1)
    content = json.loads((tmp_path / MANIFEST).read_text())
    (tmp_path / MANIFEST).write_text(json.dumps(content | edit))
    with pytest.raises(StateError, match="is no manifest of a checkpoint"):
        load_states(tmp_path)


def test_a_manifest_of_many_levels_is_damaged(tmp_path: Path) -> None:
    save_states(tmp_path, make_state(), step=10, world_size=1)
    (tmp_path / MANIFEST).write_text("[" * 100_000)
    with pytest.raises(StateError, match="is no manifest of a checkpoint"):
        load_states(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of step 10 by 4 ranks."""
    save_states(tmp_path / "iter_0000010", rank_states(4), step=10, world_size=4)
    return tmp_path / "iter_0000010"


def write_foreign(folder: Path, states: list[dict[str, object]]) -> Path:
    """Files as Megatron-Bridge writes them, without a manifest."""
    folder.mkdir(exist_ok=True)
    for rank, state in enumerate(states):
        torch.save({STATE_KEY: state}, rank_file(folder, rank))
    return folder


def refusal(folder: Path, step: int | None = None) -> str:
    """What is said on loading; no more than a screen."""
    with pytest.raises(StateError) as caught:
        load_states(folder, step=step)
    message = str(caught.value)
    assert str(folder) in message
    assert len(message.splitlines()) <= 20
    return message


def test_a_missing_rank_file_is_named(folder: Path) -> None:
    rank_file(folder, 2).unlink()
    assert "train_dataloader_dprank002.pt is missing" in refusal(folder)


def test_a_stale_file_of_a_larger_run_is_named(folder: Path, tmp_path: Path) -> None:
    save_states(tmp_path / "larger", make_state(step=5), step=5, world_size=8)
    shutil.copy(rank_file(tmp_path / "larger", 7), folder)
    assert "train_dataloader_dprank007.pt is of another run: 4 ranks saved" in refusal(folder)


def test_an_altered_file_is_named(folder: Path, tmp_path: Path) -> None:
    save_states(tmp_path / "later", rank_states(4, step=11), step=11, world_size=4)
    shutil.copy(rank_file(tmp_path / "later", 1), folder)
    message = refusal(folder)
    assert "train_dataloader_dprank001.pt has other content" in message
    assert "dprank000" not in message


def test_files_without_the_manifest_are_refused(folder: Path) -> None:
    (folder / MANIFEST).unlink()
    assert f"{MANIFEST} is missing, which says what belongs together: train_dataloader_dprank000.pt" in refusal(folder)


def test_another_step_than_asked_for_is_refused(folder: Path) -> None:
    assert load_states(folder, step=10) == make_state()
    assert "got the data state of step 10, expected that of step 20" in refusal(folder, step=20)


@pytest.mark.parametrize(
    ("step", "world_size", "settings", "message"),
    [
        (11, 4, {}, "train_dataloader_dprank001.pt was saved with step 11"),
        (10, 8, {}, "train_dataloader_dprank001.pt was saved with world_size 8"),
        (10, 4, {"seed": 1}, "train_dataloader_dprank001.pt was saved with fingerprint "),
        (10, 4, {"step": 9}, "train_dataloader_dprank001.pt and train_dataloader_dprank000.pt are of different steps"),
    ],
)
def test_a_manifest_over_files_of_different_saves_is_refused(
    folder: Path, step: int, world_size: int, settings: dict[str, int], message: str
) -> None:
    """As a tool might make it that mends checksums."""
    other = LoaderState.from_dict(make_state(1, 5, **settings))
    rank_file(folder, 1).write_bytes(encoded(other, step=step, rank=1, world_size=world_size))
    files = {rank_file(folder, rank).name: FileRecord.of(rank_file(folder, rank).read_bytes()) for rank in range(4)}
    Manifest(step=10, world_size=4, fingerprint=digest(FINGERPRINT), files=files).write(folder)
    assert message in refusal(folder)


def test_what_is_no_checkpoint_says_where_to_look(folder: Path, tmp_path: Path) -> None:
    assert f"There is one in {folder}" in refusal(tmp_path)
    (tmp_path / "empty").mkdir()
    assert "Give the folder of one iteration" in refusal(tmp_path / "empty")
    assert "no such file or folder" in refusal(tmp_path / "no")
    assert "expected a folder" in refusal(rank_file(folder, 0))


def test_a_first_save_that_was_cut_short_is_told_as_such(tmp_path: Path) -> None:
    new_file(rank_file(tmp_path, 0)).touch()
    with pytest.raises(StateError, match="a save was cut short before it was complete"):
        load_states(tmp_path)


def test_whole_files_of_others_are_read_as_far_as_they_agree(tmp_path: Path) -> None:
    folder = write_foreign(tmp_path / "iter_0000010", [make_state()] * 4)
    assert load_states(folder, step=10) == make_state()
    assert "step 10, expected that of step 11" in refusal(folder, step=11)
    rank_file(folder, 2).unlink()
    assert load_states(folder) == make_state()
    torch.save({STATE_KEY: make_state(step=9)}, rank_file(folder, 3))
    assert "train_dataloader_dprank003.pt and train_dataloader_dprank000.pt are of different steps" in refusal(folder)


def test_files_of_others_with_a_share_each_are_read_if_all_are_there(tmp_path: Path) -> None:
    folder = write_foreign(tmp_path / "elsewhere", rank_states(4))
    assert load_states(folder) == make_state()
    assert "a step that it does not say, expected that of step 10" in refusal(folder, step=10)
    rank_file(folder, 1).unlink()
    message = refusal(folder)
    assert "train_dataloader_dprank003.pt do not make one whole state: the state lacks lanes [1, 5] of 8" in message


def test_single_files_are_read(folder: Path, tmp_path: Path) -> None:
    of_folder, of_file = read_checkpoint(folder), read_checkpoint(rank_file(folder, 1))
    assert of_folder.state.to_dict() == make_state()
    assert (of_folder.step, of_folder.world_size, of_folder.num_files) == (10, 4, 4)
    assert (of_file.step, of_file.world_size, of_file.num_files) == (10, 4, 1)
    assert of_file.state.to_dict() == make_state(1, 5)
    of_ranks = [make_state(*lanes) for lanes in ((0, 2, 4, 6), (1, 3, 5, 7))]  # as `save_state_global` gives them
    for state in (make_state(), of_ranks):
        torch.save(state, tmp_path / "merged.pt")
        merged = read_checkpoint(tmp_path / "merged.pt")
        assert (merged.state.to_dict(), merged.step, merged.world_size) == (make_state(), None, None)
        assert merged.num_bytes == (tmp_path / "merged.pt").stat().st_size


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_a_folder_is_read_while_a_save_replaces_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world_size: int
) -> None:
    save_states(tmp_path, rank_states(4), step=10, world_size=4)
    read = Manifest.read
    replaced: list[Path] = []

    def save_after_reading(folder: Path) -> Manifest | None:
        manifest = read(folder)
        if not replaced:
            replaced.append(folder)
            save_states(tmp_path, rank_states(4), step=11, world_size=world_size)
        return manifest

    monkeypatch.setattr(Manifest, "read", save_after_reading)
    assert load_states(tmp_path, step=11) == make_state()
    assert replaced
