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
from bridge_data.loader.checkpoint import (
    checkpoint_folder,
    load_states,
    rank_file,
    read_checkpoint,
    save_rank_state,
    save_states,
)
from bridge_data.order.state import LoaderState, merge_states
from bridge_data.storage import locations
from tests.loader.checkpoint.states import make_state, rank_states, write_version_1

WHOLE = LoaderState.from_dict(make_state())
STATE_KEY, MANIFEST = "dataloader_state_dict", "train_dataloader_manifest.json"


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_ranks_share_the_lanes_where_they_can(world_size: int) -> None:
    shares = [WHOLE.of_rank(rank, world_size) for rank in range(world_size)]
    assert [len(share.lanes) for share in shares] == [8 // world_size] * world_size
    assert merge_states([share.to_dict() for share in shares]) == make_state()
    assert [share.of_rank(rank, world_size) for rank, share in enumerate(shares)] == shares


@pytest.mark.parametrize("world_size", [3, 5, 16])
def test_otherwise_some_keep_more(world_size: int) -> None:
    shares = [WHOLE.of_rank(rank, world_size) for rank in range(world_size)]
    assert sum(len(share.lanes) for share in shares) == 8
    assert merge_states([share.to_dict() for share in shares]) == make_state()


def test_a_state_of_another_rank_is_refused() -> None:
    with pytest.raises(StateError, match=r"rank 0 of 2 needs lanes \[0, 2, 4, 6\], the state holds \[1, 3, 5, 7\]"):
        WHOLE.of_rank(1, 2).of_rank(0, 2)
    with pytest.raises(StateError, match=r"rank 0 of 3 needs lanes \[0, 6\], the state holds \[1, 3, 5, 7\]"):
        WHOLE.of_rank(1, 2).of_rank(0, 3)


@pytest.mark.parametrize("world_size", [1, 2, 4, 8, 3])
def test_states_are_saved_for_any_number_of_ranks(tmp_path: Path, world_size: int) -> None:
    save_states(tmp_path / "new", rank_states(4)[::-1], step=10, world_size=world_size)
    files = [rank_file(tmp_path / "new", rank) for rank in range(world_size)]
    assert sorted(os.listdir(tmp_path / "new")) == [file.name for file in files]
    for rank, file in enumerate(files):
        found = read_checkpoint(file)
        assert (found.step, found.world_size) == (10, world_size)
        assert list(found.state.lanes) == list(range(rank, 8, world_size) if rank else range(8))
    assert load_states(tmp_path / "new", step=10) == make_state()


def test_a_whole_state_is_saved_as_it_is(tmp_path: Path) -> None:
    save_states(str(tmp_path), make_state(), step=10, world_size=2)
    assert load_states(str(tmp_path)) == make_state()


def test_an_earlier_save_with_more_ranks_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "common.pt").write_text("of the model")
    save_states(tmp_path, make_state(step=10), step=10, world_size=8)
    (tmp_path / ".train_dataloader_dprank002.pt.77.tmp").write_text("left by a crash")
    (tmp_path / ".train_dataloader_dprank003.pt.new").write_text("left by a crash of an earlier release")
    (tmp_path / MANIFEST).write_text("{}")
    save_states(tmp_path, make_state(step=20), step=20, world_size=2)
    names = [rank_file(tmp_path, rank).name for rank in range(2)]
    assert sorted(os.listdir(tmp_path)) == ["common.pt", *names]
    assert load_states(tmp_path, step=20) == make_state(step=20)


def test_a_checkpoint_of_a_later_format_is_not_replaced(tmp_path: Path) -> None:
    save_states(tmp_path, make_state(step=10), step=10, world_size=2)
    file = rank_file(tmp_path, 0)
    torch.save(torch.load(file, weights_only=True) | {"version": 99}, file)
    content = file.read_bytes()
    with pytest.raises(StateError, match=rf"{file}.*version 99"):
        save_states(tmp_path, make_state(step=30), step=30, world_size=2)
    assert file.read_bytes() == content


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
    with pytest.raises(StateError, match=r"was not saved:\n  .*Not a directory"):
        save_rank_state(tmp_path / "file" / "below", make_state(), step=10)


