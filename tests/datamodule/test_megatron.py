"""The DataModule in a Megatron job of two ranks."""

import json
from pathlib import Path

import pytest

from tests.datamodule.parts import NUM_TRAIN, draw, make_module, write_numbers
from tests.ranks import run_job


@pytest.mark.processes
def test_ranks_read_save_and_resume_as_megatron_divides_them(tmp_path: Path) -> None:
    data = write_numbers(tmp_path / "data")
    reference = draw(make_module(data, num_lanes=2).train_dataloader(), 16)
    status, output = run_job("tests.datamodule.megatron_job", str(data), str(tmp_path), num_ranks=2)
    assert status == 0, output
    for rank in range(2):
        seen = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert seen["tensor parallel, collection"] == seen["tensor parallel, state"] == [0, 1]
        assert seen["tensor parallel"] == reference[:4], "both ranks of a replica read the same"
        assert seen["default"] == seen["data parallel"] == [rank, 2]
        assert seen["trained"] == reference[rank::2]
        assert seen["evaluated"] == 2 * [[number] for number in range(NUM_TRAIN + rank, NUM_TRAIN + 6, 2)]
        assert seen["lanes"] == (["1"] if rank else ["0", "1"]), "the state of rank 0 is whole"
        assert seen["shared"] == reference[rank::2][:3], "the data-parallel rank is the same whoever looks it up"
        assert seen["resumed"] == reference[rank::2][5:8]
        assert seen["init_global_step"] == 5
