from pathlib import Path
from types import SimpleNamespace

import pytest

from bridge_data.errors import DatasetError
from recipes.run_log import StepLog, read_lines, read_run, sample_keys


def test_the_ranks_lines_become_the_global_batch(tmp_path: Path) -> None:
    StepLog(tmp_path, 0, 2).append(5, 0.1 + 0.2, [(20, ["a", "b"]), (22, ["e"])])
    StepLog(tmp_path, 1, 2).append(5, 0.1 + 0.2, [(21, ["c", "d"]), (23, ["f"])])
    (batch,) = read_run(tmp_path).values()
    assert (batch.step, batch.loss, batch.num_ranks) == (5, 0.1 + 0.2, 2)
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


def test_the_keys_of_a_batch_are_those_of_the_samples_in_its_packs() -> None:
    batch = SimpleNamespace(__key__=["a.tar/1,b.tar/2", "a.tar/3"])
    assert sample_keys(batch) == ["a.tar/1", "b.tar/2", "a.tar/3"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([(0, 2, 1.0, [0]), (1, 2, 1.5, [1])], "contradict"),
        ([(0, 1, 1.0, [0, 2])], "consecutive"),
        ([(0, 1, 1.0, [0])] * 2, "logged 2 times"),
        ([], "nothing was logged"),
    ],
)
def test_lines_that_make_no_run_are_an_error(
    tmp_path: Path, lines: list[tuple[int, int, float, list[int]]], message: str
) -> None:
    for rank, num_ranks, loss, numbers in lines:
        StepLog(tmp_path, rank, num_ranks).append(0, loss, [(number, ["k"]) for number in numbers])
    with pytest.raises(DatasetError, match=message):
        read_run(tmp_path)
