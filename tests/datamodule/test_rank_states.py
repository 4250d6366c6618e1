import json
from pathlib import Path
from typing import Any

import pytest

from bridge_data import StateError, WorkerConfig
from bridge_data.loader.rank_states import distribute_state, gather_state
from bridge_data.order.state import LoaderState
from tests.datamodule.parts import NUM_TRAIN, draw, make_module, write_numbers
from tests.datamodule.state_job import DRAWN, MORE, NUM_LANES
from tests.ranks import run_job

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of four ranks has seen."""
    folder = tmp_path_factory.mktemp("states")
    data = write_numbers(folder / "data")
    status, output = run_job("tests.datamodule.state_job", str(data), str(folder), num_ranks=4)
    assert status == 0, output
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(4)]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """The micro-batches of the job after those that were drawn before the save."""
    data = write_numbers(tmp_path_factory.mktemp("numbers"))
    return draw(make_module(data, num_lanes=NUM_LANES).train_dataloader(), 4 * (DRAWN + MORE))[4 * DRAWN :]


def in_order(ranks: list[dict[str, Any]], name: str) -> list[list[int]]:
    """The micro-batches of the ranks that have seen `name`, in the order of the job."""
    drawn = [rank[name] for rank in ranks if name in rank]
    return [batch for batches in zip(*drawn, strict=True) for batch in batches]


def test_the_state_of_rank_0_is_whole_and_the_others_hold_their_lanes(ranks: list[dict[str, Any]]) -> None:
    assert [rank["lanes"] for rank in ranks] == [list(range(12)), *(list(range(n, 12, 4)) for n in (1, 2, 3))]


def test_a_rank_ahead_of_the_others_fails_the_save_on_all(ranks: list[dict[str, Any]]) -> None:
    messages = {rank["save refused"] for rank in ranks}
    assert len(messages) == 1
    assert "they were not saved at the same step" in messages.pop()


def test_the_same_ranks_go_on_from_their_own_without_an_exchange(
    ranks: list[dict[str, Any]], expected: list[list[int]]
) -> None:
    assert in_order(ranks, "same") == in_order(ranks, "after") == expected
    assert [rank["exchanged"] for rank in ranks] == [0] * 4


def test_other_numbers_of_ranks_get_what_they_lack_from_rank_0(
    ranks: list[dict[str, Any]], expected: list[list[int]]
) -> None:
    assert in_order(ranks[:2], "two") == in_order(ranks[2:], "two") == expected[: 2 * MORE], "in each replica"
    assert in_order(ranks, "three") == expected[: 3 * MORE]
    assert in_order(ranks, "one") == expected[:MORE]


def test_more_ranks_than_files_are_restored_from_that_of_rank_0(
    ranks: list[dict[str, Any]], expected: list[list[int]]
) -> None:
    assert in_order(ranks, "more than files") == expected


def test_other_lanes_are_dealt_anew_from_the_whole_state(
    ranks: list[dict[str, Any]], expected: list[list[int]], tmp_path: Path
) -> None:
    before = draw(make_module(write_numbers(tmp_path), num_lanes=NUM_LANES).train_dataloader(), 4 * DRAWN)
    drawn = [number for batch in before + in_order(ranks, "dealt anew") for number in batch]
    assert len(drawn) == 4 * (DRAWN + MORE) and len(set(drawn)) == len(drawn)


def test_the_file_of_another_rank_alone_is_refused(ranks: list[dict[str, Any]]) -> None:
    assert "data-parallel rank 0 of 1 needs lanes" in ranks[3]["alone"]
    assert "Merge the states of all ranks" in ranks[3]["alone"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("garbage", "the state that data-parallel rank 1 was given: not a loader state of bridge_data"),
        ("damaged", "the state that data-parallel rank 2 was given: lanes: missing from the state"),
        ("none", "no data-parallel rank was given a state"),
        ("steps", "data-parallel ranks 1 and 0 were given are of different steps: got micro-batch 12 of 12 lanes and"),
        ("lacking", "data-parallel ranks [0, 1, 2, 3] of 4 lack lanes of 12"),
    ],
)
def test_bad_states_are_an_error_on_all_ranks(ranks: list[dict[str, Any]], name: str, message: str) -> None:
    messages = {rank[name] for rank in ranks}
    assert len(messages) == 1
    assert message in messages.pop()


def test_finite_data_goes_on_on_all_ranks_and_begins_anew_on_all(ranks: list[dict[str, Any]]) -> None:
    for count in ("7", "8"):
        rows = [rank["finite"][count] for rank in ranks]
        assert len({next_slot for *_, next_slot in rows}) == 1
        numbers = [n for before, after, _ in rows for batch in before + after for n in batch]
        assert sorted(numbers) == list(range(NUM_TRAIN)), "each sample once in the pass"
    ends = [rank["finite"]["9"] for rank in ranks]
    assert all(after == before for before, after, _ in ends), "at the end of the pass, the next one comes"


@pytest.fixture(scope="module")
def finders(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of four ranks has seen of a list whose newest version only the last one finds."""
    folder = tmp_path_factory.mktemp("lists")
    write_numbers(folder / "data")
    status, output = run_job("tests.datamodule.lists_job", str(folder), num_ranks=4)
    assert status == 0, output
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(4)]


@pytest.mark.parametrize("when", ["fresh", "resumed", "validation"])
def test_a_list_that_one_rank_finds_in_another_version_ends_all_at_the_start(
    finders: list[dict[str, Any]], when: str
) -> None:
    (message,) = {rank[when] for rank in finders}
    assert "data-parallel ranks 3 and 0 have found different lists of forgotten samples: of source" in message
    assert "versions [[2, " in message and "[[1, " in message


@pytest.mark.parametrize(("groups", "kind"), [("of two", "data-parallel"), ("beside", "model-parallel")])
def test_only_the_ranks_of_a_group_are_compared(finders: list[dict[str, Any]], groups: str, kind: str) -> None:
    assert [rank[groups] for rank in finders[:2]] == ["", ""], "these have found the same"
    for rank in finders[2:]:
        assert f"{kind} ranks 1 and 0 have found different lists" in rank[groups]


def test_a_version_that_appears_during_a_run_is_used_by_no_rank_before_the_restart(
    finders: list[dict[str, Any]],
) -> None:
    for rank in finders:
        assert rank["begun under"] == rank["saved under"] == 1 and rank["restarts"]
        assert rank["restarted under"] == [1, 2]
    drawn = {name: {n for rank in finders for batch in rank[name] for n in batch} for name in ("before", "after")}
    gone = set(finders[0]["forgotten meanwhile"])
    assert gone & drawn["before"], "the list took effect in the run, when its workers were replaced"
    assert not gone & drawn["after"] and not drawn["before"] & drawn["after"]


def test_ranks_that_are_not_there_cannot_be_gathered() -> None:
    with pytest.raises(StateError, match=r"torch.distributed is not initialised.*merge_states"):
        gather_state(LoaderState({}, [(2, [])], 0, {}), WorkerConfig(rank=0, world_size=2, num_workers=0))


def test_a_rank_alone_needs_a_state() -> None:
    with pytest.raises(StateError, match="was given a state"):
        distribute_state(None, WorkerConfig(rank=0, world_size=1, num_workers=0))
