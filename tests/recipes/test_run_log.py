from pathlib import Path
from types import SimpleNamespace

import pytest

from bridge_data.errors import DatasetError
from recipes.run_log import StepLog, read_lines, read_run, sample_keys


def test_the_ranks_lines_become_the_global_batch(tmp_path: Path) -> None:
    StepLog(tmp_path, 0, 2).append(5, 2.5, [(20, ["a", "b"]), (22, ["e"])])
    StepLog(tmp_path, 1, 2).append(5, 2.5, [(21, ["c", "d"]), (23, ["f"])])
    (batch,) = read_run(tmp_path).values()
    assert (batch.step, batch.loss, batch.num_ranks) == (5, 2.5, 2)
    assert batch.keys == (("a", "b"), ("c", "d"), ("e",), ("f",))


def test_a_step_that_a_rank_did_not_log_is_left_out(tmp_path: Path) -> None:
    for rank in (0, 1):
        StepLog(tmp_path, rank, 2).append(0, 1.0, [(rank, ["k"])])
    StepLog(tmp_path, 0, 2).append(1, 1.0, [(2, ["k"])])
    assert list(read_run(tmp_path)) == [0]


def test_a_line_that_is_being_written_is_not_there_yet(tmp_path: Path) -> None:
    log = StepLog(tmp_path, 0, 1)
    for step in range(2):
        log.append(step, 1.0, [(step, ["k"])])
    (file,) = tmp_path.iterdir()
    for missing in range(1, 40):
        file.write_bytes(file.read_bytes()[:-1])
        assert [line["step"] for line in read_lines(file)] == [0]
        assert list(read_run(tmp_path)) == [0], missing


def test_losses_come_back_bit_by_bit(tmp_path: Path) -> None:
    loss = 0.1 + 0.2
    StepLog(tmp_path, 0, 1).append(0, loss, [(0, ["k"])])
    assert read_run(tmp_path)[0].loss == loss


def test_ranks_that_contradict_each_other_are_an_error(tmp_path: Path) -> None:
    StepLog(tmp_path, 0, 2).append(0, 1.0, [(0, ["k"])])
    StepLog(tmp_path, 1, 2).append(0, 1.5, [(1, ["k"])])
    with pytest.raises(DatasetError, match="contradict"):
        read_run(tmp_path)


def test_a_gap_between_micro_batches_is_an_error(tmp_path: Path) -> None:
    StepLog(tmp_path, 0, 1).append(0, 1.0, [(0, ["k"]), (2, ["k"])])
    with pytest.raises(DatasetError, match="consecutive"):
        read_run(tmp_path)


def test_a_step_logged_twice_is_an_error(tmp_path: Path) -> None:
    for _ in range(2):
        StepLog(tmp_path, 0, 1).append(0, 1.0, [(0, ["k"])])
    with pytest.raises(DatasetError, match="logged 2 times"):
        read_run(tmp_path)


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="nothing was logged"):
        read_run(tmp_path)


def test_the_keys_of_a_batch_are_those_of_the_samples_in_its_packs() -> None:
    batch = SimpleNamespace(__key__=["a.tar/1,b.tar/2", "a.tar/3"])
    assert sample_keys(batch) == ["a.tar/1", "b.tar/2", "a.tar/3"]
