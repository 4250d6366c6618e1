"""Bridge and Megatron-LM save and load the position of our loaders, on the ranks on which they ask for it."""

import json
from typing import Any

import pytest

from tests.datamodule.parts import NUM_TRAIN, draw, make_module, write_numbers
from tests.ranks import run_job

pytestmark = pytest.mark.processes

WAYS = ("tensor", "context", "pipeline", "data")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of the four ranks has seen."""
    folder = tmp_path_factory.mktemp("saving")
    data = write_numbers(folder / "data")
    status, output = run_job("tests.bridge.saving_job", str(data), str(folder), num_ranks=4)
    assert status == 0, output
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(4)]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    data = write_numbers(tmp_path_factory.mktemp("numbers"))
    return draw(make_module(data, num_lanes=4).train_dataloader(), 32)


@pytest.mark.parametrize("way", WAYS)
def test_all_ranks_of_a_replica_draw_the_same_and_replicas_share_the_data(
    ranks: list[dict[str, Any]], reference: list[list[int]], way: str
) -> None:
    for seen in (rank[way] for rank in ranks):
        assert seen["size"] == (4 if way == "data" else 2)
        assert seen["trained"] == reference[seen["rank"] :: seen["size"]][:5]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("saved", ["energon", "megatron"])
def test_the_ranks_that_are_asked_save_without_the_others_and_all_are_restored(
    ranks: list[dict[str, Any]], reference: list[list[int]], way: str, saved: str
) -> None:
    for seen in (rank[way] for rank in ranks):
        assert seen[f"resumed from {saved}"] == reference[seen["rank"] :: seen["size"]][3:5]


@pytest.mark.parametrize("way", WAYS)
def test_each_evaluation_begins_with_the_first_sample(ranks: list[dict[str, Any]], way: str) -> None:
    for seen in (rank[way] for rank in ranks):
        first = NUM_TRAIN + seen["rank"]
        expected = [[number] for number in range(first, first + 4 * seen["size"], seen["size"])]
        assert seen["evaluated"] == seen["evaluated again"] == expected


def test_more_ranks_than_saved_go_on_from_files_written_for_them(
    ranks: list[dict[str, Any]], reference: list[list[int]]
) -> None:
    """Bridge wants a file of each rank; two had saved after three micro-batches each."""
    seen = [rank["data"] for rank in ranks]
    assert ["train_dataloader_dprank" in rank.get("refused", "") for rank in seen] == [False, False, True, True]
    for name in ("resumed wider", "resumed on more"):
        drawn = {rank["rank"]: rank[name] for rank in seen}
        assert [drawn[slot % 4][(slot - 6) // 4] for slot in range(6, 14)] == reference[6:14]
