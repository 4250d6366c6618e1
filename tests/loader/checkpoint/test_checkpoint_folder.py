import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from bridge_data import storage
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
from tests.loader.checkpoint.states import make_state, rank_states
from tests.ranks import run_job

WHOLE = LoaderState.from_dict(make_state())
STATE_KEY = "dataloader_state_dict"


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


def test_an_earlier_save_with_more_ranks_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "common.pt").write_text("of the model")
    save_states(tmp_path, make_state(step=10), step=10, world_size=8)
    (tmp_path / ".train_dataloader_dprank002.pt.77.tmp").write_text("left by a crash")
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


def test_a_rank_alone_saves_all(tmp_path: Path) -> None:
    save_rank_state(tmp_path, make_state(), step=numpy.int64(10))
    assert load_states(tmp_path, step=10) == make_state()
    with pytest.raises(StateError, match=r"rank 0: data-parallel rank 0 of 1 needs lanes \[0, 2, 4, 6\]"):
        save_rank_state(tmp_path, make_state(1, 3, 5, 7), step=11)
    assert load_states(tmp_path, step=10) == make_state(), "the earlier checkpoint is still there"
    save_rank_state(tmp_path, make_state(step=12), step=torch.tensor(12))
    assert load_states(tmp_path, step=12) == make_state(step=12)


@pytest.mark.processes
@pytest.mark.parametrize("how", ["by_one", "by_ranks"])
def test_a_save_that_is_killed_leaves_the_old_checkpoint_or_the_new_one(tmp_path: Path, how: str) -> None:
    status, output = run_job("tests.loader.checkpoint.killed_saves", how, str(tmp_path), timeout_s=280)
    assert status == 0, output
    counts = re.search(r"^(\d+) old, (\d+) new, (\d+) with older files beside it$", output, re.MULTILINE)
    assert counts is not None
    old, new, unfinished = map(int, counts.groups())
    assert min(old, new) > 0, "the kills did not fall before and after the file of rank 0 was replaced"
    assert unfinished, "no kill fell while the other files were written"


def test_a_load_needs_the_file_of_rank_0_alone(tmp_path: Path) -> None:
    save_states(tmp_path, make_state(step=10), step=10, world_size=4)
    save_states(tmp_path / "later", make_state(step=20), step=20, world_size=4)
    shutil.copy(rank_file(tmp_path / "later", 1), tmp_path)
    rank_file(tmp_path, 2).unlink()
    assert load_states(tmp_path, step=10) == make_state(step=10)
    found = read_checkpoint(tmp_path)
    assert (found.step, found.world_size, found.num_files) == (10, 4, 3)


