import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bridge_data import (
    Batch,
    ConfigError,
    DefaultTaskEncoder,
    edataclass,
    get_loader,
)
from bridge_data.loader.even_ends import num_micro_batches
from bridge_data.order.state import merge_states
from tests.loader.ends_job import CASES, dataset_of
from tests.prepared import val_dataset, write_texts
from tests.ranks import run_job

NUM_SAMPLES, WORLD_SIZE = 37, 3
NUM_MICRO_BATCHES = -(-NUM_SAMPLES // 2)
NUM_STEPS = -(-NUM_MICRO_BATCHES // WORLD_SIZE)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("ends") / "data", NUM_SAMPLES, per_shard=10)


@pytest.fixture(scope="module")
def job(data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What three real ranks made of each case, by rank."""
    folder = tmp_path_factory.mktemp("job")
    status, output = run_job("tests.loader.ends_job", str(folder), str(data), num_ranks=WORLD_SIZE)
    assert status == 0, output
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(WORLD_SIZE)]


def passes_of(job: list[dict[str, Any]], case: str) -> list[Any]:
    """Both passes of a case, each as one list of steps a rank."""
    return list(zip(*(of_rank[case]["passes"] for of_rank in job), strict=True))


@pytest.mark.processes
@pytest.mark.parametrize("case", [case for case in CASES if case not in ("no mask", "wrong empty_batch")])
def test_ranks_end_together_and_serve_the_order_of_one_rank(job: Any, data: Path, case: str) -> None:
    alone = [list(batch.__key__) for batch in get_loader(dataset_of(case, str(data), 0, 1))]
    if case == "doubled in hiding":
        alone = alone[: NUM_STEPS * WORLD_SIZE]
    for steps in passes_of(job, case):
        assert len({len(of_rank) for of_rank in steps}) == 1
        assert [keys for step in zip(*steps, strict=True) for keys, _, _ in step if keys] == alone
        assert {weight for of_rank in steps for keys, weight, _ in of_rank if not keys} <= {0.0}


@pytest.mark.processes
def test_where_arithmetic_tells_the_number_no_collective_is_called(job: Any) -> None:
    reduced = {case: {of_rank[case]["reduced"] for of_rank in job} for case in CASES}
    expected = {"packed", "doubled"}
    assert {case for case, counts in reduced.items() if counts != {0}} == expected
    for case in expected:  # and once more to see that each pass is over
        steps = sum(len(of_rank) for of_rank, *_ in passes_of(job, case))
        assert reduced[case] == {steps + 2}


@pytest.mark.processes
@pytest.mark.parametrize(
    ("case", "num_steps"), [("whole", NUM_STEPS), ("limited", 3), ("filtered", NUM_STEPS), ("only the last", NUM_STEPS)]
)
def test_the_number_of_steps_is_that_of_the_data_whatever_is_left_out(job: Any, case: str, num_steps: int) -> None:
    for steps in passes_of(job, case):
        assert {len(of_rank) for of_rank in steps} == {num_steps}
    empty = [sum(not keys for keys, _, _ in itertools.chain(*of_rank[case]["passes"])) for of_rank in job]
    assert [of_rank[case]["filled"] for of_rank in job] == empty
    assert sum(empty) > 0 and not any(of_rank[case]["repeated"] for of_rank in job)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("case", "reason"),
    [("no mask", "has no loss_mask to zero"), ("wrong empty_batch", "ZeroDivisionError: a bug")],
)
def test_a_batch_that_cannot_be_emptied_comes_again_and_ends_no_job(job: Any, case: str, reason: str) -> None:
    # 19 micro-batches: ranks 1 and 2 lack one in each of the two passes
    assert [of_rank[case]["repeated"] for of_rank in job] == [0, 2, 2]
    assert [of_rank[case]["filled"] for of_rank in job] == [0, 2, 2]
    for of_rank, steps in zip(job, passes_of(job, case)[0], strict=True):
        warned = [text for text in of_rank[case]["messages"] if reason in text]
        assert len(warned) == (of_rank[case]["repeated"] > 0)
        keys = [keys for keys, _, _ in steps]
        assert len(keys) == NUM_STEPS
        if warned:
            assert "count twice" in warned[0] and keys[-1] == keys[0]


@pytest.mark.processes
def test_where_ranks_agree_on_the_end_each_rank_names_the_one_that_failed(job: Any) -> None:
    failed = [of_rank["failures"][0] for of_rank in job]
    assert failed[1] == "FatalSampleError: the disk is gone\nin more detail"
    for rank in (0, 2):
        assert failed[rank].startswith(f"WorkerError: rank {rank} ends because data-parallel rank 1 failed first")
        assert failed[rank].endswith("FatalSampleError: the disk is gone")


@pytest.mark.processes
def test_a_rank_that_ended_without_a_word_is_an_error_of_ours(job: Any) -> None:
    for rank in (0, 2):
        assert job[rank]["failures"][1].startswith(
            f"WorkerError: rank {rank} ends because another data-parallel rank has ended, or cannot be reached"
        )


@pytest.mark.processes
def test_micro_batches_that_nobody_could_expect_are_dropped_with_a_warning(job: Any) -> None:
    for of_rank in job:
        assert any("is no generator function" in text for text in of_rank["doubled in hiding"]["messages"])


@pytest.mark.processes
def test_metrics_of_the_job_are_the_sums_of_those_of_its_ranks(job: Any) -> None:
    for case in CASES:
        own, together = zip(*(of_rank[case]["samples of the rank and of the job"] for of_rank in job), strict=True)
        assert together == (sum(own),) * WORLD_SIZE and sum(own) > 0


@edataclass
class Masked(Batch):
    tokens: torch.Tensor
    loss_mask: torch.Tensor


def test_an_empty_batch_keeps_its_form_and_counts_for_nothing() -> None:
    encoder = DefaultTaskEncoder()
    batch = Masked(__key__=["a", "b"], tokens=torch.ones(2, 5), loss_mask=torch.ones(2, 5))
    empty = encoder.empty_batch(batch)
    assert empty.__key__ == []
    assert empty.loss_mask.shape == (2, 5)
    assert empty.loss_mask.sum() == 0
    assert torch.equal(empty.tokens, batch.tokens)
    assert batch.loss_mask.sum() == 10
    plain = encoder.empty_batch({"loss_mask": torch.ones(3), "__key__": ["a"], "tokens": 1})
    assert (plain["loss_mask"].sum(), plain["__key__"], plain["tokens"]) == (0, [], 1)
    with pytest.raises(ConfigError, match="Override empty_batch in DefaultTaskEncoder"):
        encoder.empty_batch({"tokens": 1})


def test_one_rank_ends_by_itself(tmp_path: Path) -> None:
    dataset = val_dataset(write_texts(tmp_path / "data", 10), batch_size=4)
    assert [len(batch.text) for batch in get_loader(dataset, ends="even")] == [4, 4, 2]


def test_a_number_of_micro_batches_holds_from_any_position_but_not_after_lanes_are_assigned_again(data: Path) -> None:
    ranks = [dataset_of("whole", str(data), rank, 2) for rank in range(2)]
    loaders = [get_loader(rank) for rank in ranks]
    for loader in loaders:
        for _ in range(3):
            next(iter(loader))
    state = merge_states([loader.save_state_rank() for loader in loaders])
    three = dataset_of("whole", str(data), 0, 3)
    assert (
        num_micro_batches(three, three.restored_state(state))
        == num_micro_batches(three, three.new_state())
        == NUM_MICRO_BATCHES
    )
    four = dataset_of("whole", str(data), 0, 4, num_lanes=8)
    assert num_micro_batches(four, four.restored_state(state)) is None


@pytest.mark.parametrize(("ends", "told"), [("even", "init_process_group"), ("odd", "ends='odd'")])
def test_ranks_that_cannot_meet_are_refused(data: Path, ends: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        get_loader(dataset_of("whole", str(data), 0, 2), ends=ends)
