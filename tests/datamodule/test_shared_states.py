"""Four ranks save, and are restored on other numbers of ranks; and find different lists of forgotten samples."""

from pathlib import Path
from typing import Any

import pytest

from bridge_data import StateError, WorkerConfig
from bridge_data.datamodule.shared_states import distribute_state, gather_whole_state
from bridge_data.order.state import Generation, LoaderState
from tests.datamodule.jobs import in_order, run_ranks
from tests.datamodule.parts import NUM_TRAIN, draw, make_module, write_numbers
from tests.datamodule.state_job import DRAWN, MORE, NUM_LANES
from tests.prepared import write_blend, write_texts

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def ranks(path: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of four ranks has seen."""
    return run_ranks("state_job", 4, tmp_path_factory.mktemp("states"), path)


def test_every_number_of_ranks_goes_on_with_the_micro_batches_of_the_job(
    ranks: list[dict[str, Any]], path: Path
) -> None:
    """The same ranks do so without an exchange; others get what they lack from rank 0, whose state is whole."""
    assert [rank["lanes"] for rank in ranks] == [list(range(12)), *(list(range(n, 12, 4)) for n in (1, 2, 3))]
    stream = draw(make_module(path, num_lanes=NUM_LANES).train_dataloader(), 4 * (DRAWN + MORE))
    expected = stream[4 * DRAWN :]
    assert in_order(ranks, "same") == in_order(ranks, "after") == expected
    assert [rank["exchanged"] for rank in ranks] == [0] * 4
    assert in_order(ranks[:2], "two") == in_order(ranks[2:], "two") == expected[: 2 * MORE], "in each replica"
    assert in_order(ranks, "three") == expected[: 3 * MORE]
    assert in_order(ranks, "one") == expected[:MORE]
    assert in_order(ranks, "more than files") == expected
    drawn = [number for batch in stream[: 4 * DRAWN] + in_order(ranks, "resharded") for number in batch]
    assert len(drawn) == 4 * (DRAWN + MORE) and len(set(drawn)) == len(drawn)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("save refused", "they were not saved at the same step"),
        ("garbage", "the state that data-parallel rank 1 was given: not a loader state of bridge_data"),
        ("damaged", "the state that data-parallel rank 2 was given: lanes: None: expected a dict"),
        ("none", "no data-parallel rank was given a state"),
        ("edited", "data-parallel rank 0 was given: lanes.8: goes on with micro-batch 20, expected 8"),
        ("steps", "are of different steps: got micro-batch 28 of 12 lanes and micro-batch 12"),
        ("lacking", "data-parallel ranks [0, 1, 2, 3] of 4 lack lanes of 12"),
    ],
)
def test_bad_states_are_an_error_on_all_ranks(ranks: list[dict[str, Any]], name: str, message: str) -> None:
    (told,) = {rank[name] for rank in ranks}
    assert message in told
    assert "data-parallel rank 0 of 1 needs lanes" in ranks[3]["alone"], "the file of another rank alone"
    assert "Merge the states of all ranks" in ranks[3]["alone"]


def test_finite_data_goes_on_on_all_ranks_and_begins_anew_on_all(ranks: list[dict[str, Any]]) -> None:
    for count in ("7", "8"):
        rows = [rank["finite"][count] for rank in ranks]
        assert len({micro_batch_index for *_, micro_batch_index in rows}) == 1
        numbers = [n for before, after, _ in rows for batch in before + after for n in batch]
        assert sorted(numbers) == list(range(NUM_TRAIN)), "each sample once in the pass"
    ends = [rank["finite"]["9"] for rank in ranks]
    assert all(after == before for before, after, _ in ends), "at the end of the pass, the next one comes"


@pytest.fixture(scope="module")
def finders(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of four ranks has seen of a list whose newest version only the last one finds."""
    folder = tmp_path_factory.mktemp("lists")
    write_numbers(folder / "data")
    return run_ranks("lists_job", 4, folder)


def test_a_list_that_one_rank_finds_in_another_version_ends_all_of_its_group_at_the_start(
    finders: list[dict[str, Any]],
) -> None:
    for when in ("fresh", "resumed", "validation"):
        (message,) = {rank[when] for rank in finders}
        assert "data-parallel ranks 3 and 0 have found different data of 'withheld'" in message
        assert "[[2, " in message and "[[1, " in message
    for groups, kind in (("of two", "data-parallel"), ("beside", "model-parallel")):
        assert [rank[groups] for rank in finders[:2]] == ["", ""], "these have found the same"
        for rank in finders[2:]:
            assert f"{kind} ranks 1 and 0 have found different data of" in rank[groups]


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


def test_states_of_ranks_that_are_not_there_cannot_be_exchanged() -> None:
    with pytest.raises(StateError, match=r"torch.distributed is not initialised.*merge_states"):
        gather_whole_state(
            LoaderState({}, [Generation(2, [])], 0, {}), WorkerConfig(rank=0, world_size=2, num_workers=0)
        )
    with pytest.raises(StateError, match="was given a state"):
        distribute_state(None, WorkerConfig(rank=0, world_size=1, num_workers=0))


def test_ranks_of_other_settings_or_data_are_told_at_the_start(tmp_path: Path) -> None:
    write_numbers(tmp_path / "a")
    write_texts(tmp_path / "b", 60, per_shard=12, ratio="8,2,0")
    write_blend(tmp_path / "blend.yaml", {"a": 3, "b": 1}, val="a")
    write_blend(tmp_path / "other.yaml", {"a": 1, "b": 1}, val="a")
    ranks = run_ranks("settings_job", 4, tmp_path)
    assert {rank["the same"] for rank in ranks} == {""}
    for name, told in (
        ("weights", "weights: the state has [0.5, 0.5], this run has [0.75, 0.25]"),
        ("data", "sources: gone or changed: b/train"),
        ("seed", "seed: the state has 1, this run has 0"),
        ("lanes", "num_lanes: the state has 16, this run has 8"),
        ("shuffle", "shuffle_buffer_size: the state has 2000, this run has 20"),
    ):
        (message,) = {rank[name] for rank in ranks}
        assert "data-parallel rank 3 ('the state' below) is of other data or settings than" in message
        assert told in message
    of_replica = [rank["one of a replica"].partition(" ('the state'")[0] for rank in ranks]
    assert of_replica == ["", "data-parallel rank 1", "model-parallel rank 1", "data-parallel rank 1"]