def test_a_rank_alone_saves_all(tmp_path: Path) -> None:
    save_rank_state(tmp_path, make_state(), step=10)
    assert load_states(tmp_path, step=10) == make_state()
    with pytest.raises(StateError, match=r"rank 0: data-parallel rank 0 of 1 needs lanes \[0, 2, 4, 6\]"):
        save_rank_state(tmp_path, make_state(1, 3, 5, 7), step=11)
    assert load_states(tmp_path, step=10) == make_state(), "the earlier checkpoint is still there"
    save_rank_state(tmp_path, make_state(step=12), step=12)
    assert load_states(tmp_path, step=12) == make_state(step=12)


def test_a_failure_of_any_kind_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(checkpoint_folder, "write_file", fail)
    with pytest.raises(StateError, match="ZeroDivisionError: a bug"):
        save_rank_state(tmp_path, make_state(), step=10)
    with pytest.raises(StateError, match="rank 0: TypeError"):
        save_rank_state(tmp_path, make_state(), step="ten")  # type: ignore[arg-type]


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
    counts = re.fullmatch(r"(\d+) old, (\d+) new, (\d+) with older files beside it\n", result.stdout)
    assert counts is not None
    old, new, unfinished = map(int, counts.groups())
    assert min(old, new) > 0, "the kills did not fall before and after the file of rank 0 was replaced"
    assert unfinished or how == "at_random", "no kill fell while the other files were written"


def test_a_load_needs_the_file_of_rank_0_alone(tmp_path: Path) -> None:
    save_states(tmp_path, make_state(step=10), step=10, world_size=4)
    save_states(tmp_path / "later", make_state(step=20), step=20, world_size=4)
    shutil.copy(rank_file(tmp_path / "later", 1), tmp_path)
    rank_file(tmp_path, 2).unlink()
    assert load_states(tmp_path, step=10) == make_state(step=10)
    found = read_checkpoint(tmp_path)
    assert (found.step, found.world_size, found.num_files) == (10, 4, 3)


@pytest.mark.parametrize("is_of_megatron", [True, False])
def test_older_files_are_there_until_a_save_over_them_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_of_megatron: bool
) -> None:
    folder = tmp_path / "iter_0000010"
    if is_of_megatron:
        write_foreign(folder, rank_states(4))
    else:
        write_version_1(folder, step=10, world_size=4)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint_folder, "write_file", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
        with pytest.raises(StateError, match="no space left"):
            save_states(folder, make_state(step=20), step=20, world_size=2)
    assert load_states(folder, step=10) == make_state()
    with monkeypatch.context() as patched:  # as if killed when the file of rank 0 was written, and nothing else
        patched.setattr(LoaderState, "of_rank", lambda *_: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(StateError, match="killed"):
            save_states(folder, make_state(step=20), step=20, world_size=2)
    assert load_states(folder, step=20) == make_state(step=20)
    assert len(os.listdir(folder)) == (4 if is_of_megatron else 5)
    save_states(folder, make_state(step=30), step=30, world_size=2)
    assert load_states(folder, step=30) == make_state(step=30)
    assert len(os.listdir(folder)) == 2


def cut_short(folder: Path) -> Path:
    """A save of step 20 over one of step 10 by 2 ranks of version 1, killed before the file of rank 1 was renamed."""
    old = rank_file(write_version_1(folder, step=10, world_size=2), 1).read_bytes()
    write_version_1(folder, step=20, world_size=2)
    rank_file(folder, 1).rename(folder / NOT_RENAMED)
    rank_file(folder, 1).write_bytes(old)
    return folder


NOT_RENAMED = ".train_dataloader_dprank001.pt.new"


def test_a_checkpoint_of_version_1_whose_files_are_not_all_renamed_is_whole(tmp_path: Path) -> None:
    folder = cut_short(tmp_path)
    assert load_states(folder, step=20) == make_state(step=20)
    old = rank_file(folder, 1).read_bytes()
    rank_file(folder, 1).unlink()
    assert load_states(folder, step=20) == make_state(step=20)
    (folder / NOT_RENAMED).write_bytes(old[:-1])
    with pytest.raises(StateError, match=r"train_dataloader_dprank001\.pt has other content"):
        load_states(folder)


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE, errno.EACCES])
@pytest.mark.parametrize("name", [MANIFEST, NOT_RENAMED, rank_file(Path(), 0).name])
def test_a_file_that_cannot_be_read_is_not_taken_for_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, name: str
) -> None:
    folder = cut_short(tmp_path)
    read = Path.read_bytes

    def fail(path: Path) -> bytes:
        if path.name == name:
            raise OSError(error, os.strerror(error), str(path))
        return read(path)

    monkeypatch.setattr(locations, "RETRY_WAITS_S", (0.0, 0.0, 0.0))
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", fail)
        with pytest.raises(StateError, match=re.escape(f"{name}: cannot be read: {os.strerror(error)}")):
            load_states(folder)
    assert load_states(folder, step=20) == make_state(step=20)