def test_files_of_others_are_there_until_a_save_over_them_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_foreign(tmp_path / "iter_0000010", rank_states(4))
    with monkeypatch.context() as patched:
        patched.setattr(storage, "write", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
        with pytest.raises(StateError, match="no space left"):
            save_states(folder, make_state(step=20), step=20, world_size=2)
    assert load_states(folder, step=10) == make_state()
    with monkeypatch.context() as patched:  # as if killed when the file of rank 0 was written, and nothing else
        patched.setattr(LoaderState, "of_rank", lambda *_: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(StateError, match="killed"):
            save_states(folder, make_state(step=20), step=20, world_size=2)
    assert load_states(folder, step=20) == make_state(step=20)
    assert len(os.listdir(folder)) == 4
    save_states(folder, make_state(step=30), step=30, world_size=2)
    assert load_states(folder, step=30) == make_state(step=30)
    assert len(os.listdir(folder)) == 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of step 10 by 4 ranks, as saved today."""
    save_states(tmp_path / "iter_0000010", rank_states(4), step=10, world_size=4)
    return tmp_path / "iter_0000010"


def write_foreign(folder: Path, states: list[dict[str, object]]) -> Path:
    """Files as Megatron-Bridge writes them."""
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


def test_files_of_others_are_read_when_one_rank_has_no_more_batches_of_finite_data(tmp_path: Path) -> None:
    states = [make_state(*lanes, repeat=False) for lanes in ((0, 2, 4, 6), (1, 3, 5, 7))]
    ended = LoaderState.from_dict(states[1])
    ended.micro_batch_index, ended.ended = ended.micro_batch_index - 2, True
    folder = write_foreign(tmp_path / "iter_0000010", [states[0], ended.to_dict()])
    assert load_states(folder, step=10) == make_state(repeat=False)


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
    folder, replaced = write_foreign(tmp_path / "iter_0000010", rank_states(4)), list[Path]()

    def save_after_reading(path: Path) -> bytes | None:
        data = checkpoint_read(path)
        if not replaced:
            replaced.append(path)
            save_states(folder, rank_states(4), step=11, world_size=world_size)
        return data

    checkpoint_read = checkpoint_folder.read_if_saved
    monkeypatch.setattr(checkpoint_folder, "read_if_saved", save_after_reading)
    assert load_states(folder, step=11) == make_state()
    assert replaced == [rank_file(folder, 0)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 8, 16])
def test_ranks_share_the_lanes_where_they_can_and_else_some_keep_more(world_size: int) -> None:
    shares = [WHOLE.of_rank(rank, world_size) for rank in range(world_size)]
    counts = [len(share.lanes) for share in shares]
    assert sum(counts) == 8 and (8 % world_size or len(set(counts)) == 1)
    assert merge_states([share.to_dict() for share in shares]) == make_state()
    if 1 < world_size <= 8:
        with pytest.raises(StateError, match=rf"rank 0 of {world_size} needs lanes \[0.*the state holds \["):
            shares[1].of_rank(0, world_size)


@pytest.mark.parametrize(
    ("states", "world_size", "message"),
    [
        (rank_states(4)[1:], 4, "lacks lanes"),
        ([*rank_states(4)[1:], rank_states(4, step=11)[0]], 4, "micro_batch_index 88"),
        ([], 4, "got no state"),
        (make_state(), 0, "expected at least 1"),
    ],
)
def test_what_is_no_whole_state_is_not_saved(tmp_path: Path, states: Any, world_size: int, message: str) -> None:
    with pytest.raises((StateError, ConfigError), match=message):
        save_states(tmp_path / "none", states, step=10, world_size=world_size)
    assert not (tmp_path / "none").exists()


def test_what_hinders_a_save_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    below = tmp_path / "file" / "below"
    with pytest.raises(StateError, match=f"^{below}: the data state was not saved: .*Not a directory"):
        save_states(below, make_state(), step=10, world_size=1)
    with pytest.raises(StateError, match=r"was not saved:\n  .*Not a directory"):
        save_rank_state(below, make_state(), step=10)
    with pytest.raises(StateError, match="rank 0: TypeError"):
        save_rank_state(tmp_path, make_state(), step="ten")  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_a_fault_of_the_disk_is_retried_and_no_file_is_taken_for_absent(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    name = rank_file(folder, 0).name
    read, faults = storage.content._read_whole, [OSError(error, os.strerror(error))] * 100

    def fail(path: str) -> bytes:
        if path.endswith(name) and faults:
            raise faults.pop()
        return read(path)

    monkeypatch.setattr(storage.content, "RETRY_WAITS_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(storage.content, "_read_whole", fail)
    with pytest.raises(StateError, match=re.escape(f"{name}: cannot be read: {os.strerror(error)}")):
        load_states(folder)
    if error != errno.EACCES:  # which does not pass
        del faults[2:]
        assert load_states(folder, step=10) == make_state()


FIRST, SECOND = "train_dataloader_dprank000.pt", "train_dataloader_dprank001.pt"


def without(name: str, path: Path) -> Path:
    (path / name).unlink()
    return path


def with_a_share_for_the_whole(path: Path) -> Path:
    shutil.copy(rank_file(path, 1), rank_file(path, 0))
    return path


def empty(path: Path) -> Path:
    path.with_name("empty").mkdir()
    return path.with_name("empty")


def cut_short_at_first(path: Path) -> Path:
    (empty(path) / f".{FIRST}.12ab.77.tmp").touch()
    return path.with_name("empty")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda path: without(FIRST, path), f"{SECOND} is a part of the checkpoint that 4 ranks saved at step 10"),
        (lambda path: without(FIRST, path), f"the {FIRST} that was saved with it is missing"),
        (with_a_share_for_the_whole, f"{FIRST}: is the file of rank 1"),
        (lambda path: path.parent, "There is one in "),
        (empty, "Give the folder of one iteration"),
        (lambda path: path.with_name("no"), "no such file or folder"),
        (lambda path: rank_file(path, 0), "expected a folder"),
        (cut_short_at_first, "A save was cut short before it was complete"),
        (lambda path: path, "got the data state of step 10, expected that of step 20"),
    ],
)
def test_what_is_no_checkpoint_is_refused_with_what_is_wrong(
    folder: Path, change: Callable[[Path], Path], told: str
) -> None:
    assert told in refusal(change(folder), step=20)


def test_files_of_others_are_read_as_far_as_they_agree(tmp_path: Path) -> None:
    folder = write_foreign(tmp_path / "iter_0000010", [make_state()] * 4)
    assert load_states(folder, step=10) == make_state()
    assert "step 10, expected that of step 11" in refusal(folder, step=11)
    rank_file(folder, 2).unlink()
    assert load_states(folder) == make_state()
    torch.save({STATE_KEY: make_state(step=9)}, rank_file(folder, 3))
    assert f"dprank003.pt has micro_batch_index 72, {FIRST} has 80" in refusal(folder)
    shares = write_foreign(tmp_path / "elsewhere", rank_states(4))
    assert load_states(shares) == make_state()
    assert "a step that it does not say, expected that of step 10" in refusal(shares, step=10)
    rank_file(shares, 1).unlink()
    assert "do not make one whole state: the state lacks lanes [1, 5] of 8" in refusal(shares)
