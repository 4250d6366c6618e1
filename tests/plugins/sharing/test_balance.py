"""Jobs of two to four gloo ranks that exchange micro-batches: the steps are those of the lanes, whoever works on
what."""

import json
from pathlib import Path
from typing import Any

import pytest

from bridge_data import ConfigError, DefaultTaskEncoder
from bridge_data.order.state import with_checksums
from bridge_data.plugins.sharing.assignment import imbalance, round_robin
from tests.datamodule.parallel.balance_job import BAD, GLOBAL_BATCH, NUM_LEFT_OUT, SAVED_AT, STEPS, length_of
from tests.datamodule.parts import NUM_TRAIN, draw, make_module
from tests.ranks import run_job

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def job(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The data, and what each rank of a kind of job saw."""
    folder = tmp_path_factory.mktemp("balance")
    status, output = run_job("tests.datamodule.parallel.balance_job", str(path), str(folder), timeout_s=120)
    assert status == 0, output

    def seen(work: str) -> list[dict[str, Any]]:
        return [json.loads(file.read_text()) for file in sorted((folder / work).iterdir())]

    return path, seen


def whole_steps(ranks: list[dict[str, Any]], name: str) -> list[list[int]]:
    """The numbers in each step of all ranks together, in order."""
    return [
        sorted(number for part in parts for number in part) for parts in zip(*(r[name] for r in ranks), strict=True)
    ]


def reference(data: Any, sizes: list[int], **options: Any) -> list[list[int]]:
    """The steps of one rank that reads everything."""
    options = {"num_lanes": 8, "seed": 3, **options}
    loader = make_module(data, **options).train_dataloader()
    return [sorted(number for batch in draw(loader, size) for number in batch) for size in sizes]


def greatest(parts: list[list[int]]) -> float:
    """Greatest over mean load of a step."""
    loads = [sum(length_of(number) for number in part) for part in parts]
    return max(loads) * len(loads) / sum(loads)


def test_a_step_has_the_same_micro_batches_as_on_one_rank_and_goes_on_after_a_restore(job: Any) -> None:
    data, seen = job
    ranks = seen("train")
    expected = reference(data, [GLOBAL_BATCH] * STEPS)
    assert whole_steps(ranks, "steps") == expected
    assert whole_steps(ranks, "resumed") == expected[SAVED_AT:]
    assert whole_steps(ranks, "resumed again") == expected[SAVED_AT : SAVED_AT + 1]
    assert all(rank["resumed"] == rank["steps"][SAVED_AT:] for rank in ranks)
    assert all(len(part) == GLOBAL_BATCH // 4 for rank in ranks for part in rank["steps"])


def test_the_load_is_what_the_report_says_and_less_than_unbalanced(job: Any) -> None:
    data, seen = job
    ranks = seen("train")
    balanced = [greatest(list(parts)) for parts in zip(*(rank["steps"] for rank in ranks), strict=True)]
    loader = make_module(data, num_lanes=8, seed=3).train_dataloader()
    stream = [number for batch in draw(loader, GLOBAL_BATCH * STEPS) for number in batch]
    for step, load in enumerate(balanced):
        costs = [length_of(number) for number in stream[step * GLOBAL_BATCH : (step + 1) * GLOBAL_BATCH]]
        assert load <= imbalance(round_robin(len(costs), 4), costs) + 1e-9
    _, unbalanced, reported, _ = ranks[0]["report"]
    assert unbalanced > 1.3 > reported * 0.9 and reported < unbalanced - 0.15
    assert sum(rank["report"][3] for rank in ranks) > 0
    reports = {tuple(rank["report"][:3]) for rank in ranks}
    assert len({num_steps for num_steps, *_ in reports}) == len(reports), "after as many steps, ranks report the same"


def test_the_state_is_that_of_a_run_without_balance_at_the_beginning_of_the_step(job: Any) -> None:
    data, seen = job
    module = make_module(data, num_lanes=8, seed=3)
    loader = module.train_dataloader()
    draw(loader, SAVED_AT * GLOBAL_BATCH)
    whole = loader.save_state()
    validation = draw(module.val_dataloader(), 12)
    for number, rank in enumerate(seen("train")):
        lanes = {lane: state for lane, state in whole["lanes"].items() if not number or int(lane) % 4 == number}
        assert rank["state"] == with_checksums({**whole, "lanes": lanes})
        assert rank["saved within"] and len(rank["warned"]) == 1
        assert "so its batches come again" in rank["warned"][0]
        assert rank["validated"] == [n for batch in validation[number::4] for n in batch], "not balanced"


def test_another_number_of_ranks_goes_on_with_the_same_steps_balanced_or_not(job: Any) -> None:
    data, seen = job
    expected = reference(data, [GLOBAL_BATCH] * STEPS)[SAVED_AT:]
    for balance in ("tokens", "False"):
        assert whole_steps(seen("resume"), balance) == expected
    assert all("balance has no effect" in rank["warned"][0] for rank in seen("resume")), "with one micro-batch a step"


def test_readers_balance_and_all_ranks_of_a_replica_see_what_theirs_got(job: Any) -> None:
    data, seen = job
    ranks = seen("share")
    assert ranks[0] == ranks[1] and ranks[2] == ranks[3]
    replicas = [ranks[0], ranks[2]]
    expected = reference(data, [GLOBAL_BATCH] * (STEPS + 2))
    assert whole_steps(replicas, "steps") + whole_steps(replicas, "further") == expected
    assert all(replica["resumed"] == replica["further"] for replica in replicas)


def test_where_data_or_a_virtual_epoch_ends_within_a_step_every_sample_comes_once(job: Any) -> None:
    data, seen = job
    ranks = seen("end")
    for number in range(2):
        passed = [sample for rank in ranks for sample in rank["passes"][number]]
        assert sorted(passed) == list(range(NUM_LEFT_OUT, NUM_TRAIN))
    assert len({len(rank["passes"][0]) for rank in ranks}) > 1, "the ranks end at different steps"
    assert whole_steps(ranks, "epochs") == reference(data, [9] * 4, num_lanes=6)


def test_steps_that_grow_are_balanced_each_by_itself(job: Any) -> None:
    data, seen = job
    assert whole_steps(seen("ramp"), "steps") == reference(data, [4, 8, 12, 12], num_lanes=4)


def test_a_failure_on_one_rank_stops_all_after_the_same_step(job: Any) -> None:
    _, seen = job
    told, failed = sorted(seen("fail"), key=lambda rank: rank["message"], reverse=True)
    assert failed["message"] == "ValueError: no scales for this one"
    assert told["message"] == "WorkerError: data-parallel rank 0 failed to read its part of a step; see its error"
    assert len(failed["seen"]) == len(told["seen"]) and len(failed["seen"]) % (GLOBAL_BATCH // 2) == 0
    assert BAD not in failed["seen"] + told["seen"]
    assert all(rank["again"] == rank["seen"][:2] for rank in (failed, told))
    refused = sorted(rank["refused"] for rank in (failed, told))
    assert "cannot be sent to another rank" in refused[0]
    assert refused[1] == "data-parallel rank 0 failed to read its part of a step; see its error"
    assert all("never balanced" in rank["even"] for rank in seen("fail"))


def test_without_other_ranks_there_is_nothing_to_balance_and_what_is_no_cost_is_refused(
    path: Path, expected: list[list[int]], tmp_path: Path
) -> None:
    assert draw(make_module(path, balance=len).train_dataloader(), 6) == expected[:6]
    with pytest.raises(ConfigError, match=r"balance='token'; did you mean 'tokens'.*function of the batch"):
        make_module(tmp_path, balance="token")
    with pytest.raises(ConfigError, match="batch_cost of DefaultTaskEncoder, which does not override it"):
        make_module(tmp_path, balance=True, task_encoder=DefaultTaskEncoder())