@pytest.mark.parametrize("name", [MANIFEST, rank_file(Path(), 0).name])
def test_a_transient_fault_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    folder = cut_short(tmp_path)
    read, faults = Path.read_bytes, [errno.EIO, errno.ESTALE]

    def fail_twice(path: Path) -> bytes:
        if path.name == name and faults:
            raise OSError(faults.pop(), "transient", str(path))
        return read(path)

    monkeypatch.setattr(locations, "RETRY_WAITS_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(Path, "read_bytes", fail_twice)
    assert load_states(folder, step=20) == make_state(step=20)
    assert not faults


@pytest.mark.parametrize(
    "edit",
    [
        {"step": "ten"},
        {"world_size": None},
        {"replaced": 3},
        {"files": [3]},
        {"files": {"train_dataloader_dprank000.pt": {"size_bytes": "many"}}},
        {"format": "of others"},
        {"version": 99},
    ],
)
def test_a_manifest_with_a_wrong_field_is_damaged(tmp_path: Path, edit: dict[str, object]) -> None:
    write_version_1(tmp_path, step=10, world_size=1)
    content = json.loads((tmp_path / MANIFEST).read_text())
    (tmp_path / MANIFEST).write_text(json.dumps(content | edit))
    with pytest.raises(StateError, match="is no manifest of a checkpoint"):
        load_states(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[1]", "{}", "[" * 100_000])
def test_what_is_no_manifest_is_damaged(tmp_path: Path, text: str) -> None:
    write_version_1(tmp_path, step=10, world_size=1)
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(StateError, match=f"{MANIFEST}: is no manifest of a checkpoint"):
        load_states(tmp_path)
    save_states(tmp_path, make_state(step=20), step=20, world_size=2)  # and does not hinder the next save
    assert load_states(tmp_path, step=20) == make_state(step=20)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of step 10 by 4 ranks, as saved today."""
    save_states(tmp_path / "iter_0000010", rank_states(4), step=10, world_size=4)
    return tmp_path / "iter_0000010"


@pytest.fixture
def version_1(tmp_path: Path) -> Path:
    """The same of an earlier release."""
    return write_version_1(tmp_path / "iter_0000010", step=10, world_size=4)


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


def test_a_checkpoint_of_version_1_is_read(version_1: Path) -> None:
    assert load_states(version_1, step=10) == make_state()
    found = read_checkpoint(version_1)
    assert (found.step, found.world_size, found.num_files) == (10, 4, 4)
    assert read_checkpoint(rank_file(version_1, 1)).state.to_dict() == make_state(1, 5)


def test_every_fault_of_version_1_is_named(version_1: Path, tmp_path: Path) -> None:
    larger = write_version_1(tmp_path / "larger", step=11, world_size=8)
    rank_file(version_1, 2).unlink()
    for rank in (1, 7):
        shutil.copy(rank_file(larger, rank), version_1)
    message = refusal(version_1)
    assert message.splitlines()[1:-1] == [
        "  train_dataloader_dprank001.pt has other content",
        "  train_dataloader_dprank002.pt is missing",
        "  train_dataloader_dprank007.pt is of another run: 4 ranks saved",
    ]
    assert "step 10" in message and "take another checkpoint" in message


def test_a_thousand_faults_fit_a_screen(version_1: Path) -> None:
    for rank in range(4, 1_004):
        rank_file(version_1, rank).touch()
    assert "and 988 more" in refusal(version_1)


def test_files_without_the_one_that_completes_them_are_refused(folder: Path, tmp_path: Path) -> None:
    rank_file(folder, 0).unlink()
    message = refusal(folder)
    assert "train_dataloader_dprank001.pt is a part of the checkpoint that 4 ranks saved at step 10" in message
    assert "the train_dataloader_dprank000.pt that was saved with it is missing" in message
    version_1 = write_version_1(tmp_path / "version_1", step=10, world_size=4)
    (version_1 / MANIFEST).unlink()
    assert f"but {MANIFEST} is missing" in refusal(version_1)


def test_a_share_in_place_of_the_whole_is_refused(folder: Path) -> None:
    shutil.copy(rank_file(folder, 1), rank_file(folder, 0))
    assert "train_dataloader_dprank000.pt: is the file of rank 1" in refusal(folder)


def test_another_step_than_asked_for_is_refused(folder: Path) -> None:
    assert load_states(folder, step=10) == make_state()
    assert "got the data state of step 10, expected that of step 20" in refusal(folder, step=20)


def test_a_damaged_file_is_parsed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = rank_file(folder, 0)
    file.write_bytes(file.read_bytes()[:-100])
    load, parsed = torch.load, []
    monkeypatch.setattr(torch, "load", lambda *args, **options: parsed.append(1) or load(*args, **options))
    assert file.name in refusal(folder)
    assert len(parsed) == 1


def test_what_is_no_checkpoint_says_where_to_look(folder: Path, tmp_path: Path) -> None:
    assert f"There is one in {folder}" in refusal(tmp_path)
    (tmp_path / "empty").mkdir()
    assert "Give the folder of one iteration" in refusal(tmp_path / "empty")
    assert "no such file or folder" in refusal(tmp_path / "no")
    assert "expected a folder" in refusal(rank_file(folder, 0))


def test_a_first_save_that_was_cut_short_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / ".train_dataloader_dprank000.pt.12ab.77.tmp").touch()
    with pytest.raises(StateError, match="A save was cut short before it was complete"):
        load_states(tmp_path)


def test_whole_files_of_others_are_read_as_far_as_they_agree(tmp_path: Path) -> None:
    folder = write_foreign(tmp_path / "iter_0000010", [make_state()] * 4)
    assert load_states(folder, step=10) == make_state()
    assert "step 10, expected that of step 11" in refusal(folder, step=11)
    rank_file(folder, 2).unlink()
    assert load_states(folder) == make_state()
    torch.save({STATE_KEY: make_state(step=9)}, rank_file(folder, 3))
    message = refusal(folder)
    assert "train_dataloader_dprank003.pt has next_slot 72, train_dataloader_dprank000.pt has 80" in message


def test_files_of_others_are_read_when_one_rank_has_no_more_batches_of_finite_data(tmp_path: Path) -> None:
    states = [make_state(*lanes, repeat=False) for lanes in ((0, 2, 4, 6), (1, 3, 5, 7))]
    ended = LoaderState.from_dict(states[1])
    ended.next_slot, ended.ended = ended.next_slot - 2, True
    folder = write_foreign(tmp_path / "iter_0000010", [states[0], ended.to_dict()])
    assert load_states(folder, step=10) == make_state(repeat=False)


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
    version_1: Path, monkeypatch: pytest.MonkeyPatch, world_size: int
) -> None:
    replaced: list[Path] = []

    def save_after_reading(path: Path) -> bytes | None:
        data = checkpoint_read(path)
        if not replaced:
            replaced.append(path)
            save_states(version_1, rank_states(4), step=11, world_size=world_size)
        return data

    checkpoint_read = checkpoint_folder.read_if_saved
    monkeypatch.setattr(checkpoint_folder, "read_if_saved", save_after_reading)
    assert load_states(version_1, step=11) == make_state()
    assert replaced == [rank_file(version_1, 0)]
