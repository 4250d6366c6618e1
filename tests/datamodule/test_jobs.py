"""The DataModule in jobs of two ranks under Megatron: what they read, save and resume; steps that are run again; and
steps that are skipped."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.datamodule import skip_job
from tests.datamodule.jobs import in_order, run_ranks
from tests.datamodule.parts import NUM_TRAIN, draw, make_module
from tests.ranks import run_job

pytestmark = pytest.mark.processes


def check_ranks_of_megatron(ranks: list[dict[str, Any]], path: Path) -> None:
    """What the two ranks of `megatron_job` have seen is right."""
    reference = draw(make_module(path, num_lanes=2).train_dataloader(), 16)
    assert len(ranks) == 2
    for rank, seen in enumerate(ranks):
        assert seen["tensor parallel, collection"] == seen["tensor parallel, state"] == [0, 1]
        assert seen["tensor parallel"] == reference[:4], "both ranks of a replica read the same"
        assert seen["default"] == seen["data parallel"] == [rank, 2]
        assert seen["trained"] == reference[rank::2]
        assert seen["evaluated"] == 2 * [[number] for number in range(NUM_TRAIN + rank, NUM_TRAIN + 6, 2)]
        assert seen["lanes"] == (["1"] if rank else ["0", "1"]), "the state of rank 0 is whole"
        assert seen["shared"] == reference[rank::2][:3], "the data-parallel rank is the same whoever looks it up"
        assert seen["resumed"] == reference[rank::2][5:8]
        assert seen["init_global_step"] == 5


def test_ranks_read_save_and_resume_as_megatron_divides_them(path: Path, tmp_path: Path) -> None:
    check_ranks_of_megatron(run_ranks("megatron_job", 2, tmp_path, path), path)


def test_a_step_that_is_run_again_has_the_same_batches_and_the_saved_position_is_behind_them(
    path: Path, expected: list[list[int]], tmp_path: Path
) -> None:
    status, output = run_job("tests.datamodule.rerun_job", str(path), str(tmp_path / "seen.json"))
    assert status == 0, output
    seen = json.loads((tmp_path / "seen.json").read_text())
    steps = [expected[start : start + 2] for start in range(0, 10, 2)]
    goes_on, saves_and_exits = [False, False], [True, True]
    assert seen["steps"] == [
        [[steps[0]], goes_on],
        [[steps[1], steps[1]], goes_on],
        [[steps[2]], goes_on],
        [[steps[3], steps[3]], saves_and_exits],
    ]
    assert seen["after"] == steps[3]
    assert seen["replayed"] == steps[3], "what the machine keeps of the step in progress"
    assert seen["then"] == steps[4], "and the loader goes on behind it"


def test_ranks_agree_on_what_is_skipped_and_go_on_within_a_range(path: Path, tmp_path: Path) -> None:
    ranks = run_ranks("skip_job", 2, tmp_path, path)
    plain = draw(make_module(path, num_lanes=8, global_batch_size=4).train_dataloader(), 56)
    expected = [plain[4 * step + place] for step in (0, 1, 5, 8, 9, 10, 11, 12, 13) for place in range(4)]
    num_before, num_after = 2 * skip_job.DRAWN, 2 * skip_job.MORE
    assert in_order(ranks, "before") == expected[:num_before]
    assert in_order(ranks, "after") == in_order(ranks, "resumed") == expected[num_before:]
    balanced = in_order(ranks, "balanced")
    for begin in range(0, len(expected), 4):
        assert sorted(balanced[begin : begin + 4]) == sorted(expected[begin : begin + 4])
    alone = make_module(path, **skip_job.OPTIONS)
    alone.load_state_dict({"train_dataloader": ranks[0]["state"]})
    assert draw(alone.train_dataloader(), num_after) == expected[num_before:]
    assert alone.init_global_step == num_before // 4
