"""Skipped steps of a job of two ranks, and of one that goes on from its state."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.datamodule.parts import draw, make_module, write_numbers
from tests.datamodule.skip_job import DRAWN, MORE, OPTIONS
from tests.ranks import run_job

STEPS = (0, 1, 5, 8, 9, 10, 11, 12, 13)
"""The steps of the run as it was whose data come."""


@pytest.mark.processes
def test_ranks_agree_on_what_is_skipped_and_go_on_within_a_range(tmp_path: Path) -> None:
    data = write_numbers(tmp_path / "data")
    status, output = run_job("tests.datamodule.skip_job", str(data), str(tmp_path), num_ranks=2)
    assert status == 0, output
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    plain = draw(make_module(data, num_lanes=8, global_batch_size=4).train_dataloader(), 56)
    expected = [plain[4 * step + place] for step in STEPS for place in range(4)]

    def in_order(name: str) -> list[Any]:
        return [batch for row in zip(*(rank[name] for rank in ranks), strict=True) for batch in row]

    assert in_order("before") == expected[: 2 * DRAWN]
    assert in_order("after") == in_order("resumed") == expected[2 * DRAWN :]
    balanced = in_order("balanced")
    for begin in range(0, len(expected), 4):
        assert sorted(balanced[begin : begin + 4]) == sorted(expected[begin : begin + 4])
    alone = make_module(data, **OPTIONS)
    alone.load_state_dict({"train_dataloader": ranks[0]["state"]})
    assert draw(alone.train_dataloader(), 2 * MORE) == expected[2 * DRAWN :]
    assert alone.init_global_step == 2 * DRAWN // 4
